"""Names of runs and settings in figures, and the alternatives that a figure compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from commbench.ddp.plan.records import TrainingRow
from commbench.report.columns import prefixes
from commbench.results import Run
from commbench.results.recommendation import setting_of
from commbench.results.tables import rows_by
from commbench.units import counted

#: The fields by which alternatives are grouped.
_ALTERNATIVES = attrgetter("workload", "backend", "world_size", "batch_per_rank", "env")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The rows of one run that are alternatives to each other."""

    run: Run
    prefix: str
    """The prefix of its series: empty for a single run."""
    rows: Sequence[TrainingRow]
    """The rows of ``ddp.csv``, the baseline first."""

    def is_chosen(self, row: TrainingRow) -> bool:
        """Return whether this setting was recommended, or is the default and none was shown to be
        faster.
        """
        advice = self.run.decision
        if advice is None or not advice.is_compared or _ALTERNATIVES(advice) != _ALTERNATIVES(row):
            return False
        chosen = advice.best if advice.verdict == "change" else advice.baseline
        return setting_of(row) == setting_of(chosen)

    @property
    def ok(self) -> list[TrainingRow]:
        """The rows with a time."""
        return [row for row in self.rows if row.status == "ok" and row.step_ms is not None]

    @property
    def default(self) -> TrainingRow | None:
        """The row that all others are compared with; None if it has no time."""
        for row in self.ok:
            if row.speedup == 1.0 and not row.verdict:
                return row
        return None

    @property
    def fastest(self) -> list[TrainingRow]:
        """The rows with a time: the recommended one first, then the fastest."""
        ranked = sorted(self.ok, key=lambda row: row.samples_per_s or 0.0, reverse=True)
        return sorted(ranked, key=self.is_chosen, reverse=True)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials of the same workload on the same ranks, one for each run."""

    name: str
    """The workload as text, with the fields that distinguish it from the other groups."""
    key: str
    """Unique among groups, for names of figures; empty if there is one."""
    trials: Sequence[Trial]


def groups(runs: Sequence[Run]) -> Iterator[Group]:
    """Group rows by workload, backend, ranks, batch and environment, in row order."""
    trials = []
    for run, prefix in prefixes(runs):
        for rows in rows_by(run.training_rows, _ALTERNATIVES).values():
            trials.append(Trial(run=run, prefix=prefix, rows=rows))
    alike = rows_by(trials, lambda trial: _ALTERNATIVES(trial.rows[0]))
    for place, members in enumerate(alike.values(), start=1):
        row = members[0].rows[0]
        ranks = counted(row.world_size, "rank")
        name = f"{row.workload} on {ranks}, batch {row.batch_per_rank} a rank"
        if row.env:
            name = f"{name}, {row.env}"
        key = f"{place}-{row.workload}" if len(alike) > 1 else ""
        yield Group(name=name, key=key, trials=members)
