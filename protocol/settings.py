"""Configuration: one frozen struct per process, from flags, environment, a file and defaults.

The struct is the only description: a field's type checks the value, its `Meta(description=…)` is
the help text, its name is the flag (`max_num_seqs` → `--max-num-seqs`, `TANDEM_MAX_NUM_SEQS`, and
`max-num-seqs` in a file). Flags win over the environment, the environment over the file, the file
over defaults. How a file is read is not known here: see `ops.config`.
"""

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect as types

S = TypeVar("S", bound=msgspec.Struct)

ENVIRONMENT_PREFIX = "TANDEM_"

_WRONG = re.compile(r" - at `\$\.(\w+)")
_MISSING = re.compile(r"missing required field `(\w+)`$")
"""Where msgspec's messages name a field."""
_UNKNOWN = re.compile(r"unrecognized arguments: (--\S+)")
"""Where argparse's message names a flag."""


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


def build(
    struct: type[S],
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Mapping[str, object] | None = None,
) -> S:
    """Return the settings; `file` has a value by a flag's name. Raises SettingError, which names
    where the value was given, the value, and what it may be.
    """
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    written = _by_field(file or {}, [field.name for field in info.fields])
    values: dict[str, object] = {}
    given_as: dict[str, str] = {}
    for field in info.fields:
        name, many = field.name, _is_many(_unwrap(field)[0])
        variable = ENVIRONMENT_PREFIX + name.upper()
        if flags.get(name) is not None:
            values[name], given_as[name] = flags[name], flag(name)
        elif text := environment.get(variable):
            values[name], given_as[name] = (text.split(",") if many else text), variable
        elif written.get(name) is not None:
            values[name] = _listed(written[name]) if many else written[name]
            given_as[name] = name.replace("_", "-") + ":"
    try:
        return msgspec.convert(values, struct, strict=False)
    except msgspec.ValidationError as error:
        message = str(error)
        if missing := _MISSING.search(message):
            raise SettingError(f"{flag(missing[1])} is missing") from None
        if (wrong := _WRONG.search(message)) and wrong[1] in values:
            why = message.split(" - at")[0]
            raise SettingError(f"{given_as[wrong[1]]} {values[wrong[1]]!r}: {why}") from None
        raise SettingError(message) from None


def _by_field(file: Mapping[str, object], fields: Sequence[str]) -> dict[str, object]:
    """Return a file's values by field. Raises SettingError for a key that is no setting."""
    found: dict[str, object] = {}
    for key, value in file.items():
        name = key.replace("-", "_")
        if name not in fields:
            known = [field.replace("_", "-") for field in fields]
            raise SettingError(f"there is no setting {key!r}{suggest(key, known)}")
        found[name] = value
    return found


def _listed(value: object) -> object:
    """Return a file's list: a mapping is `key=value` each, one value is a list of it."""
    if isinstance(value, Mapping):
        return [f"{key}={each}" for key, each in value.items()]
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a hint at what may have been meant; empty when nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


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


class Parser(argparse.ArgumentParser):
    """Flags as they are written, without abbreviations; an unknown one is answered with a hint."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit with status 2."""
        if unknown := _UNKNOWN.search(message):
            known = [option for option in self._option_string_actions if option.startswith("--")]
            message += suggest(unknown[1].split("=")[0], known)
        super().error(message)


def parse(
    struct: type[S],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    prog: str,
    description: str,
    read_file: Callable[[str], Mapping[str, object]] | None = None,
) -> S:
    """Parse a process's settings; print the error and exit with status 2 when they are wrong.

    `read_file` returns what the file of `--config` says, and raises SettingError; None: there is no
    such flag.
    """
    parser = Parser(prog, description)
    add_flags(parser, struct)
    if read_file is not None:
        add_config(parser)
    flags = vars(parser.parse_args(arguments))
    try:
        return build(struct, flags, environment, config(flags, environment, read_file))
    except SettingError as error:
        parser.error(str(error))


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names a file of settings."""
    text = "YAML file with settings by the names of these flags; flags and environment go before it"
    parser.add_argument("--config", metavar="FILE", help=text)


def config(
    flags: dict[str, Any],
    environment: Mapping[str, str],
    read_file: Callable[[str], Mapping[str, object]] | None,
) -> Mapping[str, object]:
    """Take the name of the file out of the flags, or the environment, and return what it says."""
    path = flags.pop("config", None) or environment.get(ENVIRONMENT_PREFIX + "CONFIG")
    return read_file(path) if read_file is not None and path else {}
