"""The matrix of rank pairs as a heat map, with stragglers marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from commbench.analysis.stragglers.matrix import numbered_hosts
from commbench.findings import Finding
from commbench.report.columns import prefixes
from commbench.report.figures.drawing import (
    BAD,
    PAPER,
    PLAIN,
    Drawing,
    nothing_here,
    plain_time,
    slug,
)
from commbench.report.formats import listed
from commbench.report.matrix import Heat, heat_of
from commbench.results import Run
from commbench.units import counted, format_time, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

#: The most ranks whose values are written into the cells, and the most hosts named on the axes.
_WRITTEN, _NAMED = 8, 16
#: The most ranks whose cells are drawn one by one.
_SHARP = 256
#: The most letters of hosts that fit below the axis without turning them.
_LETTERS = 30
#: A larger ratio between values gets a logarithmic colour scale.
_WIDE = 3.0
#: Luminance above which text on a cell is dark.
_BRIGHT = 0.55
_READING = (
    "Median over launches of each pair, from the row's rank to the column's; dark is slow. Pairs"
    " that could not be timed or delivered wrong data are blank. Frames mark what is"
    " slower than its peers, which few pairs cannot show."
)


def matrix_figures(runs: Sequence[Run]) -> Iterator[Drawing]:
    """Yield one heat map for each matrix of each run; two heat maps cannot be overlaid.

    Ranks that share a GPU get none: their pairs are not links.
    """
    for number, (run, prefix) in enumerate(prefixes(runs), start=1):
        of_run = number if len(runs) > 1 else ""
        for place, matrix in enumerate(run.linked_matrices, start=1):
            heat = heat_of(matrix, run)
            ranks = len(matrix.hosts)
            slow = listed(straggler.name for straggler in heat.stragglers)
            title = f"{prefix}{matrix.name} between every two ranks"
            caption = _READING
            blank = ranks * (ranks - 1) - int(matrix.is_sound.sum())
            if blank:
                note = Finding("figure_blank", numbers={"pairs": blank})
                caption = f"{caption} {note}"
            yield Drawing(
                paint=partial(paint_heat, heat=heat),
                name=slug("matrix", of_run, matrix.case.operation, place),
                section="pairs",
                title=title,
                caption=caption,
                alt=f"{title}: heat map of {counted(ranks, 'rank')}. Slow: {slow or 'none'}.",
                height_in=4.2,
            )


def paint_heat(figure: Figure, heat: Heat) -> None:
    """Draw the cells as one image, hosts or ranks on the axes, and frames."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator

    axes = figure.subplots()
    axes.grid(visible=False)
    axes.set(xlabel="to", ylabel="from")
    if not np.isfinite(heat.cells).any():
        axes.set(xticks=[], yticks=[])
        nothing_here(axes, "no pair could be timed")
        return
    low, high = float(np.nanmin(heat.cells)), float(np.nanmax(heat.cells))
    norm, ticks = Normalize(min(low, 0.9 * high), high), None
    if high > _WIDE * low > 0:
        norm, ticks = LogNorm(low, high), LogLocator(subs=(1.0, 2.0, 5.0))
    colours = "cividis_r" if heat.is_time else "cividis"
    # every cell of many would be megabytes of the page, and more than the figure has pixels
    interpolation = "none" if len(heat.hosts) <= _SHARP else "auto"
    image = axes.imshow(heat.cells, cmap=colours, norm=norm, interpolation=interpolation)
    text = plain_time if heat.is_time else PLAIN
    label = "" if heat.is_time else heat.unit
    bar = figure.colorbar(image, ax=axes, shrink=0.8, label=label, ticks=ticks, format=text)
    bar.minorticks_off()
    bar.outline.set_visible(False)
    _name_axes(axes, heat)
    if len(heat.hosts) <= _WRITTEN:
        _write_cells(axes, heat, norm)
    _mark(axes, heat)


def _name_axes(axes: Axes, heat: Heat) -> None:
    """Name hosts at the middle of their ranks if there are several and few; else number ranks."""
    from matplotlib.ticker import MaxNLocator

    hosts, place = numbered_hosts(heat.hosts)
    are_together = bool(np.all(np.diff(place) >= 0))
    if are_together and 1 < len(hosts) <= _NAMED:
        middles = [np.flatnonzero(place == number).mean() for number in range(len(hosts))]
        longest = max(map(len, hosts))
        axes.set_xticks(middles, hosts, rotation=45 if longest * len(hosts) > _LETTERS else 0)
        axes.set_yticks(middles, hosts)
        for edge in np.flatnonzero(np.diff(place)) + 0.5:
            axes.axhline(edge, color=PAPER, linewidth=1)
            axes.axvline(edge, color=PAPER, linewidth=1)
    else:
        axes.set(xlabel="to rank", ylabel="from rank")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _write_cells(axes: Axes, heat: Heat, norm: Normalize) -> None:
    """Write values into the cells, dark on bright ones."""
    for (row, column), value in np.ndenumerate(heat.cells):
        if np.isfinite(value):
            share = float(norm(value))
            text = three_digits(float(value))
            if heat.is_time:
                share = 1 - share
                text = format_time(1e-6 * value)
            colour = "#000000" if share > _BRIGHT else "#ffffff"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)


def _mark(axes: Axes, heat: Heat) -> None:
    """Draw frames around the rows, columns and pairs that are slow."""
    from matplotlib.patches import Rectangle

    for rows, columns in heat.slow:
        corner = min(columns) - 0.5, min(rows) - 0.5
        width, height = max(columns) - min(columns) + 1, max(rows) - min(rows) + 1
        frame = Rectangle(
            corner,
            width,
            height,
            gid="slow",
            fill=False,
            edgecolor=BAD,
            linewidth=1.8,
            clip_on=False,
        )
        axes.add_patch(frame)
