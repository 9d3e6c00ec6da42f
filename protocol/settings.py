"""Configuration: one frozen struct per process, from flags, environment and defaults.

The struct is the only description: a field's type checks the value, its `Meta(description=…)` is
the help text, its name is the flag (`max_num_seqs` → `--max-num-seqs`, `TANDEM_MAX_NUM_SEQS`).
Flags win over the environment, the environment over defaults.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as types

S = TypeVar("S", bound=msgspec.Struct)

ENVIRONMENT_PREFIX = "TANDEM_"

_WRONG = re.compile(r" - at `\$\.(\w+)")
_MISSING = re.compile(r"missing required field `(\w+)`$")
"""Where msgspec's messages name a field."""


class SettingError(ValueError):
    """A setting has a value that it cannot have. The message names the flag and the value."""


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def _unwrap(field: types.Field) -> tuple[types.Type, str]:
    """Return a field's type without metadata and None, and its help text."""
    kind, text = field.type, ""
    while isinstance(kind, types.Metadata | types.UnionType):
        if isinstance(kind, types.Metadata):
            text = text or (kind.extra_json_schema or {}).get("description", "")
            kind = kind.type
        else:
            kind = next(t for t in kind.types if not isinstance(t, types.NoneType))
    return kind, text


def _is_many(kind: types.Type) -> bool:
    return isinstance(kind, types.VarTupleType | types.ListType)


def add_flags(parser: argparse.ArgumentParser, struct: type[msgspec.Struct]) -> None:
    """Add a flag for each field of `struct`. Values stay strings; `build` converts them."""
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    for field in info.fields:
        kind, text = _unwrap(field)
        shown = "" if field.required else f" (default: {field.default!r})"
        options: dict[str, Any] = {"default": None, "help": (text + shown).replace("%", "%%")}
        if isinstance(kind, types.BoolType):
            options["action"] = argparse.BooleanOptionalAction
        elif _is_many(kind):
            options.update(nargs="*", action="extend", metavar="VALUE")
        elif isinstance(kind, types.EnumType):
            options["choices"] = [member.value for member in kind.cls]
        else:
            options["metavar"] = field.name.rsplit("_", 1)[-1].upper()
        parser.add_argument(flag(field.name), dest=field.name, **options)


def build(struct: type[S], flags: Mapping[str, object], environment: Mapping[str, str]) -> S:
    """Return the settings. Raises SettingError, naming the flag and the value."""
    values: dict[str, object] = {}
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    for field in info.fields:
        given = flags.get(field.name)
        if given is None and (text := environment.get(ENVIRONMENT_PREFIX + field.name.upper())):
            given = text.split(",") if _is_many(_unwrap(field)[0]) else text
        if given is not None:
            values[field.name] = given
    try:
        return msgspec.convert(values, struct, strict=False)
    except msgspec.ValidationError as error:
        message = str(error)
        if missing := _MISSING.search(message):
            raise SettingError(f"{flag(missing[1])} is missing") from None
        if (wrong := _WRONG.search(message)) and wrong[1] in values:
            why = message.split(" - at")[0]
            raise SettingError(f"{flag(wrong[1])} {values[wrong[1]]!r}: {why}") from None
        raise SettingError(message) from None


def arguments(settings: msgspec.Struct) -> list[str]:
    """Return the command line that `parse` reads back as `settings`: the way to a child process.

    Every value is spelled out, also a default, so that the child's environment changes nothing.
    """
    line: list[str] = []
    for name in settings.__struct_fields__:
        value = msgspec.to_builtins(getattr(settings, name))
        if value is None:
            continue
        if isinstance(value, bool):
            line.append(flag(name) if value else flag("no_" + name))
        elif isinstance(value, list | tuple):
            line += [flag(name), *(str(item) for item in value)]
        else:
            line.append(f"{flag(name)}={value}")
    return line


def parse(
    struct: type[S],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    prog: str,
    description: str,
) -> S:
    """Parse a process's settings; print the error and exit with status 2 when they are wrong."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    add_flags(parser, struct)
    flags = vars(parser.parse_args(arguments))
    try:
        return build(struct, flags, environment)
    except SettingError as error:
        parser.error(str(error))
