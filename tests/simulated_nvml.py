"""NVIDIA's management library for simulated GPUs, with the behaviour observed in nvidia-ml-py."""

# ruff: noqa: N802 - names of the library
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any


class NotSupportedError(Exception):
    """NVML's error for an unsupported query."""


#: What functions of the library return, whatever they are asked.
CONSTANTS = {
    "nvmlInit": None,
    "nvmlDeviceGetName": b"NVIDIA H100",
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,  # reduced while idle
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetNvLinkVersion": 6,  # NVML_NVLINK_VERSION_4_0
}


class SimulatedNvml:
    """The module ``pynvml`` on a host with GPUs at ``addresses``, which are also their handles.

    Each reading is returned once, the last one repeatedly. ``violations_ns``: by policy; others
    have no counter.
    ``energy_mJ``: by GPU; other GPUs have no counter. ``lost``: GPUs that do not answer; a test may
    change the list. ``nvlinks``: by GPU the other end of each link (empty: not active); by default
    the second link of the first two GPUs.
    """

    #: A bug of nvidia-ml-py: the constant is a tuple, which the function does not take.
    NVML_P2P_CAPS_INDEX_READ = (0,)

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        clocks_MHz: Sequence[float] = (1980,),
        reasons: Sequence[int] = (0,),
        violations_ns: Mapping[int, Sequence[int]] | None = None,
        energy_mJ: Mapping[str, Sequence[int]] | None = None,
        lost: Sequence[str] = (),
        old_driver: bool = False,
        nvlinks: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.addresses = list(addresses)
        first, second = [*self.addresses, "", ""][:2]
        self._nvlinks = nvlinks or {first: ["", second], second: ["", first]}
        self.lost = list(lost)
        self._readings = {"clock": list(clocks_MHz), "reasons": list(reasons)}
        for policy, values in (violations_ns or {}).items():
            self._readings[f"policy {policy}"] = list(values)
        for gpu, values in (energy_mJ or {}).items():
            self._readings[f"energy {gpu}"] = list(values)
        self._old_driver = old_driver

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in CONSTANTS:
            raise AttributeError(name)
        return lambda *_: CONSTANTS[name]

    def _next(self, name: str) -> float:
        if name not in self._readings:
            raise NotSupportedError
        values = self._readings[name]
        return values.pop(0) if len(values) > 1 else values[0]

    def nvmlDeviceGetCount(self) -> int:
        """Return the number of GPUs, lost ones included."""
        return len(self.addresses)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        """Return a GPU that is not lost."""
        if self.addresses[index] in self.lost:
            raise NotSupportedError
        return self.addresses[index]

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:
        """Return the address with a domain of eight digits."""
        return SimpleNamespace(busId=f"0000{handle}".upper().encode())

    def nvmlDeviceGetTopologyCommonAncestor(self, one: str, other: str) -> int:
        """Return one switch for the first two GPUs, another processor for others."""
        return 10 if {one, other} <= set(self.addresses[:2]) else 50

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        """Return the millijoules since the driver was loaded."""
        if handle in self.lost:
            raise NotSupportedError
        return int(self._next(f"energy {handle}"))

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> str:
        """Return a GPU."""
        if address.decode() not in self.addresses:
            raise NotSupportedError
        return address.decode()

    def nvmlDeviceGetClockInfo(self, _handle: str, kind: int) -> float:
        """Return the clock of the multiprocessors."""
        assert 1 == kind
        return self._next("clock")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        """Return the slowdown reasons as bits; drivers before R535 lack this name."""
        if self._old_driver:
            raise NotSupportedError
        return self.nvmlDeviceGetCurrentClocksThrottleReasons(handle)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: str) -> int:
        """Return the slowdown reasons under the old name."""
        return int(self._next("reasons"))

    def nvmlDeviceGetViolationStatus(self, _handle: str, policy: int) -> SimpleNamespace:
        """Return how long a limit has reduced the clock."""
        return SimpleNamespace(referenceTime=0, violationTime=int(self._next(f"policy {policy}")))

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        """Return whether a link is active; raise if a GPU has no such link."""
        return int(bool(self._nvlinks[handle][link]))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: str, link: int) -> SimpleNamespace:
        """Return the other end, as bytes and with eight digits."""
        return SimpleNamespace(busId=f"0000{self._nvlinks[handle][link]}".upper().encode())

    def nvmlDeviceGetP2PStatus(self, one: str, other: str, capability: int) -> int:
        """Return peer access between the first two GPUs, else that the topology prevents it."""
        if not isinstance(capability, int):
            raise TypeError("argument 3: wrong type")
        return 0 if {one, other} <= set(self.addresses[:2]) else 3
