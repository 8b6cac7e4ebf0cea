"""Tests of calls to NVIDIA's management library."""

import sys
from types import SimpleNamespace

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
    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: refuse() if index == 1 else f"gpu{index}",
        nvmlDeviceGetHandleByPciBusId=lambda address: (
            address.decode() if address == b"0000:17:00.0" else refuse()
        ),
        nvmlDeviceGetName=lambda handle: f"name of {handle}".encode(),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    nvml = Nvml()
    assert ["gpu0", None, "gpu2"] == nvml.devices()
    assert ("0000:17:00.0", None) == (nvml.device("0000:17:00.0"), nvml.device("0000:18:00.0"))
    assert "name of gpu0" == nvml.ask("nvmlDeviceGetName", "gpu0")
    assert nvml.ask("nvmlDeviceGetUUID", "gpu0") is None
