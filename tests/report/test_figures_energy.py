"""Tests of energy in figures and pages."""

from collections.abc import Sequence

from builders import KIB, STEADY, make_case, make_launches
from drawings import painted, points_of, run_of, texts_of, training_run_of
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
from commbench.report.page.contents import make_page
from commbench.report.page.parts import Section
from commbench.results import Run


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


def energy_section(runs: Sequence[Run]) -> Section:
    """Return the energy section of a page."""
    return next(
        section
        for section in make_page(runs, [], beside=False).sections
        if section.name == "energy"
    )


def test_energy_runs_over_the_size() -> None:
    """Draw joules of one operation over size, and name the counters."""
    run = run_of(metered("gpu"))
    axes = painted(paint_curves, curves_of([run], "all_reduce")["gpu"], "gpu").axes[0]
    (drawing,) = energy_figures([run])

    assert [(KIB, 1.024e-6), (4 * KIB, 4.096e-6)] == points_of(axes, "mpi float32")
    assert "energy, of the GPUs alone, J" == axes.get_ylabel()
    assert "Energy of one operation, of the GPUs alone (lower is better)." in drawing.caption
    assert "Least: 0.00000102 J at 1 KiB" in drawing.caption
    assert "energy" == drawing.section


def test_what_counts_different_things_has_figures_of_its_own() -> None:
    """Draw records without named counters in a separate figure."""
    old, new = run_of(metered(), "old"), run_of(metered("cpu+gpu"), "new")
    drawings = energy_figures([old, new])

    assert ["energy-all-reduce", "energy-all-reduce-cpu-gpu"] == [
        drawing.name for drawing in drawings
    ]
    assert ["of all that was metered", "of processors and GPUs"] == [
        drawing.caption.partition("operation, ")[2].partition(" (")[0] for drawing in drawings
    ]
    assert ["old:", "new:"] == [
        drawing.alt.partition(" for ")[2].split()[0] for drawing in drawings
    ]


def test_energy_of_training_is_bars() -> None:
    """Draw bars with the most frugal setting first, compared with the default."""
    records = [
        *launches_of(20.0, energy_J=8.0, energy_of="cpu"),
        *launches_of(10.0, make_training_case("fp16"), energy_J=6.0, energy_of="cpu"),
        *launches_of(
            9.0, make_training_case("local"), energy_J=5.0, energy_of="cpu"
        ),  # which has no row
    ]
    run = training_run_of(records)
    (drawing,) = energy_figures([run])
    axes = painted(paint_bars, bars_of(groups([run])[0])["cpu"], "cpu").axes[0]

    assert "Least: fp16, default buckets with 6.00 J, 75 % of the default's." in drawing.caption
    assert {8.0, 6.0} == {patch.get_width() for patch in axes.patches}
    assert "energy of a step, of the processors alone, J" in texts_of(drawing.svg)


def test_settings_are_compared_only_with_what_counts_the_same() -> None:
    """Compare only settings with the same counters."""
    records = [
        *launches_of(20.0, energy_J=8.0, energy_of="cpu+gpu"),
        *launches_of(10.0, make_training_case("fp16"), energy_J=6.0, energy_of="gpu"),
    ]
    captions = [drawing.caption for drawing in energy_figures([training_run_of(records)])]
    assert [True, False] == ["of the default's" in caption for caption in captions]
    assert "Least: fp16, default buckets with 6.00 J." in captions[1]


def test_where_no_energy_was_measured_there_is_no_figure() -> None:
    """Draw nothing without energy."""
    plain = run_of(make_launches(STEADY))
    assert [] == energy_figures([plain, training_run_of(launches_of(20.0), "other")])


def test_a_page_says_what_its_energies_count() -> None:
    """Name the counters in every row, and nothing without energy."""
    run = run_of([*metered("gpu", backend="nccl"), *metered("cpu+gpu")])
    (table,) = energy_section([run]).tables
    place = [column.heading for column in table.columns].index("energy of")
    by_backend = {line[1].text: line[place].text for line in table.lines}
    assert {"nccl": "the GPUs alone", "mpi": "processors and GPUs"} == by_backend
    trained = training_run_of(launches_of(20.0, energy_J=8.0, energy_of="cpu"))
    bare = training_run_of(launches_of(20.0))
    assert [True, False] == ["the processors alone" in texts_in(run) for run in (trained, bare)]
    assert "energy of" not in texts_in(bare)


def texts_in(run: Run) -> list[str]:
    """Return the texts of a page's tables."""
    tables = [
        table for section in make_page([run], [], beside=False).sections for table in section.tables
    ]
    headings = [column.heading for table in tables for column in table.columns]
    return headings + [cell.text for table in tables for line in table.lines for cell in line]


def test_a_page_says_whose_energy_was_not_counted() -> None:
    """State run.json's reason for missing energy."""
    run = run_of(
        make_launches(STEADY), energy={"counted": [], "missing": {"cpu": "no counters (host0)"}}
    )
    sentences = [
        sentence
        for section in make_page([run], [], beside=False).sections
        for sentence in section.sentences
    ]
    assert "Energy of processors: no counters (host0)." in sentences
