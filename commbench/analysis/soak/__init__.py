"""What a soak shows over wall-clock time: its time line, spikes of the system or of one rank,
failures, and drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commbench.analysis.soak.drift import find_drifts
from commbench.analysis.soak.events import find_events
from commbench.analysis.soak.rows import DRIFTS, DriftRow, EventRow, TimelineRow
from commbench.engine.records import Record
from commbench.findings import Finding
from commbench.results.info import RunInfo, host_by_rank
from commbench.units import utc_text

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
        findings = [self._extent()]
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

    def _extent(self) -> Finding:
        spikes = sum(event.kind == "spike" for event in self.events)
        failures = len(self.events) - spikes
        code = "soak_quiet"
        if failures:
            code = "soak_events"
        elif spikes:
            code = "soak_spikes"
        return Finding(
            code,
            numbers={
                "seconds": self.seconds,
                "launches": len({row.launch for row in self.timeline}),
                "visits": len(self.timeline),
                "spikes": spikes,
                "failures": failures,
            },
        )


def soak_of(records: Iterable[Record], info: RunInfo) -> Soak | None:
    """Return the results of a soak from its records and ``run.json``; None if the run is none."""
    soaked = [record for record in records if record.points]
    if not soaked:
        return None
    points = [(record, point) for record in soaked for point in record.points]
    points.sort(key=lambda pair: pair[1].at_s)
    hosts = host_by_rank(info)
    timeline = [
        TimelineRow(
            run_id=str(info.get("run_id", "")),
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
    events, drifts = find_events(points, info), find_drifts(soaked, info)
    return Soak(timeline=timeline, events=events, drifts=drifts)
