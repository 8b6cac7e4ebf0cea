"""Figures as data: a `Chart` has panels of curves or of rows, and `draw` draws any of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from commbench.findings import Finding, Value
from commbench.report.figures.drawing import (
    BAD,
    BAND_ALPHA,
    GRID,
    INK,
    MOST_SERIES,
    MUTED,
    Drawing,
    Look,
    Section,
    Style,
    legend,
    legend_height_in,
    log_axis,
    look,
    mark_limit,
    nothing_here,
    size_axis,
)
from commbench.report.formats import listed
from commbench.units import format_size, format_time, three_digits
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
#: The distance between series at the same named place, and the largest of all of them.
_ASIDE, _ASIDE_MOST = 0.12, 0.6
#: The most rows that are named.
MOST_ROWS = 16
#: Heights of successive dots of a row: dots of equal values stay apart.
_HEIGHTS = (0.0, -0.16, 0.16, -0.08, 0.08)


def estimate(
    value: float | None, low: float | None = None, high: float | None = None
) -> Estimate | None:
    """Return an estimate if the value is finite, else None; an infinite interval is left out."""
    if value is None or not math.isfinite(value):
        return None
    if high is None or not math.isfinite(high):
        return Estimate(value)
    return Estimate(value, low, high)


def number_text(point: Estimate, unit: str) -> str:
    """Return value, unit and interval: ``10.0 us [9.00 us, 12.0 us]``, ``2.00 GB/s``."""
    numbers = (point.value, *point.bounds)
    if unit == MICROSECONDS:
        text, low, high = [format_time(number * 1e-6) for number in numbers]
    else:
        text, low, high = [three_digits(number) for number in numbers]
        text = f"{text} {unit}".rstrip()
    if point.low is None or point.high is None:
        return text
    return f"{text} [{low}, {high}]"


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
    """A curve, or a row. Series of one name share a colour; one without a name is black."""

    name: str
    points: Mapping[float, Estimate] = field(default_factory=dict)
    """Values by x; of a row at most one."""
    is_joined: bool = True
    """Whether a line joins them."""
    failed: Sequence[float] = ()
    """Cases without a result: crosses on the axis."""
    ringed: float | None = None
    """The x of the value with a ring around it."""
    limit: Limit | None = None
    """What bounds its values."""
    dots: Sequence[float] = ()
    """Values of a row around the one that its interval is of."""
    spans: Sequence[Span] = ()
    """The bars of a row."""
    colour: int | None = None
    """The number of its colour; None: of its own."""


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
    is_rate: bool = False
    """Whether more is better."""
    x: Literal["size", "place", "number", "time", "rows"]
    """Sizes in bytes; named places; numbers from zero on; days since 1970; or a row for each
    series."""
    x_label: str = ""
    places: Mapping[float, str] = field(default_factory=dict)
    """The names of places by x."""
    includes: Sequence[float] = ()
    """Values that the axis shows in any case."""
    background: Mapping[float, float] = field(default_factory=dict)
    """Values behind the series, by x."""
    ticks: Mapping[float, int] = field(default_factory=dict)
    """Marks on the x axis: numbers of colours by x."""
    curves_height_in: float = 2.2
    title: str = ""

    @property
    def names(self) -> list[str]:
        """The names of the series, each once."""
        return list(dict.fromkeys(series.name for series in self.series))

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

    @property
    def limits(self) -> list[Limit]:
        """The limits of all series, each once."""
        limits = [series.limit for series in self.series if series.limit is not None]
        return list(dict.fromkeys(limits))


def best(panel: Panel) -> list[Finding]:
    """Return the best of the measured values; nothing without any."""
    values = []
    for series in panel.series:
        for x, point in series.points.items():
            name = series.name
            if panel.x == "size":
                name = f"{name} at {format_size(int(x))}"
            elif panel.x == "place":
                name = f"{name} at {panel.places[x]}"
            values.append((point.value, name, point, series.limit))
    if not values:
        return []
    values.sort(key=lambda value: value[0])
    codes = ("figure_lowest", "figure_lowest_of_limit")
    if panel.is_rate:
        codes = ("figure_highest", "figure_highest_of_limit")
        values.reverse()
    _, name, point, limit = values[0]
    numbers: dict[str, Value] = {
        "quantity": panel.quantity,
        "value": number_text(point, panel.unit),
    }
    if limit is None:
        return [Finding(codes[0], name, numbers)]
    numbers |= {"share": 100 * point.value / limit.value, "limit": limit.name}
    return [Finding(codes[1], name, numbers)]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure of panels, one above the other."""

    name: str
    section: Section
    title: str
    reading: str
    """How to read it: the same sentences for each figure of a kind."""
    results: Sequence[Finding] = ()
    """What it shows."""
    panels: Sequence[Panel]
    moments: Mapping[str, float] = field(default_factory=dict)
    """Named vertical lines through all panels."""
    shades: Sequence[Shade] = ()
    key: Mapping[str, int] = field(default_factory=dict)
    """What colours mean, by their numbers, if rows have several."""

    @property
    def names(self) -> list[str]:
        """The names of all series, each once."""
        return list(dict.fromkeys(name for panel in self.panels for name in panel.names))

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
        return self.looks

    @property
    def caption(self) -> str:
        """How to read the figure, what it shows, and what it leaves out."""
        results = list(self.results)
        hidden = [name for name in self.names if name not in self.looks]
        if hidden:
            numbers: dict[str, Value] = {"most": MOST_SERIES, "series": listed(hidden, 8)}
            results.append(Finding("figure_hidden", numbers=numbers))
        return " ".join([self.reading, *map(str, results)])

    @property
    def alt(self) -> str:
        """Title, and the names of panels and of series, for readers who cannot see it."""
        titles = [panel.title for panel in self.panels]
        names = [name for name in (*titles, *self.names) if name]
        return f"{self.title}: {listed(names, MOST_ROWS)}."

    @property
    def drawing(self) -> Drawing:
        """The drawing."""
        height_in = 0.5 + sum(panel.height_in for panel in self.panels)
        return Drawing(
            paint=partial(draw, self),
            name=self.name,
            section=self.section,
            title=self.title,
            caption=self.caption,
            alt=self.alt,
            height_in=height_in + legend_height_in(list(self.legend)),
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
        aside: Style = {"xytext": (3, 1), "textcoords": "offset points", "fontsize": 8}
        grid[0, 0].annotate(name, (x, 1.0), xycoords=("data", "axes fraction"), **aside)
    legend(figure, chart.legend)


# ------------------------------------------------------------------------------------------ curves


def _draw_curves(axes: Axes, panel: Panel, looks: Mapping[str, Look]) -> None:
    axes.set_ylabel(panel.label)
    axes.plot(list(panel.background), list(panel.background.values()), color=GRID, linewidth=0.8)
    visible = [series for series in panel.series if series.name in looks]
    names = [name for name in panel.names if name in looks]
    peaks = []
    for series in visible:
        aside = 0.0
        if panel.x == "place":
            distance = min(_ASIDE, _ASIDE_MOST / len(names))
            aside = distance * (names.index(series.name) - (len(names) - 1) / 2)
        has_band = panel.x != "place" and series.is_joined and len(series.points) > 1
        _draw_series(axes, series, looks[series.name], aside, has_band=has_band)
        values = [point.value for point in series.points.values()]
        if panel.has_zero:  # curves from zero are compared with each other
            values = [max(values, default=0.0)] if values else []
        peaks += values
    _scale_x(axes, panel, visible)
    _scale(axes, "y", panel, visible, peaks)
    for series in visible:
        if series.failed:  # without any, the layout would collapse
            _draw_crosses(axes, series.failed, looks[series.name])
    for x, colour in panel.ticks.items():
        tick: Style = {"color": look(colour).colour, "linewidth": 1.2, "gid": "tick"}
        axes.plot([x, x], [0.0, 0.06], transform=axes.get_xaxis_transform(), **tick)


def _draw_series(
    axes: Axes, series: Series, looks_as: Look, aside: float, *, has_band: bool
) -> None:
    """Draw marks, a line through them, a band or bars of intervals, and a ring."""
    points = {x + aside: series.points[x] for x in sorted(series.points)}
    style = {
        "color": looks_as.colour,
        "marker": looks_as.marker,
        "linestyle": looks_as.dash,
        "label": series.name,
    }
    if not series.is_joined:
        style["linestyle"] = "none"
        if len(points) > _MARKED:
            style["markersize"] = 3
    elif len(points) > _MARKED:
        style["markevery"] = len(points) // 8
    axes.plot(list(points), [point.value for point in points.values()], **style)
    bounds = [point.bounds for point in points.values()]
    if has_band:
        lows, highs = zip(*bounds, strict=True)
        band: Style = {"color": looks_as.colour, "alpha": BAND_ALPHA, "linewidth": 0}
        axes.fill_between(list(points), lows, highs, **band)
    else:
        for x, (low, high) in zip(points, bounds, strict=True):
            if low < high:
                axes.plot([x, x], [low, high], color=looks_as.colour, marker="_", linewidth=1)
    if series.ringed is not None:
        value = series.points[series.ringed].value
        ring: Style = {"markersize": 15, "markerfacecolor": "none", "markeredgecolor": INK}
        axes.plot([series.ringed + aside], [value], "o", gid="ring", **ring)


def _draw_crosses(axes: Axes, xs: Sequence[float], looks_as: Look) -> None:
    style: Style = {"markersize": 7, "markeredgewidth": 1.8, "clip_on": False, "zorder": 5}
    heights = [0.0] * len(xs)
    transform = axes.get_xaxis_transform()
    axes.plot(xs, heights, "x", transform=transform, color=looks_as.colour, gid="crosses", **style)


def _scale_x(axes: Axes, panel: Panel, visible: Sequence[Series]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    if panel.x == "size":
        size_axis(axes, [x for series in visible for x in (*series.points, *series.failed)])
    elif panel.x == "time":
        locator = AutoDateLocator(minticks=3, maxticks=8)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
    elif panel.x == "place":
        axes.set_xticks(list(panel.places), list(panel.places.values()))
        axes.set_xlim(min(panel.places) - 0.6, max(panel.places) + 0.6)
    else:
        axes.set_xlim(left=0.0)


# -------------------------------------------------------------------------------------------- rows


def _draw_rows(axes: Axes, panel: Panel, looks: Mapping[str, Look]) -> None:
    """Draw a row for each series, the first on top."""
    values: list[float] = []
    for series in panel.series:
        values += series.dots
        values += [point.value for point in series.points.values()]
    has_bars = panel.has_zero and not _is_wide(values)
    for place, series in enumerate(panel.series):
        looks_as = looks[series.name]
        if series.colour is not None:
            looks_as = look(series.colour)
        _draw_row(axes, series, place, looks_as, has_bars=has_bars)
    names = [series.name for series in panel.series]
    step = math.ceil(len(names) / MOST_ROWS)
    axes.set_yticks(range(0, len(names), step), names[::step])
    axes.set_ylim(len(names) - 0.4, -1.0 if panel.limits else -0.6)
    axes.grid(visible=False, axis="y")
    if not any(series.spans for series in panel.series):
        _scale(axes, "x", panel, panel.series, values)


def _draw_row(axes: Axes, row: Series, place: int, looks_as: Look, *, has_bars: bool) -> None:
    style: Style = {"color": looks_as.colour, "linestyle": "none", "markeredgewidth": 0}
    for point in row.points.values():
        interval: Style = {"color": MUTED, "linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt"}
        if has_bars:
            axes.barh([place], [point.value], height=0.6, color=looks_as.colour)
            interval = {"color": INK, "linewidth": 1}
        elif not row.dots:
            axes.plot([point.value], [place], marker=looks_as.marker, markersize=6, **style)
        axes.plot(point.bounds, [place, place], **interval)
    heights = [place + _HEIGHTS[number % len(_HEIGHTS)] for number in range(len(row.dots))]
    axes.plot(row.dots, heights, marker="o", markersize=3.5, **style)
    for begin, end, colour in row.spans:
        own = looks_as if colour is None else look(colour)
        axes.broken_barh([(begin, end - begin)], (place - 0.4, 0.8), color=own.colour, linewidth=0)
    if row.failed:
        axes.plot([0.0], [place], "x", transform=axes.get_yaxis_transform(), color=BAD)


# ------------------------------------------------------------------------------------------- scales


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and 0 < _WIDE * min(values) < max(values)


def _scale(
    axes: Axes,
    axis: Literal["x", "y"],
    panel: Panel,
    visible: Sequence[Series],
    values: Sequence[float],
) -> None:
    """Draw limits, and scale the axis of the values that are drawn.

    Args:
        axes: the axes.
        axis: which of them.
        panel: what is drawn.
        visible: the series that are drawn.
        values: those that make the axis logarithmic if they differ widely.
    """
    estimates = [Estimate(dot) for series in visible for dot in series.dots]
    estimates += [point for series in visible for point in series.points.values()]
    for limit in panel.limits:
        text = number_text(Estimate(limit.value), panel.unit)
        mark_limit(axes, limit.value, f"{text}: {limit.name}", vertical=axis == "x")
    if not estimates:
        nothing_here(axes, "nothing was measured")
        return
    others = [*panel.background.values(), *panel.includes]
    others += [limit.value for limit in panel.limits]
    estimates += [Estimate(value) for value in others]
    if panel.unit == MICROSECONDS or _is_wide([*values, *panel.includes]):
        log_axis(axes, axis, panel.unit)
    elif panel.has_zero:
        most = max(point.bounds[1] for point in estimates)
        axes.set(**{f"{axis}lim": (0.0, 1.08 * most)})
    else:
        axes.set(**{f"{axis}lim": near(estimates)})


def near(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Return a range with all values, and with as much of intervals as keeps values readable."""
    values = [point.value for point in estimates]
    lows, highs = zip(*(point.bounds for point in estimates), strict=True)
    low, high = min(values), max(values)
    room = max(0.1 * abs(high), high - low)
    least, most = max(low - room, min(lows)), min(high + room, max(highs))
    margin = max(_MARGIN * (most - least), _LEAST_MARGIN * abs(high))
    if least >= 0:
        return max(0.0, least - margin), most + margin
    return least - margin, most + margin
