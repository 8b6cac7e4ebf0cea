"""GPU clock rates around a case, and the reasons for a slowdown, from NVML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
#: The reason that "may be also reported during PState or clock change" (nvml.h) counts if it is in
#: both readings; its actual causes have bits of their own.
_SLOWDOWN_BIT = 0x8
#: nvmlPerfPolicyType_t (nvml.h): policies with a counter of the nanoseconds in which they limited
#: the clock.
_LIMITS = {0: "power cap", 1: "heat", 3: "board limit"}
_SM_CLOCK = 1


@dataclass(frozen=True, kw_only=True)
class Reading:
    """State of a GPU at one moment."""

    sm_MHz: float | None
    """None if NVML does not report it."""
    reasons: int
    """Bits of nvmlClocksEventReasons; 0 if NVML does not report them."""
    held_ns: Mapping[str, int]
    """Nanoseconds in which each limit was active since the driver was loaded, as far as this GPU
    counts them."""


class GpuClocks:
    """The clock of this rank's GPU around a visit; an `Observer`.

    ``address`` is its PCI address, ``0000:17:00.0``.
    """

    def __init__(self, address: str) -> None:
        self._nvml = Nvml()
        self._handle = self._nvml.device(address)

    def before(self) -> None:
        """Read the clock: after the warm-up, as the clock of an idle GPU is low."""
        self._before = self.read()

    def after(self) -> Clocks | None:
        """Return the clocks of this GPU; None if NVML does not list it."""
        after = self.read()
        if self._before is None or after is None:
            return None
        return clocks_between(self._before, after)

    def fields(self, ranks: Sequence[Clocks | None]) -> dict[str, Clocks | None]:
        """Return the field of a record: the clocks of all GPUs."""
        return {"clocks": joined_clocks(ranks)}

    def read(self) -> Reading | None:
        """Return the current state; None if NVML does not list the GPU."""
        ask, handle = self._nvml.ask, self._handle
        if handle is None:
            return None
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # name in drivers before R535
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        held_ns = {}
        for limit, name in _LIMITS.items():
            counted = ask("nvmlDeviceGetViolationStatus", handle, limit)
            if counted is not None:
                held_ns[name] = int(counted.violationTime)
        sm_MHz = ask("nvmlDeviceGetClockInfo", handle, _SM_CLOCK)
        return Reading(sm_MHz=sm_MHz, reasons=reasons or 0, held_ns=held_ns)


def clocks_between(before: Reading, after: Reading) -> Clocks:
    """Return the clock rates and slowdowns of a GPU from its readings before and after a case."""
    rates = [each.sm_MHz for each in (before, after) if each.sm_MHz is not None]
    reasons = before.reasons | after.reasons
    if not before.reasons & after.reasons & _SLOWDOWN_BIT:
        reasons &= ~_SLOWDOWN_BIT
    slowed = {name for bit, name in _REASONS.items() if reasons & bit}
    for name, held_ns in after.held_ns.items():
        if held_ns > before.held_ns.get(name, held_ns):
            slowed.add(name)
    low, high = min(rates, default=None), max(rates, default=None)
    return Clocks(sm_low_MHz=low, sm_high_MHz=high, slowed_by=tuple(sorted(slowed)))


def joined_clocks(clocks: Iterable[Clocks | None]) -> Clocks | None:
    """Return the clocks of several GPUs or visits as one; None without any."""
    known = [each for each in clocks if each is not None]
    if not known:
        return None
    lows = [each.sm_low_MHz for each in known if each.sm_low_MHz is not None]
    highs = [each.sm_high_MHz for each in known if each.sm_high_MHz is not None]
    return Clocks(
        sm_low_MHz=min(lows, default=None),
        sm_high_MHz=max(highs, default=None),
        slowed_by=tuple(sorted({name for each in known for name in each.slowed_by})),
    )
