"""Tests of energy counters and of the energy in records."""

import dataclasses
import itertools
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders import make_case, make_grouped, make_record, summarise_run
from faking import FakeCommunicator, fake_case
from fields import fields_of
from measuring import measure
from simulated_nvml import SimulatedNvml
from threads import run_threads
from training_builders import make_training_case, make_training_launches, rows_of

from commbench.engine.control import Control
from commbench.engine.energy import LEAST_S, Counter, EnergyMeter, Kind, own_meter
from commbench.engine.records import Record
from commbench.engine.sampling import Sampler
from commbench.engine.session import Session
from commbench.engine.timing.loops import Progress
from commbench.stats.budgets import BUDGETS

GPUS = ["0000:17:00.0", "0000:65:00.0"]


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    """Hide the machine's own GPUs."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


def make_zone(root: Path, zone: str, name: str, microjoules: int, most: int = 10**9) -> Path:
    """Write a RAPL zone as in sysfs; return the file of its counter."""
    folder = root / "sys/class/powercap" / zone
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder / "energy_uj"


def show_gpus(root: Path) -> None:
    """Write GPUs as PCI devices as in sysfs."""
    for address in GPUS:
        device = root / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")


def with_nvml(monkeypatch: pytest.MonkeyPatch, **options: Any) -> SimulatedNvml:
    """Simulate the GPUs for NVML."""
    nvml = SimulatedNvml(GPUS, **options)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


# ---------------------------------------------------------------------------------------- a machine


def test_packages_and_memory_add_up_and_nothing_counts_twice(root):
    """Add packages and memory; exclude zones that contain or overlap them."""
    first = make_zone(root, "intel-rapl:0", "package-0", 5_000_000)
    memory = make_zone(root, "intel-rapl:0:1", "dram", 1_000_000)
    inner = make_zone(root, "intel-rapl:0:0", "core", 1_000_000)
    second = make_zone(root, "intel-rapl:1", "package-1", 0)
    whole = make_zone(root, "intel-rapl:2", "psys", 0)
    other_way = make_zone(root, "intel-rapl-mmio:0", "package-0", 0)
    meter = EnergyMeter.find()
    assert (["cpu"], {}) == (meter.kinds, meter.missing)
    before = meter.read()
    for file, microjoules in (
        (first, 7_500_000),
        (memory, 1_250_000),
        (second, 3_000_000),
        *((unseen, 900_000_000) for unseen in (inner, whole, other_way)),
    ):
        file.write_text(str(microjoules))
    assert pytest.approx(2.5 + 0.25 + 3.0) == meter.joules_since(before)


def test_a_counter_that_begins_again_goes_on(root):
    """Add the counter's maximum after an overflow; return no energy if a counter without one
    decreases.
    """
    file = make_zone(root, "intel-rapl:0", "package-0", 900, most=1000)
    meter = EnergyMeter.find()
    before = meter.read()
    file.write_text("100")
    assert pytest.approx(200e-6) == meter.joules_since(before)
    endless = of_readings(5.0, 1.0)
    assert endless.joules_since(endless.read()) is None


#: What a machine has, and why a kind of it is not counted.
MISSING = {
    "no counters": ("cpu", "Linux shows no counters of RAPL"),
    "a counter that cannot be read": ("cpu", "RAPL's counter intel-rapl:1 cannot be read"),
    "a GPU without a counter": ("gpu", "NVML counts no energy of GPU 1 of 2"),
    "a GPU that is lost": ("gpu", "NVML counts no energy of GPU 0 of 2"),
    "GPUs without NVML": ("gpu", "NVML does not start: it takes nvidia-ml-py and the driver"),
    "GPUs that NVML lacks": ("gpu", "NVML lists none of the GPUs"),
}


@pytest.mark.parametrize("machine", MISSING)
def test_a_kind_is_counted_wholly_or_not(root, monkeypatch, machine):
    """Count no kind of which one device has no counter, and say why."""
    if machine == "a counter that cannot be read":
        make_zone(root, "intel-rapl:0", "package-0", 1)
        make_zone(root, "intel-rapl:1", "package-1", 1).unlink()
    if "NVML" in machine:
        show_gpus(root)
    if machine == "GPUs that NVML lacks":
        monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml([]))
    if machine == "a GPU without a counter":
        with_nvml(monkeypatch, energy_mJ={GPUS[0]: [1]})
    if machine == "a GPU that is lost":
        with_nvml(monkeypatch, energy_mJ={gpu: [1] for gpu in GPUS}, lost=GPUS[:1])
    kind, reason = MISSING[machine]
    meter = EnergyMeter.find()
    assert [] == meter.kinds
    assert reason == meter.missing[kind]
    assert ("gpu" in meter.missing) == (kind == "gpu")


@pytest.mark.usefixtures("root")
def test_gpus_are_counted_without_processors(monkeypatch):
    """Add the millijoules of all GPUs."""
    with_nvml(monkeypatch, energy_mJ={GPUS[0]: [1_000, 1_000, 3_500], GPUS[1]: [500, 500, 600]})
    meter = EnergyMeter.find()
    assert ["gpu"] == meter.kinds
    assert ["cpu"] == list(meter.missing)
    assert pytest.approx(2.5 + 0.1) == meter.joules_since(meter.read())


def test_a_counter_that_stops_answering_makes_the_energy_unknown(root, monkeypatch):
    """Return no energy instead of raising when a counter fails."""
    file = make_zone(root, "intel-rapl:0", "package-0", 1)
    nvml = with_nvml(monkeypatch, energy_mJ={gpu: [1] for gpu in GPUS})
    meter = EnergyMeter.find()
    before = meter.read()
    assert 0.0 == meter.joules_since(before)
    nvml.lost.append(GPUS[1])
    assert meter.joules_since(before) is None
    nvml.lost.clear()
    file.unlink()
    assert meter.joules_since(before) is None
    unread = meter.read()
    file.write_text("1")
    assert meter.joules_since(unread) is None


# -------------------------------------------------------------------------------------------- a run


def meter_of(*kinds: Kind, missing: dict[Kind, str] | None = None) -> EnergyMeter:
    """Return a meter whose counters add one joule per reading."""
    counters = {kind: Counter(kind, partial(next, itertools.count(0.0))) for kind in kinds}
    return EnergyMeter(counters, kinds, missing or {})


def of_readings(*joules: float | None) -> EnergyMeter:
    """Return the meter of one counter with these readings."""
    return EnergyMeter({"one": Counter("cpu", partial(next, iter(joules)))}, ("cpu",))


def on_machines(monkeypatch: pytest.MonkeyPatch, *meters: EnergyMeter) -> list[EnergyMeter]:
    """Return the readings of ranks that are each on their own machine with the given meter."""
    monkeypatch.setattr("commbench.engine.energy.machine_id", threading.get_ident)
    return run_threads(
        len(meters), lambda control: own_meter(control, lambda: meters[control.rank])
    )


def test_one_rank_of_a_machine_reads(monkeypatch, stub):
    """Read on the lowest rank of a machine, also of one that tells no boot id; all ranks know what
    is counted.
    """
    stub("commbench.system.clock.boot_id", None)
    monkeypatch.setattr("commbench.system.clock.os.getpid", threading.get_ident)
    meters = run_threads(3, own_meter, partial(meter_of, "cpu"))
    assert [["cpu"], [], []] == [list(meter.counters) for meter in meters]
    assert [["cpu"]] * 3 == [list(meter.kinds) for meter in meters]
    nothing = run_threads(3, own_meter, EnergyMeter)
    assert [[]] * 3 == [list(meter.kinds) for meter in nothing]


def test_a_kind_is_counted_where_no_machine_misses_it(monkeypatch):
    """Count a type of energy only if no machine with such hardware lacks its counter."""
    silent = {"cpu": "no counters"}
    meters = on_machines(
        monkeypatch, meter_of("cpu", "gpu"), meter_of("cpu"), meter_of("gpu", missing=silent)
    )
    assert [["gpu"]] * 3 == [list(meter.kinds) for meter in meters]
    assert [["gpu"], [], ["gpu"]] == [list(meter.counters) for meter in meters]
    assert {f"no counters ({socket.gethostname()})"} == {meter.missing["cpu"] for meter in meters}


def test_a_backend_s_own_memory_must_be_counted():
    """Count processors for Gloo and GPUs for NCCL."""
    backends = ("gloo", "mpi", "nccl", "torch-nccl", "mpi-cuda", "mpi-staged")
    of_cpus, of_gpus = EnergyMeter({}, ("cpu",)), EnergyMeter({}, ("gpu",))
    assert ["gloo", "mpi"] == list(filter(of_cpus.covers, backends))
    assert backends[2:] == tuple(filter(of_gpus.covers, backends))


# ------------------------------------------------------------------------------------------- a case


def measured(
    monkeypatch: pytest.MonkeyPatch,
    find: Callable[[], EnergyMeter],
    *,
    least_s: float,
    energy_s: float = 0.0,
) -> Record:
    """Return the record of a case on two ranks with the given meter."""
    monkeypatch.setattr("commbench.engine.energy.LEAST_S", dict.fromkeys(LEAST_S, least_s))
    case = fake_case(message_bytes=64, dtype="int8")
    budget = dataclasses.replace(BUDGETS["quick"], energy_s=energy_s, visits=1)

    def work(control: Control) -> Record | None:
        session = Session(
            control=control, budget=budget, progress=Progress(), meter=own_meter(control, find)
        )
        return measure(case, FakeCommunicator(control, launch=0), session, launch=0)

    record = run_threads(2, work)[0]
    assert record is not None
    return record


@pytest.mark.parametrize(("kinds", "energy_of"), [(("cpu",), "cpu"), (("cpu", "gpu"), "cpu+gpu")])
def test_an_operation_has_its_share(monkeypatch, kinds, energy_of):
    """Divide the joules between two readings by the number of operations, and name the counters."""
    record = measured(monkeypatch, partial(meter_of, *kinds), least_s=0.0)
    operations = (len(record.times_us) + record.late_discarded) * record.batch
    assert record.energy_J == pytest.approx(len(kinds) / operations)
    assert energy_of == record.energy_of


@pytest.mark.parametrize(
    ("find", "least_s"),
    [
        (partial(meter_of, "cpu"), 1e9),  # over too soon
        (EnergyMeter, 0.0),
        (partial(meter_of, "gpu"), 0.0),
        (partial(of_readings, 0.0, 0.0), 0.0),  # a counter that never moves
        (partial(of_readings, 1.0, None), 0.0),  # one that stops
    ],
)
def test_a_case_may_lack_its_energy_alone(monkeypatch, find, least_s):
    """Time the case although its energy is unknown."""
    record = measured(monkeypatch, find, least_s=least_s)
    assert ("ok", None, "") == (record.status, record.energy_J, record.energy_of)
    assert len(record.times_us)


@pytest.mark.parametrize(("energy_s", "least_s"), [(0.5, 0.0), (0.5, 1.0)])
def test_a_case_can_go_on_for_its_energy(monkeypatch, energy_s, least_s):
    """Repeat as long as asked and no less than the counters need, without waiting for a common
    start; the joules are those of these repetitions alone.
    """
    asked = []

    def go_on(sampler: Sampler, seconds: float) -> None:
        asked.append((sampler.timer.sync.method, seconds))
        sampler.session.progress.counters += 100

    monkeypatch.setattr(Sampler, "repeat_for", go_on)
    find = partial(meter_of, "cpu")
    record = measured(monkeypatch, find, least_s=least_s, energy_s=energy_s)
    assert [("none", max(energy_s, least_s))] * 2 == asked
    assert (0.01 if least_s == 0 else None) == record.energy_J


# --------------------------------------------------------------------------------------------- rows


def test_a_row_has_the_median_over_launches():
    """Write the median energy over launches into the row."""
    records = [
        make_record(make_case(), launch=launch, energy_J=joules, energy_of="cpu")
        for launch, joules in enumerate((1.0, 5.0, 2.0))
    ]
    (row,) = summarise_run([*records, make_record(make_case(), launch=3)], {})
    assert (2.0, "cpu") == (row.energy_J, row.energy_of)


def test_launches_that_count_different_things_have_no_energy_together():
    """Combine no launches with different counters."""
    records = [
        make_record(make_case(), launch=launch, energy_J=1.0, energy_of=energy_of)
        for launch, energy_of in enumerate(("gpu", "gpu", ""))
    ]
    assert [None] == fields_of(summarise_run(records, {}), "energy_J")
    trained = make_training_launches(
        [20.0, 20.0], make_training_case(), energy_J=8.0, energy_of="cpu"
    )
    assert 8.0 == rows_of(trained)["none default"].energy_J
    trained[1] = dataclasses.replace(trained[1], energy_of="cpu+gpu")
    assert rows_of(trained)["none default"].energy_J is None


def test_groups_that_run_together_have_no_energy_of_their_own():
    """Record no energy for concurrent groups."""
    records = make_grouped(make_case(pattern="split:2"), {"0-1": [1.0], "2-3": [1.0]})
    records = [dataclasses.replace(record, energy_J=1.0, energy_of="cpu") for record in records]
    assert {None} == set(fields_of(summarise_run(records, {}), "energy_J"))
