"""Tests of energy in figures."""

from dataclasses import replace
from pathlib import Path

from builders import KIB, STEADY, make_case, make_info, make_launches
from drawings import painted, points_of, texts_of, training_run_of
from training_builders import launches_of, make_training_case

from commbench.records import Row
from commbench.report.figures.energy import bars_of, curves_of, energy_figures, paint_bars, paint_curves
from commbench.report.figures.settings import groups
from commbench.store import Run


class Metered(Run):
    """A run whose rows state an energy: one nanojoule a byte."""

    @property
    def rows(self) -> list[Row]:  # type: ignore[override] # a cached property there
        """As the run has them, with their energy."""
        return [replace(row, energy_J=1e-9 * (row.message_bytes or 0)) for row in super().rows]


def metered() -> Metered:
    """Return a run of two sizes."""
    records = [r for size in (KIB, 4 * KIB) for r in make_launches(STEADY, make_case(message_bytes=size))]
    return Metered(path=Path("/runs/mine"), info=make_info(), records=tuple(records))


def test_energy_runs_over_the_size() -> None:
    """Draw joules of one operation."""
    curves = curves_of([metered()], "all_reduce")
    axes = painted(paint_curves, curves).axes[0]
    (drawing,) = energy_figures([metered()])

    assert [(KIB, 1.024e-6), (4 * KIB, 4.096e-6)] == points_of(axes, "mpi float32")
    assert "Least: 0.00000102 J at 1 KiB" in drawing.caption
    assert "energy" == drawing.section


def test_energy_of_training_is_bars() -> None:
    """Draw the most frugal setting first and compare it with the default."""
    records = [*launches_of(20.0, energy_J=8.0), *launches_of(10.0, make_training_case("fp16"), energy_J=6.0)]
    run = training_run_of(records)
    (drawing,) = energy_figures([run])
    axes = painted(paint_bars, bars_of(groups([run])[0])).axes[0]

    assert "Least: fp16, default buckets with 6.00 J, 75 % of the default's." in drawing.caption
    assert {8.0, 6.0} == {patch.get_width() for patch in axes.patches}
    assert "energy of a step, J" in texts_of(drawing.svg)


def test_where_no_energy_was_measured_there_is_no_figure() -> None:
    """Draw nothing."""
    plain = Run(path=Path("/runs/mine"), info=make_info(), records=tuple(make_launches(STEADY)))
    assert [] == energy_figures([plain, training_run_of(launches_of(20.0), "other")])
