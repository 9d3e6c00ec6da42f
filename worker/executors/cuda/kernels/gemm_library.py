"""The cuBLASLt shim (gemm.cpp) as Python sees it: one method per C function, errors raised."""

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from worker.executors.cuda.kernels import build

MAX_CANDIDATES = 128

_INT, _SIZE, _POINTER = ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p
_OUT_POINTER = ctypes.POINTER(ctypes.c_void_p)
_OUT_SIZE, _OUT_INT = ctypes.POINTER(_SIZE), ctypes.POINTER(ctypes.c_int)
_SHAPE = (_INT, _INT, _INT, ctypes.c_int, ctypes.c_int)

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "version": (_SIZE, []),
    "open": (ctypes.c_int, [_OUT_POINTER]),
    "candidates": (
        ctypes.c_int,
        [_POINTER, *_SHAPE, _SIZE, ctypes.c_int, ctypes.c_char_p, _OUT_SIZE, _OUT_INT],
    ),
    "check": (
        ctypes.c_int,
        [_POINTER, *_SHAPE, ctypes.c_char_p, _OUT_SIZE],
    ),
    "describe": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int32)]),
    "plan": (
        ctypes.c_int,
        [_INT, _INT, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, _OUT_POINTER],
    ),
    "drop": (None, [_POINTER]),
    "lane": (ctypes.c_int, [_POINTER, _POINTER, _SIZE, _OUT_POINTER]),
    "close_lane": (None, [_POINTER]),
    "run": (
        ctypes.c_int,
        [_POINTER, _POINTER, _INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER],
    ),
}


class GemmError(RuntimeError):
    """cuBLASLt refused a call; the message holds its status number."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm that the heuristic offers, with the bytes of workspace that it needs."""

    algorithm: bytes
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Shape:
    """One product for cuBLASLt: sizes, whether a bias is added, and the SM count it is told."""

    m: int
    n: int
    k: int
    bias: bool
    sm_target: int

    def arguments(self) -> tuple[int, int, int, int, int]:
        """Return the fields in the order of the C interface."""
        return self.m, self.n, self.k, int(self.bias), self.sm_target


class GemmLibrary:
    """A cuBLASLt handle and the calls on it. One per process (`open_library`)."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._c, f"tandem_gemm_{name}")
            function.restype, function.argtypes = result, arguments
        handle = ctypes.c_void_p()
        _check("open", self._c.tandem_gemm_open(ctypes.byref(handle)))
        self._handle = handle
        self.run = self._c.tandem_gemm_run
        """The launch, undecorated: its status must be checked by the caller."""

    def version(self) -> int:
        """Return cuBLASLt's version, for example 130100."""
        return int(self._c.tandem_gemm_version())

    def candidates(self, shape: Shape, workspace_bytes: int, limit: int) -> list[Candidate]:
        """Return at most `limit` algorithms for `shape`, best first by cuBLASLt's heuristic."""
        algorithms = ctypes.create_string_buffer(64 * limit)
        workspaces = (_SIZE * limit)()
        found = ctypes.c_int()
        status = self._c.tandem_gemm_candidates(
            self._handle, *shape.arguments(), workspace_bytes, limit, algorithms, workspaces, found
        )
        _check("candidates", status)
        raw = algorithms.raw
        return [Candidate(raw[64 * i : 64 * i + 64], workspaces[i]) for i in range(found.value)]

    def workspace_needed(self, shape: Shape, algorithm: bytes) -> int | None:
        """Return the bytes of workspace, or None when `algorithm` cannot run `shape` here."""
        needed = _SIZE()
        status = self._c.tandem_gemm_check(
            self._handle, *shape.arguments(), algorithm, ctypes.byref(needed)
        )
        return int(needed.value) if status == 0 else None

    def describe(self, algorithm: bytes) -> dict[str, int]:
        """Return what `algorithm` does, in cuBLASLt's own numbers."""
        values = (ctypes.c_int32 * 5)()
        _check("describe", self._c.tandem_gemm_describe(algorithm, values))
        return dict(zip(("id", "tile", "stages", "split_k", "cluster"), values, strict=True))

    def make_plan(self, shape: Shape, algorithm: bytes) -> int:
        """Return a plan's address; the row count is left to each launch. Freed by `drop_plan`."""
        plan = ctypes.c_void_p()
        status = self._c.tandem_gemm_plan(
            shape.n, shape.k, int(shape.bias), shape.sm_target, algorithm, ctypes.byref(plan)
        )
        if status != 0 and plan.value:
            self._c.tandem_gemm_drop(plan)
        _check("plan", status)
        assert plan.value is not None
        return plan.value

    def drop_plan(self, plan: int) -> None:
        """Free a plan."""
        self._c.tandem_gemm_drop(plan)

    def make_lane(self, workspace: torch.Tensor) -> int:
        """Return a lane's address: launches through it use `workspace`, which must outlive it."""
        lane = ctypes.c_void_p()
        status = self._c.tandem_gemm_lane(
            self._handle, workspace.data_ptr(), workspace.nbytes, ctypes.byref(lane)
        )
        _check("lane", status)
        assert lane.value is not None
        return lane.value

    def close_lane(self, lane: int) -> None:
        """Free a lane."""
        self._c.tandem_gemm_close_lane(lane)


@cache
def open_library() -> GemmLibrary:
    """Compile the shim if need be, and open it on the current device (torch has initialised it)."""
    major = (torch.version.cuda or "13").split(".")[0]
    # torch has it loaded already, but privately: the shim's symbols are to bind to that same copy.
    ctypes.CDLL(f"libcublasLt.so.{major}", mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    return GemmLibrary(build.gemm_library(_include_dirs(major)))


def _include_dirs(major: str) -> list[Path]:
    """Return where the CUDA headers may lie: first those of the libraries that torch uses."""
    packages = Path(torch.__file__).parent.parent / "nvidia" / f"cu{major}" / "include"
    home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "include"
    return [path for path in (packages, home) if path.is_dir()]


def _check(what: str, status: int) -> None:
    if status != 0:
        raise GemmError(f"cuBLASLt {what}: status {status}")
