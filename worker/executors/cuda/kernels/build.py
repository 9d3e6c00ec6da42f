"""Compile what the CUDA executor brings in source form, and let flashinfer compile with our header.

Two small host libraries (the SM-count cell, the cuBLASLt shim) are compiled once with the host
compiler into a cache directory, named by a hash of source and command. flashinfer's own kernels
are compiled by flashinfer at first use; `environment` gives the variables that make it include
sm_count.h, and a cache apart from that of other programs, whose modules know nothing of partitions.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent


class BuildError(RuntimeError):
    """A library could not be compiled; the message holds the command and the compiler's output."""


def cache_dir() -> Path:
    """Return the directory for compiled code and tuned configurations, created private."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "tandem" / "cuda"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def environment() -> dict[str, str]:
    """Return the variables to set before flashinfer is imported, as a plan for `os.environ`.

    Flags that the operator has set stay, ours are appended once. A prebuilt module (`data/aot`, or
    the package flashinfer-jit-cache) takes precedence over what is compiled here; the executor
    finds out by probing a plan (verify.py), not by looking at files.
    """
    flag = f"-include {SOURCES / 'sm_count.h'}"
    flags = os.environ.get("FLASHINFER_EXTRA_CUDAFLAGS", "")
    if flag not in flags:
        flags = f"{flags} {flag}".strip()
    base = os.environ.get("FLASHINFER_WORKSPACE_BASE") or str(cache_dir() / "flashinfer")
    return {"FLASHINFER_EXTRA_CUDAFLAGS": flags, "FLASHINFER_WORKSPACE_BASE": base}


def apply_environment() -> None:
    """Set `environment()`, and load the SM-count cell. Call before anything imports flashinfer."""
    from worker.executors.cuda.kernels import sm_count

    os.environ.update(environment())
    sm_count.load()


def sm_count_library() -> Path:
    """Return the library that holds the SM-count cell, compiled if need be."""
    return _compile("tandem_sm_count", SOURCES / "sm_count.c", [])


def gemm_library(include_dirs: list[Path]) -> Path:
    """Return the cuBLASLt shim, compiled against the cublasLt.h found in `include_dirs`."""
    found = [directory for directory in include_dirs if (directory / "cublasLt.h").is_file()]
    if not found:
        searched = ", ".join(str(directory) for directory in include_dirs)
        raise BuildError(f"cublasLt.h not found in any of: {searched}")
    flags = [flag for directory in include_dirs for flag in ("-isystem", str(directory))]
    return _compile("tandem_gemm", SOURCES / "gemm.cpp", ["-std=c++17", *flags])


def _compile(name: str, source: Path, flags: list[str]) -> Path:
    """Compile `source` to a library in the cache; undefined symbols bind when it is loaded."""
    compiler = os.environ.get("CXX" if source.suffix == ".cpp" else "CC") or (
        "c++" if source.suffix == ".cpp" else "cc"
    )
    command = [compiler, "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", *flags, str(source)]
    key = hashlib.sha256("\0".join(command).encode() + source.read_bytes()).hexdigest()[:16]
    target = cache_dir() / f"lib{name}-{key}.so"
    if not target.exists():
        if shutil.which(compiler) is None:
            raise BuildError(f"no compiler: {compiler!r} is not on the PATH")
        _run_compiler(command, target)
    return target


def _run_compiler(command: list[str], target: Path) -> None:
    """Compile to a temporary name beside `target`, then rename: others may compile it meanwhile."""
    descriptor, partial = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    os.close(descriptor)
    done = subprocess.run([*command, "-o", partial], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        os.unlink(partial)
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    os.chmod(partial, 0o700)
    os.replace(partial, target)
