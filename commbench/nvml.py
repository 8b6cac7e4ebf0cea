"""NVIDIA's management library (NVML, by nvidia-ml-py), asked so that what it cannot tell is no error."""

from __future__ import annotations

import importlib
from typing import Any


class Nvml:
    """The library, started."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a module without types
        self._library = library

    @classmethod
    def start(cls) -> Nvml | None:
        """The library; None where it or the driver is missing."""
        try:
            library = importlib.import_module("pynvml")
            library.nvmlInit()
        except Exception:  # noqa: BLE001 - NVML's errors have no common type before it is imported
            return None
        return cls(library)

    def ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever the function gives
        """What a function of the library says, bytes as text; None where it raises or this version has no such."""
        try:
            answer = getattr(self._library, name)(*arguments)
        except Exception:  # noqa: BLE001 - as above: what one GPU or an old driver lacks must not hide the rest
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def devices(self) -> list[Any]:
        """The handles of all GPUs."""
        count = self.ask("nvmlDeviceGetCount") or 0
        handles = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        return [handle for handle in handles if handle is not None]

    def device(self, address: str) -> Any:  # noqa: ANN401 - a handle
        """The handle of the GPU at a PCI address, ``0000:17:00.0``; None where there is none."""
        return self.ask("nvmlDeviceGetHandleByPciBusId", address.encode())
