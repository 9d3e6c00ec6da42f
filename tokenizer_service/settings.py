"""Settings of a gateway process: every flag, with its help and its range."""

from typing import Annotated

from msgspec import Meta

from protocol.lifecycle import ReadyFd
from protocol.logs import LogForm, LogFormat
from protocol.model_files import LoadFormat
from protocol.slo import ObjectiveSettings
from tokenizer_service.metrics import Compat


class GatewaySettings(ObjectiveSettings, frozen=True, kw_only=True):
    """One gateway: HTTP on one side, one worker's data link on the other. Times in seconds."""

    run_dir: Annotated[str, Meta(description="directory of the sockets, mode 0700")]
    model: Annotated[str, Meta(description="a Hugging Face folder, a .gguf file, or `demo`")] = (
        "demo"
    )
    load_format: Annotated[
        LoadFormat, Meta(description="dummy: random weights of the shape in config.json")
    ] = LoadFormat.AUTO
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(description="names that requests may use; the first is shown; default: from the path"),
    ] = ()
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one")
    ] = 8000
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="web pages that may use the API from a browser; * allows all (CORS)"),
    ] = ()
    cache_secret_file: Annotated[
        str | None,
        Meta(description="file with the secret behind tenants' cache salts; default: a random one"),
    ] = None
    max_body_bytes: Annotated[
        int, Meta(ge=1024, description="bytes of a request's body at most")
    ] = 4 << 20
    body_timeout_s: Annotated[
        float, Meta(gt=0, description="until a request's body has arrived")
    ] = 30.0
    tokenizer_threads: Annotated[
        int, Meta(ge=1, le=64, description="prompts that are tokenized at the same time")
    ] = 2
    tokenizer_queue: Annotated[
        int, Meta(ge=0, description="prompts that wait to be tokenized at most")
    ] = 256
    tokenizer_timeout_s: Annotated[
        float, Meta(gt=0, description="until a prompt is rendered and tokenized")
    ] = 30.0
    keep_alive_s: Annotated[
        float, Meta(gt=0, description="silence of a stream after which a comment is sent")
    ] = 10.0
    write_stall_s: Annotated[
        float, Meta(gt=0, description="until a client that does not read is dropped")
    ] = 30.0
    stall_s: Annotated[
        float, Meta(gt=0, description="without progress of the worker until not ready")
    ] = 10.0
    worker_wait_s: Annotated[
        float, Meta(gt=0, description="how long running requests wait for a worker that has gone")
    ] = 60.0
    metrics_compat: Annotated[
        Compat, Meta(description="whose names /metrics has besides its own: none or vllm")
    ] = Compat.NONE
    otlp_traces_endpoint: Annotated[
        str | None,
        Meta(description="URL to send OpenTelemetry spans to (OTLP/HTTP); default: no tracing"),
    ] = None
    drain_timeout_s: Annotated[
        float, Meta(ge=0, description="after SIGTERM, for running requests to finish")
    ] = 30.0
    ready_fd: ReadyFd | None = None
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    log_format: LogFormat = LogForm.TEXT
