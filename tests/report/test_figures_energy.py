"""Tests of energy in figures and pages."""

from builders import KIB, STEADY, make_case, make_launches
from drawings import painted, points_of, run_of, training_run_of
from pages import read
from training_builders import launches_of, make_training_case

from commbench.engine.records import Record
from commbench.report.figures.energy import (
    bars_of,
    curves_of,
    energy_figures,
    paint_bars,
    paint_curves,
)
from commbench.report.figures.words import groups


def metered(energy_of: str = "", **changes: str) -> list[Record]:
    """Return launches of two sizes that use one nanojoule per byte."""
    sizes = (KIB, 4 * KIB)
    return [
        record
        for size in sizes
        for record in make_launches(
            STEADY,
            make_case(message_bytes=size, **changes),
            energy_J=1e-9 * size,
            energy_of=energy_of,
        )
    ]


def test_energy_runs_over_the_size() -> None:
    """Draw joules of one operation over size."""
    curves = curves_of([run_of(metered("gpu"))], "all_reduce")
    axes = painted(paint_curves, curves["gpu"], "gpu").axes[0]
    assert [(KIB, 1.024e-6), (4 * KIB, 4.096e-6)] == points_of(axes, "mpi float32")


def test_what_counts_different_things_has_figures_of_its_own() -> None:
    """Draw records without named counters in a separate figure."""
    old, new = run_of(metered(), "old"), run_of(metered("cpu+gpu"), "new")
    names = [drawing.name for drawing in energy_figures([old, new])]
    assert ["energy-all-reduce", "energy-all-reduce-cpu-gpu"] == names


def test_energy_of_training_is_bars() -> None:
    """Draw bars of settings, but not of the step without DDP, apart by what they count."""
    records = [
        *launches_of(20.0, energy_J=8.0, energy_of="cpu"),
        *launches_of(10.0, make_training_case("fp16"), energy_J=6.0, energy_of="cpu"),
        *launches_of(9.0, make_training_case("bf16"), energy_J=7.0, energy_of="gpu"),
        *launches_of(9.0, make_training_case("local"), energy_J=5.0, energy_of="cpu"),
    ]
    bars = bars_of(groups([training_run_of(records)])[0])
    axes = painted(paint_bars, bars["cpu"], "cpu").axes[0]
    assert {8.0, 6.0} == {patch.get_width() for patch in axes.patches}
    assert {"cpu", "gpu"} == set(bars)


def test_where_no_energy_was_measured_there_is_no_figure() -> None:
    """Draw nothing without energy."""
    plain = run_of(make_launches(STEADY))
    assert [] == energy_figures([plain, training_run_of(launches_of(20.0), "other")])


def test_a_page_says_what_its_energies_count() -> None:
    """Name the counters in every row, and nothing without energy."""
    page = read(run_of([*metered("gpu", backend="nccl"), *metered("cpu+gpu")]))
    heading, *lines = page.table_with("energy of")
    place = heading.index("energy of")
    by_backend = {line[1]: line[place] for line in lines}
    assert {"nccl": "the GPUs alone", "mpi": "processors and GPUs"} == by_backend
    trained = training_run_of(launches_of(20.0, energy_J=8.0, energy_of="cpu"))
    bare = training_run_of(launches_of(20.0))
    assert ["energy of" in read(run).text for run in (trained, bare)] == [True, False]


def test_a_page_says_whose_energy_was_not_counted() -> None:
    """State run.json's reason for missing energy."""
    energy = {"counted": [], "missing": {"cpu": "no counters (host0)"}}
    assert "no counters (host0)" in read(run_of(make_launches(STEADY), energy=energy)).text
