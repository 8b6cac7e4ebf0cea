"""The rows of ``timeline.csv``, ``events.csv`` and ``drift.csv``."""

from __future__ import annotations

from dataclasses import dataclass

from commbench.engine.records import SCHEMA, column


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One line of ``timeline.csv``: a visit of a soak."""

    schema: int = SCHEMA
    run_id: str = column("name of the run's directory", "")
    time: str = column("when the visit began, UTC", "")
    elapsed_s: float | None = column("seconds since the first visit of the soak")
    launch: int | None = column("number of the launch, from 0")
    case: str = column("what was measured", "")
    repetitions: int | None = column("timed repetitions in the visit")
    late: int | None = column("further repetitions that a rank started late")
    median_us: float | None = column("median time of an operation on the slowest rank")
    longest_ms: float | None = column(
        "the longest wait for a repetition to end after the one before"
    )
    slowest_rank: int | None = column("the rank that was the slowest most often")
    slowest_host: str = column("its host", "")
    slowest_share: float | None = column("share of the repetitions in which it was the slowest")


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """One line of ``events.csv``: a spike or a failed launch of a soak."""

    schema: int = SCHEMA
    run_id: str = column("name of the run's directory", "")
    kind: str = column("spike, or how a launch ended: failed or hung", "")
    scope: str = column(
        "system: all ranks were late together; rank or host: the others waited for it", ""
    )
    time: str = column("when it began, UTC; of a failed launch its last sign of progress", "")
    elapsed_s: float | None = column("seconds since the first visit of the soak")
    duration_s: float | None = column(
        "seconds until the next repetition, or until the next result after a failure"
    )
    ranks: str = column("ranks that caused it, e.g. 2 or 2-3; empty for the system", "")
    host: str = column("their host, if they are on one", "")
    launch: int | None = column("number of the launch, from 0")
    case: str = column("what was measured", "")
    reason: str = column("the evidence in a sentence", "")


@dataclass(frozen=True, kw_only=True)
class DriftRow:
    """One line of ``drift.csv``: the trend of a case over a soak."""

    schema: int = SCHEMA
    run_id: str = column("name of the run's directory", "")
    case: str = column("what was measured", "")
    launches: int | None = column("launches behind the trend")
    change_percent: float | None = column(
        "change of the time from the first launch to the last, by Theil-Sen's slope"
    )
    change_percent_ci_low: float | None = column(
        "its interval by Sen's method, low end; 95 % for all cases together"
    )
    change_percent_ci_high: float | None = column("and its high end")
    verdict: str = column(
        "slower or faster: the interval lies wholly beyond 2 %; same: within; inconclusive, also"
        " below 6 launches",
        "",
    )
