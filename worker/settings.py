"""Settings of a worker process: every flag, with its help and its range."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from protocol.lifecycle import ReadyFd
from protocol.logs import LogForm, LogFormat
from protocol.model_files import LoadFormat


class Device(StrEnum):
    """Which executor runs the lanes."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    SIMULATED = "simulated"


class DType(StrEnum):
    """Type of weights, activations and KV."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """One worker: one device (or tensor-parallel group) and its models."""

    run_dir: Annotated[str, Meta(description="directory of the sockets, mode 0700")]
    model: Annotated[str, Meta(description="a Hugging Face folder, a .gguf file, or `demo`")] = (
        "demo"
    )
    served_model_name: Annotated[
        str | None, Meta(description="the model's name in requests; default: from its path")
    ] = None
    device: Annotated[Device, Meta(description="auto takes CUDA when there is one")] = Device.AUTO
    dtype: Annotated[DType, Meta(description="auto: bfloat16 on CUDA, float32 on the CPU")] = (
        DType.AUTO
    )
    load_format: Annotated[
        LoadFormat, Meta(description="dummy: random weights of the shape in config.json")
    ] = LoadFormat.AUTO
    max_num_seqs: Annotated[
        int, Meta(ge=1, le=4096, description="rows of a decode batch at most")
    ] = 64
    max_model_len: (
        Annotated[int, Meta(ge=1, description="prompt and output tokens; default: the model's")]
        | None
    ) = None
    max_prefill_tokens: Annotated[
        int, Meta(ge=1, description="new tokens that go through a layer together at most")
    ] = 8192
    page_size: Annotated[int, Meta(ge=1, le=256, description="tokens in a page of KV")] = 16
    num_pages: (
        Annotated[int, Meta(ge=2, description="pages of the KV pool; default: what memory allows")]
        | None
    ) = None
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="share of the GPU's memory that Tandem may use")
    ] = 0.9
    cpu_kv_cache_gib: Annotated[
        float, Meta(gt=0, description="KV pool on the CPU in GiB, without --num-pages")
    ] = 1.0
    require_partitions: Annotated[
        bool, Meta(description="refuse to start where the device cannot be partitioned")
    ] = False
    max_queued_requests: Annotated[
        int, Meta(ge=1, description="requests that wait for their prefill at most")
    ] = 1024
    max_queued_tokens: Annotated[
        int, Meta(ge=1, description="prompt tokens that wait for their prefill at most")
    ] = 4_000_000
    drain_timeout_s: Annotated[
        float, Meta(ge=0, description="after SIGTERM, seconds for running requests to finish")
    ] = 30.0
    ready_fd: ReadyFd | None = None
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    log_format: LogFormat = LogForm.TEXT
