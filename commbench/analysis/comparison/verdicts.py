"""The comparison itself: run B relative to one baseline or several, case by case."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from commbench import stats
from commbench.analysis.comparison.conditions import TRAINING, Difference, differences, differing_cases, is_timed_alike
from commbench.analysis.comparison.sides import AnyCase, Measured, Pooled, in_like_groups, measured, pooled
from commbench.ddp.plan.cases import TrainingCase
from commbench.errors import InputError
from commbench.results import Run, load_run
from commbench.results.info import is_complete
from commbench.results.summary import RowKey
from commbench.stats import MARGIN, Comparison, Verdict

FALSE_DISCOVERY_RATE = 0.05
#: With fewer baselines little is known of how runs differ (see `commbench.stats.hierarchy`).
ENOUGH_BASELINES = 5
#: Differences that a refusal names.
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """One case, or one group of its ranks, that both sides measured well."""

    case: AnyCase
    group: str = ""
    """Where the case's pattern makes groups."""
    time_a_us: float
    """Median over launches, of several baselines the median of theirs; for training the time of a step."""
    time_b_us: float
    baselines: int = 1
    """How many baselines it was timed in."""
    comparison: Comparison

    def is_beyond(self, threshold: float) -> bool:
        """Whether it is slower, with the interval wholly beyond ``threshold``."""
        interval = self.comparison.interval
        return self.comparison.verdict is Verdict.SLOWER and interval is not None and interval.low > 1 + threshold

    @property
    def badness(self) -> tuple[bool, float]:
        """What to sort by: slower ones by what is sure of them, then the others by their ratio."""
        interval = self.comparison.interval
        is_slower = self.comparison.verdict is Verdict.SLOWER
        return is_slower, interval.low if is_slower and interval else self.comparison.ratio


@dataclass(frozen=True, kw_only=True)
class BrokenCase:
    """One case or group that both sides have and at least one of them could not measure."""

    case: AnyCase
    group: str = ""
    status_a: str
    status_b: str
    """``missing`` where B ended before it, and had the plan of a baseline."""

    @property
    def is_regression(self) -> bool:
        """Whether it was ok in A and is not in B."""
        return self.status_a == "ok"


@dataclass(frozen=True, kw_only=True)
class ComparisonTable:
    """B relative to A, case by case in the order of the rows, collectives before training."""

    names_a: tuple[str, ...]
    """The baseline's directory, or those of all."""
    name_b: str
    is_complete: bool = True
    """Whether B was measured to its end."""
    margin: float
    cases: tuple[ComparedCase, ...]
    broken: tuple[BrokenCase, ...] = ()
    only_in_a: tuple[AnyCase, ...] = ()
    only_in_b: tuple[AnyCase, ...] = ()
    differences: tuple[Difference, ...] = ()
    """Conditions that differ; where one makes the comparison unsound it was forced."""
    too_few_launches: bool = False
    """Whether these launches are too few for one changed case in a family of this size to be found."""

    @property
    def is_forced(self) -> bool:
        """Whether conditions differ that should be alike."""
        return any(difference.is_unsound for difference in self.differences)

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many cases got each verdict, worst first."""
        counted = Counter(case.comparison.verdict for case in self.cases)
        return {v: counted[v] for v in (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.INCONCLUSIVE)}

    @property
    def regressions(self) -> tuple[AnyCase, ...]:
        """The cases that became slower or that only A could measure."""
        return self.regressions_beyond(self.margin)

    def regressions_beyond(self, threshold: float) -> tuple[AnyCase, ...]:
        """The cases that became slower, with the interval wholly beyond ``threshold``, or that only A could measure."""
        slower = [one.case for one in self.cases if one.is_beyond(threshold)]
        return tuple(dict.fromkeys((*slower, *(case.case for case in self.broken if case.is_regression))))

    def worst_first(self) -> "ComparisonTable":
        """The same with the cases sorted."""
        return replace(self, cases=tuple(sorted(self.cases, key=lambda one: one.badness, reverse=True)))


def compare(
    a: Run | str | Path | Sequence[Run | str | Path],
    b: Run | str | Path,
    *,
    force: bool = False,
    margin: float = MARGIN,
    q: float = FALSE_DISCOVERY_RATE,
    seed: int = 0,
) -> ComparisonTable:
    """Compare run B with run A, or with several baselines; a ratio above 1 means that B takes longer.

    Cases are matched by their key, and by group where a pattern makes groups; training by its configuration. Launch
    medians of those that are ok on both sides are compared as one family (see `commbench.stats.compare_family`).

    Args:
        a: the run to compare with or its directory, or several of them.
        b: the run that is judged, or its directory.
        force: compare also where conditions differ that should be alike.
        margin: relative difference that does not matter.
        q: share of the verdicts ``faster`` and ``slower`` that may be false.
        seed: of the bootstrap.

    Raises:
        InputError: a directory holds no run, conditions differ that should be alike, or the margin is not in [0, 1).
    """
    given = [a] if isinstance(a, Run | str | Path) else list(a)
    if not given:
        raise InputError("There is no run to compare with: give at least one baseline.")
    baselines, run_b = [_loaded(run) for run in given], _loaded(b)
    if len(baselines) > 1:
        _check_distinct([*baselines, run_b])
    *sides, side_b = in_like_groups([measured(run) for run in (*baselines, run_b)])
    side_a = pooled(sides)
    shared = [key for key in side_b if key in side_a]
    well = [key for key in shared if side_a[key].timed and side_b[key].is_timed]
    pairs = [(side_a[key], side_b[key]) for key in well]
    unlike = _differences(baselines, run_b, pairs, force=force)
    if not force:
        _refuse_unsound([each for each in unlike if each.is_among_baselines], "The baselines")
        _refuse_unsound(unlike, "A and B")
    comparisons = _judged(pairs, margin=margin, q=q, seed=seed, force=force)
    missing = [key for key in side_a if key not in side_b]
    lost = [key for key in missing if side_a[key].timed] if _was_cut_short(run_b, baselines) else []
    return ComparisonTable(
        names_a=tuple(str(run.path) for run in baselines),
        name_b=str(run_b.path),
        is_complete=is_complete(run_b.info),
        margin=margin,
        cases=tuple(
            ComparedCase(
                case=side_b[key].case,
                group=key[1],
                time_a_us=side_a[key].time_us,
                time_b_us=float(median(side_b[key].medians_us)),
                baselines=len(side_a[key].timed),
                comparison=comparison,
            )
            for key, comparison in zip(well, comparisons, strict=True)
        ),
        broken=(
            *_broken(side_a, side_b, [key for key in shared if key not in set(well)]),
            *(
                BrokenCase(case=side_a[key].members[0].case, group=key[1], status_a="ok", status_b="missing")
                for key in lost
            ),
        ),
        only_in_a=tuple(dict.fromkeys(side_a[key].members[0].case for key in missing if key not in set(lost))),
        only_in_b=tuple(dict.fromkeys(one.case for key, one in side_b.items() if key not in side_a)),
        differences=tuple(unlike),
        too_few_launches=_too_few([side_a[key] for key in well], comparisons, q),
    )


def _check_distinct(runs: Sequence[Run]) -> None:
    """Refuse the same measurements under two names: they are one run, and say nothing of how runs differ."""
    known: dict[tuple[object, ...], Run] = {}
    for run in runs:
        measurements = _measurements(run)
        if measurements and known.setdefault(measurements, run) is not run:
            other = known[measurements]
            raise InputError(f"{other.path} and {run.path} hold the same measurements, which are one run; name one.")


def _measurements(run: Run) -> tuple[object, ...]:
    """What tells the measurements of a run from those of all others; empty where there are none."""
    if run.info.get("imported"):  # whose times may be equal by chance
        return tuple(sorted(str(output["sha256"]) for output in run.info["imported"]))
    timed = [hash((one.case.key, one.launch, *one.times_us)) for one in run.records if len(one.times_us)]
    stepped = [hash((one.case.key, one.launch, *one.step_ms)) for one in run.training_records if len(one.step_ms)]
    return (*timed, *stepped)


def _loaded(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else load_run(run)


def _judged(
    pairs: Sequence[tuple[Pooled, Measured]], *, margin: float, q: float, seed: int, force: bool
) -> list[Comparison]:
    """The verdicts; none on cases that were timed unlike."""
    judged = stats.compare_family(
        [(a.launches_us, b.medians_us) for a, b in pairs],
        runs=[[len(one.medians_us) for one in a.timed] for a, _ in pairs],
        margin=margin,
        q=q,
        seed=seed,
    )
    return [
        comparison
        if is_timed_alike(a.timed, b, force=force)
        else replace(comparison, verdict=Verdict.INCONCLUSIVE, further=None)
        for (a, b), comparison in zip(pairs, judged, strict=True)
    ]


def _was_cut_short(run: Run, baselines: Sequence[Run]) -> bool:
    """Whether a run ended before its end, and should have measured what a baseline did."""
    plan = run.info.get("plan") or {}
    planned = plan.get("cases_sha256")
    return not is_complete(run.info) and any(
        planned == (baseline.info.get("plan") or {}).get("cases_sha256") is not None for baseline in baselines
    )


def _broken(
    side_a: Mapping[RowKey, Pooled], side_b: Mapping[RowKey, Measured], keys: Sequence[RowKey]
) -> tuple[BrokenCase, ...]:
    found = [
        BrokenCase(case=side_b[key].case, group=key[1], status_a=side_a[key].status, status_b=side_b[key].row.status)
        for key in keys
    ]
    return tuple(one for one in found if {one.status_a, one.status_b} != {"unsupported"})


def _differences(
    baselines: Sequence[Run], run_b: Run, pairs: Sequence[tuple[Pooled, Measured]], *, force: bool
) -> list[Difference]:
    """In what the two sides differ, and the baselines from each other: what makes it unsound first."""
    carriers = {b.case.backend for _, b in pairs} | {TRAINING for _, b in pairs if isinstance(b.case, TrainingCase)}
    between = differences([run.info for run in baselines], run_b.info, carriers=carriers)
    of_cases = differing_cases([(a.timed, b) for a, b in pairs], force=force)
    return sorted([*between, *of_cases], key=lambda each: (not each.is_unsound, not each.reason))


def _refuse_unsound(found: Sequence[Difference], who: str) -> None:
    unsound = [difference for difference in found if difference.is_unsound]
    if not unsound:
        return
    named = "; ".join(f"{each}, and {each.reason}" for each in unsound[:_NAMED])
    more = f"; and {len(unsound) - _NAMED} more" if len(unsound) > _NAMED else ""
    raise InputError(
        f"{who} were not measured under like conditions ({named}{more}), so that a difference of times could come from "
        "that: measure again under like conditions, or add --force to compare all the same."
    )


def _too_few(sides: Sequence[Pooled], comparisons: Sequence[Comparison], q: float) -> bool:
    """Judged by the typical numbers: one case with fewer launches should not raise the hint for all.

    Where A is several runs, no number of launches is too few: their ranks are not what decides.
    """
    if not comparisons or median([len(one.timed) for one in sides]) > 1:
        return False
    launches_a, launches_b = (
        round(median([getattr(comparison, name) for comparison in comparisons]))
        for name in ("launches_a", "launches_b")
    )
    return stats.family_hint(len(comparisons), launches_a, launches_b, q)
