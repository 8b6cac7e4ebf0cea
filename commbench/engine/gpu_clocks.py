"""GPU clock rates around a case, and the reasons for a slowdown, from NVML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from commbench.engine.records import Clocks
from commbench.system.gpus import Nvml

#: Bits of nvmlClocksEventReasons (nvml.h) that cause a warning. An idle GPU (0x1) and clocks set by
#: a user (0x2) do not.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat, by hardware",
    0x80: "power brake",
    0x100: "display clocks",
}
#: The reason that "may be also reported during PState or clock change" (nvml.h), and its actual
#: causes.
_SLOWDOWN_BIT, _CAUSES = 0x8, 0x40 | 0x80
#: nvmlPerfPolicyType_t (nvml.h): policies with a counter of the nanoseconds in which they limited
#: the clock.
_LIMITS = {0: "power cap", 1: "heat", 3: "board limit"}
_SM_CLOCK = 1


@dataclass(frozen=True, kw_only=True)
class Reading:
    """State of a GPU at one moment."""

    sm_MHz: float | None  # noqa: N815 - a unit
    """None if NVML does not report it."""
    reasons: int
    """Bits of nvmlClocksEventReasons; 0 if NVML does not report them."""
    held_ns: Mapping[str, int]
    """Nanoseconds in which each limit was active since the driver was loaded, as far as this GPU
    counts them."""


class GpuClocks:
    """The clock of one GPU."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:  # noqa: ANN401 - NVML's
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def find(cls, address: str) -> GpuClocks | None:
        """Return the clock of the GPU at a PCI address, ``0000:17:00.0``.

        None if NVML does not list it.
        """
        nvml = Nvml()
        handle = nvml.device(address)
        return None if handle is None else cls(nvml, handle)

    def read(self) -> Reading:
        """Return the current state."""
        ask, handle = self._nvml.ask, self._handle
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # name in drivers before R535
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        counted = {
            name: ask("nvmlDeviceGetViolationStatus", handle, limit)
            for limit, name in _LIMITS.items()
        }
        return Reading(
            sm_MHz=ask("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
            reasons=reasons or 0,
            held_ns={
                name: int(value.violationTime)
                for name, value in counted.items()
                if value is not None
            },
        )


def clocks_between(gpus: Iterable[tuple[Reading, Reading]]) -> Clocks | None:
    """Return the clock rates and slowdowns from two readings of each GPU, before and after a case.

    None without any.
    """
    pairs = list(gpus)
    clock_rates = [
        reading.sm_MHz for pair in pairs for reading in pair if reading.sm_MHz is not None
    ]
    if not pairs:
        return None
    slowed: set[str] = set()
    for before, after in pairs:
        slowed |= {name for bit, name in _REASONS.items() if _reasons(before, after) & bit}
        slowed |= {
            name
            for name, held_ns in after.held_ns.items()
            if held_ns > before.held_ns.get(name, held_ns)
        }
    return Clocks(
        sm_low_MHz=min(clock_rates, default=None),
        sm_high_MHz=max(clock_rates, default=None),
        slowed_by=tuple(sorted(slowed)),
    )


def _reasons(before: Reading, after: Reading) -> int:
    """Return the bits of either reading.

    A slowdown without cause in one reading only is a clock change.
    """
    in_either, in_both = before.reasons | after.reasons, before.reasons & after.reasons
    caused = any(
        reading.reasons & _SLOWDOWN_BIT and reading.reasons & _CAUSES for reading in (before, after)
    )
    return in_either if caused or in_both & _SLOWDOWN_BIT else in_either & ~_SLOWDOWN_BIT
