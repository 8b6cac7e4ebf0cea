"""Tests of times and bandwidths over message size."""

from typing import Any

import pytest
from builders import KIB, MIB, STEADY, make_case, make_grouped, make_launches, make_record
from drawings import run_of, values_of

from commbench.engine.records import Record
from commbench.report.figures.charts import Chart
from commbench.report.figures.sizes import size_charts
from commbench.results import Run

SIZES = (KIB, 64 * KIB, MIB)


def launches_over(factor: float = 1.0, **changes: Any) -> list[Record]:
    """Return six launches at each size; 1 KiB takes 10 us, and times are proportional to sizes."""
    records = []
    for size in SIZES:
        times = [factor * time * size / KIB for time in STEADY]
        records += make_launches(times, make_case(message_bytes=size, **changes))
    return records


def chart_of(*runs: Run) -> Chart:
    """Return the only operation's chart."""
    (chart,) = size_charts(runs)
    return chart


def test_lines_run_through_the_rows() -> None:
    """Draw time and bus bandwidth of each size with intervals, for two ranks busbw = algbw."""
    run = run_of(launches_over())
    times, rates = chart_of(run).panels
    assert {"mpi": {KIB: 10.0, 64 * KIB: 640.0, MIB: 10240.0}} == values_of(times)
    assert [pytest.approx(0.1024)] * 3 == list(values_of(rates)["mpi"].values())
    low, high = run.rows[0].time_us_ci_low, run.rows[0].time_us_ci_high
    assert (low, high) == times.series[0].points[KIB].bounds
    bounds = (0.1024 * 10 / (high or 0.0), 0.1024 * 10 / (low or 0.0))
    assert pytest.approx(bounds) == rates.series[0].points[KIB].bounds


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{}, {"backend": "gloo"}], {"gloo", "mpi"}),
        (
            [{}, {"dtype": "float64"}, {"in_place": False}],
            {"float32 in place", "float64 in place", "float32 out of place"},
        ),
    ],
)
def test_series_are_told_apart_by_what_differs(
    changes: list[dict[str, Any]], names: set[str]
) -> None:
    """Name only the fields that differ between series."""
    records = [record for change in changes for record in launches_over(**change)]
    assert names == set(chart_of(run_of(records)).names)


@pytest.mark.parametrize("names", [("old", "new"), ("same", "same")])
def test_of_several_runs_each_series_names_its_own(names: tuple[str, str]) -> None:
    """Name each series' run, also in another's absence, and number runs of one name."""
    gather = launches_over(redop=None, in_place=None, operation="all_gather")
    runs = [run_of(launches_over(), names[0]), run_of([*launches_over(), *gather], names[1])]
    both, second = size_charts(runs)
    assert 2 == len(both.names)
    assert both.names[1:] == second.names


def test_failures_are_crosses() -> None:
    """Keep failed and wrong sizes apart, and leave out what a backend cannot do."""
    bad = make_record(make_case(message_bytes=16 * MIB), status="failed", reason="Killed.")
    wrong = make_record(make_case(message_bytes=4 * MIB), status="wrong", wrong=7)
    cannot = make_record(make_case(backend="gloo"), status="unsupported", reason="Gloo has none.")
    for panel in chart_of(run_of([*launches_over(), bad, wrong, cannot])).panels:
        (series,) = panel.series
        assert {4 * MIB, 16 * MIB} == set(series.failed)
        assert 3 == len(series.points)


@pytest.mark.parametrize(
    ("operation", "ranks_per_node", "limits"),
    [
        ("all_reduce", 1, [0.125]),
        ("bandwidth", 1, [0.125]),
        ("bibandwidth", 1, [0.25]),
        ("all_reduce", 2, []),
    ],
)
def test_the_link_is_a_limit_where_it_bounds_the_row(
    operation: str, ranks_per_node: int, limits: list[float]
) -> None:
    """Draw the link's rate for one rank per host only; both directions count twice."""
    records = []
    for size in SIZES:
        case = make_case(operation, message_bytes=size)
        records += make_launches([10_000.0] * 6, case, transport="tcp/eth0")
    emulated = {"hosts": 2, "rate": "1gbit"}
    placed = {"nodes": 2, "ranks_per_node": ranks_per_node}
    chart = chart_of(run_of(records, **placed, environment={"emulated": emulated}))
    assert limits == [limit.value for limit in chart.panels[-1].limits]
    # 1 MiB in 10 ms is 0.105 GB/s, of 0.125
    assert bool(limits) == ("83.9 %" in chart.caption)


@pytest.mark.parametrize(
    ("operation", "label"), [("latency", "time"), ("bandwidth", "bus bandwidth, GB/s")]
)
def test_point_to_point_has_one_panel(operation: str, label: str) -> None:
    """Draw only the panel of the operation's own figure."""
    records = []
    for size in SIZES:
        records += make_launches(STEADY, make_case(operation, message_bytes=size))
    assert [label] == [panel.label for panel in chart_of(run_of(records)).panels]


@pytest.mark.parametrize(("factor", "is_apart"), [(2.0, True), (1.0, False)])
def test_series_are_compared_where_their_intervals_are_apart(
    factor: float, *, is_apart: bool
) -> None:
    """State by how much the slowest series is slower, if that is shown."""
    run = run_of([*launches_over(), *launches_over(factor, backend="gloo")])
    assert is_apart == ("a factor of 2" in chart_of(run).caption)


def test_a_single_size_is_rows() -> None:
    """Draw no line for a single size."""
    chart = chart_of(
        run_of([*make_launches(STEADY), *make_launches(STEADY, make_case(backend="gloo"))])
    )
    assert ["rows", "rows"] == [panel.x for panel in chart.panels]
    assert ["gloo", "mpi"] == sorted(chart.names)
    assert chart.title.endswith("at 1 KiB")


def test_groups_are_the_slowest_in_time_and_together_in_bandwidth() -> None:
    """Draw the slowest group's time, and the sum of concurrent bandwidths."""
    case = make_case(pattern="node", message_bytes=MIB)
    records = make_grouped(case, {"0-1": [10.0] * 6, "2-3": [20.0] * 6})
    times, rates = chart_of(run_of(records)).panels
    assert {"mpi": {MIB: 20.0}} == values_of(times)
    assert {"mpi": {MIB: pytest.approx(MIB / 10e3 + MIB / 20e3)}} == values_of(rates)


def test_no_records_no_figures() -> None:
    """Draw nothing without collectives, and no matrix."""
    matrix = make_launches(STEADY, make_case("bandwidth", pattern="matrix"))
    assert [] == size_charts([run_of([]), run_of(matrix, "matrix")])


def test_ranks_that_share_a_gpu_are_counted_and_not_drawn() -> None:
    """Draw no times of ranks that shared a GPU, and count them."""
    chart = chart_of(run_of([*launches_over(), *launches_over(backend="nccl")], ranks_per_gpu=2))
    assert ["mpi"] == chart.names
    assert "3 rows" in chart.caption
