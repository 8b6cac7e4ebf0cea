"""Tests of the charts of collectives: sizes, launches, and the matrix of rank pairs."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from builders import (
    KIB,
    MIB,
    STEADY,
    make_case,
    make_grouped,
    make_launches,
    make_record,
)
from drawings import texts_of, values_of
from fields import fields_of
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matrices import INTER_US, make_hosts, make_matrix, receiving, touching, without
from pages import make_run
from training_builders import run_of

from commbench.engine.records import Record
from commbench.report.figures.charts import Chart
from commbench.report.figures.drawing import Drawing
from commbench.report.figures.matrix import matrix_figures, paint_heat
from commbench.report.figures.sizes import size_charts
from commbench.report.matrix import Heat, heat_of
from commbench.results import Run

SIZES = (KIB, 64 * KIB, MIB)


def launches_over(
    factor: float = 1.0, operation: str = "all_reduce", **changes: Any
) -> list[Record]:
    """Return six launches at each size; 1 KiB takes 10 us, and times are proportional to sizes."""
    records = []
    for size in SIZES:
        times = [factor * time * size / KIB for time in STEADY]
        records += make_launches(times, make_case(operation, message_bytes=size, **changes))
    return records


def chart_of(*runs: Run) -> Chart:
    """Return the only operation's chart."""
    (chart,) = size_charts(runs)
    return chart


def test_lines_run_through_the_rows():
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
def test_series_are_told_apart_by_what_differs(changes, names):
    """Name only the fields that differ between series."""
    records = [record for change in changes for record in launches_over(**change)]
    assert names == set(chart_of(run_of(records)).names)


def test_of_several_runs_each_series_names_its_own():
    """Name each series' run, also in another's absence."""
    gather = launches_over(redop=None, in_place=None, operation="all_gather")
    both, second = size_charts(
        [run_of(launches_over(), "a"), run_of([*launches_over(), *gather], "b")]
    )
    assert (["a: mpi", "b: mpi"], ["b: mpi"]) == (both.names, second.names)


def test_failures_are_crosses():
    """Keep failed and wrong sizes apart, and leave out what a backend cannot do."""
    bad = make_record(make_case(message_bytes=16 * MIB), status="failed", reason="Killed.")
    wrong = make_record(make_case(message_bytes=4 * MIB), status="wrong", wrong=7)
    cannot = make_record(make_case(backend="gloo"), status="unsupported", reason="Gloo has none.")
    for panel in chart_of(run_of([*launches_over(), bad, wrong, cannot])).panels:
        (series,) = panel.series
        assert {4 * MIB, 16 * MIB} == set(series.failed)
        assert 3 == len(series.points)


@pytest.mark.parametrize(
    ("operation", "ranks_per_node", "labels", "limits"),
    [
        ("all_reduce", 1, ["time", "bus bandwidth, GB/s"], [0.125]),
        ("all_reduce", 2, ["time", "bus bandwidth, GB/s"], []),
        ("bandwidth", 1, ["bus bandwidth, GB/s"], [0.125]),
        ("bibandwidth", 1, ["bus bandwidth, GB/s"], [0.25]),
        ("latency", 1, ["time"], []),
    ],
)
def test_the_link_is_a_limit_where_it_bounds_the_row(operation, ranks_per_node, labels, limits):
    """Draw the operation's own figures, and the link's rate for one rank per host only; both
    directions count twice.
    """
    records = []
    for size in SIZES:
        case = make_case(operation, message_bytes=size)
        records += make_launches([10_000.0] * 6, case, transport="tcp/eth0")
    emulated = {"hosts": 2, "rate": "1gbit"}
    placed = {"nodes": 2, "ranks_per_node": ranks_per_node}
    panels = chart_of(run_of(records, **placed, environment={"emulated": emulated})).panels
    assert labels == fields_of(panels, "label")
    assert limits == fields_of(panels[-1].limits, "value")


def test_groups_are_the_slowest_in_time_and_together_in_bandwidth():
    """Draw the slowest group's time, and the sum of concurrent bandwidths."""
    records = []
    for size in (KIB, MIB):
        case = make_case(pattern="node", message_bytes=size)
        records += make_grouped(case, {"0-1": [10.0] * 6, "2-3": [20.0] * 6})
    times, rates = chart_of(run_of(records)).panels
    assert 20.0 == values_of(times)["mpi"][MIB]
    assert pytest.approx(MIB / 10e3 + MIB / 20e3) == values_of(rates)["mpi"][MIB]


def test_without_data_there_is_no_chart():
    """Draw nothing without collectives, of a matrix, and of a single size."""
    matrix = make_launches(STEADY, make_case("bandwidth", pattern="matrix"))
    single = make_launches(STEADY)
    runs = [run_of([]), run_of(matrix, "matrix"), run_of(single, "single")]
    assert [] == list(size_charts(runs))


def test_ranks_that_share_a_gpu_are_counted_and_not_drawn():
    """Draw no times of ranks that shared a GPU, and count them."""
    chart = chart_of(run_of([*launches_over(), *launches_over(backend="nccl")], ranks_per_gpu=2))
    assert ["mpi"] == chart.names
    assert [3] == [remark.numbers["rows"] for remark in chart.remarks if "rows" in remark.numbers]


# ---------------------------------------------------------------------------------- matrix of pairs


def matrix_run(records: list[Record], hosts: int, ranks_per_host: int = 1) -> Run:
    """Return a run of a matrix between host1, host2, ..."""
    return make_run(records, **make_hosts(hosts, ranks_per_host))


def heat(run: Run) -> Heat:
    """Return the cells of the only matrix."""
    (matrix,) = run.matrices
    return heat_of(matrix, run)


def painted(heat: Heat) -> Axes:
    """Return the axes of a heat map."""
    figure = Figure()
    paint_heat(figure, heat)
    return figure.axes[0]


def test_cells_are_from_row_to_column():
    """Show median bandwidth from row to column, with an empty diagonal; latency is a time. Hosts
    and few values are written.
    """
    slow = make_matrix(3, noise=0.0, rank_slowness=lambda a, b: 2.0 if (a, b) == (0, 2) else 1.0)
    run = matrix_run(slow, 3)
    cells = heat(run)
    fast = run.matrices[0].rate_GBps(INTER_US)
    assert np.isnan(cells.cells[0, 0])
    assert pytest.approx([fast / 2, fast]) == [cells.cells[0, 2], cells.cells[2, 0]]
    assert "GB/s" == cells.unit
    (drawing,) = matrix_figures([run])
    assert {"host1", "host2", "host3", "10.5"} <= set(texts_of(drawing.svg))
    case = make_case("latency", pattern="matrix")
    latency = heat(matrix_run(make_matrix(3, noise=0.0, case=case), 3))
    assert "us" == latency.unit
    assert pytest.approx(INTER_US) == latency.cells[0, 1]


@pytest.mark.parametrize(
    ("slowness", "host", "expected"),
    [
        (touching(2, 2.0), "host3", {(-0.5, 3.5, 12, 2), (3.5, -0.5, 2, 12)}),
        (receiving(4, 2.0), "host5", {(7.5, -0.5, 2, 12)}),
    ],
)
def test_the_slow_host_is_framed(slowness, host, expected):
    """Frame the rows of a host that sends slowly, the columns of one that receives so; name it."""
    run = matrix_run(make_matrix(6, 2, host_slowness=slowness, launches=10), 6, 2)
    boxes = [patch for patch in painted(heat(run)).patches if patch.get_gid() == "slow"]
    assert expected <= {(*box.get_xy(), box.get_width(), box.get_height()) for box in boxes}
    (drawing,) = matrix_figures([run])
    assert host in drawing.alt


def test_pairs_that_were_not_timed_are_blank_and_counted():
    """Leave untimed pairs blank, and state their number."""
    run = matrix_run(without(make_matrix(4), (0, 1), (2, 1)), 4)
    assert 4 + 2 == np.isnan(heat(run).cells).sum()
    (drawing,) = matrix_figures([run])
    assert "2 pairs" in drawing.caption


@pytest.mark.parametrize(("factor", "is_logarithmic"), [(30.0, True), (1.0, False)])
def test_a_wide_range_gets_a_logarithmic_scale(factor, *, is_logarithmic):
    """Use a logarithmic scale for a wide range."""
    records = make_matrix(4, noise=0.0, host_slowness=touching(1, factor))
    (image,) = painted(heat(matrix_run(records, 4))).get_images()
    assert is_logarithmic == isinstance(image.norm, LogNorm)


def test_many_ranks_do_not_swell_the_page():
    """Draw no more cells than the figure has pixels."""
    cells = np.random.default_rng(0).random((1000, 1000))
    many = Heat(cells=cells, unit="us", hosts=["host"] * 1000, stragglers=[])
    texts = {"name": "many", "section": "pairs", "title": "", "caption": "", "alt": ""}
    drawing = Drawing(paint=partial(paint_heat, heat=many), height_in=4.2, **texts)
    assert len(drawing.svg) < 500_000
