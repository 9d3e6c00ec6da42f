"""Finds a policy by name: an installed entry point, one of our own, or any `module:Class`.

The only place that imports policies by name, so that a policy can live in anybody's package.
"""

import importlib
import inspect
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

import msgspec

from scheduler.estimator.base import Estimator
from scheduler.policy import Objectives, Policy

GROUP = "tandem.schedulers"
"""Entry point group: name = "module:Class"."""

BUILT_IN = {
    "chunked": "scheduler.policies.chunked:Chunked",
    "drift": "scheduler.policies.drift:Drift",
    "muxwise": "scheduler.policies.muxwise:MuxWise",
    "prefill_first": "scheduler.policies.prefill_first:PrefillFirst",
    "static": "scheduler.policies.static:Static",
    "streams": "scheduler.policies.streams:Streams",
    "temporal": "scheduler.policies.temporal:Temporal",
}
"""Our own, for a checkout that is not installed."""


class PolicyError(ValueError):
    """No such policy, or an option that it does not take. The message lists what there is."""


def known() -> dict[str, str]:
    """Return the names of all policies that can be found, each with its `module:Class`."""
    installed = {point.name: point.value for point in entry_points(group=GROUP)}
    return dict(sorted({**BUILT_IN, **installed}.items()))


def load(name: str) -> type[Any]:
    """Return the class of a policy. Raises PolicyError, listing the known names."""
    target = name if ":" in name else known().get(name)
    if target is None:
        raise PolicyError(f"no scheduler {name!r}; known: {', '.join(known())}, or module:Class")
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PolicyError(f"scheduler {name!r} cannot be loaded from {target}: {error}") from error
    if not (isinstance(found, type) and hasattr(found, "plan") and hasattr(found, "Options")):
        raise PolicyError(f"scheduler {name!r}: {target} is no class with `plan` and `Options`")
    return found


def make(
    name: str,
    objectives: Objectives,
    options: Sequence[str] = (),
    estimator: Estimator | None = None,
) -> Policy:
    """Return a policy with its options, each given as `key=value`. Raises PolicyError.

    `estimator` goes to policies whose class takes one.
    """
    found = load(name)
    values: dict[str, str] = {}
    fields = [field.name for field in msgspec.structs.fields(found.Options)]
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise PolicyError(f"option {option!r} of {name} is not key=value")
        if key not in fields:
            raise PolicyError(f"{name} has no option {key!r}; known: {', '.join(fields)}")
        values[key] = value
    try:
        typed = msgspec.convert(values, found.Options, strict=False)
    except msgspec.ValidationError as error:
        raise PolicyError(f"options of {name} {values}: {error}") from error
    policy: Policy
    if "estimator" in inspect.signature(found).parameters:
        policy = found(objectives, typed, estimator=estimator)
    else:
        policy = found(objectives, typed)
    return policy


def describe(name: str) -> list[str]:
    """Return a line for each option of a policy: name, default, help."""
    info = msgspec.inspect.type_info(load(name).Options)
    assert isinstance(info, msgspec.inspect.StructType)
    lines = []
    for field in info.fields:
        text = ""
        if isinstance(field.type, msgspec.inspect.Metadata):
            text = (field.type.extra_json_schema or {}).get("description", "")
        lines.append(f"{field.name}={field.default}  {text}".rstrip())
    return lines
