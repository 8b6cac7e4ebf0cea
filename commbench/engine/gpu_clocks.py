"""How fast a GPU's multiprocessors run around a case, and what slows them down, as NVML tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from commbench.engine.records import Clocks
from commbench.system.gpus import Nvml

#: Bits of nvmlClocksEventReasons (nvml.h). Those of an idle GPU (0x1) and of clocks that someone has set (0x2) are no
#: reason for a warning.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat, by hardware",
    0x80: "power brake",
    0x100: "display clocks",
}
#: The reason that "may be also reported during PState or clock change" (nvml.h), and those it comes with otherwise.
_SLOWDOWN_BIT, _CAUSES = 0x8, 0x40 | 0x80
#: nvmlPerfPolicyType_t (nvml.h): what counts the nanoseconds in which it has held the clock back.
_LIMITS = {0: "power cap", 1: "heat", 3: "board limit"}
_SM_CLOCK = 1


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A GPU at one moment."""

    sm_MHz: float | None  # noqa: N815 - a unit
    """None where NVML does not tell."""
    reasons: int
    """Bits of nvmlClocksEventReasons; 0 where NVML does not tell."""
    held_ns: Mapping[str, int]
    """How long each limit has held the clock back since the driver was loaded; only those that this GPU counts."""


class GpuClocks:
    """The clock of one GPU."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:  # noqa: ANN401 - NVML's
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def find(cls, address: str) -> GpuClocks | None:
        """That of the GPU at a PCI address, ``0000:17:00.0``; None where NVML knows of none."""
        nvml = Nvml.start()
        handle = nvml.device(address) if nvml else None
        return cls(nvml, handle) if nvml and handle is not None else None

    def read(self) -> Reading:
        """How it is now."""
        ask, handle = self._nvml.ask, self._handle
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # as drivers before R535 call it
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        counted = {name: ask("nvmlDeviceGetViolationStatus", handle, limit) for limit, name in _LIMITS.items()}
        return Reading(
            sm_MHz=ask("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
            reasons=reasons or 0,
            held_ns={name: int(found.violationTime) for name, found in counted.items() if found is not None},
        )


def clocks_between(gpus: Iterable[tuple[Reading, Reading]]) -> Clocks | None:
    """What two readings of each GPU, before and after a case, say of its clock; None without any."""
    pairs = list(gpus)
    seen = [reading.sm_MHz for pair in pairs for reading in pair if reading.sm_MHz is not None]
    if not pairs:
        return None
    slowed: set[str] = set()
    for before, after in pairs:
        slowed |= {name for bit, name in _REASONS.items() if _reasons(before, after) & bit}
        slowed |= {name for name, held_ns in after.held_ns.items() if held_ns > before.held_ns.get(name, held_ns)}
    return Clocks(
        sm_low_MHz=min(seen, default=None), sm_high_MHz=max(seen, default=None), slowed_by=tuple(sorted(slowed))
    )


def _reasons(before: Reading, after: Reading) -> int:
    """The bits of either reading; a slowdown that one has alone and without a cause is a clock being changed."""
    either, both = before.reasons | after.reasons, before.reasons & after.reasons
    caused = any(reading.reasons & _SLOWDOWN_BIT and reading.reasons & _CAUSES for reading in (before, after))
    return either if caused or both & _SLOWDOWN_BIT else either & ~_SLOWDOWN_BIT
