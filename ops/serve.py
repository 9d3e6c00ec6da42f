"""`tandem serve`: settings in, run directory and launcher up, until a signal has drained it all."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.util import find_spec
from os import environ
from pathlib import Path

import aiohttp
from rich.console import Console

from ops import admin, config, demo, run_dir
from ops.display import Display
from ops.events import Choice, Start
from ops.launch import Launcher
from ops.run_dir import RunDir, RunDirError
from ops.serve_settings import MODULES, LauncherSettings, Parts, ServeSettings, split
from ops.supervisor import Supervisor, SupervisorConfig
from protocol import settings
from protocol.lifecycle import EXIT_CONFIG
from worker.settings import Device

FALLBACK = Choice("chunked")
"""The scheduler that needs least of a machine."""
DEMO_SETTINGS = {"slo-tbt-ms": 300.0, "slo-ttft-ms": 5000.0}
"""Objectives that the embedded model can keep on a few cores; what the user says goes first."""
FENCE_TIMEOUT_S = 10.0
DRAIN_GRACE_S = 5.0
"""What a process has on top of its own drain time before it is killed."""
NO_TORCH = (
    "the worker needs torch, which is not installed: "
    "pip install 'tandem-serve[worker]', or 'tandem-serve[worker,cuda]' with an NVIDIA GPU"
)


class CannotServe(Exception):
    """What is asked for can never work here. The message says what to change."""


def main(arguments: Sequence[str]) -> int:
    """Serve until the end; return the exit status (2: the settings cannot work)."""
    try:
        parts = read(arguments, environ)
        check(parts)
        named = parts.launcher.run_dir
        folder = run_dir.use(Path(named)) if named else run_dir.create(environ)
    except (CannotServe, RunDirError) as error:
        print(f"tandem serve: {error}", file=sys.stderr)
        return EXIT_CONFIG
    try:
        return asyncio.run(serve(parts, folder))
    finally:
        folder.close()


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Parts:
    """Return the settings. Raises CannotServe, or exits when a setting is wrong."""
    parser = settings.Parser("tandem serve", __doc__ or "")
    parser.add_argument("MODEL", nargs="?", help="a folder, a .gguf file, or `demo`")
    settings.add_flags(parser, ServeSettings)
    settings.add_config(parser)
    flags = vars(parser.parse_args(arguments))
    flags["model"] = flags.pop("MODEL") or flags["model"]
    try:
        file = settings.config(flags, environment, config.reader("serve"))
        chosen = settings.build(ServeSettings, flags, environment, file)
        is_demo = split(chosen).launcher.demo
        if not (is_demo or flags["model"] or environment.get("TANDEM_MODEL") or file.get("model")):
            raise CannotServe("name a model (a folder or a .gguf file), or give --demo")
        if is_demo:
            chosen = settings.build(ServeSettings, flags, environment, {**DEMO_SETTINGS, **file})
        return split(chosen)
    except settings.SettingError as error:
        parser.error(str(error))


def check(parts: Parts) -> None:
    """Find what cannot work before anything is started. Raises CannotServe."""
    if find_spec("torch") is None and parts.worker.device != Device.SIMULATED:
        raise CannotServe(NO_TORCH)
    host, port = parts.gateway.host, parts.gateway.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or error
        raise CannotServe(
            f"cannot listen on {host}:{port}: {reason}; choose another --port"
        ) from None


def supervisor_for(parts: Parts) -> Supervisor:
    """Return the supervisor with its deadlines."""
    drain_timeout_s = parts.gateway.drain_timeout_s + DRAIN_GRACE_S
    config = SupervisorConfig(
        start_timeout_s=parts.launcher.start_timeout_s,
        swap_timeout_s=parts.launcher.swap_timeout_s,
        fence_timeout_s=FENCE_TIMEOUT_S,
        drain_timeout_s=drain_timeout_s,
        stop_timeout_s=drain_timeout_s,
        fallback=FALLBACK,
    )
    return Supervisor(config, parts.choice)


def launcher_for(parts: Parts, folder: RunDir) -> Launcher:
    """Return the launcher of a server with its sockets in `folder`. Needs a running event loop."""
    path = str(folder.path)

    def command(start: Start, ready_fd: int) -> list[str]:
        module = [sys.executable, "-P", "-m", MODULES[start.role]]
        return module + parts.arguments(start, path, ready_fd)

    inherited = {k: v for k, v in environ.items() if not k.startswith(settings.ENVIRONMENT_PREFIX)}
    display = Display(Console(stderr=True), parts.gateway.log_format)
    return Launcher(supervisor_for(parts), command, inherited, display, path)


async def serve(parts: Parts, folder: RunDir) -> int:
    """Run the launcher with its admin socket, and the demo's question if asked for."""
    launcher = launcher_for(parts, folder)
    async with orders(folder, launcher):
        greeting = asyncio.create_task(greet(launcher, parts.launcher))
        status = await launcher.run()
        greeting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            status = status or await greeting
    return status


@contextlib.asynccontextmanager
async def orders(folder: RunDir, launcher: Launcher) -> AsyncIterator[None]:
    """Listen on the admin socket."""
    server = await admin.listen(folder.admin_socket, launcher.handle)
    try:
        yield
    finally:
        server.close()


async def greet(launcher: Launcher, own: LauncherSettings) -> int:
    """Say where the server is; in a demo, ask it the question. Return 1 for a wrong answer."""
    await launcher.serving.wait()
    url, status = launcher.url, 0
    console = Console()
    try:
        model = await demo.model_name(url)
        if own.demo:
            status = await ask_question(console, url, model)
    except (aiohttp.ClientError, demo.DemoError, TimeoutError) as error:
        print(f"tandem serve: the server does not answer: {error!r}", file=sys.stderr)
        model, status = "MODEL", 1
    console.print(f"\n[bold]Serving at {url}[/bold]", highlight=False)
    console.print(f"Chat, and watch the server work, in a browser: {url}/", highlight=False)
    print(f"Or ask from a terminal:\n\n{demo.curl_line(url, model)}", flush=True)
    if own.once:
        launcher.stop()
    return status


async def ask_question(console: Console, url: str, model: str) -> int:
    """Stream the demo's answer; 0 when it contains what it must."""

    def show(text: str) -> None:
        print(text, end="", flush=True)

    console.print(f"\n[bold]{demo.QUESTION}[/bold]", highlight=False)
    answer = await demo.ask(url, model, demo.QUESTION, show)
    print(flush=True)
    return 0 if demo.EXPECTED in answer else 1
