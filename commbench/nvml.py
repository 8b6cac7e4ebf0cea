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
        """The handles of all GPUs; None for one that does not answer."""
        return [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(self.ask("nvmlDeviceGetCount") or 0)]

    def addresses(self) -> list[str | None]:
        """Their PCI addresses as Linux writes them, ``0000:17:00.0``; None where one is not told."""
        answers = (self.ask("nvmlDeviceGetPciInfo", handle) for handle in self.devices())
        return [_address(getattr(answer, "busId", None)) for answer in answers]

    def device(self, address: str) -> Any:  # noqa: ANN401 - a handle
        """The handle of the GPU at a PCI address, ``0000:17:00.0``; None where there is none."""
        return self.ask("nvmlDeviceGetHandleByPciBusId", address.encode())


def _address(bus_id: bytes | str | None) -> str | None:
    """As Linux writes it: NVML gives the domain eight digits, Linux four, and in small letters."""
    domain, _, rest = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id or "").lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else None
