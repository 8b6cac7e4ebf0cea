"""Tests of times and bandwidths over message size."""

import dataclasses
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
    row = run_of(launches_over()).rows[0]
    times, rates = painted(paint_curves, family, family.curves).axes
    band = times.collections[0].get_paths()[0].vertices

    assert (row.time_us_ci_low, pytest.approx(10240 * 1.005)) == (
        band[:, 1].min(),
        band[:, 1].max(),
    )
    own = rates.collections[0].get_paths()[0].vertices[:, 1]
    assert pytest.approx((0.1024 / 1.005, 0.1024 / 0.995), rel=1e-3) == (own.min(), own.max())


def test_series_are_told_apart_by_what_differs() -> None:
    """Name only the fields that differ between series."""
    by_backend = family_of(run_of([*launches_over(), *launches_over(backend="gloo")]))
    by_dtype = family_of(
        run_of([*launches_over(), *launches_over(dtype="float64"), *launches_over(in_place=False)])
    )
    by_run = family_of(run_of(launches_over(), "old"), run_of(launches_over(), "new"))

    assert ["gloo", "mpi"] == sorted(curve.name for curve in by_backend.curves)
    assert {"float32 in place", "float64 in place", "float32 out of place"} == {
        c.name for c in by_dtype.curves
    }
    assert ["old: mpi", "new: mpi"] == [curve.name for curve in by_run.curves]
    assert "flat float32 sum" == by_backend.shared


def test_of_several_runs_each_series_names_its_own() -> None:
    """Name each series' run if there are several runs."""
    gather = launches_over(redop=None, in_place=None, operation="all_gather")
    by_operation = {
        family.operation: family
        for family in families([run_of(launches_over(), "old"), run_of(gather, "new")])
    }
    assert ["old: mpi"] == [curve.name for curve in by_operation["all_reduce"].curves]
    assert ["new: mpi"] == [curve.name for curve in by_operation["all_gather"].curves]


def test_one_run_is_not_named() -> None:
    """Name no run if there is one."""
    (drawing,) = size_figures([run_of(launches_over(), "mine")])
    assert "mine" not in drawing.svg + drawing.caption + drawing.title


def test_runs_of_the_same_name_are_told_apart() -> None:
    """Number runs whose names and parents' names are equal."""
    family = family_of(run_of(launches_over()), run_of(launches_over()))
    assert 2 == len({curve.name for curve in family.curves})


def test_failures_are_crosses_on_the_axis() -> None:
    """Mark failed and wrong sizes, and name them in the caption."""
    bad = make_record(
        make_case(message_bytes=16 * MIB), status="failed", reason="Rank 1 was killed."
    )
    wrong = make_record(make_case(message_bytes=4 * MIB), status="wrong", wrong=7)
    family = family_of(run_of([*launches_over(), bad, wrong]))
    times, rates = painted(paint_curves, family, family.curves).axes

    for axes in (times, rates):
        assert [(4 * MIB, 0.0), (16 * MIB, 0.0)] == marked(axes, "crosses")
        assert 3 == len(points_of(axes, "mpi"))
    caption = caption_of(family, family.curves)
    assert "2 sizes wrong and failed" in caption
    assert "wrong" in caption


def test_what_a_backend_cannot_do_is_said() -> None:
    """Name unsupported sizes in the caption without marks."""
    cannot = make_record(make_case(backend="gloo"), status="unsupported", reason="Gloo has none.")
    (drawing,) = size_figures([run_of([*launches_over(), cannot])])
    assert "Not supported by gloo." in drawing.caption


def test_nothing_but_failures_is_still_drawn() -> None:
    """State that nothing was measured."""
    failed = [
        make_record(make_case(message_bytes=size), status="hung", reason="Rank 1 is hung.")
        for size in SIZES
    ]
    (drawing,) = size_figures([run_of(failed)])

    assert "Nothing was timed." in drawing.caption
    assert "3 sizes hung" in drawing.caption
    assert "nothing was measured" in texts_of(drawing.svg)


def test_a_ninth_series_is_named_in_the_caption() -> None:
    """Draw eight lines and name the others."""
    dtypes = (
        "int8",
        "uint8",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
    )
    records = [record for dtype in dtypes for record in launches_over(dtype=dtype, redop="sum")]
    family = family_of(run_of(records))
    (drawing,) = size_figures([run_of(records)])
    hidden = family.curves[8].name

    assert 9 == len(family.curves)
    assert f"Not drawn, as more than 8 lines cannot be told apart: {hidden}." in drawing.caption
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
    records = [
        record
        for size in SIZES
        for record in make_launches(
            STEADY, make_case(operation, message_bytes=size), transport="tcp/eth0"
        )
    ]
    run = run_of(
        records, nodes=2, ranks_per_node=ranks_per_node, environment={"emulated": EMULATED}
    )
    family = family_of(run)
    axes = painted(paint_curves, family, family.curves).axes[-1]
    limits = [
        y
        for line in axes.get_lines()
        if len(set(line.get_ydata())) == 1
        for y in set(line.get_ydata())
    ]

    assert (expected in limits) == (expected is not None)
    caption = caption_of(family, family.curves)
    assert ("% of" in caption) == (expected is not None)
    assert ("% of both ways of 1gbit (emulated)" in caption) == (operation == "bibandwidth")
    assert "2gbit" not in caption


def test_the_share_of_the_link_is_computed() -> None:
    """State what share of the link the best row reaches."""
    records = make_launches(
        [10_000.0] * 6, make_case("bandwidth", message_bytes=MIB), transport="tcp/eth0"
    )
    run = run_of(records, nodes=2, ranks_per_node=1, environment={"emulated": EMULATED})
    (drawing,) = size_figures([run])
    # 1 MiB in 10 ms is 0.105 GB/s, of 0.125
    assert "Highest: 0.105 GB/s [0.105, 0.105], 84 % of 1gbit (emulated)." in drawing.caption


def test_only_intervals_that_exist_are_explained() -> None:
    """Explain intervals only if there are any."""
    several = [r for size in SIZES for r in make_launches(STEADY, make_case(message_bytes=size))]
    single = [
        dataclasses.replace(record, times_us=record.times_us[:1])
        for record in several
        if record.launch == 0
    ]
    captions = [
        drawing.caption
        for records in (several, single)
        for drawing in size_figures([run_of(records)])
    ]

    assert ["95 % intervals over launches" in caption for caption in captions] == [True, False]
    assert ["there are no intervals" in caption for caption in captions] == [False, True]


@pytest.mark.parametrize(
    ("operation", "panels"), [("latency", ["time"]), ("bandwidth", ["bus bandwidth, GB/s"])]
)
def test_point_to_point_has_one_panel(operation: str, panels: list[str]) -> None:
    """Draw only the panel of the operation's own figure."""
    records = [
        r for size in SIZES for r in make_launches(STEADY, make_case(operation, message_bytes=size))
    ]
    family = family_of(run_of(records))
    assert panels == [
        axes.get_ylabel() for axes in painted(paint_curves, family, family.curves).axes
    ]


def test_a_single_size_is_dots() -> None:
    """Draw no line for a single size, and nothing over a barrier's size."""
    family = family_of(
        run_of([*make_launches(STEADY), *make_launches(STEADY, make_case(backend="gloo"))])
    )
    times, rates = painted(paint_dots, family, family.curves).axes

    assert ("time", "bus bandwidth, GB/s") == (times.get_xlabel(), rates.get_xlabel())
    assert {curve.name for curve in family.curves} == {
        label.get_text() for label in times.get_yticklabels()
    }
    (barrier,) = size_figures([run_of(make_launches(STEADY, make_case("barrier")))])
    assert "Shortest: 10.0 us" in barrier.caption
    assert " at " not in barrier.caption


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


def test_the_slowest_series_is_compared_with_the_fastest() -> None:
    """State the ratio of the slowest to the fastest series, or that none is shown."""
    apart = family_of(run_of([*launches_over(), *launches_over(factor=2.0, backend="gloo")]))
    alike = family_of(run_of([*launches_over(), *launches_over(factor=1.001, backend="gloo")]))

    assert "gloo takes 2 times as long as mpi at 1 MiB." in caption_of(apart, apart.curves)
    assert "No difference between mpi and gloo is shown at 1 MiB" in caption_of(alike, alike.curves)


def test_names_of_runs_are_plain_text() -> None:
    """Draw a directory's name literally."""
    name = "<b>$x$ & co"
    (drawing,) = size_figures([run_of(launches_over(), name), run_of(launches_over(), "other")])
    assert f"{name}: mpi" in texts_of(drawing.svg)
    assert "<b>" not in drawing.svg


def test_no_records_no_figures() -> None:
    """Draw nothing without collectives, and no matrix."""
    assert [] == size_figures([run_of([])])
    assert [] == size_figures(
        [run_of(make_launches(STEADY, make_case("bandwidth", pattern="matrix")))]
    )
    assert [] == size_figures([])


def test_ranks_that_share_a_gpu_are_counted_and_not_drawn() -> None:
    """Draw no times of ranks that shared a GPU, and count them."""
    alone = launches_over(operation="all_gather", redop=None, in_place=None, backend="nccl")
    run = run_of(
        [*launches_over(), *launches_over(backend="nccl", factor=0.01), *alone], ranks_per_gpu=2
    )
    (drawing,) = size_figures([run])
    assert "all_reduce: time and bus bandwidth over message size" == drawing.title
    assert "3 rows of ranks that share a GPU are not drawn." in drawing.caption
    assert "0.102 GB/s" in drawing.caption
    assert "share a GPU" not in size_figures([run_of(launches_over())])[0].caption
