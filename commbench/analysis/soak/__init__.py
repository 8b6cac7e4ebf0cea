"""What a soak shows over wall-clock time: its time line, spikes of the system or of one rank,
failures, and drift.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commbench.analysis.soak.events import find_events
from commbench.analysis.soak.rows import DRIFTS, DriftRow, EventRow, TimelineRow
from commbench.engine.records import Record
from commbench.engine.visits import launch_value
from commbench.findings import Finding
from commbench.results import Run, once_per_run
from commbench.results.info import RunInfo, host_by_rank
from commbench.results.summary import run_columns
from commbench.results.tables import rows_by
from commbench.stats import Interval, Values, verdict_of
from commbench.units import utc_text

#: The fewest launches that show a trend.
LEAST_LAUNCHES = 6
#: The most events that are named in words.
MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class Soak:
    """The results of a soak."""

    timeline: Sequence[TimelineRow]
    events: Sequence[EventRow]
    drifts: Sequence[DriftRow]

    @property
    def seconds(self) -> float:
        """Return the time from the first visit to the last."""
        return max(row.elapsed_s or 0.0 for row in self.timeline)

    def findings(self) -> list[Finding]:
        """Return its extent, events and drifts."""
        spikes = sum(event.kind == "spike" for event in self.events)
        failures = len(self.events) - spikes
        extent = Finding(
            "soak_extent",
            numbers={
                "seconds": self.seconds,
                "launches": len({row.launch for row in self.timeline}),
                "visits": len(self.timeline),
                "spikes": spikes,
                "failures": failures,
            },
        )
        findings = [extent]
        findings += [event.finding for event in self.events[:MOST_NAMED]]
        more = len(self.events) - MOST_NAMED
        if more > 0:
            findings.append(Finding("soak_more", numbers={"more": more}))
        findings += [row.finding for row in self.drifts if row.verdict in DRIFTS]
        verdicts = Counter(row.verdict for row in self.drifts)
        for code, verdict in (("soak_drift_none", "same"), ("soak_drift_unclear", "inconclusive")):
            if verdicts[verdict]:
                findings.append(Finding(code, numbers={"cases": verdicts[verdict]}))
        return findings


@once_per_run
def soak_results(run: Run) -> Soak | None:
    """Return the time line, events and drift of a soak; None for another run."""
    info = run.info
    soaked = [record for record in run.records if record.points]
    if not soaked:
        return None
    points = [(record, point) for record in soaked for point in record.points]
    points.sort(key=lambda pair: pair[1].at_s)
    hosts = host_by_rank(info)
    timeline = [
        TimelineRow(
            **run_columns(info),
            time=utc_text(point.at_s),
            elapsed_s=round(point.at_s - points[0][1].at_s, 3),
            launch=record.launch,
            case=str(record.case),
            repetitions=point.repetitions,
            late=point.late,
            median_us=point.median_us,
            longest_ms=1e3 * point.longest[0].lasted_s if point.longest else None,
            slowest_rank=point.slowest,
            slowest_host=hosts.get(point.slowest, ""),
            slowest_share=point.slowest_share,
        )
        for record, point in points
    ]
    events, drifts = find_events(points, info), _drifts(soaked, info)
    return Soak(timeline=timeline, events=events, drifts=drifts)


def _drifts(records: Sequence[Record], info: RunInfo) -> list[DriftRow]:
    """Return the trend of each case's launches.

    Intervals hold for all cases together (Bonferroni). Launches are too few if chance alone makes
    them all rise, or all fall, more often than an interval may err.
    """
    ordered = sorted(records, key=lambda record: record.points[0].at_s)
    by_case = rows_by(ordered, lambda record: record.case)
    alpha = 0.05 / len(by_case)
    rows = []
    for case, of_case in by_case.items():
        row = DriftRow(
            **run_columns(info),
            case=str(case),
            launches=len(of_case),
            verdict="inconclusive",
        )
        one_way = 2 / math.factorial(len(of_case))
        if len(of_case) >= LEAST_LAUNCHES and one_way <= alpha:
            times_s = [float(np.mean([point.at_s for point in each.points])) for each in of_case]
            values = [launch_value(record) for record in of_case]
            factor, interval = trend(times_s, values, alpha=alpha)
            row = replace(
                row,
                change_percent=100 * (factor - 1),
                change_percent_ci_low=100 * (interval.low - 1),
                change_percent_ci_high=100 * (interval.high - 1),
                verdict=str(verdict_of(interval.low, interval.high)),
            )
        rows.append(row)
    return rows


def trend(times: Values, values: Values, *, alpha: float = 0.05) -> tuple[float, Interval]:
    """Return the factor by which values change from the first time to the last, and its interval.

    The slope of the logarithms is Theil and Sen's: the median over all pairs. Its interval is
    Sen's, of Kendall's rank correlation, and assumes no distribution (Sen, Journal of the American
    Statistical Association 63, 1968). It takes the values as independent. At least 6 are needed for
    95 %.

    Args:
        times: in any unit; not all equal.
        values: positive.
        alpha: 1 - the confidence aimed at.
    """
    from scipy.stats import theilslopes  # slow to import, and most runs are no soaks

    span = max(times) - min(times)
    slope, _, low, high = theilslopes(np.log(values), np.asarray(times), alpha=1 - alpha)
    factor, bound_low, bound_high = (float(np.exp(each * span)) for each in (slope, low, high))
    return factor, Interval(low=bound_low, high=bound_high, level=1 - alpha)
