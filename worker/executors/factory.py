"""Which executor runs, and how it is built from the worker's settings.

The device packages are imported only here and only when asked for: a machine without CUDA, or
without torch at all (simulated), never loads them.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec

from protocol.model_files import ModelFiles
from worker.executors.base import Executor
from worker.settings import Device, WorkerSettings

Progress = Callable[[str, int, int], None]
"""Called with a stage of the start, and how much of how many is done (0: no count)."""


class DeviceUnavailable(RuntimeError):
    """The asked-for device cannot be used here. The message says why, and what to do."""


def choose(wanted: Device) -> Device:
    """Resolve `auto`: CUDA where torch sees a device, else the CPU."""
    if wanted is not Device.AUTO:
        return wanted
    if find_spec("torch") is None:
        raise DeviceUnavailable(
            "torch is not installed: pip install 'tandem-serve[worker]', or --device simulated"
        )
    if not os.path.exists("/dev/nvidiactl"):
        return Device.CPU  # without the half second and the memory that asking CUDA costs
    import torch

    return Device.CUDA if torch.cuda.is_available() else Device.CPU


def build(settings: WorkerSettings, device: Device, files: ModelFiles, tell: Progress) -> Executor:
    """Load the model and start its lanes. Raises DeviceUnavailable, or a loader's own error."""
    name = settings.served_model_name or files.name
    if device is Device.CUDA:
        from worker.executors.cuda.start import start_from_settings

        return start_from_settings(settings, name, files, tell)
    if device is Device.SIMULATED:
        raise DeviceUnavailable("--device simulated: not served by a worker process yet")
    from worker.executors.cpu.start import start as start_cpu

    return start_cpu(settings, name, files, tell)
