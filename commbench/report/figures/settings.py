"""Training settings in figures: rows that are alternatives to each other, what was recommended, and their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from commbench.report.figures.words import prefixes
from commbench.report.state import undecided
from commbench.report.training import hook_label
from commbench.store import Run
from commbench.training.cases import DEFAULT_CAP, TrainingCase
from commbench.training.conclusion import Choice, Recommendation, setting_of
from commbench.training.records import TrainingRow

_CASE_FIELDS = frozenset(f.name for f in dataclasses.fields(TrainingCase))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The rows of one run that are alternatives to each other."""

    run: Run
    prefix: str
    """What its series begin with: nothing where there is one run alone."""
    rows: Sequence[TrainingRow]
    """As in ``ddp.csv``, the baseline first."""
    recommendation: Recommendation | None
    """What was concluded about them."""

    @property
    def chosen(self) -> Choice | None:
        """The setting that was recommended; the default where others were tried and none was shown to be faster."""
        if self.recommendation is None or not self.recommendation.is_compared:
            return None
        return self.recommendation.best if self.recommendation.verdict == "change" else self.recommendation.baseline

    def is_chosen(self, row: TrainingRow) -> bool:
        """Whether this setting was recommended."""
        return self.chosen is not None and setting_of(case_of(row)) == setting_of(self.chosen)

    @property
    def default(self) -> TrainingRow | None:
        """The row that all are compared with; None where it has no time."""
        return next((row for row in self.ok if row.speedup == 1.0 and not row.verdict), None)

    @property
    def ok(self) -> list[TrainingRow]:
        """The rows that have a time."""
        return [row for row in self.rows if row.status == "ok" and row.step_ms is not None]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials of the same workload on the same ranks, of one run each."""

    name: str
    """For people: the workload, and what tells it from the other groups."""
    key: str
    """Distinct among groups, for names of drawings."""
    trials: Sequence[Trial]


def groups(runs: Sequence[Run]) -> list[Group]:
    """What was trained, by workload, backend, ranks and batch, in the order of the rows."""
    found: dict[tuple[object, ...], list[Trial]] = {}
    for run, prefix in zip(runs, prefixes(runs), strict=True):
        by_key: dict[tuple[object, ...], list[TrainingRow]] = {}
        for row in run.training_rows:
            by_key.setdefault((row.workload, row.backend, row.world_size, row.batch_per_rank), []).append(row)
        for key, rows in by_key.items():
            found.setdefault(key, []).append(Trial(run=run, prefix=prefix, rows=rows, recommendation=_about(run, key)))
    return [
        Group(
            name=f"{workload} on {ranks} ranks, batch {batch} a rank",
            key=f"{place}-{workload}" if len(found) > 1 else "",
            trials=trials,
        )
        for place, ((workload, _, ranks, batch), trials) in enumerate(found.items(), start=1)
    ]


def _about(run: Run, key: tuple[object, ...]) -> Recommendation | None:
    """The recommendation of a run if it is about these rows; old files do not name backend and batch.

    None also while a tuning has not made the launches that it decides from.
    """
    if run.recommendation is None or undecided(run):
        return None
    found = Recommendation.from_json(run.recommendation)
    workload, backend, ranks, batch = key
    same = (found.workload, found.world_size) == (workload, ranks)
    return found if same and found.backend in {"", backend} and found.batch_per_rank in {None, batch} else None


def case_of(row: TrainingRow) -> TrainingCase:
    """The case that a row is of."""
    return TrainingCase(**{name: getattr(row, name) for name in _CASE_FIELDS - {"phase"}})


def cap_name(bucket_cap_mb: str) -> str:
    """A bucket size for people: ``default buckets``, ``25 MiB buckets``."""
    return "default buckets" if bucket_cap_mb == DEFAULT_CAP else f"{bucket_cap_mb} MiB buckets"


def setting_name(row: TrainingRow) -> str:
    """A setting for people: ``topk:0.01, 25 MiB buckets``."""
    return f"{hook_label(row)}, {cap_name(row.bucket_cap_mb)}"
