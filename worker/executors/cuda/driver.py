"""The few CUDA driver calls that torch does not offer: green contexts and run-time compilation.

Kept apart so that nothing else deals with status codes. Programming guide, "Green contexts";
driver API, cuGreenCtx* and cuDevSmResource*.
"""

from typing import Any

import torch
from cuda.bindings import driver, nvrtc


class CudaError(RuntimeError):
    """A driver or compiler call failed. The message names the call and the code."""


def call(function: Any, *arguments: Any) -> Any:
    """Call a binding and return what follows its status. Raises CudaError, naming the call."""
    status, *values = function(*arguments)
    if int(status) != 0:
        raise CudaError(f"{function.__name__}: {status.name} ({int(status)})")
    return values[0] if len(values) == 1 else tuple(values)


def handle(device: int) -> Any:
    """Return the driver's handle of a device, after torch has made its primary context current."""
    torch.cuda.set_device(device)
    torch.zeros(1, device=f"cuda:{device}")
    return call(driver.cuDeviceGet, device)


def version() -> int:
    """Return the driver's CUDA version, for example 13000."""
    return int(call(driver.cuDriverGetVersion))


def sm_resource(device: Any) -> Any:
    """Return the device's SMs as a resource that can be split."""
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    return call(driver.cuDeviceGetDevResource, device, kind)


def split_first(resource: Any, count: int) -> tuple[Any, Any]:
    """Split off a first group of `count` SMs: (group, remainder)."""
    groups, _, rest = call(driver.cuDevSmResourceSplitByCount, 1, resource, 0, count)
    return groups[0], rest


def green_context(device: Any, resource: Any) -> Any:
    """Make a green context that owns the SMs of `resource`."""
    described = call(driver.cuDevResourceGenerateDesc, [resource], 1)
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    return call(driver.cuGreenCtxCreate, described, device, flags)


def green_stream(context: Any, device: int, priority: int) -> torch.cuda.Stream:
    """Make a stream whose kernels run on the SMs of `context` only."""
    flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    stream = call(driver.cuGreenCtxStreamCreate, context, flags, priority)
    return torch.cuda.ExternalStream(int(stream), device=f"cuda:{device}")


def compile_kernel(source: str, name: str, device: int) -> Any:
    """Compile CUDA C for `launch`. Raises CudaError with the compiler's log."""
    major, minor = torch.cuda.get_device_capability(device)
    program = call(nvrtc.nvrtcCreateProgram, source.encode(), b"tandem.cu", 0, [], [])
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = b" " * call(nvrtc.nvrtcGetProgramLogSize, program)
        call(nvrtc.nvrtcGetProgramLog, program, log)
        raise CudaError(f"{name} does not compile: {log.decode(errors='replace')}")
    image = b" " * call(nvrtc.nvrtcGetCUBINSize, program)
    call(nvrtc.nvrtcGetCUBIN, program, image)
    return call(driver.cuModuleGetFunction, call(driver.cuModuleLoadData, image), name.encode())


def launch(
    function: Any, blocks: int, threads: int, stream: torch.cuda.Stream, arguments: tuple[Any, Any]
) -> None:
    """Launch a kernel; `arguments` are its values and their ctypes types."""
    call(
        driver.cuLaunchKernel,
        function,
        *(blocks, 1, 1),
        *(threads, 1, 1),
        0,
        stream.cuda_stream,
        arguments,
        0,
    )
