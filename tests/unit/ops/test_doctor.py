"""The doctor says what is missing, why, and what to do, and whether the CPU can serve."""

import ctypes
import socket
from collections.abc import Callable, Iterator

import pytest

from ops import doctor, gpu_probe
from ops.doctor import Finding


def test_a_finding_that_is_not_well_shows_the_remedy_below_it() -> None:
    assert str(Finding("torch", "2.13")) == "ok      torch           2.13"
    first, second = str(Finding("torch", "none", "install it", needed=True)).splitlines()
    assert first.startswith("missing torch")
    assert second.strip() == "→ install it"
    assert str(Finding("gpu", "none", "buy one")).startswith("without gpu")


def checks(*findings: Finding) -> tuple[Callable[[], Iterator[Finding]], ...]:
    return (lambda: iter(findings),)


def test_what_the_cpu_does_not_need_leaves_the_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", checks(Finding("gpu", "none", "buy one")))
    assert doctor.main([]) == 0


def test_what_the_cpu_needs_makes_the_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Finding("torch", "not installed", "pip install …", needed=True)
    monkeypatch.setattr(doctor, "CHECKS", checks(Finding("python", "3.11"), missing))
    assert doctor.main([]) == 1
    assert "cannot serve yet" in capsys.readouterr().out


def test_a_port_in_use_is_found_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(doctor, "PORT", taken.getsockname()[1])
        port = next(f for f in doctor.places() if f.subject == "port")
    assert "in use" in port.found
    assert "--port" in port.remedy


def test_a_machine_without_a_driver_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_probe, "LIBRARY", "libno-such-driver.so")
    (finding,) = doctor.gpus()
    assert "no NVIDIA driver" in finding.found
    assert finding.remedy
    assert not finding.needed


class OldDriver:
    """A driver library that knows the calls of CUDA 12.2: one device, no green contexts."""

    INTEGERS = {"cuDriverGetVersion": 12020, "cuDeviceGetCount": 1, "cuDeviceGet": 0}
    ATTRIBUTES = {16: 108, 75: 8, 76: 0}

    def cuInit(self, flags: int) -> int:
        return flags

    def __getattr__(self, name: str) -> Callable[..., int]:
        if "Green" in name:
            raise AttributeError(name)
        return lambda *arguments: self.answer(name, *arguments)

    def answer(self, name: str, out: object, *arguments: object) -> int:
        if name == "cuDeviceGetName":
            out.value = b"A100"
        elif name == "cuDeviceTotalMem_v2":
            set_value(out, 80 << 30)
        elif name == "cuDeviceGetAttribute":
            set_value(out, self.ATTRIBUTES[arguments[0]])
        else:
            set_value(out, self.INTEGERS[name])
        return 0


def set_value(reference: object, value: int) -> None:
    reference._obj.value = value


def test_a_driver_without_green_contexts_is_described_with_what_it_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: OldDriver())
    (gpu,) = gpu_probe.probe()
    assert (gpu.name, gpu.sms, gpu.memory_bytes) == ("A100", 108, 80 << 30)
    assert gpu.capability == (8, 0)
    assert "CUDA 12.2" in gpu.no_partitions
    assert "12.4" in gpu.no_partitions
