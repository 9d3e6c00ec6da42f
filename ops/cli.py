"""The `tandem` command: finds the subcommand and hands the rest of the line to it.

Each subcommand is a module with `main(arguments) -> exit status`, imported when it is asked for, so
that `tandem swap` does not load what only `tandem serve` needs.
"""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version

COMMANDS = {
    "serve": ("ops.serve", "start a server: worker, scheduler and gateway"),
    "chat": ("ops.chat", "talk to a running server in the terminal"),
    "swap": ("ops.swap", "replace the scheduler of a running server"),
    "status": ("ops.status", "show what a running server consists of"),
    "profile": ("ops.profile", "measure a model on this device, for the scheduler"),
    "profile-report": ("ops.profile_report", "write the page of a profile"),
    "timeline": ("ops.timeline", "record both lanes of a running server as a trace"),
    "explain": ("ops.explain", "show what the scheduler decided last, and why"),
    "schedulers": ("ops.schedulers", "list the schedulers and their options"),
    "bench": ("ops.bench.main", "measure an engine"),
    "doctor": ("ops.doctor", "say what this machine can do, and why not more"),
}


def usage() -> str:
    """Return the help text."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: tandem COMMAND [--help] …",
            "       tandem --version",
            "",
            "LLM serving that prefills and decodes at the same time on one device.",
            "",
            "commands:",
            *lines,
        ]
    )


def release() -> str:
    """Return the installed version."""
    try:
        return version("tandem-serve")
    except PackageNotFoundError:
        return "not installed (running from a folder)"


def main() -> int:
    """Run one command and return its exit status. Entry point of `tandem`."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("--version", "-V"):
        print(f"tandem {release()}")
        return 0
    if name in ("--help", "-h"):
        print(usage())
        return 0
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"tandem: no command {name!r}; known: {known}", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[name][0])
    status: int = module.main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
