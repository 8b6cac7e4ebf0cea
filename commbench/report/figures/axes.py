"""Shared by all figures: styles of series, scales of sizes and times, interval bands, crosses, legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.report.figures.drawing import BAD, BAND_ALPHA, DASHES, MARKERS, MUTED, PAPER, SERIES, Style
from commbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Most series that can be told apart; the caption names the others.
MOST_SERIES = 8
#: Most sizes named on an axis.
_MOST_TICKS = 6
#: The smallest ratio that a logarithmic axis spans: a smaller one makes noise look like a trend.
LEAST_RATIO = 4.0
#: Below this ratio, decades alone give too few ticks.
_FEW_DECADES = 300.0
#: Columns of a legend by the length of its longest name.
_LEGEND_COLUMNS = ((16, 3), (28, 2))
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True)
class Look:
    """The style of a series."""

    colour: str
    marker: str
    dash: Any
    """As matplotlib's ``linestyle``."""


def look(index: int) -> Look:
    """Return the style of series ``number``, from 0."""
    place = index % MOST_SERIES
    return Look(colour=SERIES[place], marker=MARKERS[place], dash=DASHES[place])


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a style for each name, in order."""
    return {name: look(index) for index, name in enumerate(dict.fromkeys(names))}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its interval."""

    value: float
    low: float | None = None
    """None without an interval."""
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the interval; the value itself without a finite interval."""
        ends = (self.low, self.high)
        low, high = (self.value if end is None or not math.isfinite(end) else end for end in ends)
        return low, high

    @property
    def errors(self) -> tuple[float, float]:
        """Distances of the ends below and above the value, as matplotlib takes error bars."""
        low, high = self.bounds
        return max(0.0, self.value - low), max(0.0, high - self.value)


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> Estimate | None:
    """Return an estimate if the value is finite, else None."""
    return Estimate(value=value, low=low, high=high) if value is not None and math.isfinite(value) else None


def plot_series(axes: Axes, points: Mapping[float, Estimate], name: str, looks_as: Look) -> None:
    """Draw a line through values by x, with a band for their intervals."""
    if not points:
        return
    x = sorted(points)
    values, bounds = [points[at].value for at in x], [points[at].bounds for at in x]
    axes.plot(x, values, color=looks_as.colour, marker=looks_as.marker, linestyle=looks_as.dash, label=name)
    low, high = zip(*bounds, strict=True)
    if len(x) > 1:
        axes.fill_between(x, low, high, color=looks_as.colour, alpha=BAND_ALPHA, linewidth=0)
    else:
        plot_interval(axes, x[0], points[x[0]], looks_as)


def plot_interval(axes: Axes, x: float, point: Estimate, looks_as: Look) -> None:
    """Draw the interval of one value as a bar."""
    errors = [[error] for error in point.errors]
    axes.errorbar([x], [point.value], yerr=errors, color=looks_as.colour, linestyle="none", capsize=2.5)


def plot_crosses(axes: Axes, x: Sequence[float], looks_as: Look) -> None:
    """Mark failed cases by crosses on the x axis, so that none is silently left out."""
    if not x:
        return
    style: Style = {
        "marker": "x",
        "linestyle": "none",
        "markersize": 7,
        "markeredgewidth": 1.8,
        "clip_on": False,
        "zorder": 5,
    }
    axes.plot(x, [0.0] * len(x), transform=axes.get_xaxis_transform(), color=looks_as.colour, gid="crosses", **style)


def byte_axis(axes: Axes, sizes_bytes: Iterable[int]) -> None:
    """Make x an axis of sizes in powers of two, with at most six of them named."""
    sizes = sorted(set(sizes_bytes))
    axes.set_xscale("log", base=2)
    shown = sizes[:: max(1, -(-len(sizes) // _MOST_TICKS))]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)


def log_axis(axis: Axis, unit: str = "") -> None:
    """Make an axis logarithmic with plain numbers: at decades, and between them if it spans few decades.

    Args:
        axis: the axis; its data is drawn already.
        unit: ``us`` for times in microseconds, which are shown in a fitting unit.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    set_scale, get_limits, set_limits = (
        (axis.axes.set_yscale, axis.axes.get_ylim, axis.axes.set_ylim)
        if axis is axis.axes.yaxis
        else (axis.axes.set_xscale, axis.axes.get_xlim, axis.axes.set_xlim)
    )
    set_scale("log")
    low, high = get_limits()
    if high < LEAST_RATIO * low:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(LEAST_RATIO), middle * math.sqrt(LEAST_RATIO)
        set_limits(low, high)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < _FEW_DECADES * low else (1.0,), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain_time(value) if unit == "us" else plain(value)))


def plain(value: float) -> str:
    """Format a number without an exponent while it stays short: ``0.05``, ``20``, ``50 k``."""
    scale, prefix = next(((scale, prefix) for scale, prefix in _SCALES if abs(value) >= 10 * scale), (1.0, ""))
    return f"{value / scale:.10g}{' ' if prefix else ''}{prefix}"


def plain_time(time_us: float) -> str:
    """Format a round time: ``50 us``, ``2 ms``."""
    scale, unit = next(((s, u) for s, u in ((1e6, "s"), (1e3, "ms")) if time_us >= s * (1 - 1e-9)), (1.0, "us"))
    return f"{time_us / scale:.6g} {unit}"


def mark_limit(axes: Axes, value: float, text: str, *, vertical: bool = False) -> None:
    """Draw a named limit."""
    style: Style = {"color": BAD, "linewidth": 1.0, "linestyle": (0, (6, 3))}
    if vertical:
        axes.axvline(value, **style)
        axes.annotate(text, (value, 1.0), xycoords=("data", "axes fraction"), ha="right", **_note(-4, -2, va="top"))
    else:
        axes.axhline(value, **style)
        axes.annotate(text, (0.0, value), xycoords=("axes fraction", "data"), **_note(4, 3, va="bottom"))


def _note(x: float, y: float, va: str) -> Style:
    return {"xytext": (x, y), "textcoords": "offset points", "color": BAD, "fontsize": 9, "va": va}


def legend(figure: Figure, axes: Axes) -> None:
    """Draw the names of the series below the figure, in as many columns as fit; nothing for a single series."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) < 2:  # noqa: PLR2004 - one needs no name
        return
    longest = max(map(len, names))
    columns = next((columns for most, columns in _LEGEND_COLUMNS if longest <= most), 1)
    figure.legend(
        handles, names, loc="outside lower center", ncols=min(columns, len(names)), handlelength=3.0, columnspacing=1.2
    )


def legend_height_in(names: Sequence[str]) -> float:
    """Return the height in inches that `legend` needs."""
    if len(names) < 2:  # noqa: PLR2004 - as there
        return 0.0
    longest = max(map(len, names))
    columns = next((columns for most, columns in _LEGEND_COLUMNS if longest <= most), 1)
    return 0.1 + 0.19 * math.ceil(len(names) / columns)


def nothing_here(axes: Axes, text: str) -> None:
    """State in an empty frame why it is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, backgroundcolor=PAPER)
