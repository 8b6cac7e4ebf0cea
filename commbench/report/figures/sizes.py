"""Time, bus bandwidth and energy over message size: a figure for each operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commbench.analysis.prediction.links import limit_of
from commbench.collectives.algorithms import AUTO
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Row
from commbench.findings import Finding, Value
from commbench.report.figures.charts import (
    MICROSECONDS,
    Chart,
    Limit,
    Panel,
    Series,
    best,
    estimate,
)
from commbench.report.figures.drawing import slug
from commbench.report.figures.words import prefixes
from commbench.report.state import counted_energy, explain_time
from commbench.results import Run
from commbench.results.info import measures_interconnect
from commbench.results.tables import rows_by
from commbench.units import format_size
from commbench.words import Estimate

#: Fields of `Case` that distinguish series, and how their values are spoken.
_SPOKEN = {
    "backend": "{}",
    "pattern": "{}",
    "dtype": "{}",
    "redop": "{}",
    "in_place": "{}",
    "root": "root {}",
    "world_size": "{} ranks",
    "buffers": "{}",
    "sync": "sync {}",
    "loop": "{} loop",
    "algorithm": "by {}",
    "env": "under {}",
}
#: Values with other words.
_WORDS: Mapping[tuple[str, object], str] = {
    ("in_place", True): "in place",
    ("in_place", False): "out of place",
    ("world_size", None): "all ranks",
    ("algorithm", AUTO): "own choice",
    ("env", ""): "unchanged",
}
_READING = (
    "Bands and bars are 95 % intervals over launches; crosses have no result. Lower times and"
    " energies and higher bandwidths are better."
)
TIME, RATE = "time", "bus bandwidth"
_QUANTITIES = {"both": (TIME, RATE), "time": (TIME,), "bandwidth": (RATE,)}
_UNITS = {TIME: MICROSECONDS, RATE: "GB/s"}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One case; of concurrent groups the slowest time, and the sum of their bandwidths."""

    prefix: str
    """The name of the run; empty for a single run."""
    identity: Mapping[str, object]
    """The values that distinguish series."""
    size_bytes: int
    """Size of the message; 0 for an operation without data."""
    has_failed: bool
    values: Mapping[str, Estimate]
    """Values by quantity."""
    limit: Limit | None
    """The link that bounds the bus bandwidth, in GB/s; None if unknown."""


def size_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return a chart of each operation: curves, or rows if there is one size.

    Ranks that share a GPU get no curve: their times do not show an interconnect.
    """
    readings: dict[str, list[Reading]] = {}
    hidden: dict[str, int] = {}
    for run, prefix in zip(runs, prefixes(runs), strict=True):
        cases = {record.case.key: record.case for record in run.records}
        by_case = rows_by(run.keyed_rows.items(), lambda keyed: keyed[0][0])
        for key, keyed_rows in by_case.items():
            case, rows = cases[key], [row for _, row in keyed_rows]
            if not measures_interconnect(rows[0]):
                hidden[case.operation] = hidden.get(case.operation, 0) + len(rows)
            elif case.pattern != MATRIX and rows[0].status != "unsupported":
                reading = _reading(run, prefix, case, rows)
                readings.setdefault(case.operation, []).append(reading)
    charts = []
    for operation in OPERATIONS:
        if operation in readings:
            results = [Finding("figure_times", numbers={"meaning": explain_time(runs)})]
            if OPERATIONS[operation].is_round_trip:
                results = [Finding("figure_half")]
            if operation in hidden:
                numbers = {"rows": hidden[operation]}
                results.append(Finding("figure_shared_gpu", numbers=numbers))
            charts.append(_chart(operation, readings[operation], results))
    return charts


def _reading(run: Run, prefix: str, case: Case, rows: Sequence[Row]) -> Reading:
    slowest = max(rows, key=lambda row: row.time_us or 0.0)
    values = {
        TIME: estimate(slowest.time_us, slowest.time_us_ci_low, slowest.time_us_ci_high),
        RATE: _together([busbw_of(row) for row in rows]),
    }
    if slowest.energy_J is not None:
        values[f"energy of {counted_energy(slowest.energy_of)}"] = estimate(slowest.energy_J)
    has_failed = any(row.status != "ok" for row in rows)
    link = limit_of(slowest, run.info)
    limit = None
    if link is not None and link.bound_bps:
        limit = Limit(link.bound_bps / 8e9, str(link))
    return Reading(
        prefix=prefix,
        identity={field: getattr(case, field) for field in _SPOKEN},
        size_bytes=case.message_bytes,
        has_failed=has_failed,
        values={} if has_failed else {name: value for name, value in values.items() if value},
        limit=limit,
    )


def busbw_of(row: Row) -> Estimate | None:
    """Return the bus bandwidth, with the interval that follows from the time's interval."""
    if row.busbw_GBps is None or not row.time_us:
        return None
    low, high = None, None
    if row.time_us_ci_low and row.time_us_ci_high:
        low = row.busbw_GBps * row.time_us / row.time_us_ci_high
        high = row.busbw_GBps * row.time_us / row.time_us_ci_low
    return estimate(row.busbw_GBps, low, high)


def _together(rates: Sequence[Estimate | None]) -> Estimate | None:
    """Return the sum of the bandwidths of concurrent groups; None if one is unknown."""
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    if len(known) == 1:
        return known[0]
    lows, highs = zip(*(rate.bounds for rate in known), strict=True)
    return Estimate(sum(rate.value for rate in known), sum(lows), sum(highs))


def _chart(operation: str, readings: Sequence[Reading], notes: Sequence[Finding]) -> Chart:
    quantities = list(_QUANTITIES[OPERATIONS[operation].quantity])
    measured = dict.fromkeys(quantity for reading in readings for quantity in reading.values)
    quantities += [quantity for quantity in measured if quantity not in _UNITS]
    sizes = {reading.size_bytes for reading in readings}
    panels = []
    results: list[Finding] = []
    for quantity in quantities:
        panel = _panel(quantity, readings, has_curves=len(sizes) > 1)
        panels.append(panel)
        results += best(panel)
    return Chart(
        name=slug("sizes", operation),
        section="collectives",
        title=f"{operation} {_place(sizes)}".strip(),
        reading=_READING,
        results=[*results, *compared(panels[0]), *notes],
        panels=panels,
    )


def _place(sizes: set[int]) -> str:
    if len(sizes) > 1:
        return "over message size"
    (size,) = sizes
    return f"at {format_size(size)}" if size else ""


def _panel(quantity: str, readings: Sequence[Reading], *, has_curves: bool) -> Panel:
    series = []
    for name, members in _by_series(readings).items():
        points = {}
        for reading in members:
            if quantity in reading.values:
                points[float(reading.size_bytes)] = reading.values[quantity]
        failed = [float(reading.size_bytes) for reading in members if reading.has_failed]
        limit = members[0].limit if quantity == RATE else None
        series.append(Series(name=name, points=points, failed=failed, limit=limit))
    return Panel(
        series=series,
        quantity=quantity,
        unit=_UNITS.get(quantity, "J"),
        has_zero=quantity == RATE,
        is_rate=quantity == RATE,
        x="size" if has_curves else "rows",
        x_label="message size",
    )


def _by_series(readings: Sequence[Reading]) -> dict[str, list[Reading]]:
    """Return readings by the name of their series: what differs, or else the backend."""
    differing = []
    for field in _SPOKEN:
        if len({reading.identity[field] for reading in readings}) > 1:
            differing.append(field)
    series: dict[str, list[Reading]] = {}
    for reading in readings:
        words = []
        for field in differing or ["backend"]:
            value = reading.identity[field]
            if (field, value) in _WORDS:
                words.append(_WORDS[field, value])
            elif value is not None:
                words.append(_SPOKEN[field].format(value))
        series.setdefault(reading.prefix + " ".join(words), []).append(reading)
    return series


def compared(panel: Panel) -> list[Finding]:
    """Return the lowest and the highest series at the largest size of all of them."""
    common = set.intersection(*(set(series.points) for series in panel.series))
    if len(panel.series) == 1 or not common:
        return []
    size = max(common)
    ranked = sorted(panel.series, key=lambda series: series.points[size].value)
    low, high = ranked[0].points[size], ranked[-1].points[size]
    names = f"{ranked[0].name} and {ranked[-1].name} at {format_size(int(size))}"
    numbers: dict[str, Value] = {"quantity": panel.quantity, "ratio": high.value / low.value}
    code = "figure_apart"
    if low.high is None or high.low is None or low.high >= high.low:
        code = "figure_apart_none"
    return [Finding(code, names, numbers)]
