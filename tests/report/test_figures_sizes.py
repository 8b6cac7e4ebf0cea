"""Tests of times and bandwidths over message size."""

from typing import Any

import pytest
from builders import KIB, MIB, STEADY, make_case, make_grouped, make_launches, make_record
from drawings import marked, painted, points_of, run_of, texts_of

from commbench.engine.records import Record
from commbench.report.figures.sizes import (
    Family,
    caption_of,
    families,
    paint_curves,
    paint_dots,
    size_figures,
)
from commbench.results import Run

SIZES = (KIB, 64 * KIB, MIB)


def launches_over(
    sizes: tuple[int, ...] = SIZES, factor: float = 1.0, **changes: Any
) -> list[Record]:
    """Return six launches at each size; 1 KiB takes 10 us, and times are proportional to sizes."""
    return [
        record
        for size in sizes
        for record in make_launches(
            [factor * time * size / KIB for time in STEADY],
            make_case(message_bytes=size, **changes),
        )
    ]


def family_of(*runs: Run) -> Family:
    """Return the only operation's curves."""
    (family,) = families(runs)
    return family


def test_lines_run_through_the_rows() -> None:
    """Draw time and bus bandwidth of each size, for two ranks busbw = algbw."""
    family = family_of(run_of(launches_over()))
    times, rates = painted(paint_curves, family, family.curves).axes

    assert [(KIB, 10.0), (64 * KIB, 640.0), (MIB, 10240.0)] == points_of(times, "mpi")
    assert [pytest.approx(0.1024)] * 3 == [y for _, y in points_of(rates, "mpi")]
    assert ("log", "log", "linear") == (times.get_xscale(), times.get_yscale(), rates.get_yscale())
    assert 0.0 == rates.get_ylim()[0]
    assert ["1 KiB", "64 KiB", "1 MiB"] == [label.get_text() for label in rates.get_xticklabels()]


def test_bands_are_the_intervals() -> None:
    """Shade the interval of the time, and derive that of the bandwidth."""
    family = family_of(run_of(launches_over()))
    bands = [
        axes.collections[0].get_paths()[0].vertices[:, 1]
        for axes in painted(paint_curves, family, family.curves).axes
    ]
    ends = [(band.min(), band.max()) for band in bands]
    assert pytest.approx([9.95, 10240 * 1.005], rel=1e-3) == list(ends[0])
    assert pytest.approx([0.1024 / 1.005, 0.1024 / 0.995], rel=1e-3) == list(ends[1])


def test_series_are_told_apart_by_what_differs() -> None:
    """Name only the fields that differ between series, and runs of one name by numbers."""
    both = launches_over() + launches_over(backend="gloo")
    typed = launches_over() + launches_over(dtype="float64") + launches_over(in_place=False)
    for runs, names in (
        ([run_of(launches_over())], {"mpi"}),
        ([run_of(both)], {"gloo", "mpi"}),
        ([run_of(typed)], {"float32 in place", "float64 in place", "float32 out of place"}),
        ([run_of(launches_over(), name) for name in ("old", "new")], {"old: mpi", "new: mpi"}),
    ):
        assert names == {curve.name for curve in family_of(*runs).curves}


def test_runs_of_the_same_name_are_told_apart() -> None:
    """Number runs whose names and parents' names are equal."""
    family = family_of(run_of(launches_over()), run_of(launches_over()))
    assert 2 == len({curve.name for curve in family.curves})


def test_failures_are_crosses_on_the_axis() -> None:
    """Mark failed and wrong sizes."""
    bad = make_record(make_case(message_bytes=16 * MIB), status="failed", reason="Killed.")
    wrong = make_record(make_case(message_bytes=4 * MIB), status="wrong", wrong=7)
    family = family_of(run_of([*launches_over(), bad, wrong]))
    for axes in painted(paint_curves, family, family.curves).axes:
        assert [(4 * MIB, 0.0), (16 * MIB, 0.0)] == marked(axes, "crosses")
        assert 3 == len(points_of(axes, "mpi"))


def test_a_ninth_series_is_named_in_the_caption() -> None:
    """Draw eight lines and name the others."""
    dtypes = ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    records = [r for dtype in [*dtypes, "complex64"] for r in launches_over(dtype=dtype)]
    (drawing,) = size_figures([run_of(records)])
    hidden = family_of(run_of(records)).curves[8].name
    assert hidden in drawing.caption
    assert hidden not in texts_of(drawing.svg)


EMULATED = {"hosts": 2, "rate": "1gbit"}


@pytest.mark.parametrize(
    ("operation", "ranks_per_node", "expected"),
    [
        ("all_reduce", 1, 0.125),
        ("bandwidth", 1, 0.125),
        ("bibandwidth", 1, 0.25),
        ("all_reduce", 2, None),
    ],
)
def test_the_link_is_a_line_where_it_bounds_the_row(
    operation: str, ranks_per_node: int, expected: float | None
) -> None:
    """Draw the link's rate for one rank per host only; both directions count twice."""
    records = []
    for size in SIZES:
        case = make_case(operation, message_bytes=size)
        records += make_launches([10_000.0] * 6, case, transport="tcp/eth0")
    info = {"nodes": 2, "ranks_per_node": ranks_per_node, "environment": {"emulated": EMULATED}}
    family = family_of(run_of(records, **info))
    axes = painted(paint_curves, family, family.curves).axes[-1]
    limits = [line.get_ydata()[0] for line in axes.get_lines() if line.get_label() != "mpi"]
    assert (expected in limits) == (expected is not None)
    # 1 MiB in 10 ms is 0.105 GB/s, of 0.125
    assert ("84 %" in caption_of(family, family.curves)) == (expected is not None)


@pytest.mark.parametrize(
    ("operation", "panel"), [("latency", "time"), ("bandwidth", "bus bandwidth, GB/s")]
)
def test_point_to_point_has_one_panel(operation: str, panel: str) -> None:
    """Draw only the panel of the operation's own figure."""
    cases = [make_case(operation, message_bytes=size) for size in SIZES]
    family = family_of(run_of([record for case in cases for record in make_launches(STEADY, case)]))
    axes = painted(paint_curves, family, family.curves).axes
    assert [panel] == [each.get_ylabel() for each in axes]


def test_a_single_size_is_dots() -> None:
    """Draw no line for a single size."""
    family = family_of(
        run_of([*make_launches(STEADY), *make_launches(STEADY, make_case(backend="gloo"))])
    )
    times, rates = painted(paint_dots, family, family.curves).axes
    assert ("time", "bus bandwidth, GB/s") == (times.get_xlabel(), rates.get_xlabel())
    assert {"mpi", "gloo"} == {label.get_text() for label in times.get_yticklabels()}


def test_groups_are_the_slowest_in_time_and_together_in_bandwidth() -> None:
    """Draw the slowest group's time, and the sum of concurrent bandwidths."""
    records = make_grouped(
        make_case(pattern="node", message_bytes=MIB), {"0-1": [10.0] * 6, "2-3": [20.0] * 6}
    )
    family = family_of(run_of(records))
    (reading,) = family.curves[0].readings

    assert reading.time_us is not None
    assert reading.busbw_GBps is not None
    assert 20.0 == reading.time_us.value
    assert pytest.approx(MIB / 10e3 + MIB / 20e3) == reading.busbw_GBps.value


def test_no_records_no_figures() -> None:
    """Draw nothing without collectives, and no matrix."""
    matrix = make_launches(STEADY, make_case("bandwidth", pattern="matrix"))
    for runs in ([], [run_of([])], [run_of(matrix)]):
        assert [] == size_figures(runs)


def test_ranks_that_share_a_gpu_are_counted_and_not_drawn() -> None:
    """Draw no times of ranks that shared a GPU, and count them."""
    run = run_of([*launches_over(), *launches_over(backend="nccl")], ranks_per_gpu=2)
    assert ["mpi"] == [curve.name for curve in family_of(run).curves]
    (drawing,) = size_figures([run])
    assert "3 rows" in drawing.caption
