"""Time and bus bandwidth over message size: one figure for each operation, one curve for each
series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.analysis.prediction.links import Link, limit_of
from commbench.collectives.algorithms import AUTO
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Row
from commbench.report.figures.drawing import (
    MOST_SERIES,
    Drawing,
    Estimate,
    Look,
    Style,
    byte_axis,
    estimate,
    legend,
    legend_height_in,
    log_axis,
    look,
    mark_limit,
    nothing_here,
    plot_crosses,
    plot_series,
    slug,
)
from commbench.report.figures.words import (
    left_out,
    number_text,
    run_names,
    sentences,
    shown_apart,
    time_text,
    varying,
)
from commbench.report.formats import listed
from commbench.results import Run
from commbench.results.info import RunInfo, measures_interconnect
from commbench.results.tables import rows_by
from commbench.units import counted, format_size, three_digits

#: Patterns without a curve: a matrix has its own figure.
_OTHERWISE = frozenset({MATRIX})
#: Fields of `Case` that distinguish series, and the text of their values.
_SPOKEN: Mapping[str, Callable[[Any], str]] = {
    "run": lambda value: f"{value}:",
    "in_place": lambda value: "in place" if value else "out of place",
    "root": lambda value: f"root {value}",
    "world_size": lambda value: f"{value} ranks" if value else "all ranks",
    "sync": lambda value: f"sync {value}",
    "loop": lambda value: f"{value} loop",
    "algorithm": lambda value: "own choice" if value == AUTO else f"by {value}",
    "env": lambda value: f"under {value}",
}
_IDENTITY = (
    *("backend", "pattern", "dtype", "redop", "in_place", "root", "world_size"),
    *("buffers", "sync", "loop", "algorithm", "env"),
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The result of one case.

    For concurrent groups the slowest group's time and the sum of their bandwidths.
    """

    size_bytes: int
    """Size of the message; 0 for an operation without data."""
    time_us: Estimate | None
    busbw_GBps: Estimate | None  # noqa: N815 - a unit
    status: str
    reason: str
    launches: int
    limit: Link | None
    """The link that bounds the bus bandwidth; None if unknown."""
    time_definition: str = ""
    """The definition of another tool's time; empty for commbench's own."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One series of an operation."""

    name: str
    """The fields that distinguish it from the other series of the operation."""
    readings: Sequence[Reading]
    """The results by ascending size."""

    @property
    def failed(self) -> list[Reading]:
        """Sizes whose case failed or gave wrong data; unsupported ones are not included."""
        return [reading for reading in self.readings if reading.status not in {"ok", "unsupported"}]

    @property
    def is_unsupported(self) -> bool:
        """Whether the backend supports none of its sizes."""
        return all(reading.status == "unsupported" for reading in self.readings)

    def points(self, field: str) -> dict[float, Estimate]:
        """Return estimates of ``time_us`` or ``busbw_GBps`` by size."""
        estimates = {
            reading.size_bytes: getattr(reading, field)
            for reading in self.readings
            if reading.status == "ok"
        }
        return {size: point for size, point in estimates.items() if point is not None}


@dataclass(frozen=True, kw_only=True)
class Family:
    """All curves of one operation."""

    operation: str
    curves: Sequence[Curve]
    shared: str
    """The fields that all series have in common, as text."""
    rows_sharing_gpus: int = 0
    """Number of rows of the operation without a curve, because their ranks shared a GPU."""

    @property
    def sizes(self) -> list[int]:
        """All message sizes, ascending."""
        return sorted({reading.size_bytes for curve in self.curves for reading in curve.readings})

    @property
    def links(self) -> list[Link]:
        """The links that bound any reading, the slowest first."""
        limits = {r.limit for curve in self.curves for r in curve.readings if r.limit is not None}
        return sorted(limits, key=lambda link: link.bound_bps or 0.0)


def families(runs: Sequence[Run]) -> list[Family]:
    """Return the curves of each operation of several runs, in the order of operations.

    Ranks that share a GPU get no curve: their times do not show an interconnect.
    """
    rows_sharing_gpus: Counter[str] = Counter()
    series_by_operation: dict[
        str, dict[tuple[str, ...], tuple[dict[str, object], list[Reading]]]
    ] = {}
    for run, name in zip(runs, run_names(runs), strict=True):
        definitions = {
            record.case.key: record.stated.time for record in run.records if record.stated
        }
        for case, rows in _cases_of(run):
            if not all(map(measures_interconnect, rows)):
                rows_sharing_gpus[case.operation] += len(rows)
                continue
            identity = {"run": name} | {field: getattr(case, field) for field in _IDENTITY}
            key = tuple(map(str, identity.values()))
            of_operation = series_by_operation.setdefault(case.operation, {})
            reading = _reading(case, rows, run.info, definitions.get(case.key, ""))
            of_operation.setdefault(key, (identity, []))[1].append(reading)
    has_several_runs = len(runs) > 1
    return [
        _family(
            operation,
            list(series_by_operation[operation].values()),
            several=has_several_runs,
            rows_sharing_gpus=rows_sharing_gpus[operation],
        )
        for operation in OPERATIONS
        if operation in series_by_operation
    ]


def _cases_of(run: Run) -> Iterable[tuple[Case, list[Row]]]:
    """Return each case with its rows: one row, or one per group."""
    if not run.records:
        return []
    cases = {record.case.key: record.case for record in run.records}
    by_case = rows_by(run.keyed_rows.items(), lambda keyed: keyed[0][0])
    return [
        (cases[key], [row for _, row in members])
        for key, members in by_case.items()
        if cases[key].pattern not in _OTHERWISE
    ]


def _family(
    operation: str,
    series: Sequence[tuple[Mapping[str, object], list[Reading]]],
    *,
    several: bool,
    rows_sharing_gpus: int,
) -> Family:
    """Return the series of an operation with the fields that distinguish them.

    With several runs always the run.
    """
    identities = [identity for identity, _ in series]
    differing = [name for name in varying(identities) if name != "run"]
    names = [*(["run"] if several else []), *(differing or ["backend"])]
    shared = [name for name in ("backend", "pattern", "dtype", "redop") if name not in names]
    return Family(
        operation=operation,
        curves=[
            Curve(
                name=_series_name(identity, names),
                readings=sorted(readings, key=lambda r: r.size_bytes),
            )
            for identity, readings in series
        ],
        shared=_series_name(identities[0], shared),
        rows_sharing_gpus=rows_sharing_gpus,
    )


def _series_name(identity: Mapping[str, object], names: Iterable[str]) -> str:
    fields = [name for name in names if identity[name] is not None or name == "world_size"]
    words = [
        _SPOKEN[name](identity[name]) if name in _SPOKEN else str(identity[name]) for name in fields
    ]
    return " ".join(filter(None, words))


def _reading(case: Case, rows: Sequence[Row], info: RunInfo, time_definition: str) -> Reading:
    broken = next((row for row in rows if row.status != "ok"), None)
    timed = [row for row in rows if row.time_us is not None]
    slowest = max(timed, key=lambda row: row.time_us or 0.0, default=None)
    shown_row = slowest or rows[0]
    return Reading(
        size_bytes=case.message_bytes,
        time_us=estimate(shown_row.time_us, shown_row.time_us_ci_low, shown_row.time_us_ci_high),
        busbw_GBps=_together([busbw_of(row) for row in rows]),
        status=broken.status if broken else "ok",
        reason=broken.reason if broken else "",
        launches=shown_row.launches or 0,
        limit=limit_of(shown_row, info),
        time_definition=time_definition,
    )


def busbw_of(row: Row) -> Estimate | None:
    """Return the bus bandwidth of a row, with the interval that follows from the time's
    interval.
    """
    if row.busbw_GBps is None or not row.time_us:
        return None
    ends = (
        row.busbw_GBps * row.time_us / us if us else None
        for us in (row.time_us_ci_high, row.time_us_ci_low)
    )
    return estimate(row.busbw_GBps, *ends)


def _together(rates: Sequence[Estimate | None]) -> Estimate | None:
    """Return the sum of the bandwidths of concurrent groups with a conservative interval.

    None if one has no rate.
    """
    known_rates = [rate for rate in rates if rate is not None]
    if not known_rates or len(known_rates) < len(rates):
        return None
    if len(known_rates) == 1:
        return known_rates[0]
    low, high = (sum(bounds) for bounds in zip(*(rate.bounds for rate in known_rates), strict=True))
    return Estimate(value=sum(rate.value for rate in known_rates), low=low, high=high)


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIME, RATE = "time_us", "busbw_GBps"
_LABELS = {TIME: "time", RATE: "bus bandwidth, GB/s"}
_RATE_READ = "bus bandwidth (higher is better)"
_PANELS = {"both": (TIME, RATE), "time": (TIME,), "bandwidth": (RATE,)}
#: A larger ratio between the best bandwidths gets a logarithmic axis.
_WIDE = 20.0


def size_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return figures of time and bus bandwidth per operation: over message size, or as dots if
    there is one size.
    """
    return [_drawing(family) for family in families(runs)]


def _drawing(family: Family) -> Drawing:
    curves = [curve for curve in family.curves if not curve.is_unsupported][:MOST_SERIES]
    panels = _panels_of(family.operation)
    name, title = (
        slug("sizes", family.operation),
        f"{family.operation}: {' and '.join(_spoken(panels))}",
    )
    if len(family.sizes) > 1:
        paint, height = (
            (lambda figure: paint_curves(figure, family, curves)),
            0.5 + 2.3 * len(panels),
        )
        height += legend_height_in([curve.name for curve in curves])
        title += " over message size"
    else:
        paint, height = (
            (lambda figure: paint_dots(figure, family, curves)),
            len(panels) * (0.75 + 0.26 * len(curves)),
        )
    return Drawing(
        paint=paint,
        name=name,
        section="collectives",
        title=title,
        caption=caption_of(family, curves),
        alt=f"{title} for {listed([curve.name for curve in curves], MOST_SERIES) or 'no series'}.",
        height_in=height,
    )


def _panels_of(operation: str) -> tuple[str, ...]:
    """Return the panels of an operation."""
    return _PANELS[OPERATIONS[operation].quantity]


def _spoken(panels: Sequence[str]) -> list[str]:
    return [{TIME: "time", RATE: "bus bandwidth"}[panel] for panel in panels]


# ------------------------------------------------------------------------------------ several sizes


def paint_curves(figure: Figure, family: Family, curves: Sequence[Curve]) -> None:
    """Draw panels one above the other, time on top, with a common size axis."""
    panels = _panels_of(family.operation)
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, quantity in zip(all_axes, panels, strict=True):
        for place, curve in enumerate(curves):
            plot_series(axes, curve.points(quantity), curve.name, look(place))
        _scale(axes, quantity, curves, family)
        for place, curve in enumerate(curves):
            plot_crosses(axes, [reading.size_bytes for reading in curve.failed], look(place))
    all_axes[-1].set_xlabel("message size")
    legend(figure, all_axes[0])


def _scale(axes: Axes, quantity: str, curves: Sequence[Curve], family: Family) -> None:
    """Set scales and labels of one panel, after its lines are drawn."""
    byte_axis(axes, [size for size in family.sizes if size > 0])
    axes.set_ylabel(_LABELS[quantity])
    if not any(curve.points(quantity) for curve in curves):
        nothing_here(axes, "nothing was measured")
        return
    if quantity == TIME:
        log_axis(axes.yaxis, "us")
        return
    best = [
        max(point.value for point in points.values())
        for curve in curves
        if (points := curve.points(RATE))
    ]
    for link in family.links:
        mark_limit(axes, _rate_GBps(link), f"{three_digits(_rate_GBps(link))} GB/s: {link}")
    if max(best) > _WIDE * min(best):
        log_axis(axes.yaxis)
    else:
        axes.set_ylim(0.0, axes.get_ylim()[1] * (1.08 if family.links else 1.0))


# ------------------------------------------------------------------------------------ a single size


def paint_dots(figure: Figure, family: Family, curves: Sequence[Curve]) -> None:
    """Draw panels with one line for each series: with one size there is no curve."""
    panels = _panels_of(family.operation)
    for axes, quantity in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True
    ):
        for place, curve in enumerate(curves):
            for point in curve.points(quantity).values():
                _dot(axes, place, point, look(place))
            if curve.failed:
                axes.plot(
                    [0.0],
                    [place],
                    "x",
                    transform=axes.get_yaxis_transform(),
                    color=look(place).colour,
                    ms=7,
                )
        axes.set_yticks(range(len(curves)), [curve.name for curve in curves])
        axes.set_ylim(len(curves) - 0.5, -0.5)
        axes.set_xlabel(_LABELS[quantity])
        axes.grid(visible=False, axis="y")
        _scale_dots(axes, quantity, curves, family)


def _scale_dots(axes: Axes, quantity: str, curves: Sequence[Curve], family: Family) -> None:
    values = [point.value for curve in curves for point in curve.points(quantity).values()]
    if not values:
        nothing_here(axes, "nothing was measured")
    elif quantity == TIME:
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
    style: Style = {
        "color": looks_as.colour,
        "marker": looks_as.marker,
        "linestyle": "none",
        "capsize": 2.5,
    }
    axes.errorbar([point.value], [y], xerr=errors, **style)


# ----------------------------------------------------------------------------------------- captions


def caption_of(family: Family, curves: Sequence[Curve]) -> str:
    """Return the caption: how to read the figure, and the main results."""
    panels = _panels_of(family.operation)
    crosses = any(curve.failed for curve in family.curves)
    return sentences(
        _how(family, panels),
        _quickest(curves) if TIME in panels else "",
        _best_rate(family, curves) if RATE in panels else "",
        _beside(curves) if len(curves) > 1 else "",
        f"Crosses on the axis have no result ({_broken(family)})." if crosses else "",
        _cannot(family),
        _not_drawn(family),
        left_out([curve.name for curve in family.curves if not curve.is_unsupported], MOST_SERIES),
    )


def _how(family: Family, panels: Sequence[str]) -> str:
    has_several_sizes = len(family.sizes) > 1
    launches = sorted({r.launches for curve in family.curves for r in curve.readings if r.launches})
    over = "the launch" if launches == [1] else "launches"
    spread = f"{'bands' if has_several_sizes else 'bars'} are 95 % intervals over {over}"
    if not any(
        r.time_us and r.time_us.low is not None for curve in family.curves for r in curve.readings
    ):
        spread = "there are no intervals"
    size = "" if has_several_sizes or not family.sizes[0] else f" at {format_size(family.sizes[0])}"
    shared = f", {family.shared}" if family.shared else ""
    quantities = " and its ".join(
        {TIME: _time_read(family), RATE: _RATE_READ}[panel] for panel in panels
    )
    text = f"{quantities}{size}{shared}; {spread}."
    text = text[0].upper() + text[1:]
    if OPERATIONS[family.operation].is_round_trip:
        text += " A time is half a round trip."
    return text


def _time_read(family: Family) -> str:
    """State the definition of the times; imported runs have their tool's definition."""
    definitions_used = {
        reading.time_definition for curve in family.curves for reading in curve.readings
    }
    definitions = " or the ".join(sorted(definitions_used - {""}))
    own_definition = ["median time of the slowest rank"] if "" in definitions_used else []
    return (
        " or the ".join([*own_definition, *([definitions] if definitions else [])])
        + " (lower is better)"
    )


def _quickest(curves: Sequence[Curve]) -> str:
    """State the shortest time of all."""
    points = [
        (point.value, size, point, curve)
        for curve in curves
        for size, point in curve.points(TIME).items()
    ]
    if not points:
        return "Nothing was timed."
    _, size, point, curve = min(points, key=lambda entry: entry[:2])
    at = f" at {format_size(int(size))}" if size else ""
    return f"Shortest: {time_text(point)}{at}{_by(curve, curves)}."


def _best_rate(family: Family, curves: Sequence[Curve]) -> str:
    """State the highest bandwidth, and its share of the link's rate if the link bounds it."""
    points = [
        (point.value, size, point, curve)
        for curve in curves
        for size, point in curve.points(RATE).items()
    ]
    if not points:
        return ""
    value, size, point, curve = max(points, key=lambda entry: entry[:2])
    reading = next(reading for reading in curve.readings if reading.size_bytes == size)
    share = ""
    if reading.limit is not None and reading.limit.bound_bps:
        share = f", {100 * 8e9 * value / reading.limit.bound_bps:.0f} % of {reading.limit}"
    at = f" at {format_size(int(size))}" if len(family.sizes) > 1 else ""
    return f"Highest: {number_text(point, 'GB/s')}{at}{_by(curve, curves)}{share}."


def _by(curve: Curve, curves: Sequence[Curve]) -> str:
    return f" ({curve.name})" if len(curves) > 1 else ""


def _beside(curves: Sequence[Curve]) -> str:
    """Compare the fastest and the slowest series at the largest size that all have."""
    common = set.intersection(*(set(curve.points(TIME)) for curve in curves))
    if not common:
        return ""
    size = max(common)
    at = f" at {format_size(int(size))}" if size else ""
    ranked = sorted(curves, key=lambda curve: curve.points(TIME)[size].value)
    fast, slow = (curve.points(TIME)[size] for curve in (ranked[0], ranked[-1]))
    names = ranked[0].name, ranked[-1].name
    if not shown_apart(fast, slow):
        return (
            f"No difference between {names[0]} and {names[1]} is shown{at}: their intervals meet."
        )
    return f"{names[1]} takes {slow.value / fast.value:.3g} times as long as {names[0]}{at}."


def _broken(family: Family) -> str:
    """State the sizes without a result, and the reason."""
    parts = []
    for curve in family.curves:
        if curve.failed:
            states = listed([reading.status for reading in curve.failed])
            reason = next((reading.reason for reading in curve.failed if reading.reason), "")
            parts.append(
                f"{curve.name}: {counted(len(curve.failed), 'size')} {states}"
                + (f", {reason}" if reason else "")
            )
    return "; ".join(part.rstrip(".") for part in parts)


def _cannot(family: Family) -> str:
    names = [curve.name for curve in family.curves if curve.is_unsupported]
    return f"Not supported by {listed(names)}." if names else ""


def _not_drawn(family: Family) -> str:
    """Return a sentence about rows that do not show an interconnect; empty if there are none."""
    count = family.rows_sharing_gpus
    are = "is" if count == 1 else "are"
    return f"{counted(count, 'row')} of ranks that share a GPU {are} not drawn." if count else ""
