"""Time and bus bandwidth over message size: a figure for each operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from commbench.analysis.prediction.links import limit_of
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Row
from commbench.findings import Finding
from commbench.report.collectives import explain_time, spoken
from commbench.report.columns import prefixes
from commbench.report.figures.charts import MICROSECONDS, Chart, Limit, Panel, Series
from commbench.report.figures.drawing import slug
from commbench.report.findings import busbw_of
from commbench.results import Run
from commbench.results.info import measures_interconnect
from commbench.results.tables import rows_by
from commbench.words import Estimate

#: Fields of `Case` that distinguish series.
_FIELDS = (
    "backend",
    "pattern",
    "dtype",
    "redop",
    "in_place",
    "root",
    "world_size",
    "buffers",
    "sync",
    "loop",
    "algorithm",
    "env",
)
_READING = (
    "Bands are 95 % intervals over launches; crosses have no result. Lower times"
    " and higher bandwidths are better."
)
_TIME, _RATE = "time", "bus bandwidth"
_QUANTITIES = {"both": (_TIME, _RATE), "time": (_TIME,), "bandwidth": (_RATE,)}
_UNITS = {_TIME: MICROSECONDS, _RATE: "GB/s"}


class _Measured(NamedTuple):
    """One case with its rows: several of concurrent groups."""

    run: Run
    prefix: str
    """The name of the run; empty for a single run."""
    case: Case
    rows: Sequence[Row]


def size_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yield a chart of each operation; none of one that was measured at a single size.

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
                of_operation.append(_Measured(run, prefix, case, rows))
    for name, operation in OPERATIONS.items():
        of_operation = measured.get(name, [])
        if len({one.case.message_bytes for one in of_operation}) < 2:  # no curve
            continue
        remarks = [Finding("figure_times", numbers={"meaning": explain_time(runs)})]
        if operation.is_round_trip:
            remarks = [Finding("figure_half")]
        if name in hidden:
            remarks.append(Finding("figure_shared_gpu", numbers={"rows": hidden[name]}))
        yield Chart(
            name=slug("sizes", name),
            section="collectives",
            title=f"{name} over message size",
            reading=_READING,
            remarks=remarks,
            panels=[_panel(each, of_operation) for each in _QUANTITIES[operation.quantity]],
        )


def _panel(quantity: str, measured: Sequence[_Measured]) -> Panel:
    series = []
    limits = []
    for name, members in _by_series(measured).items():
        points = {}
        failed = []
        for one in members:
            size = float(one.case.message_bytes)
            value = _together(quantity, one.rows)
            if any(row.status != "ok" for row in one.rows):
                failed.append(size)
            elif value is not None:
                points[size] = value
        series.append(Series(name=name, points=points, failed=failed))
        limit = limit_of(members[0].rows[0], members[0].run.info)
        if quantity == _RATE and limit is not None:
            limits.append(Limit(*limit))
    return Panel(
        series=series,
        quantity=quantity,
        unit=_UNITS[quantity],
        has_zero=quantity == _RATE,
        x="size",
        x_label="message size",
        limits=list(dict.fromkeys(limits)),
    )


def _together(quantity: str, rows: Sequence[Row]) -> Estimate | None:
    """Return the slowest time of concurrent groups, or the sum of their bandwidths in GB/s; None
    if one is unknown.
    """
    if quantity == _TIME:
        slowest = max(rows, key=lambda row: row.time_us or 0.0)
        if slowest.time_us is None:
            return None
        return Estimate(slowest.time_us, slowest.time_us_ci_low, slowest.time_us_ci_high)
    rates = [busbw_of(row) for row in rows if row.busbw_GBps is not None]
    if len(rates) < len(rows):
        return None
    if len(rates) == 1:
        return rates[0]
    lows, highs = zip(*(rate.bounds for rate in rates), strict=True)
    return Estimate(sum(rate.value for rate in rates), sum(lows), sum(highs))


def _by_series(measured: Sequence[_Measured]) -> dict[str, list[_Measured]]:
    """Return cases by the name of their series: what differs, or else the backend."""
    differing = []
    for name in _FIELDS:
        if len({getattr(one.case, name) for one in measured}) > 1:
            differing.append(name)
    series: dict[str, list[_Measured]] = {}
    for one in measured:
        words = []
        for name in differing or ["backend"]:
            value = getattr(one.case, name)
            if value is not None or name == "world_size":
                words.append(spoken(name, value))
        series.setdefault(one.prefix + " ".join(words), []).append(one)
    return series
