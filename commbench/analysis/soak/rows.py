"""The rows of ``timeline.csv``, ``events.csv`` and ``drift.csv``."""

from __future__ import annotations

from dataclasses import dataclass

from commbench.engine.records import TableRow, column
from commbench.findings import Finding

#: Codes of events by kind, and of drifts by verdict.
KINDS = {"spike": "soak_spike", "failed": "soak_failed", "hung": "soak_hung"}
DRIFTS = {"slower": "soak_drift_slower", "faster": "soak_drift_faster"}


@dataclass(frozen=True, kw_only=True)
class TimelineRow(TableRow):
    """One line of ``timeline.csv``: a visit of a soak."""

    time: str = column("when the sample was taken, UTC", "")
    elapsed_s: float | None = column("seconds since the first sample of the soak")
    launch: int | None = column("number of the launch, from 0")
    case: str = column("what was measured", "")
    repetitions: int | None = column("timed repetitions in the sample")
    late: int | None = column("further repetitions that a rank started late")
    median_us: float | None = column("median time of an operation on the slowest rank")
    longest_ms: float | None = column(
        "the longest wait for a repetition to end after the one before"
    )
    slowest_rank: int | None = column("the rank that was the slowest most often")
    slowest_host: str = column("its host", "")
    slowest_share: float | None = column("share of the repetitions in which it was the slowest")


@dataclass(frozen=True, kw_only=True)
class EventRow(TableRow):
    """One line of ``events.csv``: a spike or a failed launch of a soak."""

    kind: str = column("spike, or how a launch ended: failed or hung", "")
    scope: str = column(
        "system: all ranks were late together; rank or host: the others waited for it", ""
    )
    time: str = column("when it began, UTC; of a failed launch its last sign of progress", "")
    elapsed_s: float | None = column("seconds since the first sample of the soak")
    duration_s: float | None = column(
        "seconds until the next repetition, or until the next result after a failure"
    )
    ranks: str = column("ranks that caused it, e.g. 2 or 2-3; empty for the system", "")
    host: str = column("their host, if they are on one", "")
    launch: int | None = column("number of the launch, from 0")
    case: str = column("what was measured", "")
    reason: str = column("the evidence in a sentence", "")

    @property
    def who(self) -> Finding:
        """The ranks that caused it."""
        code = "who_all"
        if self.ranks:
            is_one = self.scope == "rank"
            code = "who_rank" if is_one else "who_ranks"
            if self.host:
                code = "who_rank_on" if is_one else "who_ranks_on"
        elif self.host:
            code = "who_host"
        return Finding(code, numbers={"ranks": self.ranks, "host": self.host})

    @property
    def finding(self) -> Finding:
        """When it began, how long it lasted, who caused it, and the evidence."""
        return Finding(
            KINDS[self.kind],
            str(self.who),
            {
                "began": self.time,
                "lasted": self.duration_s or 0.0,
                "launch": (self.launch or 0) + 1,
                "case": self.case,
                "cause": self.reason,
            },
        )


@dataclass(frozen=True, kw_only=True)
class DriftRow(TableRow):
    """One line of ``drift.csv``: the trend of a case over a soak."""

    case: str = column("what was measured", "")
    launches: int | None = column("launches behind the row")
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

    @property
    def finding(self) -> Finding:
        """The change with its interval, of a case that became slower or faster."""
        return Finding(
            DRIFTS[self.verdict],
            self.case,
            {
                "change": abs(self.change_percent or 0.0),
                "low": self.change_percent_ci_low or 0.0,
                "high": self.change_percent_ci_high or 0.0,
            },
        )
