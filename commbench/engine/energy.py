"""Energy counters of processors (RAPL) and GPUs (NVML), in joules."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from commbench.collectives.backends import GPU_BACKENDS
from commbench.engine.control import Control, gather_everywhere
from commbench.schema import JsonObject
from commbench.system.clock import clock_domain
from commbench.system.files import ROOT
from commbench.system.gpus import Nvml, gpu_addresses
from commbench.units import counted

Kind = Literal["cpu", "gpu"]
#: Processors with their memory, and GPUs, in the order in which ``energy_of`` names them.
KINDS: tuple[Kind, ...] = ("cpu", "gpu")
#: The shortest time, in seconds, over which a kind is known to a few per cent: RAPL's counters move about once a
#: millisecond, NVML's about ten times a second (J.-W. Chung et al., ml.energy, "Measuring GPU Energy").
LEAST_S: Mapping[Kind, float] = {"cpu": 0.1, "gpu": 2.0}
#: RAPL's zones that add up; ``psys`` holds the packages, and ``core`` and ``uncore`` lie within one.
_ZONES = ("package", "dram")


class Counter(NamedTuple):
    """A counter of energy that grows until it wraps around."""

    kind: Kind
    read_J: Callable[[], float | None]  # noqa: N815 - a unit
    """Never raises: None where it does not answer."""
    range_J: float | None = None  # noqa: N815 - a unit
    """The value at which it wraps around; None if it does not."""


Readings = Mapping[str, float | None]
"""Joules of each counter."""


@dataclass(frozen=True)
class EnergyMeter:
    """The counters of this machine, by name: all its processors or all its GPUs or both, whoever uses them."""

    counters: Mapping[str, Counter] = field(default_factory=dict)
    missing: Mapping[Kind, str] = field(default_factory=dict)
    """Why a kind that the machine has is not counted: it cannot be read, or not of all."""

    @classmethod
    def find(cls, root: Path = ROOT) -> EnergyMeter:
        """All that can be read of every processor or of every GPU.

        Args:
            root: where /sys and /proc are found, for tests.
        """
        (processors, without_cpu), (gpus, without_gpu) = _processors(root), _gpus(root)
        reasons: dict[Kind, str] = {"cpu": without_cpu, "gpu": without_gpu}
        return cls({**processors, **gpus}, {kind: reason for kind, reason in reasons.items() if reason})

    @property
    def kinds(self) -> set[Kind]:
        """What is counted."""
        return {counter.kind for counter in self.counters.values()}

    def only(self, kinds: Collection[Kind]) -> EnergyMeter:
        """The counters of these kinds alone."""
        return EnergyMeter({name: counter for name, counter in self.counters.items() if counter.kind in kinds})

    def read(self) -> Readings:
        """All counters now."""
        return {name: counter.read_J() for name, counter in self.counters.items()}

    def joules_since(self, before: Readings) -> float | None:
        """Joules of all counters since they read ``before``; each may have begun anew once.

        None where one did not answer then or does not now, or has gone back for no reason that is known.
        """
        used = [self._grown(name, before.get(name), now) for name, now in self.read().items()]
        known = [joules for joules in used if joules is not None]
        return sum(known) if len(known) == len(used) else None

    def _grown(self, name: str, before: float | None, now: float | None) -> float | None:
        if before is None or now is None:
            return None
        range_J = self.counters[name].range_J  # noqa: N806 - a unit
        if now >= before:
            return now - before
        return None if range_J is None else now - before + range_J


@dataclass(frozen=True)
class RunMeter:
    """What is counted in a launch: the same kinds on every machine, each read by the lowest rank there."""

    kinds: Sequence[Kind] = ()
    """The same on every rank, in the order of `KINDS`."""
    own: EnergyMeter = field(default_factory=EnergyMeter)
    """What this rank reads: of these kinds; nothing where another rank does."""
    missing: Mapping[Kind, str] = field(default_factory=dict)
    """Why a kind is not counted."""

    @property
    def energy_of(self) -> str:
        """What is counted, as records name it: ``cpu``, ``gpu`` or ``cpu+gpu``."""
        return "+".join(self.kinds)

    @property
    def least_s(self) -> float:
        """The shortest time, in seconds, of which the energy is known well enough."""
        return max((LEAST_S[kind] for kind in self.kinds), default=0.0)

    def covers(self, backend: str) -> bool:
        """Whether what a backend's buffers lie in is counted: the energy of idle GPUs alone is none of a host's."""
        return ("gpu" if backend in GPU_BACKENDS else "cpu") in self.kinds

    def facts(self) -> JsonObject:
        """What run.json states: ``counted`` kinds, and for those that are ``missing`` why."""
        return {"counted": list(self.kinds), "missing": dict(self.missing)}


def own_meter(control: Control, find: Callable[[], EnergyMeter] = EnergyMeter.find) -> RunMeter:
    """What this rank reads of the run's energy; all ranks together.

    A kind is counted where every machine that has it can tell it whole. Hosts that are emulated on one machine are one
    machine.
    """
    machine = clock_domain().partition("/")[0]
    leads = gather_everywhere(control, machine).index(machine) == control.rank
    meter = find() if leads else EnergyMeter()
    meters = gather_everywhere(control, (socket.gethostname(), meter.kinds, meter.missing))
    lacks = {kind: [(host, missing[kind]) for host, _, missing in meters if kind in missing] for kind in KINDS}
    kinds = [kind for kind in KINDS if not lacks[kind] and any(kind in counted_kinds for _, counted_kinds, _ in meters)]
    return RunMeter(kinds, meter.only(kinds), {kind: _reason(hosts) for kind, hosts in lacks.items() if hosts})


def _reason(lacking: Sequence[tuple[str, str]]) -> str:
    """Why the first of the hosts does not tell a kind, and how many others do not."""
    host, why = lacking[0]
    others = f" and {counted(len(lacking) - 1, 'other host')}" if len(lacking) > 1 else ""
    return f"{why} ({host}{others})"


def _processors(root: Path) -> tuple[dict[str, Counter], str]:
    """RAPL's packages and their memory (Linux, power/powercap); nothing where one cannot be read, and why."""
    found = {}
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        try:
            if not (zone / "name").read_text().strip().startswith(_ZONES):
                continue
            file, most = zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())
            int(file.read_text())
        except PermissionError:
            return {}, "RAPL's counters may be read by the superuser alone"
        except (OSError, ValueError):
            return {}, f"RAPL's counter {zone.name} cannot be read"
        found[zone.name] = Counter("cpu", partial(_rapl_J, file), most / 1e6)
    return found, "" if found else "Linux shows no counters of RAPL"


def _rapl_J(file: Path) -> float | None:  # noqa: N802 - a unit
    try:
        return int(file.read_text()) / 1e6
    except (OSError, ValueError):
        return None


def _gpus(root: Path) -> tuple[dict[str, Counter], str]:
    """NVML's counters of all GPUs (Volta and later); nothing where one cannot be read, and why.

    A machine without GPUs lacks nothing. In a container all GPUs are those that it was given.
    """
    nvml = Nvml.start()
    handles = nvml.devices() if nvml else []
    if nvml is None or not handles:
        why = "NVML lists none of the GPUs" if nvml else "NVML does not start: it takes nvidia-ml-py and the driver"
        return {}, why if gpu_addresses(root) else ""
    found = {f"gpu{n}": Counter("gpu", partial(_nvml_J, nvml, handle)) for n, handle in enumerate(handles)}
    silent = [name.removeprefix("gpu") for name, counter in found.items() if counter.read_J() is None]
    if silent:
        return {}, f"NVML tells no energy of GPU {', '.join(silent)} of {len(handles)}"
    return found, ""


def _nvml_J(nvml: Nvml, handle: Any) -> float | None:  # noqa: ANN401, N802 - a handle; a unit
    """Joules since the driver was loaded, which NVML counts in thousandths."""
    millijoules = None if handle is None else nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
    return None if millijoules is None else millijoules / 1e3
