"""What the NVIDIA driver says of this machine, asked through ctypes.

For `tandem doctor`, which must be able to say why a GPU is not usable where neither torch nor
cuda-python is installed, or both are and the driver is too old for them.
"""

import ctypes
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76
"""CUdevice_attribute: SMs, and the two parts of the compute capability."""
RESOURCE_SM = 1
"""CUdevResourceType: the SMs of a device, which green contexts divide."""
RESOURCE_BYTES = 512
"""More than a CUdevResource of any release so far (144 bytes in CUDA 13)."""


class NoGpuError(Exception):
    """There is no usable NVIDIA GPU. The message says why."""


@dataclass(frozen=True)
class Gpu:
    """One device. `no_partitions` says why its SMs cannot be divided, if so."""

    name: str
    sms: int
    memory_bytes: int
    capability: tuple[int, int]
    driver_cuda: tuple[int, int]
    """Newest CUDA that the driver supports."""
    no_partitions: str


class _Driver:
    """The few calls that are needed, each checked."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise NoGpuError(f"no NVIDIA driver ({LIBRARY} is not there)") from None
        self.call("cuInit", 0)

    def error_of(self, name: str, *arguments: object) -> str:
        """Call a function; return the driver's words when it fails, else nothing."""
        code: int = getattr(self.library, name)(*arguments)
        if code == 0:
            return ""
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(code, ctypes.byref(text))
        return f"{name}: {(text.value or b'unknown error').decode()} ({code})"

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises NoGpuError."""
        if error := self.error_of(name, *arguments):
            raise NoGpuError(error)

    def integer(self, name: str, *arguments: object) -> int:
        """Call a function that returns an int through its first argument."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value


def probe() -> list[Gpu]:
    """Return this machine's GPUs, at least one. Raises NoGpuError."""
    driver = _Driver()
    version = driver.integer("cuDriverGetVersion")
    cuda = version // 1000, version % 1000 // 10
    count = driver.integer("cuDeviceGetCount")
    if count == 0:
        raise NoGpuError("the driver sees no device")
    return [_describe(driver, index, cuda) for index in range(count)]


def _describe(driver: _Driver, index: int, cuda: tuple[int, int]) -> Gpu:
    device = ctypes.c_int(driver.integer("cuDeviceGet", index))
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, len(name), device)
    memory = ctypes.c_size_t()
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        return driver.integer("cuDeviceGetAttribute", number, device)

    return Gpu(
        name=name.value.decode(),
        sms=attribute(MULTIPROCESSORS),
        memory_bytes=memory.value,
        capability=(attribute(MAJOR), attribute(MINOR)),
        driver_cuda=cuda,
        no_partitions=_why_no_partitions(driver, device, cuda),
    )


def _why_no_partitions(driver: _Driver, device: ctypes.c_int, cuda: tuple[int, int]) -> str:
    if not hasattr(driver.library, "cuGreenCtxCreate"):
        return f"the driver (CUDA {cuda[0]}.{cuda[1]}) has no green contexts; 12.4 or newer has"
    resource = ctypes.create_string_buffer(RESOURCE_BYTES)
    return driver.error_of("cuDeviceGetDevResource", device, resource, RESOURCE_SM)
