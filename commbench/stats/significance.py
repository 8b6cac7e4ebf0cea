"""Tests of whether two sides differ: rank tests, and the false discovery rate of a family of
tests.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from commbench.stats.intervals import Floats, Values

#: The largest product of launches of both sides with an exact p-value: 20 against 20.
_EXACT = 400


def rank_test(a: Values, b: Values, *, paired: bool = False) -> float:
    """Return the two-sided p-value that neither side tends to be larger.

    Unpaired it is Mann-Whitney's test, paired Wilcoxon's signed-rank test without the zero
    differences. Up to 20 against 20 launches, or 20 pairs, the p-value is exact: both tests count
    the arrangements of the midranks. scipy's exact tests allow no ties. Larger samples use the
    normal approximation, corrected for ties and continuity. The p-value is 1 if a side is empty.
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if paired:
        differences = (second - first)[second != first]
        ranks = _doubled_midranks(np.abs(differences))
        observed = int(ranks[differences > 0].sum())
        if len(ranks) ** 2 > _EXACT:
            return _normal_p(observed - ranks.sum() / 2, float(ranks @ ranks) / 4)
        counts = _rank_sum_counts(tuple(np.sort(ranks).tolist()), len(ranks)).sum(axis=0)
        return _two_sided(counts, observed)
    if len(second) < len(first):
        first, second = second, first
    ranks = _doubled_midranks(np.concatenate([first, second]))
    n, m = len(first), len(second)
    observed = int(ranks[:n].sum())
    if n * m > _EXACT:
        variance = n * m / (n + m - 1) * float(ranks.var())
        return _normal_p(observed - n * ranks.mean(), variance)
    return _two_sided(_rank_sum_counts(tuple(np.sort(ranks).tolist()), n)[n], observed)


def _doubled_midranks(values: Floats) -> NDArray[np.int64]:
    """Return twice the rank of each value, ties sharing the mean rank.

    Twice, so that all are whole.
    """
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((2 * np.cumsum(counts) - counts + 1)[group], dtype=np.int64)


@lru_cache(maxsize=1024)
def _rank_sum_counts(ranks: tuple[int, ...], most: int) -> Floats:
    """Return in [k, s] the number of choices of k ranks, k = 0 ...

    most, with the sum s (doubles: counts are large).
    """
    ways = np.zeros((most + 1, sum(ranks) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank]
    return ways


def _two_sided(counts: Floats, observed: int) -> float:
    """Return twice the smaller tail that includes ``observed``, at most 1."""
    tail = min(float(counts[: observed + 1].sum()), float(counts[observed:].sum()))
    return min(1.0, 2 * tail / float(counts.sum()))


def _normal_p(deviation: float, variance: float) -> float:
    """Return the two-sided normal p of a sum of doubled ranks, whose continuity correction is 1:
    half a rank.
    """
    if not variance:
        return 1.0
    return math.erfc(max(abs(deviation) - 1, 0.0) / math.sqrt(2 * variance))


def benjamini_hochberg(p_values: Values, q: float = 0.05) -> list[bool]:
    """Return which hypotheses to reject so that on average at most a share ``q`` of the rejected
    are true.

    Source: Benjamini and Hochberg, Journal of the Royal Statistical Society B 57 (1995).
    """
    values = np.asarray(p_values, dtype=float)
    ordered = np.sort(values)
    passed = ordered[ordered <= q * np.arange(1, len(ordered) + 1) / max(1, len(ordered))]
    return list(map(bool, values <= passed.max(initial=-1.0)))


def family_hint(m: int, launches_a: int, launches_b: int, q: float = 0.05) -> bool:
    """Return whether a lone changed case among ``m`` can never be detected, however large the
    change.

    This is so if the smallest possible p-value, 2 / C(a + b, a), exceeds q / m, the first step of
    Benjamini-Hochberg. More launches or fewer cases help.
    """
    return min(1.0, 2 / math.comb(launches_a + launches_b, launches_a)) > q / max(m, 1)
