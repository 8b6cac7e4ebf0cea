"""The comparison of run B with one baseline or several, case by case."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

from commbench import stats
from commbench.analysis.comparison.conditions import (
    TRAINING,
    Difference,
    differences,
    differing_cases,
    is_timed_alike,
)
from commbench.analysis.comparison.sides import (
    Pooled,
    Side,
    in_like_groups,
    like_states,
    measured,
    pooled,
)
from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import TrainingCase
from commbench.errors import InputError
from commbench.findings import Finding
from commbench.results import Run, load_run
from commbench.results.info import is_complete
from commbench.results.record_types import AnyCase
from commbench.results.summary import RowKey
from commbench.stats import MARGIN, Comparison, Verdict

#: With fewer baselines the variance between runs is poorly known (see `commbench.stats.runs`).
ENOUGH_BASELINES = 5


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """One case, or one group of its ranks, with valid times on both sides."""

    case: AnyCase
    group: str = ""
    """The group, if the case's pattern makes groups."""
    time_a_us: float
    """Median over launches; with several baselines the median of their medians; for training the
    step time."""
    time_b_us: float
    baselines: int = 1
    """Number of baselines with times."""
    comparison: Comparison

    @property
    def least(self) -> float:
        """The lower end of the interval of a slower case; 0 for another one."""
        interval = self.comparison.interval
        if interval is None or self.comparison.verdict is not Verdict.SLOWER:
            return 0.0
        return interval.low

    def is_beyond(self, threshold: float) -> bool:
        """Return whether it is slower, with the interval wholly beyond ``threshold``."""
        return self.least > 1 + threshold

    @property
    def severity(self) -> tuple[float, float]:
        """Sort key: slower cases by the lower end of their interval, then the others by their
        ratio.
        """
        return self.least, self.comparison.ratio


@dataclass(frozen=True, kw_only=True)
class BrokenCase:
    """One case or group that both sides have and at least one of them could not measure."""

    case: AnyCase
    group: str = ""
    """The group, if the case's pattern makes groups."""
    status_a: str
    status_b: str
    """``missing`` if B was planned like a baseline and ended before this case."""

    @property
    def is_regression(self) -> bool:
        """Whether it was ok in A and is not in B."""
        return self.status_a == "ok"


@dataclass(frozen=True, kw_only=True)
class ComparisonTable:
    """B relative to A, case by case in the order of the rows, collectives before training."""

    names_a: tuple[str, ...]
    """Directories of the baselines."""
    name_b: str
    is_complete: bool = True
    """Whether B was measured to its end."""
    margin: float
    cases: tuple[ComparedCase, ...]
    broken: tuple[BrokenCase, ...] = ()
    only_in_a: tuple[AnyCase, ...] = ()
    only_in_b: tuple[AnyCase, ...] = ()
    differences: tuple[Difference, ...] = ()
    """Conditions that differ; an unsound one means that the comparison was forced."""
    has_too_few_launches: bool = False
    """Whether a single changed case could not be detected with so few launches."""

    @property
    def is_forced(self) -> bool:
        """Whether conditions differ that should agree."""
        return any(difference.is_unsound for difference in self.differences)

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of cases by verdict, worst first."""
        counts = Counter(case.comparison.verdict for case in self.cases)
        worst_first = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.INCONCLUSIVE)
        return {str(verdict): counts[verdict] for verdict in worst_first}

    @cached_property
    def names(self) -> dict[AnyCase, str]:
        """Each case's short name; its full name if several cases share the short one."""
        cases = {each.case for each in self.cases} | {each.case for each in self.broken}
        short = Counter(map(str, cases))
        names = {}
        for case in cases:
            names[case] = str(case)
            if short[names[case]] > 1 and isinstance(case, Case):
                names[case] = (
                    f"{case} ({case.pattern}, sync {case.sync}, loop {case.loop}, buffers"
                    f" {case.buffers or 'unknown'})"
                )
        return names

    def name_of(self, case: ComparedCase | BrokenCase) -> str:
        """Return the case's name, with its group if there is one."""
        if case.group:
            return f"{self.names[case.case]} group {case.group}"
        return self.names[case.case]

    def worst_first(self) -> "ComparisonTable":
        """Return the same table with the cases sorted by severity."""
        ordered = sorted(self.cases, key=lambda compared: compared.severity, reverse=True)
        return replace(self, cases=tuple(ordered))


def compare(
    a: Run | str | Path | Sequence[Run | str | Path],
    b: Run | str | Path,
    *,
    force: bool = False,
    margin: float = MARGIN,
    q: float = 0.05,
    looks: int = 1,
) -> ComparisonTable:
    """Compare run B with run A, or with several baselines.

    A ratio above 1 means that B takes longer.

    Cases are matched by their key and group; training by its configuration. Launch medians of cases
    that are ok on both sides are compared as one family (see `commbench.stats.compare_family`).

    Args:
        a: the baseline or its directory, or several of them.
        b: the judged run, or its directory.
        force: whether to compare under different conditions.
        margin: relative difference that does not matter.
        q: false discovery rate of the verdicts ``faster`` and ``slower``.
        looks: how often the runs may be compared while launches are added; see
            `commbench.stats.compare_family`.

    Raises:
        InputError: a directory holds no run, conditions differ, or the margin is not in [0, 1).
    """
    given = [a] if isinstance(a, Run | str | Path) else list(a)
    if not given:
        raise InputError("There is no run to compare with: give at least one baseline.")
    runs = [run if isinstance(run, Run) else load_run(run) for run in (*given, b)]
    *baselines, run_b = runs
    _check_distinct(runs)
    slow_states, unlike_states = like_states(runs)
    sides = in_like_groups(
        [measured(run, slow) for run, slow in zip(runs, slow_states, strict=True)]
    )
    side_a, side_b = pooled(sides[:-1]), pooled(sides[-1:])
    pairs = {}
    not_compared = []
    for key, of_b in side_b.items():
        if key in side_a and side_a[key].timed and of_b.timed:
            pairs[key] = side_a[key], of_b
        elif key in side_a:
            not_compared.append(key)
    unlike = _differences(baselines, run_b, list(pairs.values()), force=force)
    for backend, text in unlike_states.items():
        name = f"state of the machine, by the probe over {backend}"
        unlike.append(Difference(name=name, text=text))
    if not force:
        _refuse_unsound(unlike)
    if _was_cut_short(run_b, baselines):
        lost = [key for key in side_a if key not in side_b and side_a[key].timed]
        not_compared += lost
    comparisons = stats.compare_family(
        [(of_a.launches_us, of_b.launches_us) for of_a, of_b in pairs.values()],
        runs=[[len(member.medians_us) for member in of_a.timed] for of_a, _ in pairs.values()],
        margin=margin,
        q=q,
        looks=looks,
    )
    cases = []
    for (key, (of_a, of_b)), compared in zip(pairs.items(), comparisons, strict=True):
        comparison = compared
        if not is_timed_alike([*of_a.timed, *of_b.timed], force=force):
            comparison = replace(compared, verdict=Verdict.INCONCLUSIVE, further=None)
        case = ComparedCase(
            case=of_b.case,
            group=key[1],
            time_a_us=of_a.time_us,
            time_b_us=of_b.time_us,
            baselines=len(of_a.timed),
            comparison=comparison,
        )
        cases.append(case)
    return ComparisonTable(
        names_a=tuple(str(run.path) for run in baselines),
        name_b=str(run_b.path),
        is_complete=is_complete(run_b.info),
        margin=margin,
        cases=tuple(cases),
        broken=_broken(side_a, side_b, not_compared),
        only_in_a=_cases_beside(side_a, {*side_b, *not_compared}),
        only_in_b=_cases_beside(side_b, {*side_a}),
        differences=tuple(unlike),
        has_too_few_launches=_too_few(cases, q),
    )


def _cases_beside(side: Side, keys: Collection[RowKey]) -> tuple[AnyCase, ...]:
    """Return the cases of a side that have none of these keys."""
    return tuple(dict.fromkeys(row.case for key, row in side.items() if key not in keys))


def _check_distinct(runs: Sequence[Run]) -> None:
    """Refuse the same measurements under two names: copies say nothing of the variance between
    runs.
    """
    if len(runs) == 2:  # one baseline, which may be compared with itself
        return
    by_measurements: dict[str, Run] = {}
    for run in runs:
        # two runs share no launch; imported ones state none
        files = sorted(output["sha256"] for output in run.info.get("imported", ()))
        measurements = files or run.info.get("launches")
        other = by_measurements.setdefault(str(measurements), run)
        if measurements and other is not run:
            raise InputError(
                f"{other.path} and {run.path} hold the same measurements and count as one run; name"
                " only one of them."
            )


def _was_cut_short(run: Run, baselines: Sequence[Run]) -> bool:
    """Return whether a run ended early and lacks cases of a baseline."""
    plan = run.info.get("plan", {})
    planned = plan.get("cases_sha256")
    return not is_complete(run.info) and any(
        planned == baseline.info.get("plan", {}).get("cases_sha256") is not None
        for baseline in baselines
    )


def _broken(side_a: Side, side_b: Side, keys: Sequence[RowKey]) -> tuple[BrokenCase, ...]:
    broken = []
    for key in keys:
        status_a = side_a[key].status
        status_b = side_b[key].status if key in side_b else "missing"
        if not status_a == status_b == "unsupported":
            case = side_a[key].case
            broken.append(BrokenCase(case=case, group=key[1], status_a=status_a, status_b=status_b))
    return tuple(broken)


def _differences(
    baselines: Sequence[Run], run_b: Run, pairs: Sequence[tuple[Pooled, Pooled]], *, force: bool
) -> list[Difference]:
    """Return the differences between the sides and among the baselines; unsound ones first."""
    carriers = {b.case.backend for _, b in pairs} | {
        TRAINING for _, b in pairs if isinstance(b.case, TrainingCase)
    }
    between = differences([run.info for run in baselines], run_b.info, carriers=carriers)
    of_cases = differing_cases([[*a.timed, *b.timed] for a, b in pairs], force=force)
    return sorted(
        [*between, *of_cases],
        key=lambda difference: (not difference.is_unsound, not difference.reason),
    )


def _refuse_unsound(differences: Sequence[Difference]) -> None:
    unsound = [each for each in differences if each.is_unsound]
    among_baselines = [each for each in unsound if each.is_among_baselines]
    for subject, refused in (("The baselines", among_baselines), ("A and B", unsound)):
        if refused:
            numbers = {"differences": tuple(each.finding for each in refused)}
            raise InputError(str(Finding("compare_refused", subject, numbers)))


def _too_few(cases: Sequence[ComparedCase], q: float) -> bool:
    """Return whether the typical case has too few launches for any verdict.

    Always False with several baselines.
    """
    if not cases or median([case.baselines for case in cases]) > 1:
        return False
    launches_a = round(median([case.comparison.launches_a for case in cases]))
    launches_b = round(median([case.comparison.launches_b for case in cases]))
    return stats.family_hint(len(cases), launches_a, launches_b, q)
