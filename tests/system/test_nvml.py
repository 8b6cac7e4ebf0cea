"""Tests of calls to NVIDIA's management library."""

import sys
from types import SimpleNamespace

from simulated_nvml import SimulatedNvml

from commbench.system.gpus import Nvml


def refuse(*_: object) -> None:
    """Raise NVML's error."""
    raise RuntimeError("Not Supported")


def test_nothing_is_known_without_library_or_driver(monkeypatch):
    """Find no GPU without library and without driver."""
    for library in (None, SimpleNamespace(nvmlInit=refuse, nvmlDeviceGetCount=lambda: 3)):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        assert (False, []) == (Nvml().has_started, Nvml().devices())


def test_what_it_cannot_tell_is_no_error(monkeypatch):
    """Return None for failing or missing functions, and text for bytes."""
    gpus = ["0000:17:00.0", "0000:65:00.0", "0000:66:00.0"]
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml(gpus, lost=[gpus[1]]))
    nvml = Nvml()
    assert [gpus[0], None, gpus[2]] == nvml.devices()
    assert gpus[0] == nvml.device(gpus[0])
    assert nvml.device("0000:18:00.0") is None
    assert "NVIDIA H100" == nvml.ask("nvmlDeviceGetName", gpus[0])
    assert nvml.ask("nvmlDeviceGetUUID", gpus[0]) is None
