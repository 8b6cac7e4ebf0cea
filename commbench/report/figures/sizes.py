"""Time and bus bandwidth over message size: a figure for each operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commbench.analysis.prediction.links import limit_of
from commbench.collectives.algorithms import AUTO
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Row
from commbench.findings import Finding
from commbench.report.figures.charts import MICROSECONDS, Chart, Limit, Panel, Series, estimate
from commbench.report.figures.drawing import slug
from commbench.report.figures.words import prefixes
from commbench.report.findings import busbw_of
from commbench.report.state import explain_time
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
    "Bands and bars are 95 % intervals over launches; crosses have no result. Lower times"
    " and higher bandwidths are better."
)
_TIME, _RATE = "time", "bus bandwidth"
_QUANTITIES = {"both": (_TIME, _RATE), "time": (_TIME,), "bandwidth": (_RATE,)}
_UNITS = {_TIME: MICROSECONDS, _RATE: "GB/s"}


class _Measured(NamedTuple):
    """One case; of concurrent groups the slowest time, and the sum of their bandwidths."""

    prefix: str
    """The name of the run; empty for a single run."""
    case: Case
    has_failed: bool
    values: Mapping[str, Estimate | None]
    """Values by quantity."""
    limits: Sequence[Limit]
    """The link that bounds the bus bandwidth, in GB/s; empty if unknown."""


def size_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return a chart of each operation: curves, or rows if there is one size.

    Ranks that share a GPU get no curve: their times do not show an interconnect.
    """
    measured: dict[str, list[_Measured]] = {}
    hidden: dict[str, int] = {}
    for run, prefix in prefixes(runs):
        cases = {record.case.key: record.case for record in run.records}
        by_case = rows_by(run.keyed_rows.items(), lambda keyed: keyed[0][0])
        for key, keyed_rows in by_case.items():
            case, rows = cases[key], [row for _, row in keyed_rows]
            if not measures_interconnect(rows[0]):
                hidden[case.operation] = hidden.get(case.operation, 0) + len(rows)
            elif case.pattern != MATRIX and rows[0].status != "unsupported":
                of_operation = measured.setdefault(case.operation, [])
                of_operation.append(_measure(run, prefix, case, rows))
    charts = []
    for name, operation in OPERATIONS.items():
        if name in measured:
            remarks = [Finding("figure_times", numbers={"meaning": explain_time(runs)})]
            if operation.is_round_trip:
                remarks = [Finding("figure_half")]
            if name in hidden:
                remarks.append(Finding("figure_shared_gpu", numbers={"rows": hidden[name]}))
            charts.append(_chart(name, measured[name], remarks))
    return charts


def _measure(run: Run, prefix: str, case: Case, rows: Sequence[Row]) -> _Measured:
    slowest = max(rows, key=lambda row: row.time_us or 0.0)
    values: dict[str, Estimate | None] = {}
    has_failed = any(row.status != "ok" for row in rows)
    if not has_failed:
        low_us, high_us = slowest.time_us_ci_low, slowest.time_us_ci_high
        values = {_TIME: estimate(slowest.time_us, low_us, high_us), _RATE: _together(rows)}
    link = limit_of(slowest, run.info)
    limits = []
    if link is not None and link.bound_bps:
        limits.append(Limit(link.bound_bps / 8e9, str(link)))
    return _Measured(prefix, case, has_failed, values, limits)


def _together(rows: Sequence[Row]) -> Estimate | None:
    """Return the sum of the bandwidths of concurrent groups; None if one is unknown."""
    rates = [busbw_of(row) for row in rows if row.busbw_GBps is not None]
    if len(rates) < len(rows):
        return None
    if len(rates) == 1:
        return estimate(*rates[0])
    lows, highs = zip(*(rate.bounds for rate in rates), strict=True)
    return Estimate(sum(rate.value for rate in rates), sum(lows), sum(highs))


def _chart(operation: str, measured: Sequence[_Measured], remarks: Sequence[Finding]) -> Chart:
    quantities = _QUANTITIES[OPERATIONS[operation].quantity]
    sizes = {one.case.message_bytes for one in measured}
    title = f"{operation} over message size"
    if len(sizes) == 1:
        title = operation
        if max(sizes):
            title = f"{operation} at {format_size(max(sizes))}"
    return Chart(
        name=slug("sizes", operation),
        section="collectives",
        title=title,
        reading=_READING,
        remarks=remarks,
        panels=[_panel(name, measured, has_curves=len(sizes) > 1) for name in quantities],
    )


def _panel(quantity: str, measured: Sequence[_Measured], *, has_curves: bool) -> Panel:
    series = []
    limits: list[Limit] = []
    for name, members in _by_series(measured).items():
        points = {}
        failed = []
        for one in members:
            size = float(one.case.message_bytes)
            value = one.values.get(quantity)
            if value is not None:
                points[size] = value
            if one.has_failed:
                failed.append(size)
        series.append(Series(name=name, points=points, failed=failed))
        if quantity == _RATE:
            limits += members[0].limits
    return Panel(
        series=series,
        quantity=quantity,
        unit=_UNITS[quantity],
        has_zero=quantity == _RATE,
        x="size" if has_curves else "rows",
        x_label="message size",
        limits=list(dict.fromkeys(limits)),
    )


def _by_series(measured: Sequence[_Measured]) -> dict[str, list[_Measured]]:
    """Return cases by the name of their series: what differs, or else the backend."""
    differing = []
    for field in _SPOKEN:
        if len({getattr(one.case, field) for one in measured}) > 1:
            differing.append(field)
    series: dict[str, list[_Measured]] = {}
    for one in measured:
        words = []
        for field in differing or ["backend"]:
            value = getattr(one.case, field)
            if (field, value) in _WORDS:
                words.append(_WORDS[field, value])
            elif value is not None:
                words.append(_SPOKEN[field].format(value))
        series.setdefault(one.prefix + " ".join(words), []).append(one)
    return series
