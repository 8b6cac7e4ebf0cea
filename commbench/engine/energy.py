"""Energy counters of processors (RAPL) and GPUs (NVML), in joules."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from commbench.collectives.backends import GPU_BACKENDS
from commbench.engine.control import Control, gather_everywhere
from commbench.system.clock import machine_id
from commbench.system.files import system_path
from commbench.system.gpus import Nvml, gpu_addresses

Kind = Literal["cpu", "gpu"]
#: Processors with their memory, and GPUs, in the order of ``energy_of`` in records.
KINDS: tuple[Kind, ...] = ("cpu", "gpu")
#: Shortest time, in seconds, over which the energy of a kind is accurate to a few per cent: RAPL's
#: counters change about once a millisecond, NVML's about ten times a second (J.-W. Chung et al.,
#: ml.energy, "Measuring GPU Energy").
LEAST_S: Mapping[Kind, float] = {"cpu": 0.1, "gpu": 2.0}
#: RAPL's zones that add up; ``psys`` contains the packages, and a package contains ``core`` and
#: ``uncore``.
_ZONES = ("package", "dram")


class Counter(NamedTuple):
    """An energy counter that grows until it wraps around."""

    kind: Kind
    read_J: Callable[[], float | None]
    """Return joules; None if the counter cannot be read. Never raises."""
    range_J: float | None = None
    """The value at which it wraps around; None: never."""


Readings = Mapping[str, float | None]
"""Joules of each counter."""


@dataclass(frozen=True)
class EnergyMeter:
    """Energy counters of one machine, or of a launch: the same kinds on every machine."""

    counters: Mapping[str, Counter] = field(default_factory=dict)
    """By name, as this rank reads them; none if another rank of the machine does."""
    kinds: Sequence[Kind] = ()
    """The counted kinds, in the order of `KINDS`; of a launch the same on every rank."""
    missing: Mapping[Kind, str] = field(default_factory=dict)
    """Why a kind is not counted: a counter cannot be read, or some device has none."""

    @classmethod
    def find(cls) -> EnergyMeter:
        """Return the counters of all processors and all GPUs of this machine that can be read."""
        counters: dict[str, Counter] = {}
        kinds = []
        missing = {}
        for kind, found in zip(KINDS, (_processors(), _gpus()), strict=True):
            if isinstance(found, str):
                missing[kind] = found
            elif found:
                kinds.append(kind)
                counters |= found
        return cls(counters, kinds, missing)

    @property
    def least_s(self) -> float:
        """Return the shortest time, in seconds, over which the energy is accurate."""
        return max((LEAST_S[kind] for kind in self.kinds), default=0.0)

    def covers(self, backend: str) -> bool:
        """Return whether the device of a backend's buffers is counted.

        Idle GPUs say nothing of a host's energy.
        """
        kind: Kind = "cpu"
        if backend in GPU_BACKENDS:
            kind = "gpu"
        return kind in self.kinds

    def read(self) -> Readings:
        """Return the readings of all counters."""
        return {name: counter.read_J() for name, counter in self.counters.items()}

    def joules_since(self, before: Readings) -> float | None:
        """Return the joules of all counters since the readings ``before``.

        Each may have wrapped once.

        None if a counter could not be read before or now, or decreased without wrapping.
        """
        joules = 0.0
        for name, now in self.read().items():
            then = before.get(name)
            if now is None or then is None:
                return None
            joules += now - then
            if now < then:
                most = self.counters[name].range_J
                if most is None:
                    return None
                joules += most
        return joules

    def energy_each(
        self, joules: Sequence[float | None], count: int, lasted_s: float
    ) -> dict[str, Any]:
        """Return the energy of each of ``count`` operations or steps, as fields of a record.

        Empty if a counter cannot be read, if none changes, as on some virtual machines, or if the
        time was too short.

        Args:
            joules: of all of them, by each rank's counters.
            count: how many there were.
            lasted_s: their time.
        """
        readable = [each for each in joules if each is not None]
        total = sum(readable)
        if len(readable) < len(joules) or not total or count < 1 or lasted_s < self.least_s:
            return {}
        return {"energy_J": total / count, "energy_of": "+".join(self.kinds)}


def own_meter(control: Control, find: Callable[[], EnergyMeter] = EnergyMeter.find) -> EnergyMeter:
    """Return the counters that this rank reads; collective.

    A kind is counted if every machine that has it can count all its devices. Emulated hosts on one
    machine count as one machine.
    """
    machine = machine_id()
    leads = gather_everywhere(control, machine).index(machine) == control.rank
    meter = EnergyMeter()
    if leads:
        meter = find()
    meters = gather_everywhere(control, (socket.gethostname(), meter.kinds, meter.missing))
    kinds = []
    reasons = {}
    for kind in KINDS:
        lacking = [f"{missing[kind]} ({host})" for host, _, missing in meters if kind in missing]
        if lacking:
            reasons[kind] = lacking[0]
        elif any(kind in kinds_there for _, kinds_there, _ in meters):
            kinds.append(kind)
    counters = {name: each for name, each in meter.counters.items() if each.kind in kinds}
    return EnergyMeter(counters, kinds, reasons)


def _processors() -> dict[str, Counter] | str:
    """Return RAPL's packages and their memory (Linux, power/powercap).

    If one cannot be read, the reason.
    """
    counters = {}
    for zone in sorted(system_path("sys/class/powercap").glob("intel-rapl:*")):
        try:
            if not (zone / "name").read_text().strip().startswith(_ZONES):
                continue
            file, most = zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())
            int(file.read_text())
        except PermissionError:
            return "only the superuser may read RAPL's counters"
        except (OSError, ValueError):
            return f"RAPL's counter {zone.name} cannot be read"
        counters[zone.name] = Counter("cpu", partial(_rapl_J, file), most / 1e6)
    return counters or "Linux shows no counters of RAPL"


def _rapl_J(file: Path) -> float | None:
    try:
        return int(file.read_text()) / 1e6
    except (OSError, ValueError):
        return None


def _gpus() -> dict[str, Counter] | str:
    """Return NVML's counters of all GPUs (Volta and later).

    If one cannot be read, the reason.

    A machine without GPUs lacks nothing. In a container only its own GPUs count.
    """
    nvml = Nvml()
    handles = nvml.devices()
    counters = {}
    silent = []
    for number, handle in enumerate(handles):
        counter = Counter("gpu", partial(_nvml_J, nvml, handle))
        counters[f"gpu{number}"] = counter
        if counter.read_J() is None:
            silent.append(str(number))
    if silent:
        return f"NVML counts no energy of GPU {', '.join(silent)} of {len(handles)}"
    if handles or not gpu_addresses():
        return counters
    if nvml.has_started:
        return "NVML lists none of the GPUs"
    return "NVML does not start: it takes nvidia-ml-py and the driver"


def _nvml_J(nvml: Any, handle: Any) -> float | None:
    """Return joules since the driver was loaded; NVML counts millijoules."""
    millijoules = None
    if handle is not None:
        millijoules = nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
    if millijoules is None:
        return None
    return float(millijoules) / 1e3
