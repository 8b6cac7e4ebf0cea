"""Tests of energy counters, and of what becomes of them in records."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from builders import make_case, make_record

from commbench.budgets import BUDGETS
from commbench.cases import Case
from commbench.communicators.fake import FakeCommunicator
from commbench.control import Control, run_threads
from commbench.energy import Counter, EnergyMeter, own_meter
from commbench.measure import Session, measure
from commbench.summary import summarise_run
from commbench.timing.progress import Progress


def make_zone(root: Path, zone: str, name: str, microjoules: int, most: int = 10**9) -> Path:
    """Write a zone of RAPL as Linux shows it; return the file of its counter."""
    (root / zone).mkdir(parents=True)
    (root / zone / "name").write_text(f"{name}\n")
    (root / zone / "max_energy_range_uj").write_text(f"{most}\n")
    (root / zone / "energy_uj").write_text(f"{microjoules}\n")
    return root / zone / "energy_uj"


def test_packages_and_memory_add_up_and_nothing_counts_twice(tmp_path: Path) -> None:
    """Count both packages and the memory; leave out what lies within them or around them."""
    first = make_zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    memory = make_zone(tmp_path, "intel-rapl:0:1", "dram", 1_000_000)
    inner = make_zone(tmp_path, "intel-rapl:0:0", "core", 1_000_000)
    second = make_zone(tmp_path, "intel-rapl:1", "package-1", 0)
    whole = make_zone(tmp_path, "intel-rapl:2", "psys", 0)
    other_way = make_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    meter = EnergyMeter.find(tmp_path)
    assert meter is not None
    before = meter.read()
    for file, microjoules in (
        (first, 7_500_000),
        (memory, 1_250_000),
        (second, 3_000_000),
        *((unseen, 900_000_000) for unseen in (inner, whole, other_way)),
    ):
        file.write_text(str(microjoules))
    assert pytest.approx(2.5 + 0.25 + 3.0) == meter.joules_since(before)


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    """Add what it counts up to."""
    file = make_zone(tmp_path, "intel-rapl:0", "package-0", 900, most=1000)
    meter = EnergyMeter.find(tmp_path)
    assert meter is not None
    before = meter.read()
    file.write_text("100")
    assert pytest.approx(200e-6) == meter.joules_since(before)


def test_without_readable_counters_there_is_no_meter(tmp_path: Path) -> None:
    """Find none where there are no zones, and where one cannot be read."""
    assert EnergyMeter.find(tmp_path) is None
    make_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert EnergyMeter.find(tmp_path) is None


class Steady:
    """A counter that has used a joule more whenever it is read."""

    def __init__(self) -> None:
        self.joules = 0.0

    def meter(self) -> EnergyMeter:
        """A meter with this counter."""
        return EnergyMeter({"package": Counter(self.read)})

    def read(self) -> float:
        """Joules."""
        self.joules += 1.0
        return self.joules


def test_one_rank_of_a_machine_reads() -> None:
    """Let the lowest rank read, as threads are on one machine; without counters nobody does."""
    meters = run_threads(3, lambda control: own_meter(control, Steady().meter))
    assert [(True, True), (False, True), (False, True)] == [(meter is not None, whole) for meter, whole in meters]
    assert [(None, False)] * 3 == run_threads(3, lambda control: own_meter(control, lambda: None))


def measured(find: Any, monkeypatch: pytest.MonkeyPatch, *, least_s: float) -> Any:
    """Return the record of a case on two ranks whose machine has such a meter."""
    monkeypatch.setattr("commbench.measure.LEAST_S", least_s)
    case = Case(backend="fake", operation="all_reduce", message_bytes=64, dtype="int8", redop="sum", in_place=True)

    def work(control: Control) -> Any:
        session = Session(control=control, budget=BUDGETS["quick"], progress=Progress(), find_meter=find)
        return measure(case, FakeCommunicator(control, launch=0), session, launch=0)

    return run_threads(2, work)[0]


def test_an_operation_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the joules between two readings by the operations that were made between them."""
    record = measured(Steady().meter, monkeypatch, least_s=0.0)
    operations = (1 + len(record.times_us) + record.late_discarded) * record.batch  # the first tells how many fit
    assert record.energy_J == pytest.approx(1.0 / operations)


def test_what_is_over_too_soon_has_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say nothing of what the counters are too slow for, or where there are none."""
    assert measured(Steady().meter, monkeypatch, least_s=1e9).energy_J is None
    assert measured(lambda: None, monkeypatch, least_s=0.0).energy_J is None


def test_a_row_has_the_median_over_launches() -> None:
    """Summarise joules as times are."""
    records = [
        dataclasses.replace(make_record(make_case(), launch=launch), energy_J=joules)
        for launch, joules in enumerate((1.0, 5.0, 2.0))
    ]
    (row,) = summarise_run(records, {})
    assert 2.0 == row.energy_J
