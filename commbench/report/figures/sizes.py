"""Time and bus bandwidth over message size: one figure for each operation, a line for each series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from commbench.collectives import OPERATIONS
from commbench.prediction.links import Link
from commbench.report.figures.axes import (
    MOST_SERIES,
    Estimate,
    Look,
    byte_axis,
    legend,
    legend_height_in,
    log_axis,
    look,
    mark_limit,
    nothing_here,
    plot_crosses,
    plot_series,
)
from commbench.report.figures.curves import Curve, Family, families
from commbench.report.figures.drawing import Drawing, draw, slug
from commbench.report.figures.words import left_out, listed, number_text, sentences, shown_apart, time_text
from commbench.store import Run
from commbench.units import counted, format_size, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIME, RATE = "time_us", "busbw_GBps"
_LABELS = {TIME: "time", RATE: "bus bandwidth, GB/s"}
_RATE_READ = "bus bandwidth (higher is better)"
#: Operations that one of the two says all about.
_ONE_PANEL = {"latency": (TIME,), "barrier": (TIME,), "bandwidth": (RATE,), "bibandwidth": (RATE,)}
#: Bandwidths whose best differ by more are drawn on a logarithmic axis.
_WIDE = 20.0


def size_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Time and bus bandwidth of each operation: over message size where there are several, else beside each other."""
    return [_drawing(family) for family in families(runs)]


def _drawing(family: Family) -> Drawing:
    curves = [curve for curve in family.curves if not curve.is_unsupported][:MOST_SERIES]
    panels = panels_of(family.operation)
    name, title = slug("sizes", family.operation), f"{family.operation}: {' and '.join(_spoken(panels))}"
    if len(family.sizes) > 1:
        paint, height = (lambda figure: paint_curves(figure, family, curves)), 0.5 + 2.3 * len(panels)
        height += legend_height_in([curve.name for curve in curves])
        title += " over message size"
    else:
        paint, height = (lambda figure: paint_dots(figure, family, curves)), len(panels) * (0.75 + 0.26 * len(curves))
    return draw(
        paint,
        name=name,
        section="collectives",
        title=title,
        caption=caption_of(family, curves),
        alt=f"{title} for {listed([curve.name for curve in curves], MOST_SERIES) or 'no series'}.",
        height_in=height,
    )


def panels_of(operation: str) -> tuple[str, ...]:
    """What is drawn of an operation."""
    return _ONE_PANEL.get(operation, (TIME, RATE))


def _spoken(panels: Sequence[str]) -> list[str]:
    return [{TIME: "time", RATE: "bus bandwidth"}[panel] for panel in panels]


# ---------------------------------------------------------------------------------------------------- several sizes


def paint_curves(figure: Figure, family: Family, curves: Sequence[Curve]) -> None:
    """Panels below each other, the time above, with one axis of sizes."""
    panels = panels_of(family.operation)
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, what in zip(all_axes, panels, strict=True):
        for place, curve in enumerate(curves):
            plot_series(axes, curve.points(what), curve.name, look(place))
        _scale(axes, what, curves, family)
        for place, curve in enumerate(curves):
            plot_crosses(axes, [reading.size_bytes for reading in curve.failed], look(place))
    all_axes[-1].set_xlabel("message size")
    legend(figure, all_axes[0])


def _scale(axes: Axes, what: str, curves: Sequence[Curve], family: Family) -> None:
    """Scales and labels of one panel, after its lines."""
    byte_axis(axes, [size for size in family.sizes if size > 0])
    axes.set_ylabel(_LABELS[what])
    if not any(curve.points(what) for curve in curves):
        nothing_here(axes, "nothing was measured")
        return
    if what == TIME:
        log_axis(axes.yaxis, "us")
        return
    best = [max(point.value for point in points.values()) for curve in curves if (points := curve.points(RATE))]
    for link in family.links:
        mark_limit(axes, _rate_GBps(link), f"{three_digits(_rate_GBps(link))} GB/s: {link}")
    if max(best) > _WIDE * min(best):
        log_axis(axes.yaxis)
    else:
        axes.set_ylim(0.0, axes.get_ylim()[1] * (1.08 if family.links else 1.0))


# ---------------------------------------------------------------------------------------------------- a single size


def paint_dots(figure: Figure, family: Family, curves: Sequence[Curve]) -> None:
    """Panels below each other, a line of each for a series: where there is only one size there is no curve."""
    panels = panels_of(family.operation)
    for axes, what in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        for place, curve in enumerate(curves):
            for point in curve.points(what).values():
                _dot(axes, place, point, look(place))
            if curve.failed:
                axes.plot([0.0], [place], "x", transform=axes.get_yaxis_transform(), color=look(place).colour, ms=7)
        axes.set_yticks(range(len(curves)), [curve.name for curve in curves])
        axes.set_ylim(len(curves) - 0.5, -0.5)
        axes.set_xlabel(_LABELS[what])
        axes.grid(visible=False, axis="y")
        _scale_dots(axes, what, curves, family)


def _scale_dots(axes: Axes, what: str, curves: Sequence[Curve], family: Family) -> None:
    values = [point.value for curve in curves for point in curve.points(what).values()]
    if not values:
        nothing_here(axes, "nothing was measured")
    elif what == TIME:
        log_axis(axes.xaxis, "us")
    elif max(values) > _WIDE * min(values):
        log_axis(axes.xaxis)
    else:
        limits = [_rate_GBps(link) for link in family.links]
        axes.set_xlim(0.0, 1.12 * max([axes.get_xlim()[1] / 1.05, *limits]))
        for link, limit in zip(family.links, limits, strict=True):
            mark_limit(axes, limit, f"{three_digits(limit)} GB/s: {link}", vertical=True)


def _rate_GBps(link: Link) -> float:  # noqa: N802 - a unit
    return (link.bound_bps or 0.0) / 8e9


def _dot(axes: Axes, y: float, point: Estimate, looks_as: Look) -> None:
    errors = [[error] for error in point.errors]
    style: dict[str, Any] = {"color": looks_as.colour, "marker": looks_as.marker, "linestyle": "none", "capsize": 2.5}
    axes.errorbar([point.value], [y], xerr=errors, **style)


# ---------------------------------------------------------------------------------------------------------- captions


def caption_of(family: Family, curves: Sequence[Curve]) -> str:
    """How to read the figure, and what its data say."""
    panels = panels_of(family.operation)
    crosses = any(curve.failed for curve in family.curves)
    return sentences(
        _how(family, panels),
        _quickest(curves) if TIME in panels else "",
        _best_rate(family, curves) if RATE in panels else "",
        _beside(curves) if len(curves) > 1 else "",
        f"Crosses on the axis have no result ({broken(family)})." if crosses else "",
        _cannot(family),
        not_drawn(family),
        left_out([curve.name for curve in family.curves if not curve.is_unsupported], MOST_SERIES),
    )


def _how(family: Family, panels: Sequence[str]) -> str:
    several = len(family.sizes) > 1
    launches = sorted({r.launches for curve in family.curves for r in curve.readings if r.launches})
    over = "the launch" if launches == [1] else "launches"
    spread = f"{'bands' if several else 'bars'} are 95 % intervals over {over}"
    if not any(r.time_us and r.time_us.low is not None for curve in family.curves for r in curve.readings):
        spread = "there are no intervals"
    size = "" if several or not family.sizes[0] else f" at {format_size(family.sizes[0])}"
    shared = f", {family.shared}" if family.shared else ""
    what = " and its ".join({TIME: _time_read(family), RATE: _RATE_READ}[panel] for panel in panels)
    text = f"{what}{size}{shared}; {spread}."
    text = text[0].upper() + text[1:]
    if OPERATIONS[family.operation].name == "latency":
        text += " A time is half a round trip."
    return text


def _time_read(family: Family) -> str:
    """What the times are: of imported runs what their tools call a time."""
    stated = {reading.stated for curve in family.curves for reading in curve.readings}
    told = " or the ".join(sorted(stated - {""}))
    own = ["median time of the slowest rank"] if "" in stated else []
    return " or the ".join([*own, *([told] if told else [])]) + " (lower is better)"


def _quickest(curves: Sequence[Curve]) -> str:
    """The shortest time of all."""
    known = [(point.value, size, point, curve) for curve in curves for size, point in curve.points(TIME).items()]
    if not known:
        return "Nothing was timed."
    _, size, point, curve = min(known, key=lambda entry: entry[:2])
    at = f" at {format_size(int(size))}" if size else ""
    return f"Shortest: {time_text(point)}{at}{_by(curve, curves)}."


def _best_rate(family: Family, curves: Sequence[Curve]) -> str:
    """The highest bandwidth, and its share of the link where that bounds it."""
    known = [(point.value, size, point, curve) for curve in curves for size, point in curve.points(RATE).items()]
    if not known:
        return ""
    value, size, point, curve = max(known, key=lambda entry: entry[:2])
    reading = next(reading for reading in curve.readings if reading.size_bytes == size)
    share = ""
    if reading.limit is not None and reading.limit.bound_bps:
        share = f", {100 * 8e9 * value / reading.limit.bound_bps:.0f} % of {reading.limit}"
    at = f" at {format_size(int(size))}" if len(family.sizes) > 1 else ""
    return f"Highest: {number_text(point, 'GB/s')}{at}{_by(curve, curves)}{share}."


def _by(curve: Curve, curves: Sequence[Curve]) -> str:
    return f" ({curve.name})" if len(curves) > 1 else ""


def _beside(curves: Sequence[Curve]) -> str:
    """How the fastest and the slowest series compare at the largest size that all have."""
    common = set.intersection(*(set(curve.points(TIME)) for curve in curves))
    if not common:
        return ""
    size = max(common)
    at = f" at {format_size(int(size))}" if size else ""
    ranked = sorted(curves, key=lambda curve: curve.points(TIME)[size].value)
    fast, slow = (curve.points(TIME)[size] for curve in (ranked[0], ranked[-1]))
    names = ranked[0].name, ranked[-1].name
    if not shown_apart(fast, slow):
        return f"No difference between {names[0]} and {names[1]} is shown{at}: their intervals meet."
    return f"{names[1]} takes {slow.value / fast.value:.3g} times as long as {names[0]}{at}."


def broken(family: Family) -> str:
    """What has no result, and why."""
    parts = []
    for curve in family.curves:
        if curve.failed:
            states = listed([reading.status for reading in curve.failed])
            reason = next((reading.reason for reading in curve.failed if reading.reason), "")
            parts.append(
                f"{curve.name}: {counted(len(curve.failed), 'size')} {states}" + (f", {reason}" if reason else "")
            )
    return "; ".join(part.rstrip(".") for part in parts)


def _cannot(family: Family) -> str:
    names = [curve.name for curve in family.curves if curve.is_unsupported]
    return f"Not supported by {listed(names)}." if names else ""


def not_drawn(family: Family) -> str:
    """A sentence about the rows that are about no interconnect; empty where there are none."""
    count = family.rows_sharing_gpus
    are = "is" if count == 1 else "are"
    return f"{counted(count, 'row')} of ranks that share a GPU {are} not drawn." if count else ""
