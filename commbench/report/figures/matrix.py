"""The matrix of rank pairs as a heat map, with stragglers marked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.runs import straggler_findings
from commbench.analysis.stragglers.judging import ANY, Family, Search, Straggler
from commbench.analysis.stragglers.matrix import numbered_hosts
from commbench.collectives.operations import OPERATIONS
from commbench.findings import Finding
from commbench.report.figures.drawing import BAD, PAPER, Drawing, Style, plain, plain_time, slug
from commbench.report.figures.words import prefixes, sentences
from commbench.report.matrix import conclude, name_range, rate_unit
from commbench.results import Run
from commbench.results.info import shares_gpu
from commbench.results.pairs import Matrix
from commbench.stats import Floats
from commbench.units import counted, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: The most cells along each axis: with more ranks, several share a cell, which shows their slowest
#: pair.
MOST_CELLS = 360
#: The most ranks whose values are written into the cells, and the most hosts named on the axes.
_WRITTEN, _NAMED = 8, 16
#: A larger ratio between values gets a logarithmic colour scale.
_WIDE = 3.0
#: Luminance above which text on a cell is dark.
_BRIGHT = 0.55
#: Quantiles that enclose half of the values.
_HALF = (0.25, 0.75)


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A matrix as cells."""

    cells: Floats
    """Values from row to column, (cells, cells), in ``unit``; NaN for untimed pairs and the
    diagonal."""
    per_cell: int
    """Number of ranks in each cell along an axis."""
    unit: str
    """``us``, or GB/s, MB/s or kB/s, as suits the fastest pair."""
    hosts: Sequence[str]
    """The host of each rank."""
    stragglers: Sequence[Straggler]
    """The stragglers in this matrix."""
    families: Sequence[Family] = ()
    """The comparisons behind the stragglers."""

    @property
    def is_time(self) -> bool:
        """Whether a low value is good."""
        return self.unit == "us"

    def is_marked(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the pairs of ranks that a straggler slows down.

        Arrays of shape (pairs,).
        """
        marked = np.zeros(len(source), dtype=bool)
        for sender, receiver in (link for straggler in self.stragglers for link in straggler.links):
            marked |= np.isin(source, self.ranks_of(sender)) & np.isin(
                target, self.ranks_of(receiver)
            )
        return marked

    def ranks_of(self, name: str) -> list[int]:
        """Return the ranks of a straggler's link: for a host, all its ranks."""
        return [
            rank
            for rank, host in enumerate(self.hosts)
            if name in {host, f"rank {rank}", ANY} or _is_rank(name, rank)
        ]


def _is_rank(name: str, rank: int) -> bool:
    return name.startswith(f"rank {rank} ")  # "rank 3 on host1"


def matrix_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return one heat map for each matrix of each run; two heat maps cannot be overlaid.

    Ranks that share a GPU get none: their pairs are not links.
    """
    drawings = []
    for number, (run, prefix) in enumerate(zip(runs, prefixes(runs), strict=True), start=1):
        of_run = number if len(runs) > 1 else ""
        linked = [
            matrix for matrix in run.matrices if not shares_gpu(matrix.case.backend, run.info)
        ]
        for place, matrix in enumerate(linked, start=1):
            drawings.append(
                _drawing(matrix, run, prefix, slug("matrix", of_run, matrix.case.operation, place))
            )
    return drawings


def _drawing(matrix: Matrix, run: Run, prefix: str, name: str) -> Drawing:
    heat = heat_of(
        matrix,
        [family for family in straggler_findings(run).families if family.measured == matrix.name],
    )
    title = f"{prefix}{matrix.name} between every two ranks"
    return Drawing(
        paint=lambda figure: paint_heat(figure, heat),
        name=name,
        section="matrix",
        title=title,
        caption=caption_of(matrix, heat),
        alt=(
            f"Heat map of {counted(len(matrix.hosts), 'rank')} sending to each other: {_slow(heat)}"
        ),
        height_in=4.2,
    )


def heat_of(matrix: Matrix, families: Sequence[Family] = ()) -> Heat:
    """Return the cells of a matrix.

    With many ranks several share a cell, which has the value of their slowest pair.

    Args:
        matrix: the measured matrix.
        families: the comparisons made in it.
    """
    ranks = len(matrix.hosts)
    per_cell = -(-ranks // MOST_CELLS)
    slowest = np.full((-(-ranks // per_cell),) * 2, -np.inf)
    with np.errstate(invalid="ignore"):
        times = np.where(matrix.is_sound, matrix.time_us, np.nan)
    timed = np.isfinite(times)
    np.maximum.at(
        slowest, (matrix.source[timed] // per_cell, matrix.target[timed] // per_cell), times[timed]
    )
    times_us = np.where(np.isfinite(slowest), slowest, np.nan)
    cells, unit = times_us, "us"
    if OPERATIONS[matrix.case.operation].quantity != "time":
        rates = np.asarray(matrix.rate_GBps(times_us))
        scale, unit = rate_unit(float(np.nanmax(rates, initial=0.0)))
        cells = rates / scale
    return Heat(
        cells=cells,
        per_cell=per_cell,
        unit=unit,
        hosts=matrix.hosts,
        stragglers=[straggler for family in families for straggler in family.stragglers],
        families=families,
    )


# ----------------------------------------------------------------------------------------- painting


def paint_heat(figure: Figure, heat: Heat) -> None:
    """Draw the cells as one image, hosts or ranks on the axes, arrows at stragglers."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator

    axes = figure.subplots()
    axes.grid(visible=False)
    axes.set(xlabel="to", ylabel="from")
    if not np.isfinite(heat.cells).any():
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no pair could be timed", transform=axes.transAxes, ha="center")
        return
    low, high = float(np.nanmin(heat.cells)), float(np.nanmax(heat.cells))
    norm = LogNorm(low, high) if high > _WIDE * low > 0 else Normalize(min(low, 0.9 * high), high)
    colours = "cividis_r" if heat.is_time else "cividis"
    size = heat.per_cell * len(heat.cells) - 0.5
    image = axes.imshow(
        heat.cells, cmap=colours, norm=norm, interpolation="none", extent=(-0.5, size, size, -0.5)
    )
    axes.set(xlim=(-0.5, len(heat.hosts) - 0.5), ylim=(len(heat.hosts) - 0.5, -0.5))
    bar = figure.colorbar(
        image,
        ax=axes,
        shrink=0.8,
        label="" if heat.is_time else heat.unit,
        ticks=LogLocator(subs=(1.0, 2.0, 5.0)) if isinstance(norm, LogNorm) else None,
        format=lambda value, _: plain_time(value) if heat.is_time else plain(value),
    )
    bar.minorticks_off()
    bar.outline.set_visible(False)
    _name_axes(axes, heat)
    _write_cells(axes, heat, norm)
    _mark(axes, heat)


def _name_axes(axes: Axes, heat: Heat) -> None:
    """Label hosts at the middle of their ranks if there are several and few of them.

    Else label ranks by number.
    """
    from matplotlib.ticker import MaxNLocator

    hosts, place = numbered_hosts(heat.hosts)
    edges = np.flatnonzero(np.diff(place)) + 0.5
    if 1 < len(hosts) <= _NAMED and len(edges) == len(hosts) - 1:
        bounds = [-0.5, *edges, len(heat.hosts) - 0.5]
        middles = [(low + high) / 2 for low, high in itertools.pairwise(bounds)]
        axes.set_xticks(
            middles,
            hosts,
            rotation=45 if max(map(len, hosts)) * len(hosts) > 30 else 0,  # noqa: PLR2004 - letters
        )
        axes.set_yticks(middles, hosts)
        for edge in edges if len(heat.hosts) > len(hosts) else ():
            axes.axhline(edge, color=PAPER, linewidth=1)
            axes.axvline(edge, color=PAPER, linewidth=1)
    else:
        axes.set(xlabel="to rank", ylabel="from rank")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _write_cells(axes: Axes, heat: Heat, norm: Any) -> None:  # noqa: ANN401 - matplotlib is imported late
    """Write the values of few ranks into the cells, dark on bright cells."""
    if len(heat.hosts) > _WRITTEN:
        return
    for (row, column), value in np.ndenumerate(heat.cells):
        if np.isfinite(value):
            share = float(norm(value))
            is_bright = (1 - share if heat.is_time else share) > _BRIGHT
            text = plain_time(float(f"{value:.3g}")) if heat.is_time else three_digits(float(value))
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color="#000000" if is_bright else "#ffffff",
            )


def _mark(axes: Axes, heat: Heat) -> None:
    """Draw arrows at the rows and columns of slow ranks and frames around slow pairs."""
    rows = {
        rank for s in heat.stragglers for a, b in s.links if b == ANY for rank in heat.ranks_of(a)
    }
    columns = {
        rank for s in heat.stragglers for a, b in s.links if a == ANY for rank in heat.ranks_of(b)
    }
    style: Style = {
        "color": BAD,
        "clip_on": False,
        "linestyle": "none",
        "markersize": 8,
        "gid": "slow",
    }
    axes.plot(
        [1.02] * len(rows), sorted(rows), marker="<", transform=axes.get_yaxis_transform(), **style
    )
    axes.plot(
        sorted(columns),
        [1.02] * len(columns),
        marker="v",
        transform=axes.get_xaxis_transform(),
        **style,
    )
    for straggler in heat.stragglers:
        for source, target in straggler.links:
            if ANY not in {source, target}:
                _frame(axes, heat.ranks_of(source), heat.ranks_of(target))


def _frame(axes: Axes, rows: Sequence[int], columns: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle

    if rows and columns:
        corner = (min(columns) - 0.5, min(rows) - 0.5)
        width, height = max(columns) - min(columns) + 1, max(rows) - min(rows) + 1
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=BAD, linewidth=1.8))


# ------------------------------------------------------------------------------------------ caption


def caption_of(matrix: Matrix, heat: Heat) -> str:
    """Return the caption: how to read the figure, typical values within and between hosts, and the
    stragglers.
    """
    launches = counted(len(matrix.times_us), "launch")
    quantity = "time" if heat.is_time else "bandwidth"
    shared = ""
    if heat.per_cell > 1:
        shared = (
            f" Each cell stands for {heat.per_cell} x {heat.per_cell} pairs and shows the slowest"
            " of them."
        )
    untimed_pairs = (
        f"{matrix.untimed} pairs could not be timed and are blank." if matrix.untimed else ""
    )
    wrong = int((~matrix.is_sound).sum())
    return sentences(
        f"Median {quantity} over {launches} of each pair, from the row's rank to the column's; dark"
        f" is slow.{shared}",
        *_typical(matrix, heat),
        _slow(heat),
        untimed_pairs,
        (
            f"{counted(wrong, 'pair')} delivered wrong data and {'is' if wrong == 1 else 'are'}"
            " blank."
            if wrong
            else ""
        ),
    )


def _typical(matrix: Matrix, heat: Heat) -> list[str]:
    """State the middle half of the values of unmarked pairs, and the range of the pairs that a
    straggler slows down.
    """
    sentences = []
    verb, unit = ("take", "") if heat.is_time else ("move", heat.unit)
    has_both_kinds = matrix.is_inter.any() and not matrix.is_inter.all()
    marked = heat.is_marked(matrix.source, matrix.target)
    for kind, is_of_kind in (
        ("between hosts", matrix.is_inter),
        ("within hosts", ~matrix.is_inter),
    ):
        subject = f"pairs{f' {kind}' if has_both_kinds else ''}"
        slow = name_range(matrix, is_of_kind & marked, unit=unit)
        other = f"{subject} that are not marked" if slow else subject
        if text := name_range(matrix, is_of_kind & ~marked, _HALF, unit):
            sentences.append(f"Half of the {other} {verb} {text}.")
        sentences += [f"The marked {subject} {verb} {slow}."] if slow else []
    return sentences


def _slow(heat: Heat) -> str:
    """State what is marked; without marks, whether stragglers were searched."""
    return conclude(Search(families=heat.families)) or str(Finding("slow_few_pairs"))
