"""Words of captions: names of runs and settings, lists, numbers with their intervals."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from commbench.ddp.plan.cases import TrainingCase, baseline_name
from commbench.ddp.plan.records import TrainingRow
from commbench.report.figures.drawing import Estimate
from commbench.report.formats import listed
from commbench.results import Run
from commbench.results.info import is_live
from commbench.results.recommendation import Choice, Recommendation, setting_of
from commbench.results.tables import rows_by
from commbench.units import format_time, three_digits

#: Words of a name, and separators between them.
_WORDS = re.compile(r"([_/ -])")


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return a short name for each run: its directory's name without the words that all names
    share.

    ``bench_xeon_2026`` and ``quick_xeon_2026`` are ``bench`` and ``quick``; equal names get the
    parent's name.
    """
    paths = [run.path.resolve() for run in runs]
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.parent.name}/{path.name}" for path in paths]
    names = _unshared(names)
    count = Counter(names)
    return [
        f"{name} ({place})" if count[name] > 1 else name
        for place, name in enumerate(names, start=1)
    ]


def _unshared(names: Sequence[str]) -> list[str]:
    """Remove the words at both ends that all names share; at least one word remains."""
    words = [_WORDS.split(name) for name in names]
    while (
        len(words) > 1
        and min(map(len, words)) > 2  # noqa: PLR2004 - a word and what follows
        and len({tuple(line[:2]) for line in words}) == 1
    ):
        words = [line[2:] for line in words]
    while (
        len(words) > 1
        and min(map(len, words)) > 2  # noqa: PLR2004 - as above
        and len({tuple(line[-2:]) for line in words}) == 1
    ):
        words = [line[:-2] for line in words]
    return ["".join(line) for line in words]


def prefixes(runs: Sequence[Run]) -> list[str]:
    """Return the prefix of each run's series: empty for a single run."""
    return [f"{name}: " for name in run_names(runs)] if len(runs) > 1 else [""] * len(runs)


def varying(choices: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of the fields that differ between choices, in the order of the first."""
    return [
        name
        for name in (choices[0] if choices else ())
        if len({str(choice[name]) for choice in choices}) > 1
    ]


def sentences(*parts: str) -> str:
    """Join sentences to a caption; empty ones are left out."""
    return " ".join(part for part in parts if part)


def time_text(point: Estimate) -> str:
    """Return a time with its interval as text."""
    low, high = point.bounds
    interval = (
        f" [{format_time(low * 1e-6)}, {format_time(high * 1e-6)}]" if _has_interval(point) else ""
    )
    return format_time(point.value * 1e-6) + interval


def number_text(point: Estimate, unit: str) -> str:
    """Return a value with its unit and its interval as text."""
    interval = " [{}, {}]".format(*map(three_digits, point.bounds)) if _has_interval(point) else ""
    return f"{three_digits(point.value)} {unit}{interval}"


def _has_interval(point: Estimate) -> bool:
    return point.low is not None and point.high is not None


def shown_apart(first: Estimate, second: Estimate) -> bool:
    """Return whether two intervals are disjoint, so that the difference exceeds noise."""
    if not (_has_interval(first) and _has_interval(second)):
        return False
    (low, high), (other_low, other_high) = first.bounds, second.bounds
    return high < other_low or other_high < low


def left_out(names: Sequence[str], limit: int) -> str:
    """Return a sentence about the series beyond the largest number that is drawn."""
    rest = names[limit:]
    return (
        f"Not drawn, as more than {limit} lines cannot be told apart: {listed(rest, 8)}."
        if rest
        else ""
    )


_CASE_FIELDS = frozenset(f.name for f in dataclasses.fields(TrainingCase))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The rows of one run that are alternatives to each other."""

    run: Run
    prefix: str
    """The prefix of its series: empty for a single run."""
    rows: Sequence[TrainingRow]
    """The rows of ``ddp.csv``, the baseline first."""
    recommendation: Recommendation | None
    """The recommendation about these rows."""

    @property
    def chosen(self) -> Choice | None:
        """The recommended setting.

        The default if others were tried and none was shown to be faster.
        """
        if self.recommendation is None or not self.recommendation.is_compared:
            return None
        return (
            self.recommendation.best
            if self.recommendation.verdict == "change"
            else self.recommendation.baseline
        )

    def is_chosen(self, row: TrainingRow) -> bool:
        """Return whether this setting was recommended."""
        return self.chosen is not None and setting_of(case_of(row)) == setting_of(self.chosen)

    @property
    def default(self) -> TrainingRow | None:
        """The row that all others are compared with; None if it has no time."""
        return next((row for row in self.ok if row.speedup == 1.0 and not row.verdict), None)

    @property
    def stage(self) -> str:
        """The stage of the rows."""
        return "screening" if is_live(self.run.info) else "sweep"

    @property
    def baseline_name(self) -> str:
        """The baseline's name."""
        return baseline_name(is_live=is_live(self.run.info))

    @property
    def launches(self) -> int:
        """The largest number of launches of a row."""
        return max((row.launches or 0 for row in self.rows), default=0)

    @property
    def ok(self) -> list[TrainingRow]:
        """The rows with a time."""
        return [row for row in self.rows if row.status == "ok" and row.step_ms is not None]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials of the same workload on the same ranks, one for each run."""

    name: str
    """The workload as text, with the fields that distinguish it from the other groups."""
    key: str
    """Unique among groups, for names of drawings."""
    trials: Sequence[Trial]


def groups(runs: Sequence[Run]) -> list[Group]:
    """Group rows by workload, backend, ranks, batch and environment, in row order."""
    trials_by_key: dict[tuple[object, ...], list[Trial]] = {}
    for run, prefix in zip(runs, prefixes(runs), strict=True):
        key_of = attrgetter("workload", "backend", "world_size", "batch_per_rank", "env")
        for key, rows in rows_by(run.training_rows, key_of).items():
            trials_by_key.setdefault(key, []).append(
                Trial(run=run, prefix=prefix, rows=rows, recommendation=_about(run, key))
            )
    return [
        Group(
            name=f"{workload} on {ranks} ranks, batch {batch} a rank{env and f', {env}'}",
            key=f"{place}-{workload}" if len(trials_by_key) > 1 else "",
            trials=trials,
        )
        for place, ((workload, _, ranks, batch, env), trials) in enumerate(
            trials_by_key.items(), start=1
        )
    ]


def _about(run: Run, key: tuple[object, ...]) -> Recommendation | None:
    """Return the recommendation of a run if it is about these rows.

    Files of early versions lack backend and batch.

    None if a tuning has not made its confirmation launches yet.
    """
    recommendation = run.decision
    if recommendation is None:
        return None
    workload, backend, ranks, batch, env = key
    about = (recommendation.workload, recommendation.world_size, recommendation.env)
    is_same_workload = about == (workload, ranks, env)
    return (
        recommendation
        if is_same_workload
        and recommendation.backend in {"", backend}
        and recommendation.batch_per_rank in {None, batch}
        else None
    )


def case_of(row: TrainingRow) -> TrainingCase:
    """Return the case of a row."""
    return TrainingCase(**{name: getattr(row, name) for name in _CASE_FIELDS - {"phase"}})
