"""Starting a CUDA executor: what must be set before flashinfer is imported, then the rest.

Apart from the executor, because flashinfer reads its environment when it is imported.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from worker.executors.cuda.config import CudaConfig
from worker.executors.cuda.kernels.build import apply_environment
from worker.models.weights import Model

if TYPE_CHECKING:
    from worker.executors.cuda.executor import CudaExecutor

NORMS = "FLASHINFER_USE_CUDA_NORM"
"""Its other norm kernels need a compiler that flashinfer does not bring."""


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
