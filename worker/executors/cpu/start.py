"""Starting a CPU executor from a worker's settings: environment first, then torch, weights, lanes.

Apart from the executor, because OpenMP reads its environment when torch is imported, and no sooner
than here does a worker on the CPU import it.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.model_files import ModelFiles
from worker.executors.cpu import topology
from worker.settings import DType, WorkerSettings

if TYPE_CHECKING:
    from worker.executors.cpu.executor import CpuExecutor

_PROBE = "import torch; a = torch.ones(32, 32, dtype=torch.bfloat16); a @ a"


class CpuUnfit(ValueError):
    """The CPU cannot do what the settings ask. The message says what to set instead."""


def start(
    settings: WorkerSettings,
    name: str,
    files: ModelFiles,
    tell: Callable[[str, int, int], None],
) -> "CpuExecutor":
    """Load the model and start both lanes on all cores of this process.

    `tell` gets the stage of the start, with bytes done and in all while weights are read. Raises
    LoadError, UnsupportedModelError, CpuUnfit, and ValueError for a pool that is too small.
    """
    for variable, value in topology.thread_environment().items():
        os.environ.setdefault(variable, value)
    if settings.dtype is DType.BFLOAT16:
        check_bfloat16()
    import torch

    from worker.executors.cpu.executor import CpuExecutor, CpuSettings, pages_in
    from worker.executors.load import load_weights

    dtype = torch.bfloat16 if settings.dtype is DType.BFLOAT16 else torch.float32
    model = load_weights(settings, name, files, torch.device("cpu"), dtype, tell)
    tell("starting lanes", 0, 0)
    limit = model.config.max_model_len
    pool_bytes = int(settings.cpu_kv_cache_gib * 2**30)
    pages = settings.num_pages or pages_in(pool_bytes, [model.config], settings.page_size, dtype)
    return CpuExecutor(
        {name: model},
        CpuSettings(
            cores=topology.available_cores(),
            page_size=settings.page_size,
            num_pages=pages,
            max_slots=settings.max_num_seqs,
            max_model_len=settings.max_model_len or limit,
            max_prefill_tokens=settings.max_prefill_tokens,
        ),
    )


def check_bfloat16() -> None:
    """Multiply in bfloat16 in a process of its own. Raises CpuUnfit when that kills it.

    Some virtual machines announce matrix instructions that their host does not let them use.
    """
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False)
    if probe.returncode:
        raise CpuUnfit(
            f"--dtype bfloat16: a product in bfloat16 ends its process with status "
            f"{probe.returncode} on this machine; use float32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )
