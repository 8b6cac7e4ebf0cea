"""Tests of the heat map of rank pairs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import make_case
from drawings import texts_of
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matrices import INTER_US, make_hosts, make_matrix, receiving, touching, without

from commbench.engine.records import Record
from commbench.report.figures import matrix as matrix_drawing
from commbench.report.figures.matrix import Heat, heat_of, matrix_figures, paint_heat
from commbench.results import Run
from commbench.results.pairs import matrices


def run_of(records: list[Record], hosts: int, ranks_per_host: int = 1, name: str = "mine") -> Run:
    """Return a run of a matrix between host1, host2, ..."""
    return Run(
        path=Path("/runs") / name, info=make_hosts(hosts, ranks_per_host), records=tuple(records)
    )


def heat(run: Run) -> Heat:
    """Return the cells of the only matrix."""
    (matrix,) = run.matrices
    return heat_of(matrix, run)


def painted(heat: Heat) -> Axes:
    """Return the axes of a heat map."""
    figure = Figure()
    paint_heat(figure, heat)
    return figure.axes[0]


def frames(axes: Axes) -> list[tuple[float, ...]]:
    """Return left, top, width and height of the frames around slow cells."""
    boxes = [patch for patch in axes.patches if patch.get_gid() == "slow"]
    return sorted((*box.get_xy(), box.get_width(), box.get_height()) for box in boxes)


def test_cells_are_from_row_to_column() -> None:
    """Show median bandwidth from row to column, with an empty diagonal; latency is a time."""
    slow = make_matrix(3, noise=0.0, rank_slowness=lambda a, b: 2.0 if (a, b) == (0, 2) else 1.0)
    run = run_of(slow, 3)
    cells = heat(run)
    fast = run.matrices[0].rate_GBps(INTER_US)
    assert np.isnan(cells.cells[0, 0])
    assert pytest.approx([fast / 2, fast]) == [cells.cells[0, 2], cells.cells[2, 0]]
    assert "GB/s" == cells.unit
    latency = heat(
        run_of(make_matrix(3, noise=0.0, case=make_case("latency", pattern="matrix")), 3)
    )
    assert ("us", pytest.approx(INTER_US)) == (latency.unit, latency.cells[0, 1])


@pytest.mark.parametrize(
    ("slowness", "host", "expected"),
    [
        (touching(2, 2.0), "host3", [(-0.5, 3.5, 12, 2), (3.5, -0.5, 2, 12)]),
        (receiving(4, 2.0), "host5", [(7.5, -0.5, 2, 12)]),
    ],
)
def test_the_slow_host_is_framed(
    slowness: Callable[[int, int], float], host: str, expected: list[tuple[float, ...]]
) -> None:
    """Frame the rows of a host that sends slowly, the columns of one that receives so; name it."""
    run = run_of(make_matrix(6, 2, host_slowness=slowness, launches=10), 6, 2)
    assert set(expected) <= set(frames(painted(heat(run))))
    (drawing,) = matrix_figures([run])
    assert host in drawing.alt


def test_typical_is_what_pairs_have_that_nothing_slow_explains() -> None:
    """State the median of unmarked pairs in the colours' unit, and the marked pairs' value."""
    small = make_case("bandwidth", pattern="matrix", message_bytes=1024)
    slow = make_matrix(4, noise=0.001, host_slowness=touching(2, 4.0), launches=8, case=small)
    (drawing,) = matrix_figures([run_of(slow, 4)])
    assert "10.2 MB/s" in drawing.caption
    assert "2.56 MB/s" in drawing.caption


def test_hosts_name_the_axes_and_few_cells_are_written() -> None:
    """Write values into the cells of a small matrix."""
    texts = texts_of(matrix_figures([run_of(make_matrix(3, noise=0.0), 3)])[0].svg)
    assert {"host1", "host2", "host3", "10.5"} <= set(texts)


def test_pairs_that_were_not_timed_are_blank_and_counted() -> None:
    """Leave untimed pairs blank, and state their number."""
    run = run_of(without(make_matrix(4), (0, 1), (2, 1)), 4)
    assert 4 + 2 == np.isnan(heat(run).cells).sum()
    (drawing,) = matrix_figures([run])
    assert "2 pairs" in drawing.caption


def test_very_many_ranks_share_cells_that_show_the_slowest_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Show the slowest pair per cell of a large matrix."""
    cells_a_side = 40
    monkeypatch.setattr(matrix_drawing, "MOST_CELLS", cells_a_side)
    records = make_matrix(
        2 * cells_a_side,
        launches=1,
        noise=0.0,
        rank_slowness=lambda a, b: 9.0 if (a, b) == (8, 5) else 1.0,
    )
    run = run_of(records, 2 * cells_a_side)
    (matrix,) = matrices(run.records, run.info)
    cells = heat_of(matrix, run)

    assert (2, (cells_a_side, cells_a_side)) == (cells.per_cell, cells.cells.shape)
    assert (4, 2) == np.unravel_index(np.nanargmin(cells.cells), cells.cells.shape)
    assert pytest.approx(matrix.rate_GBps(9 * INTER_US)) == np.nanmin(cells.cells) * (
        1 if cells.unit == "GB/s" else 1e-3
    )


def test_a_wide_range_gets_a_logarithmic_scale() -> None:
    """Use a logarithmic scale for a wide range."""
    wide = heat(run_of(make_matrix(4, noise=0.0, host_slowness=touching(1, 30.0)), 4))
    narrow = heat(run_of(make_matrix(4), 4))
    assert [True, False] == [
        isinstance(painted(one).get_images()[0].norm, LogNorm) for one in (wide, narrow)
    ]
