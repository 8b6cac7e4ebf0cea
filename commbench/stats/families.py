"""Verdicts on many cases at once, each timed in two runs or under two settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np

from commbench.errors import InputError
from commbench.stats.hierarchy import RunRatio, split_runs
from commbench.stats.intervals import (
    DEFAULT_LEVEL,
    NORMAL,
    Floats,
    Interval,
    Values,
    detectable_effect,
)
from commbench.stats.ratios import (
    MOST_LAUNCHES,
    POWER,
    Effort,
    Scatter,
    both_sides,
    further_launches,
    median_ratio,
    ratio_intervals,
    widening,
)
from commbench.stats.significance import benjamini_hochberg, family_hint, rank_test

#: The largest relative difference that does not matter, wherever times are compared.
MARGIN = 0.02
#: A detectable slowdown above this counts as not detectable.
_LARGEST_SLOWDOWN = 100.0


class Verdict(str, Enum):
    """The result of comparing B's times with A's."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of one case's times in run B with those in run A."""

    ratio: float
    """Median of B's launch medians over A's; with several runs in A, over the median of theirs.
    NaN if either is missing or not above 0."""
    launches_a: int
    launches_b: int
    interval: Interval | None = None
    """The ratio's interval at the deciding level; None if nothing could be tested."""
    p_value: float = 1.0
    """Two-sided, of the hypothesis that A and B are equal: a rank test of launches, or Student's
    t of several runs in A."""
    verdict: Verdict = Verdict.INCONCLUSIVE
    detectable: float = math.inf
    """The relative slowdown that would get the verdict ``slower`` in 80 % of comparisons.
    Infinite with too few launches for a family of this size, or above a hundredfold."""
    further: Effort | None = None
    """Launches of each run that would settle an inconclusive case; None if unknown."""

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The ends of the interval; None without one."""
        if self.interval is None:
            return None, None
        return self.interval.low, self.interval.high


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """The launch medians of one case; A may be several runs."""

    a: Floats
    b: Floats
    runs: Sequence[Floats]
    """The runs of A."""
    paired: bool

    @property
    def is_testable(self) -> bool:
        """Whether both sides have a spread and logarithms."""
        return all(
            len(side) > 1 and bool(np.isfinite(side).all()) and float(side.min()) > 0
            for side in (self.a, self.b)
        )

    @cached_property
    def of_runs(self) -> RunRatio | None:
        """The comparison with several runs in A; None with one run."""
        return (
            RunRatio(runs=self.runs, b=self.b) if len(self.runs) > 1 and self.is_testable else None
        )

    @property
    def ratio(self) -> float:
        return self.of_runs.ratio if self.of_runs else median_ratio(self.a, self.b)

    @property
    def fewest(self) -> int:
        """Launches of the run with the fewest."""
        return min(len(self.b), *map(len, self.runs))

    def p_value(self, smallest: float) -> float:
        """Return the p-value of equality, by pairs if their smallest possible p-value is at most
        ``smallest``.
        """
        if self.of_runs:
            return self.of_runs.p_value
        return rank_test(self.a, self.b, paired=self.paired and 2 / 2 ** len(self.a) <= smallest)

    def intervals(self, levels: Sequence[float], seed: int) -> list[Interval]:
        if self.of_runs:
            return [self.of_runs.interval(level) for level in levels]
        return ratio_intervals(
            self.a, self.b, levels, resamples=10_000, seed=seed, paired=self.paired
        )

    @property
    def samples(self) -> list[Floats]:
        """Return groups of logarithms, one per run, whose spread is that of launches."""
        log_b = np.log(self.b)
        return (
            [log_b - np.log(self.a)]
            if self.paired
            else [*(np.log(run) for run in self.runs), log_b]
        )

    def margin_errors(self, level: float) -> float:
        """Return the distance from the margin, in standard errors, at which 80 % of intervals
        exclude the margin.
        """
        if self.of_runs:
            return detectable_effect(level, POWER, self.of_runs.freedom)
        return NORMAL.inv_cdf((1 + level) / 2) + NORMAL.inv_cdf(POWER)


def compare_family(
    pairs: Sequence[tuple[Values, Values]],
    *,
    runs: Sequence[Sequence[int]] | None = None,
    margin: float = MARGIN,
    q: float = 0.05,
    paired: bool = False,
    looks: int = 1,
    seed: int = 0,
) -> list[Comparison]:
    """Compare many cases at once, each given as (launch medians of A, launch medians of B), in the
    order given.

    Benjamini-Hochberg at ``q`` on the tests selects R of the m cases that can be tested (2 launch
    medians a side, all above 0). A selected case is ``faster`` or ``slower`` if its interval at
    level 1 - q * R / m lies wholly beyond the margin (below 1 - margin, above 1 + margin): the
    false-coverage adjustment of Benjamini and Yekutieli, Journal of the American Statistical
    Association 100 (2005), which holds for any way of selecting. Any case is ``same`` if its 95 %
    interval lies wholly inside the margin, and ``inconclusive`` otherwise.

    Args:
        pairs: the cases.
        runs: for each case, where A is several runs, how many of A's launches each made, in order:
            how runs differ then decides, not how launches do (`commbench.stats.hierarchy`).
        margin: relative difference that does not matter.
        q: share of the verdicts ``faster`` and ``slower`` that may be false.
        paired: a[i] and b[i] ran side by side: intervals resample pairs, and the test is Wilcoxon's
            where the pairs suffice for it to find a lone case in this family, else Mann-Whitney's,
            which drift shared by both sides makes cautious, never bold.
        looks: how often the comparison may be made while launches are added; each look has an equal
            share of ``q`` and of the 5 % of the verdict ``same`` (Bonferroni), so that all looks
            together err as seldom as one.
        seed: of the bootstrap.

    Raises:
        InputError: if the margin is not in [0, 1), or sides to be paired differ in length.
    """
    if not 0 <= margin < 1:
        raise InputError(
            f"a margin of {margin} is no relative difference: choose one from 0 to below 1, such as"
            " 0.02."
        )
    q, level = q / looks, 1 - 0.05 / looks
    sizes = runs or [[len(a)] for a, _ in pairs]
    cases = [
        _sides_of(a, b, of_runs, paired=paired)
        for (a, b), of_runs in zip(pairs, sizes, strict=True)
    ]
    testable = {i: sides for i, sides in enumerate(cases) if sides.is_testable}
    m = len(testable)
    p_values = {i: sides.p_value(q / m) for i, sides in testable.items()}
    rejected = benjamini_hochberg(list(p_values.values()), q)
    selected = {i for i, is_rejected in zip(testable, rejected, strict=True) if is_rejected}
    comparisons = [
        Comparison(ratio=s.ratio, launches_a=len(s.a), launches_b=len(s.b)) for s in cases
    ]
    for i, sides in testable.items():
        # What decides this case; for one not selected, what would if it were selected too.
        alpha = q * (len(selected) + (i not in selected)) / m
        plain, adjusted = sides.intervals((level, 1 - alpha), seed)
        verdict, interval = _judge(plain, adjusted if i in selected else None, margin)
        comparisons[i] = replace(
            comparisons[i],
            interval=interval,
            p_value=p_values[i],
            verdict=verdict,
            detectable=_detectable(sides, alpha=alpha, margin=margin),
            further=_further(sides, alpha, margin) if verdict is Verdict.INCONCLUSIVE else None,
        )
    return comparisons


def _sides_of(a: Values, b: Values, sizes: Sequence[int], *, paired: bool) -> _Sides:
    first, second = both_sides(a, b, paired=paired)
    return _Sides(a=first, b=second, runs=split_runs(first, sizes), paired=paired)


def _judge(plain: Interval, adjusted: Interval | None, margin: float) -> tuple[Verdict, Interval]:
    """Return the verdict and the interval it rests on.

    ``adjusted`` is None for a case that was not selected.
    """
    if adjusted is not None and adjusted.high < 1 - margin:
        return Verdict.FASTER, adjusted
    if adjusted is not None and adjusted.low > 1 + margin:
        return Verdict.SLOWER, adjusted
    if plain.low >= 1 - margin and plain.high <= 1 + margin:
        return Verdict.SAME, plain
    return Verdict.INCONCLUSIVE, adjusted or plain


def _detectable(sides: _Sides, *, alpha: float, margin: float) -> float:
    """Return the slowdown that such a case would show with 80 % power.

    Its logarithm exceeds the margin's by `_Sides.margin_errors` standard errors. With one run in A,
    these are of a difference of medians, each sqrt(pi / 2n) spreads. Simulated power with normal
    launches: 77 to 90 % for 5 to 20 launches of one run a side, 67 to 90 % against 3 to 10 runs, in
    families of 1 to 40.
    """
    if sides.of_runs:
        error = sides.of_runs.error
    elif family_hint(1, len(sides.a), len(sides.b), alpha):
        return math.inf
    else:
        counts = [len(sides.b)] if sides.paired else [len(sides.a), len(sides.b)]
        error = _pooled_spread(sides.samples) * math.sqrt(
            math.pi / 2 * sum(1 / count for count in counts)
        )
        error *= widening(sides.fewest)
    beyond = sides.margin_errors(1 - alpha) * error
    return (1 + margin) * math.exp(beyond) - 1 if beyond < math.log(_LARGEST_SLOWDOWN) else math.inf


def _further(sides: _Sides, alpha: float, margin: float) -> Effort | None:
    """Return the launches that would settle an inconclusive case, if its true ratio is the observed
    one.
    """
    effect, samples = math.log(sides.ratio), sides.samples
    high, low = math.log1p(margin), math.log1p(-margin) if margin else 0.0
    is_inside = low <= effect <= high
    level = DEFAULT_LEVEL if is_inside else 1 - alpha
    draws = sides.of_runs.draws if sides.of_runs else 1.0 if sides.paired else 2.0
    return further_launches(
        Scatter(
            spread=_pooled_spread(samples),
            freedom=sum(len(sample) - 1 for sample in samples),
            launches=sides.fewest,
            sides=draws,
            fixed=sides.of_runs.state_spread * math.sqrt(draws) if sides.of_runs else 0.0,
        ),
        min(abs(effect - low), abs(effect - high)),
        margin=margin,
        margin_errors=sides.margin_errors(level),
        fewest=2 if is_inside or sides.of_runs else _fewest(sides.fewest, level),
    )


def _fewest(launches: int, level: float) -> int:
    """Return how many launches a side a rank test takes to find anything at a level."""
    return next(
        n for n in range(2, launches + MOST_LAUNCHES + 2) if not family_hint(1, n, n, 1 - level)
    )


def _pooled_spread(groups: Sequence[Floats]) -> float:
    """Return the groups' common standard deviation: 1.0483 times the median distance of two values
    of one group.

    Source: Shamos 1976. It tolerates 29 % of outliers and, unlike the median absolute deviation,
    does not shrink where a group has 3 to 10 values.
    """
    distances = [np.abs(group[:, None] - group)[np.triu_indices(len(group), 1)] for group in groups]
    return 1.0483 * float(np.median(np.concatenate(distances)))
