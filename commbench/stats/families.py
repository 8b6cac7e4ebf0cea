"""Verdicts on many cases at once, each timed in two runs or under two settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from commbench.errors import InputError
from commbench.stats.intervals import NORMAL, Floats, Interval, Values
from commbench.stats.ratios import both_sides, median_ratio, ratio_intervals, widening
from commbench.stats.significance import benjamini_hochberg, family_hint, rank_test

#: A relative difference up to this is none, wherever times are compared.
MARGIN = 0.02


class Verdict(str, Enum):
    """What a comparison of times says of B relative to A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How one case's times in run B compare with those in run A."""

    ratio: float
    """Median of B's launch medians over that of A's; NaN where either is missing or not above 0."""
    launches_a: int
    launches_b: int
    interval: Interval | None = None
    """The ratio's interval at the level that decided; None where there was nothing to test."""
    p_value: float = 1.0
    """Two-sided rank test that A and B are alike."""
    verdict: Verdict = Verdict.INCONCLUSIVE
    detectable: float = math.inf
    """The relative slowdown that such launches would show as ``slower`` in 80 % of comparisons; infinite where they
    are too few to find any in a family of this size."""


def compare_family(
    pairs: Sequence[tuple[Values, Values]],
    *,
    margin: float = MARGIN,
    q: float = 0.05,
    paired: bool = False,
    seed: int = 0,
) -> list[Comparison]:
    """Compare many cases at once, each given as (launch medians of A, launch medians of B), in the order given.

    Benjamini-Hochberg at ``q`` on the rank tests selects R of the m cases that can be tested (2 launch medians a side,
    all above 0). A selected case is ``faster`` or ``slower`` if its interval at level 1 - q * R / m lies wholly beyond
    the margin (below 1 - margin, above 1 + margin): the false-coverage adjustment of Benjamini and Yekutieli, Journal
    of the American Statistical Association 100 (2005). Any case is ``same`` if its 95 % interval lies wholly inside the
    margin, and ``inconclusive`` otherwise. ``paired`` says that a[i] and b[i] ran side by side: intervals resample
    pairs, and the test is Wilcoxon's where the pairs suffice for it to find a lone case in this family, else
    Mann-Whitney's, which drift shared by both sides makes cautious, never bold.

    Raises:
        InputError: if the margin is not in [0, 1), or sides to be paired differ in length.
    """
    if not 0 <= margin < 1:
        raise InputError(f"a margin of {margin} is no relative difference: choose one from 0 to below 1, such as 0.02.")
    sides = [both_sides(a, b, paired=paired) for a, b in pairs]
    testable = {i: (np.log(a), np.log(b)) for i, (a, b) in enumerate(sides) if _is_testable(a) and _is_testable(b)}
    m = len(testable)
    p_values = {i: rank_test(a, b, paired=paired and 2 / 2 ** len(a) <= q / m) for i, (a, b) in testable.items()}
    rejected = benjamini_hochberg(list(p_values.values()), q)
    selected = {i for i, is_rejected in zip(testable, rejected, strict=True) if is_rejected}
    comparisons = [Comparison(ratio=median_ratio(a, b), launches_a=len(a), launches_b=len(b)) for a, b in sides]
    for i, logs in testable.items():
        # What decides this case; for one not selected, what would if it were selected too.
        alpha = q * (len(selected) + (i not in selected)) / m
        levels = (0.95, 1 - alpha)
        plain, adjusted = ratio_intervals(*sides[i], levels, resamples=10_000, seed=seed, paired=paired)
        verdict, interval = _judge(plain, adjusted if i in selected else None, margin)
        detectable = _detectable(*logs, alpha=alpha, margin=margin, paired=paired)
        comparisons[i] = replace(
            comparisons[i], interval=interval, p_value=p_values[i], verdict=verdict, detectable=detectable
        )
    return comparisons


def _is_testable(launches: Floats) -> bool:
    """Whether a side has a spread and a logarithm."""
    return len(launches) > 1 and bool(np.isfinite(launches).all()) and float(launches.min()) > 0


def _judge(plain: Interval, adjusted: Interval | None, margin: float) -> tuple[Verdict, Interval]:
    """Return the verdict and the interval it rests on; ``adjusted`` is None for a case that was not selected."""
    if adjusted is not None and adjusted.high < 1 - margin:
        return Verdict.FASTER, adjusted
    if adjusted is not None and adjusted.low > 1 + margin:
        return Verdict.SLOWER, adjusted
    if plain.low >= 1 - margin and plain.high <= 1 + margin:
        return Verdict.SAME, plain
    return Verdict.INCONCLUSIVE, adjusted or plain


def _detectable(log_a: Floats, log_b: Floats, *, alpha: float, margin: float, paired: bool) -> float:
    """Return the slowdown that such a case would show with 80 % power.

    Its logarithm exceeds the margin's by (z_(1 - alpha/2) + z_0.8) standard errors of a difference of medians, each
    sqrt(pi / 2n) spreads. Simulated power with normal launches: 77 to 90 % for 5 to 20 launches in families of 1 to 40.
    """
    if family_hint(1, len(log_a), len(log_b), alpha):
        return math.inf
    groups = [log_b - log_a] if paired else [log_a, log_b]
    error = _pooled_spread(groups) * math.sqrt(math.pi / 2 * sum(1 / len(group) for group in groups))
    reach = NORMAL.inv_cdf(1 - alpha / 2) + NORMAL.inv_cdf(0.8)
    return (1 + margin) * math.exp(reach * error * widening(min(len(log_a), len(log_b)))) - 1


def _pooled_spread(groups: Sequence[Floats]) -> float:
    """Return the groups' common standard deviation: 1.0483 times the median distance of two values of one group.

    Source: Shamos 1976. It bears 29 % of outliers and, unlike the median absolute deviation, does not shrink where a
    group has 3 to 10 values.
    """
    distances = [np.abs(group[:, None] - group)[np.triu_indices(len(group), 1)] for group in groups]
    return 1.0483 * float(np.median(np.concatenate(distances)))
