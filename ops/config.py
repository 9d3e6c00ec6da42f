"""Settings files (`--config`), and how every `tandem` command reads its settings.

One file may serve all commands: flat, it has the settings of the one that is called; else it has a
section for each, and the others' are not looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from os import environ
from typing import TypeVar

import yaml
from msgspec import Struct

from protocol import settings
from protocol.settings import SettingError

S = TypeVar("S", bound=Struct)


def parse(struct: type[S], arguments: Sequence[str], *, prog: str, description: str | None) -> S:
    """Return a command's settings, or exit with status 2 and say what is wrong."""
    return settings.parse(
        struct,
        arguments,
        environ,
        prog=prog,
        description=description or "",
        read_file=reader(prog.removeprefix("tandem ")),
    )


def reader(command: str) -> Callable[[str], Mapping[str, object]]:
    """Return what reads the settings of `command` from a file."""
    return lambda path: read(path, command)


def read(path: str, command: str) -> Mapping[str, object]:
    """Return the settings of `command` in a YAML file. Raises SettingError."""
    try:
        with open(path, encoding="utf-8") as file:
            said = yaml.safe_load(file)
    except OSError as error:
        raise SettingError(f"--config {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"--config {path} is not YAML: {error}") from None
    whole = _mapping(said if said is not None else {}, path)
    sections = [key for key, value in whole.items() if isinstance(value, dict) and key in COMMANDS]
    if not sections:
        return whole
    for key in whole.keys() - set(sections):
        raise SettingError(f"--config {path}: {key!r} stands beside sections; put it into one")
    return _mapping(whole.get(command, {}), path)


def _mapping(said: object, path: str) -> Mapping[str, object]:
    if not isinstance(said, dict) or not all(isinstance(key, str) for key in said):
        raise SettingError(f"--config {path}: settings are `name: value` lines")
    return said


COMMANDS = frozenset(
    {"serve", "chat", "swap", "status", "profile", "profile-report", "explain", "bench serve"}
    | {"bench search", "timeline", "simulate", "soak", "keys"}
)
"""Sections that a file may have."""
