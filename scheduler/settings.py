"""Settings of a scheduler process: every flag, with its help and its range."""

from typing import Annotated

from msgspec import Meta, Struct

from protocol.lifecycle import ReadyFd

Milliseconds = Annotated[float, Meta(gt=0, le=86_400_000)]


class SchedulerSettings(Struct, frozen=True, kw_only=True):
    """One scheduler of one worker."""

    run_dir: Annotated[str, Meta(description="directory of the worker's sockets, mode 0700")]
    scheduler: Annotated[str, Meta(description="a policy: a known name, or module:Class")] = (
        "muxwise"
    )
    option: Annotated[
        tuple[str, ...], Meta(description="options of the policy, each key=value")
    ] = ()
    tbt_slo_ms: Annotated[
        Milliseconds, Meta(description="objective for the time between tokens, ms")
    ] = 50.0
    ttft_slo_ms: Annotated[
        Milliseconds, Meta(description="objective for the time to first token, ms")
    ] = 2000.0
    ttft_slo_ms_per_token: Annotated[
        float, Meta(ge=0, le=10_000, description="added to it for each prompt token to compute, ms")
    ] = 1.0
    profile: Annotated[
        str | None, Meta(description="what `tandem profile` wrote; default: measure as it runs")
    ] = None
    soft_state: Annotated[
        str | None, Meta(description="file that keeps what was learnt beside --profile")
    ] = None
    observe_only: Annotated[bool, Meta(description="follow the worker and plan, but never act")] = (
        False
    )
    ready_fd: ReadyFd | None = None
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
