"""Settings of `tandem serve`: the flags of the three processes and the launcher's own, once each.

Derived, not repeated: a flag that a process gains is a flag of `tandem serve` at once, and one that
several have (the model, the log level) goes to each of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from ops.events import Choice, Role, Start
from protocol import settings
from scheduler.settings import SchedulerSettings
from tokenizer_service.settings import GatewaySettings
from worker.settings import WorkerSettings

S = TypeVar("S", bound=Struct)

MODULES = {
    Role.WORKER: "worker.main",
    Role.SCHEDULER: "scheduler.main",
    Role.GATEWAY: "tokenizer_service.main",
}
"""What `python -m` is told to start."""

PER_PROCESS = ("run_dir", "ready_fd", "observe_only")
"""What the launcher decides for each process; a scheduler that never acts cannot serve."""


class LauncherSettings(Struct, frozen=True, kw_only=True):
    """What no process but the launcher needs."""

    run_dir: Annotated[
        str | None, Meta(description="directory of the sockets, mode 0700; default: a new one")
    ] = None
    demo: Annotated[bool, Meta(description="serve the embedded model and ask it a question")] = (
        False
    )
    once: Annotated[bool, Meta(description="with --demo: end after the answer")] = False
    start_timeout_s: Annotated[
        float, Meta(gt=0, description="longest silence of a process that starts")
    ] = 180.0
    swap_timeout_s: Annotated[
        float, Meta(gt=0, description="longest silence of a scheduler that is to replace another")
    ] = 60.0


def _fields(struct: type[Struct]) -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        default = field.default
        if default is NODEFAULT and field.default_factory is not NODEFAULT:
            default = field.default_factory()
        yield field.name, hints[field.name], default


def _serve_struct() -> type[Struct]:
    """Return the union of all fields. The first owner of a name describes it."""
    merged: dict[str, tuple[str, Any, Any]] = {}
    for struct in (LauncherSettings, GatewaySettings, SchedulerSettings, WorkerSettings):
        for name, hint, default in _fields(struct):
            if name not in merged and (struct is LauncherSettings or name not in PER_PROCESS):
                merged[name] = (name, hint, default)
    return msgspec.defstruct("ServeSettings", merged.values(), frozen=True, kw_only=True)


ServeSettings = _serve_struct()


@dataclass(frozen=True)
class Parts:
    """The settings of each process. Their run directory and descriptor are set when they start."""

    launcher: LauncherSettings
    worker: WorkerSettings
    scheduler: SchedulerSettings
    gateway: GatewaySettings

    @property
    def choice(self) -> Choice:
        """The first scheduler."""
        return Choice(self.scheduler.scheduler, self.scheduler.option)

    def arguments(self, start: Start, run_dir: str, ready_fd: int) -> list[str]:
        """Return the arguments of one process."""
        by_role = {
            Role.WORKER: self.worker,
            Role.SCHEDULER: self.scheduler,
            Role.GATEWAY: self.gateway,
        }
        values: dict[str, object] = {"run_dir": run_dir, "ready_fd": ready_fd}
        if start.choice is not None:
            values |= {"scheduler": start.choice.policy, "option": start.choice.options}
        return settings.arguments(msgspec.structs.replace(by_role[start.role], **values))


def split(chosen: Struct) -> Parts:
    """Give each process its share of the settings of `tandem serve`."""
    values = {name: getattr(chosen, name) for name in chosen.__struct_fields__}

    def part(struct: type[S], **more: object) -> S:
        mine = {name: values[name] for name in struct.__struct_fields__ if name in values}
        return struct(**{**mine, **more})

    # The gateway knows a model by several names, the worker by the first of them.
    names: tuple[str, ...] = values["served_model_name"]
    return Parts(
        part(LauncherSettings),
        part(WorkerSettings, run_dir="", served_model_name=names[0] if names else None),
        part(SchedulerSettings, run_dir=""),
        part(GatewaySettings, run_dir=""),
    )
