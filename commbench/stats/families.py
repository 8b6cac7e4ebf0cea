"""Verdicts on many cases at once, each timed in two runs or under two settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np

from commbench.errors import InputError
from commbench.stats.intervals import DEFAULT_LEVEL, Floats, Interval, Values, bounds_of
from commbench.stats.ratios import (
    FEW_LAUNCHES,
    MOST_LAUNCHES,
    Effort,
    Scatter,
    further_launches,
    margin_errors_of,
    median_ratio,
    ratio_interval,
    ratio_intervals,
    widening,
)
from commbench.stats.runs import RunRatio
from commbench.stats.significance import benjamini_hochberg, family_hint, rank_test
from commbench.words import Estimate

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
    def estimate(self) -> Estimate:
        """The ratio with its interval."""
        low, high = bounds_of(self.interval) or (None, None)
        return Estimate(self.ratio, low, high)


@dataclass(frozen=True, kw_only=True)
class _LaunchRatio:
    """The ratio of two runs, from the launch medians of one case; see `RunRatio`."""

    a: Floats
    b: Floats
    paired: bool

    @property
    def ratio(self) -> float:
        return median_ratio(self.a, self.b)

    @cached_property
    def scatter(self) -> Scatter:
        launches, logs = min(len(self.a), len(self.b)), [np.log(self.a), np.log(self.b)]
        if self.paired:
            return Scatter.of([logs[1] - logs[0]], launches, sides=1.0)
        return Scatter.of(logs, launches, sides=2.0)

    @property
    def error(self) -> float:
        """The standard error of a difference of medians, each sqrt(pi / 2n) spreads.

        Of few launches each is sqrt(1 / n) spreads, widened. Few pairs have Student's interval of
        the mean, and the median of few launches varies about as little as their mean.
        """
        inverse = 1 / len(self.b)
        if not self.paired:
            inverse = 1 / len(self.a) + inverse
        error = self.scatter.spread * math.sqrt(inverse)
        if self.scatter.launches in FEW_LAUNCHES:
            return error * widening(self.scatter.launches)
        return error * math.sqrt(math.pi / 2)

    def p_value(self, smallest: float) -> float:
        by_pairs = self.paired and 2 / 2 ** len(self.a) <= smallest
        return rank_test(self.a, self.b, paired=by_pairs)

    def intervals(self, levels: Sequence[float]) -> list[Interval]:
        if self.paired:
            return [ratio_interval(self.a, self.b, level=level)[1] for level in levels]
        return ratio_intervals(self.a, self.b, levels)

    def margin_errors(self, level: float) -> float:
        return margin_errors_of(level)


def compare_family(
    pairs: Sequence[tuple[Values, Values]],
    *,
    runs: Sequence[Sequence[int]] | None = None,
    margin: float = MARGIN,
    q: float = 0.05,
    paired: bool = False,
    looks: int = 1,
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
            how runs differ then decides, not how launches do (`commbench.stats.runs`).
        margin: relative difference that does not matter, from 0 to below 1.
        q: share of the verdicts ``faster`` and ``slower`` that may be false.
        paired: a[i] and b[i] ran side by side: intervals are of their ratios. The test is
            Wilcoxon's where the pairs suffice for it to find a lone case in this family, else
            Mann-Whitney's, which drift shared by both sides makes cautious, never bold.
        looks: how often the comparison may be made while launches are added; each look has an equal
            share of ``q`` and of the 5 % of the verdict ``same`` (Bonferroni), so that all looks
            together err as seldom as one.

    Raises:
        InputError: the margin is not from 0 to below 1.
    """
    if not 0 <= margin < 1:
        raise InputError(f"The margin {margin:g} is no share from 0 to below 1; give 0.02 for 2 %.")
    q, level = q / looks, 1 - 0.05 / looks
    comparisons = []
    testable = {}
    for place, (a, b) in enumerate(pairs):
        sides = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
        ratio = median_ratio(*sides)
        if all(len(side) > 1 and (side > 0).all() and np.isfinite(side).all() for side in sides):
            case: RunRatio | _LaunchRatio = _LaunchRatio(a=sides[0], b=sides[1], paired=paired)
            if runs and len(runs[place]) > 1:
                of_runs = np.split(sides[0], np.cumsum(runs[place])[:-1])
                case = RunRatio.of(of_runs, sides[1])
            testable[place], ratio = case, case.ratio
        comparisons.append(Comparison(ratio=ratio, launches_a=len(a), launches_b=len(b)))
    m = len(testable)
    p_values = {place: case.p_value(q / m) for place, case in testable.items()}
    rejected = benjamini_hochberg(list(p_values.values()), q)
    selected = {place for place, is_rejected in zip(testable, rejected, strict=True) if is_rejected}
    for place, case in testable.items():
        # What decides this case; for one not selected, what would if it were selected too.
        alpha = q * (len(selected) + (place not in selected)) / m
        plain, adjusted = case.intervals((level, 1 - alpha))
        verdict, interval = _judge(plain, adjusted if place in selected else None, margin)
        further = None
        if verdict is Verdict.INCONCLUSIVE:
            further = _further(case, alpha, margin)
        comparisons[place] = replace(
            comparisons[place],
            interval=interval,
            p_value=p_values[place],
            verdict=verdict,
            detectable=_detectable(case, alpha, margin),
            further=further,
        )
    return comparisons


def verdict_of(low: float, high: float, margin: float = MARGIN) -> Verdict:
    """Return what an interval of a ratio of times shows that lies wholly on one side of a bound."""
    if high < 1 - margin:
        return Verdict.FASTER
    if low > 1 + margin:
        return Verdict.SLOWER
    if low >= 1 - margin and high <= 1 + margin:
        return Verdict.SAME
    return Verdict.INCONCLUSIVE


def _judge(plain: Interval, adjusted: Interval | None, margin: float) -> tuple[Verdict, Interval]:
    """Return the verdict and the interval it rests on.

    ``adjusted`` is None for a case that was not selected.
    """
    if adjusted:
        verdict = verdict_of(adjusted.low, adjusted.high, margin)
        if verdict in {Verdict.FASTER, Verdict.SLOWER}:
            return verdict, adjusted
    if verdict_of(plain.low, plain.high, margin) is Verdict.SAME:
        return Verdict.SAME, plain
    return Verdict.INCONCLUSIVE, adjusted or plain


def _detectable(case: RunRatio | _LaunchRatio, alpha: float, margin: float) -> float:
    """Return the slowdown that such a case would show with 80 % power.

    Its logarithm exceeds the margin's by ``margin_errors`` standard errors. Simulated power with
    normal launches: 77 to 90 % for 5 to 20 launches of one run a side, 67 to 90 % against 3 to 10
    runs, in families of 1 to 40.
    """
    if isinstance(case, _LaunchRatio) and family_hint(1, len(case.a), len(case.b), alpha):
        return math.inf
    beyond = case.margin_errors(1 - alpha) * case.error
    if beyond >= math.log(_LARGEST_SLOWDOWN):
        return math.inf
    return (1 + margin) * math.exp(beyond) - 1


def _further(case: RunRatio | _LaunchRatio, alpha: float, margin: float) -> Effort:
    """Return the launches that would settle an inconclusive case, if its true ratio is the observed
    one.
    """
    effect, high, low = math.log(case.ratio), math.log1p(margin), math.log1p(-margin)
    level, fewest = DEFAULT_LEVEL, 2
    if not low <= effect <= high:
        level = 1 - alpha
        if isinstance(case, _LaunchRatio):  # so many that a rank test can find anything
            counts = range(2, case.scatter.launches + MOST_LAUNCHES + 2)
            fewest = next(n for n in counts if not family_hint(1, n, n, 1 - level))
    return further_launches(
        case.scatter,
        min(abs(effect - low), abs(effect - high)),
        margin=margin,
        margin_errors=case.margin_errors(level),
        fewest=fewest,
    )
