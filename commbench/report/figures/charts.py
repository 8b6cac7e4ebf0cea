"""Figures as data: a `Chart` has panels of curves or of rows, and `draw` draws any of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from commbench.findings import Finding
from commbench.report.figures.drawing import (
    BAD,
    BAND_ALPHA,
    INK,
    MOST_SERIES,
    Drawing,
    Look,
    legend_columns,
    log_axis,
    look,
    nothing_here,
)
from commbench.report.formats import listed
from commbench.units import format_size, three_digits
from commbench.words import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The unit of times, which have a logarithmic axis and are written in a fitting unit.
MICROSECONDS = "us"
#: Values that differ by a larger ratio have a logarithmic axis.
_WIDE = 20.0
#: The room beside all values, as a share of their range, and at least of the highest.
_MARGIN, _LEAST_MARGIN = 0.06, 0.002
#: The most points with a large marker each.
_MARKED = 30
#: The distance between all series at the same named place, and the fewest that share it.
_ASIDE, _FEW = 0.6, 5
#: The most rows that are named, and the most sizes on an axis.
MOST_ROWS, _MOST_SIZES = 16, 6


class Limit(NamedTuple):
    """A value that bounds others, drawn as a line with its name."""

    value: float
    name: str


class Span(NamedTuple):
    """A bar of a row."""

    begin: float
    end: float
    colour: int | None = None
    """The number of its colour; None: the row's."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve, or a row of bars. Series of one name share a colour; one without a name is black."""

    name: str
    points: Mapping[float, Estimate] = field(default_factory=dict)
    """Values by x."""
    is_joined: bool = True
    """Whether a line joins them."""
    failed: Sequence[float] = ()
    """Cases without a result: crosses on the axis."""
    ringed: float | None = None
    """The x of the value with a ring around it."""
    spans: Sequence[Span] = ()
    """The bars of a row."""


class Shade(NamedTuple):
    """A stretch of x that is shaded; its edge shows one that is too short to be seen."""

    begin: float
    end: float
    colour: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves over a common x, or rows.

    The axis of values is logarithmic for times, and where values differ widely.
    """

    series: Sequence[Series]
    quantity: str
    unit: str = ""
    has_zero: bool = False
    """Whether the axis begins at zero, unless it is logarithmic; else it is near the values."""
    x: Literal["size", "place", "number", "rows"]
    """Sizes in bytes; named places; numbers from zero on; or a row for each series."""
    x_label: str = ""
    places: Mapping[float, str] = field(default_factory=dict)
    """The names of places by x."""
    limits: Sequence[Limit] = ()
    """What bounds the values."""
    includes: Sequence[float] = ()
    """Values that the axis shows in any case."""
    curves_height_in: float = 2.2
    title: str = ""

    @property
    def height_in(self) -> float:
        """The height, which suits the number of rows; of many only some are named."""
        if self.x == "rows":
            return 0.55 + 0.26 * min(len(self.series), MOST_ROWS)
        return self.curves_height_in

    @property
    def label(self) -> str:
        """The label of the values; of a time each number has its unit."""
        if self.unit in {"", MICROSECONDS}:
            return self.quantity
        return f"{self.quantity}, {self.unit}"

    @property
    def x_axis(self) -> str:
        """The label of the horizontal axis."""
        return self.label if self.x == "rows" else self.x_label


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure of panels, one above the other."""

    name: str
    section: str
    """The id of the page's section."""
    title: str
    reading: str
    """How to read it: the same sentences for each figure of a kind."""
    remarks: Sequence[Finding] = ()
    """What it shows or leaves out, and no table has."""
    panels: Sequence[Panel]
    moments: Mapping[str, float] = field(default_factory=dict)
    """Named vertical lines through all panels."""
    shades: Sequence[Shade] = ()
    key: Mapping[str, int] = field(default_factory=dict)
    """What colours mean, by their numbers, if rows have several."""

    @property
    def names(self) -> list[str]:
        """The names of all series, each once."""
        names = [series.name for panel in self.panels for series in panel.series]
        return list(dict.fromkeys(names))

    @property
    def has_rows(self) -> bool:
        """Whether rows name the series."""
        return any(panel.x == "rows" for panel in self.panels)

    @property
    def looks(self) -> dict[str, Look]:
        """The styles of the series that are drawn, by name."""
        names = self.names
        if not self.has_rows:
            names = names[:MOST_SERIES]
        looks = {name: look(place) for place, name in enumerate(names)}
        if "" in looks:
            looks[""] = Look(INK, "", "-")
        return looks

    @property
    def legend(self) -> dict[str, Look]:
        """The styles that the legend explains; rows have their names beside them."""
        if self.has_rows:
            return {name: Look(look(place).colour, "s", "none") for name, place in self.key.items()}
        return self.looks if len(self.looks) > 1 else {}

    @property
    def caption(self) -> str:
        """How to read the figure, and what it leaves out."""
        remarks = list(self.remarks)
        hidden = [name for name in self.names if name not in self.looks]
        if hidden:
            names = listed(hidden, 8)
            remarks.append(Finding("figure_hidden", numbers={"most": MOST_SERIES, "series": names}))
        return " ".join([self.reading, *map(str, remarks)])

    @property
    def drawing(self) -> Drawing:
        """The drawing; its description has the names of panels and of series."""
        names = [*(panel.title for panel in self.panels), *self.names]
        height_in = 0.5 + sum(panel.height_in for panel in self.panels)
        if self.legend:
            height_in += 0.1 + 0.19 * math.ceil(len(self.legend) / legend_columns(self.legend))
        return Drawing(
            paint=partial(draw, self),
            name=self.name,
            section=self.section,
            title=self.title,
            caption=self.caption,
            alt=f"{self.title}: {listed(filter(None, names), MOST_ROWS)}.",
            height_in=height_in,
        )


def draw(chart: Chart, figure: Figure) -> None:
    """Draw the panels of a chart into an empty figure, and one legend below them."""
    heights = [panel.height_in for panel in chart.panels]
    has_common_x = len({panel.x_axis for panel in chart.panels}) == 1
    grid = figure.subplots(
        len(heights), 1, sharex=has_common_x, squeeze=False, height_ratios=heights
    )
    for axes, panel in zip(grid[:, 0], chart.panels, strict=True):
        axes.set_xlabel(panel.x_axis)
        axes.set_title(panel.title, loc="left")
        if panel.x == "rows":
            _draw_rows(axes, panel, chart.looks)
        else:
            _draw_curves(axes, panel, chart.looks)
        for begin, end, colour in chart.shades:
            axes.axvspan(begin, end, color=colour, alpha=0.35, linewidth=1, gid="shade")
        for x in chart.moments.values():
            axes.axvline(x, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        if has_common_x:
            axes.label_outer()
    for name, x in chart.moments.items():
        grid[0, 0].annotate(
            name,
            (x, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 1),
            textcoords="offset points",
            fontsize=8,
        )
    if chart.legend:
        _draw_legend(figure, chart.legend)


def _draw_legend(figure: Figure, looks: Mapping[str, Look]) -> None:
    """Draw the names of styles below the figure, in as many columns as fit."""
    from matplotlib.lines import Line2D

    handles = []
    for name, own in looks.items():
        handle = Line2D([], [], label=name, color=own.colour, marker=own.marker, linestyle=own.dash)
        handles.append(handle)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        handlelength=3.0,
        columnspacing=1.2,
        ncols=legend_columns(looks),
    )


# ------------------------------------------------------------------------------------------ curves


def _draw_curves(axes: Axes, panel: Panel, looks: Mapping[str, Look]) -> None:
    axes.set_ylabel(panel.label)
    visible = [series for series in panel.series if series.name in looks]
    names = list(dict.fromkeys(series.name for series in visible))
    for series in visible:
        aside = 0.0
        if panel.x == "place":
            middle = (len(names) - 1) / 2
            aside = _ASIDE / max(_FEW, len(names)) * (names.index(series.name) - middle)
        has_band = panel.x != "place" and series.is_joined and len(series.points) > 1
        _draw_series(axes, series, looks[series.name], aside, has_band=has_band)
    _scale_x(axes, panel, visible)
    _scale(axes, panel, visible)
    for series in visible:
        if series.failed:  # without any, the layout would collapse
            axes.plot(
                series.failed,
                [0.0] * len(series.failed),
                "x",
                transform=axes.get_xaxis_transform(),
                color=looks[series.name].colour,
                markersize=7,
                markeredgewidth=1.8,
                clip_on=False,
                gid="crosses",
            )


def _draw_series(axes: Axes, series: Series, own: Look, aside: float, *, has_band: bool) -> None:
    """Draw marks, a line through them, a band or bars of intervals, and a ring."""
    places = sorted(series.points)
    points = [series.points[place] for place in places]
    xs = [place + aside for place in places]
    style: dict[str, Any] = {"color": own.colour, "marker": own.marker, "linestyle": "none"}
    if series.is_joined:
        style |= {"linestyle": own.dash, "markevery": 1 + len(points) // _MARKED}
    elif len(points) > _MARKED:
        style["markersize"] = 3
    axes.plot(xs, [point.value for point in points], label=series.name, **style)
    lows = [point.bounds[0] for point in points]
    highs = [point.bounds[1] for point in points]
    if has_band:
        axes.fill_between(xs, lows, highs, color=own.colour, alpha=BAND_ALPHA, linewidth=0)
    else:
        axes.vlines(xs, lows, highs, color=own.colour, linewidth=1)
    if series.ringed is not None:
        axes.plot(
            [series.ringed + aside],
            [series.points[series.ringed].value],
            "o",
            gid="ring",
            markersize=15,
            markerfacecolor="none",
            markeredgecolor=INK,
        )


def _scale_x(axes: Axes, panel: Panel, visible: Sequence[Series]) -> None:
    if panel.x == "size":
        every = {int(size) for series in visible for size in (*series.points, *series.failed)}
        sizes = sorted(every - {0})
        if not sizes:
            return
        named = sizes[:: math.ceil(len(sizes) / _MOST_SIZES)]
        axes.set_xscale("log", base=2)
        axes.set_xticks(named, [format_size(size) for size in named])
        axes.set_xticks([], minor=True)
        axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    elif panel.x == "place":
        axes.set_xticks(list(panel.places), list(panel.places.values()))
        axes.set_xlim(min(panel.places) - 0.6, max(panel.places) + 0.6)
    else:
        axes.set_xlim(left=0.0)


# -------------------------------------------------------------------------------------------- rows


def _draw_rows(axes: Axes, panel: Panel, looks: Mapping[str, Look]) -> None:
    """Draw a row of bars for each series, the first on top."""
    for place, series in enumerate(panel.series):
        for begin, end, number in series.spans:
            colour = looks[series.name].colour if number is None else look(number).colour
            bar = (place - 0.4, 0.8)
            axes.broken_barh([(begin, end - begin)], bar, color=colour, linewidth=0)
    names = [series.name for series in panel.series]
    step = math.ceil(len(names) / MOST_ROWS)
    axes.set_yticks(range(0, len(names), step), names[::step])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


# ------------------------------------------------------------------------------------------- scales


def _scale(axes: Axes, panel: Panel, visible: Sequence[Series]) -> None:
    """Draw limits, and scale the axis of values; logarithmic for times, or values that differ
    widely. Of curves from zero, which are compared with each other, only the peaks count.
    """
    for limit in panel.limits:
        text = f"{three_digits(limit.value)} {panel.unit}".rstrip() + f": {limit.name}"
        axes.axhline(limit.value, color=BAD, linewidth=1.0, linestyle=(0, (6, 3)))
        axes.annotate(
            text,
            (0.0, limit.value),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            va="bottom",
            color=BAD,
            fontsize=9,
        )
    estimates: list[Estimate] = []
    compared = [*panel.includes]
    for series in visible:
        estimates += series.points.values()
        values = [point.value for point in series.points.values()]
        if values and panel.has_zero:
            values = [max(values)]
        compared += values
    if not estimates:
        nothing_here(axes, "nothing was measured")
        return
    estimates += [Estimate(value) for value in panel.includes]
    estimates += [Estimate(limit.value) for limit in panel.limits]
    if panel.unit == MICROSECONDS or 0 < _WIDE * min(compared) < max(compared):
        log_axis(axes, panel.unit)
    elif panel.has_zero:
        axes.set_ylim(0.0, 1.08 * max(point.bounds[1] for point in estimates))
    else:
        axes.set_ylim(*near(estimates))


def near(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Return a range with all values, and with as much of intervals as keeps values readable."""
    values = [point.value for point in estimates]
    low, high = min(values), max(values)
    room = max(0.1 * abs(high), high - low)
    least = max(low - room, min(point.bounds[0] for point in estimates))
    most = min(high + room, max(point.bounds[1] for point in estimates))
    margin = max(_MARGIN * (most - least), _LEAST_MARGIN * abs(high))
    if least >= 0:
        return max(0.0, least - margin), most + margin
    return least - margin, most + margin
