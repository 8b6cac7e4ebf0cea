"""What hosts use, in joules: the counters of their processors (RAPL) and GPUs (NVML), where these can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from commbench.control import Control, gather_everywhere
from commbench.environment import clock_domain
from commbench.nvml import Nvml

POWERCAP = Path("/sys/class/powercap")
#: RAPL's counters move about once a millisecond: what lasts less is known worse than to 1 %.
LEAST_S = 0.1
#: RAPL's zones that add up; ``psys`` holds the packages, and ``core`` and ``uncore`` lie within one.
_ZONES = ("package", "dram")


class Counter(NamedTuple):
    """A counter of energy that only grows, until it begins anew."""

    read_J: Callable[[], float]  # noqa: N815 - a unit
    range_J: float | None = None  # noqa: N815 - a unit
    """What it counts up to; None where it does not begin anew."""


@dataclass(frozen=True)
class EnergyMeter:
    """The counters of this machine, by name: all its processors and GPUs, whoever uses them."""

    counters: Mapping[str, Counter]

    @classmethod
    def find(cls, powercap: Path = POWERCAP) -> EnergyMeter | None:
        """All that can be read; None where processors cannot (RAPL is the superuser's alone on many systems)."""
        packages = _processors(powercap)
        return cls({**packages, **_gpus()}) if packages else None

    def read(self) -> dict[str, float]:
        """Joules of each counter."""
        return {name: counter.read_J() for name, counter in self.counters.items()}

    def joules_since(self, before: Mapping[str, float]) -> float:
        """Joules of all counters since they read ``before``; each may have begun anew once."""
        used = 0.0
        for name, joules in self.read().items():
            grown = joules - before[name]
            used += grown if grown >= 0 else grown + (self.counters[name].range_J or 0.0)
        return used


def own_meter(
    control: Control, find: Callable[[], EnergyMeter | None] = EnergyMeter.find
) -> tuple[EnergyMeter | None, bool]:
    """This rank's meter, and whether every machine has one; all ranks together.

    The lowest rank of each machine has its meter. Hosts that are emulated on one machine are one machine.
    """
    machine = clock_domain().partition("/")[0]
    machines = gather_everywhere(control, machine)
    leads = machines.index(machine) == control.rank
    meter = find() if leads else None
    complete = all(gather_everywhere(control, meter is not None or not leads))
    return (meter, True) if complete else (None, False)


def _processors(powercap: Path) -> dict[str, Counter]:
    """RAPL's packages and their memory; nothing where one cannot be read (Linux, power/powercap)."""
    found = {}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        try:
            if not (zone / "name").read_text().strip().startswith(_ZONES):
                continue
            file, most = zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())
            int(file.read_text())
        except (OSError, ValueError):
            return {}
        found[zone.name] = Counter(lambda file=file: int(file.read_text()) / 1e6, most / 1e6)  # type: ignore[misc]
    return found


def _gpus() -> dict[str, Counter]:
    """NVML's counters of all GPUs, millijoules since the driver was loaded (Volta and later)."""
    nvml = Nvml.start()
    if nvml is None:
        return {}
    asked = [partial(nvml.ask, "nvmlDeviceGetTotalEnergyConsumption", device) for device in nvml.devices()]
    if any(ask() is None for ask in asked):
        return {}
    return {f"gpu{number}": Counter(lambda ask=ask: ask() / 1e3) for number, ask in enumerate(asked)}  # type: ignore[misc]
