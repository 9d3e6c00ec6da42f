"""The SM count that planners see: one cell in a library of its own, set by the launching thread.

A stand-in for a flashinfer module (C, no CUDA) shows that what is compiled to refer weakly to the
cell binds to it when loaded later, as every module that is compiled with our header does.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worker.executors.cuda.kernels import build, sm_count

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

MODULE = """
extern __attribute__((weak, visibility("default"))) int tandem_sm_count;
int planned(int device) {
  return &tandem_sm_count && tandem_sm_count > 0 ? tandem_sm_count : device;
}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def module(cache: Path) -> Path:
    source = cache / "module.c"
    source.write_text(MODULE)
    target = cache / "module.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return target


def test_a_module_loaded_after_the_cell_plans_for_what_was_set(module: Path) -> None:
    sm_count.load()
    planned = ctypes.CDLL(str(module)).planned
    with sm_count.planned_for(112):
        assert planned(132) == 112
        with sm_count.planned_for(20):
            assert planned(132) == 20
        assert planned(132) == 112
    assert planned(132) == 132


def test_a_module_without_the_cell_plans_for_the_device(module: Path) -> None:
    program = f"import ctypes; print(ctypes.CDLL({str(module)!r}).planned(132))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "132"


def test_the_count_is_restored_after_an_error(cache: Path) -> None:
    sm_count.load()
    with pytest.raises(KeyError), sm_count.planned_for(64):
        raise KeyError
    assert sm_count.sm_count() == 0


def test_a_negative_count_is_refused(cache: Path) -> None:
    sm_count.load()
    with pytest.raises(ValueError, match="at least 0, got -1"):
        sm_count.set_sm_count(-1)


def test_a_library_is_compiled_once(cache: Path) -> None:
    first = build.sm_count_library()
    stamp = first.stat().st_mtime_ns
    assert build.sm_count_library() == first
    assert first.stat().st_mtime_ns == stamp
    assert first.is_relative_to(cache)


def test_a_compiler_that_fails_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build.BuildError, match=r"false .*sm_count\.c"):
        build.sm_count_library()


def test_a_missing_compiler_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.BuildError, match="no-such-compiler"):
        build.sm_count_library()


def test_missing_headers_are_reported_with_where_they_were_sought(cache: Path) -> None:
    with pytest.raises(build.BuildError, match=str(cache)):
        build.gemm_library([cache])


def test_flashinfer_compiles_with_our_header_apart_from_other_caches(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHINFER_EXTRA_CUDAFLAGS", "-lineinfo")
    monkeypatch.delenv("FLASHINFER_WORKSPACE_BASE", raising=False)
    environment = build.environment()
    flags = environment["FLASHINFER_EXTRA_CUDAFLAGS"].split()
    assert flags[0] == "-lineinfo"
    assert Path(flags[flags.index("-include") + 1]).is_file()
    assert Path(environment["FLASHINFER_WORKSPACE_BASE"]).is_relative_to(cache)
    monkeypatch.setitem(os.environ, "FLASHINFER_EXTRA_CUDAFLAGS", " ".join(flags))
    assert build.environment()["FLASHINFER_EXTRA_CUDAFLAGS"] == " ".join(flags)
