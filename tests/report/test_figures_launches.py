"""Tests of the charts of launches."""

from builders import MIB, STEADY, make_case, make_launches
from drawings import run_of, training_run_of
from training_builders import launches_of, make_training_case, make_training_record

from commbench.report.figures.launches import launch_charts
from commbench.results import Run

TWO_HUMPS = [10.0, 10.1, 10.2, 20.0, 20.1, 20.2]


def names_in(run: Run) -> list[str]:
    """Return the names of the rows of the only chart."""
    (chart,) = launch_charts([run])
    return chart.names


def test_every_case_has_a_row_and_two_modes_a_mark() -> None:
    """Draw a row for each case, also of one name, and mark two modes."""
    records = [
        *make_launches(STEADY, make_case(message_bytes=MIB)),
        *make_launches(STEADY, make_case(message_bytes=MIB, dtype="float64")),
        *make_launches(TWO_HUMPS, make_case(message_bytes=4096)),
    ]
    (chart,) = launch_charts([run_of(records)])
    names = [series.name.removesuffix(" ~") for series in chart.panels[0].series]
    assert ["mpi all_reduce 1 MiB"] * 2 + ["mpi all_reduce 4 KiB *"] == sorted(names)


def test_dots_are_shares_of_the_median_launch() -> None:
    """Draw each launch as a share of the median; the interval over six launches is their range."""
    (chart,) = launch_charts([run_of(make_launches([8.0, 9.0, 10.0, 10.0, 11.0, 20.0]))])
    (row,) = chart.panels[0].series
    assert [80.0, 90.0, 100.0, 100.0, 110.0, 200.0] == row.dots
    assert (80.0, 200.0) == row.points[0.0].bounds
    assert "2.50" in chart.caption


def test_one_launch_has_no_distribution() -> None:
    """Draw nothing for one launch."""
    assert [] == launch_charts([run_of(make_launches([10.0])), run_of([], "empty")])
    assert [] == launch_charts([training_run_of([make_training_record()])])


def test_of_very_many_the_worst_are_drawn() -> None:
    """Draw the worst rows only, and state the total number."""
    records = []
    for power in range(20):
        records += make_launches(TWO_HUMPS, make_case(message_bytes=1024 * 2**power))
    (chart,) = launch_charts([run_of(records)])
    assert 16 == len(chart.names)
    assert "16 of 20" in chart.title


def test_fresh_launches_of_training_come_before_those_of_the_sweep() -> None:
    """Draw confirmation launches instead of the sweep's."""
    sweep = [*launches_of(20.0), *launches_of(10.0, make_training_case("fp16"))]
    fresh = launches_of(20.0, make_training_case(phase="confirm"))
    assert ["default buckets", "fp16 with default buckets"] == names_in(training_run_of(sweep))
    assert ["default buckets"] == names_in(training_run_of([*sweep, *fresh]))
