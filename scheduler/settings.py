"""Settings of a scheduler process: every flag, with its help and its range."""

from typing import Annotated

from msgspec import Meta

from protocol.lifecycle import ReadyFd
from protocol.logs import LogForm, LogFormat
from protocol.slo import ObjectiveSettings


class SchedulerSettings(ObjectiveSettings, frozen=True, kw_only=True):
    """One scheduler of one worker."""

    run_dir: Annotated[str, Meta(description="directory of the worker's sockets, mode 0700")]
    scheduler: Annotated[str, Meta(description="a policy: a known name, or module:Class")] = (
        "muxwise"
    )
    option: Annotated[
        tuple[str, ...], Meta(description="options of the policy, each key=value")
    ] = ()
    profile: Annotated[
        str,
        Meta(
            description="what `tandem profile` wrote; auto: the one of this device and model, if "
            "there is one; none: measure as it runs"
        ),
    ] = "auto"
    soft_state: Annotated[
        str | None, Meta(description="file that keeps what was learnt beside the profile")
    ] = None
    observe_only: Annotated[bool, Meta(description="follow the worker and plan, but never act")] = (
        False
    )
    metrics_port: (
        Annotated[
            int,
            Meta(ge=0, le=65535, description="for Prometheus; 0: a free one; default: none"),
        ]
        | None
    ) = None
    metrics_host: Annotated[str, Meta(description="address of --metrics-port")] = "127.0.0.1"
    ready_fd: ReadyFd | None = None
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    log_format: LogFormat = LogForm.TEXT
