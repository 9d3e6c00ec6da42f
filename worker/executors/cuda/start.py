"""Starting a CUDA executor: what must be set before flashinfer is imported, then the rest.

Apart from the executor, because flashinfer reads its environment when it is imported.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.model_files import ModelFiles
from worker.executors.cuda.config import PREFILL_SMS, CudaConfig
from worker.executors.cuda.kernels.build import apply_environment
from worker.models.weights import Model
from worker.settings import DType, WorkerSettings

if TYPE_CHECKING:
    from worker.executors.cuda.executor import CudaExecutor

NORMS = "FLASHINFER_USE_CUDA_NORM"
"""Its other norm kernels need a compiler that flashinfer does not bring."""


class CudaUnfit(ValueError):
    """A GPU cannot do what the settings ask. The message says what instead."""


def start(
    name: str, model: Model, config: CudaConfig, progress: Callable[[str, int, int], None]
) -> "CudaExecutor":
    """Start an executor for a model whose weights are on the device. Takes seconds to minutes.

    Raises PartitionError, PoolTooSmall, BuildError.
    """
    os.environ.setdefault(NORMS, "1")
    apply_environment()
    from worker.executors.cuda.executor import CudaExecutor

    return CudaExecutor(name, model, config, progress)


def start_from_settings(
    settings: WorkerSettings,
    name: str,
    files: ModelFiles,
    tell: Callable[[str, int, int], None],
    prefill_sms: tuple[int, ...] = PREFILL_SMS,
) -> "CudaExecutor":
    """Load the model that a worker's settings name onto the GPU, and start its lanes.

    `prefill_sms`: of the splits to make. Raises what `start` raises, LoadError,
    UnsupportedModelError and CudaUnfit.
    """
    import torch

    from worker.executors.load import load_weights

    if settings.dtype is DType.FLOAT32:
        raise CudaUnfit("--dtype float32: the lanes on a GPU compute in bfloat16 only")
    if settings.max_prefill_tokens < settings.max_num_seqs:
        raise CudaUnfit(
            f"--max-prefill-tokens {settings.max_prefill_tokens}: an iteration of --max-num-seqs"
            f" {settings.max_num_seqs} rows needs room for as many tokens"
        )
    device = torch.device("cuda", 0)
    model = load_weights(settings, name, files, device, torch.bfloat16, tell)
    config = CudaConfig(
        device=0,
        max_slots=settings.max_num_seqs,
        max_model_len=settings.max_model_len or model.config.max_model_len,
        max_prefill_tokens=settings.max_prefill_tokens,
        page_size=settings.page_size,
        num_pages=settings.num_pages,
        memory_utilization=settings.gpu_memory_utilization,
        require_partitions=settings.require_partitions,
        prefill_sms=prefill_sms,
    )
    return start(name, model, config, tell)
