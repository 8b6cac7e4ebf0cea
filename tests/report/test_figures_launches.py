"""Tests of the figure of launches."""

from builders import MIB, STEADY, make_case, make_launches
from drawings import painted, run_of, texts_of, training_run_of
from training_builders import launches_of, make_training_case, make_training_record

from commbench.report.figures.launches import (
    collective_spreads,
    launch_figures,
    paint_spreads,
    training_spreads,
)

TWO_HUMPS = [10.0, 10.1, 10.2, 20.0, 20.1, 20.2]


def test_the_largest_size_and_the_flagged_are_chosen() -> None:
    """Draw the largest size and flagged sizes only."""
    records = [
        *make_launches(STEADY),
        *make_launches(STEADY, make_case(message_bytes=MIB)),
        *make_launches(TWO_HUMPS, make_case(message_bytes=4096)),
    ]
    names = [spread.name for spread in collective_spreads(run_of(records), "")]
    assert ["mpi all_reduce 4 KiB", "mpi all_reduce 1 MiB"] == names


def test_dots_are_shares_of_the_median_launch() -> None:
    """Draw each launch as a share of the median, with the interval below."""
    (spread,) = collective_spreads(run_of(make_launches([8.0, 9.0, 10.0, 10.0, 11.0, 20.0])), "")
    axes = painted(paint_spreads, [spread]).axes[0]
    bar, dots = axes.get_lines()[:2]

    assert [80.0, 90.0, 100.0, 100.0, 110.0, 200.0] == list(dots.get_xdata())
    assert [80.0, 200.0] == list(bar.get_xdata())  # the interval over six launches is their range
    assert 6 == len({(x, y) for x, y in zip(dots.get_xdata(), dots.get_ydata(), strict=True)})


def test_modes_are_named() -> None:
    """Mark bimodal cases."""
    (drawing,) = launch_figures([run_of(make_launches(TWO_HUMPS))])
    assert "mpi all_reduce 1 KiB *" in texts_of(drawing.svg)


def test_one_launch_has_no_distribution() -> None:
    """Draw nothing for one launch."""
    assert [] == launch_figures([run_of(make_launches([10.0]))])
    assert [] == launch_figures([run_of([])])


def test_of_very_many_the_worst_are_drawn() -> None:
    """Draw the worst lines only, and state the total number."""
    cases = [make_case(message_bytes=1024 * 2**power) for power in range(20)]
    records = [record for case in cases for record in make_launches(TWO_HUMPS, case)]
    (drawing,) = launch_figures([run_of(records)])
    assert "16 of 20" in drawing.caption


def test_fresh_launches_of_training_come_before_those_of_the_sweep() -> None:
    """Draw confirmation launches instead of the sweep's."""
    sweep = [*launches_of(20.0), *launches_of(10.0, make_training_case("fp16"))]
    fresh = launches_of(20.0, make_training_case(phase="confirm"))

    assert ["default buckets", "fp16 with default buckets"] == [
        spread.name for spread in training_spreads(training_run_of(sweep), "")
    ]
    assert ["default buckets"] == [
        s.name for s in training_spreads(training_run_of([*sweep, *fresh]), "")
    ]
    assert [] == training_spreads(training_run_of([make_training_record()]), "")
