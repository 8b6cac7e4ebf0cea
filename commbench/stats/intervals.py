"""Confidence intervals of medians within a launch and over launches; quantiles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Sequence[float] | Floats


NORMAL = NormalDist()
#: The level of all intervals unless stated otherwise.
DEFAULT_LEVEL = 0.95
#: From this number of values on numpy is faster than sorting a list.
_MANY = 500


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A two-sided confidence interval, in the unit of the values it came from."""

    low: float
    high: float
    level: float
    """The confidence aimed at, such as 0.95."""

    def including(self, estimate: float) -> "Interval":
        """Return the interval with its nearer end moved to ``estimate`` where that lies outside.

        It covers no less.
        """
        return replace(self, low=min(self.low, estimate), high=max(self.high, estimate))

    def logs(self, estimate: float) -> tuple[float, float]:
        """Return how far the ends lie below and above an estimate, in natural logarithms."""
        return math.log(estimate / self.low), math.log(self.high / estimate)


def bounds_of(interval: Interval | None) -> tuple[float, float] | None:
    """Return the ends of an interval; None without one."""
    if interval is None:
        return None
    return interval.low, interval.high


@lru_cache(maxsize=4096)
def _median_ranks(n: int, level: float) -> tuple[int, int] | None:
    """Return the 1-based ranks that enclose the median of ``n`` values at ``level``, or None where
    n is too small.

    Source: Le Boudec, theorem 2.1 and its tables. Below 71 values: the narrowest pair l < u with
    P(l <= B < u) >= level for B ~ Binomial(n, 1/2), the lower of two equally good ones; from 71:
    the normal approximation.
    """
    if n >= 71:  # where Le Boudec's table turns to the approximation
        half_width = NORMAL.inv_cdf((1 + level) / 2) / 2 * math.sqrt(n)
        low, high = math.floor(n / 2 - half_width), math.ceil(n / 2 + 1 + half_width)
        return low, high
    counts = [math.comb(n, k) for k in range(n + 1)]
    for width in range(1, n):
        coverage, low = max(
            (sum(counts[low : low + width]), -low) for low in range(1, n - width + 1)
        )
        if coverage >= level * 2**n:
            return -low, width - low
    return None


def median_interval(values: Values, level: float = DEFAULT_LEVEL) -> Interval | None:
    """Return the order-statistic interval of the median, which assumes no distribution (Le Boudec,
    theorem 2.1).

    None with too few values for the level: fewer than 6 at 95 %, 8 at 99 %.
    """
    ranks = _median_ranks(len(values), level)
    if ranks is None:
        return None
    ordered = _ordered(values)
    low, high = float(ordered[ranks[0] - 1]), float(ordered[ranks[1] - 1])
    return Interval(low=low, high=high, level=level)


def _ordered(values: Values) -> Values:
    if len(values) < _MANY:
        return sorted(values)
    return np.sort(np.asarray(values, dtype=float))


#: Student's t at 0.975 by sample size n, for n - 1 degrees of freedom, as tables print it; here
#: scipy is not needed.
STUDENT_T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
#: The logarithm of the largest end of an interval: result files hold numbers up to 1e18.
LARGEST_LOG = 41.0


def fewest_launches(level: float) -> int:
    """Return how many launches an interval of that level takes which assumes no distribution: 6 for
    95 %.

    Their least and greatest enclose the median with a probability of 1 - 2^(1 - n).
    """
    return math.ceil(1 - math.log2(1 - level))


def launch_interval(medians: Values, level: float = DEFAULT_LEVEL) -> Interval | None:
    """Return the interval of a case's value from the medians of its launches.

    It is the order-statistic interval; for fewer than `fewest_launches`, Student's t on the
    logarithms: 2 to 5 at 95 %. None for one launch, and for those few if one is not above 0.
    """
    if 2 <= len(medians) < fewest_launches(level):  # one launch has no spread
        return student_interval(medians, level)
    return median_interval(medians, level)


def student_interval(medians: Values, level: float = DEFAULT_LEVEL) -> Interval | None:
    """Return Student's interval on the logarithms of two values or more.

    None if one is not above 0.

    It is centred on the geometric mean. It always includes the median, which is the estimate: of
    skewed values, the median may lie outside Student's ends.
    """
    n = len(medians)
    if min(medians) <= 0:
        return None
    logs = np.log(np.asarray(medians, dtype=float))
    t = STUDENT_T_975.get(n)
    if t is None or level != DEFAULT_LEVEL:
        t = round(student_t(level, n - 1), 3)
    centre, half_width = float(logs.mean()), t * float(logs.std(ddof=1)) / math.sqrt(n)
    high = math.exp(min(centre + half_width, LARGEST_LOG))
    ends = Interval(low=math.exp(centre - half_width), high=high, level=level)
    return ends.including(median(medians))


def quantiles(values: Values, shares: Sequence[float]) -> list[float]:
    """Return quantiles, interpolated linearly, to the last bit as numpy's.

    Of few values a hundred times as quickly.

    Args:
        values: at least one, finite.
        shares: from 0 to 1.
    """
    ordered = _ordered(values)
    found = []
    for share in shares:
        place = share * (len(ordered) - 1)
        below = int(place)
        low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
        quantile = low + (high - low) * (place - below)
        if place - below >= 0.5:  # half; from the nearer value, as numpy
            quantile = high - (high - low) * (1 - (place - below))
        found.append(float(quantile))
    return found


def median(values: Values) -> float:
    """Return the median, as numpy's, of few values as quickly as `quantiles`."""
    ordered, half = _ordered(values), len(values) // 2
    if len(values) % 2:
        return float(ordered[half])
    return float((ordered[half - 1] + ordered[half]) / 2)


def _walsh_averages(values: Values) -> Floats:
    """Return the means of all pairs of values, each with itself too."""
    array = np.asarray(values, dtype=float)
    first, second = np.triu_indices(len(array))
    return np.asarray((array[first] + array[second]) / 2)


def hodges_lehmann(values: Values) -> float:
    """Return the median of the means of all pairs of values, each with itself too (Hodges and
    Lehmann 1963).

    For normal values its variance is 5 % above that of the mean, that of the median 57 %; outliers
    move it little.
    """
    return median(_walsh_averages(values))


def signed_rank_interval(values: Values, level: float = DEFAULT_LEVEL) -> Interval | None:
    """Return the interval of the centre of a symmetric distribution by Wilcoxon's signed ranks
    (Tukey 1949).

    Its ends are the k-th least and the k-th greatest mean of two values. None with fewer values
    than `fewest_launches`.
    """
    k = _signed_rank(len(values), level)
    if k < 1:
        return None
    averages = np.sort(_walsh_averages(values))
    return Interval(low=float(averages[k - 1]), high=float(averages[-k]), level=level)


@lru_cache(maxsize=512)
def _signed_rank(n: int, level: float) -> int:
    """Return how many rank sums of n signed ranks, from 0 on, have together at most the probability
    of one tail.
    """
    shares = np.ones(1)
    for rank in range(1, n + 1):
        shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    return int(np.searchsorted(np.cumsum(shares), (1 - level) / 2, side="right"))


def student_p(t: float, freedom: int) -> float:
    """Return the probability that Student's t lies at least as far from 0 as ``t``, with
    ``freedom`` of at least 1.
    """
    from scipy.special import stdtr

    return 2.0 * float(stdtr(freedom, -abs(t)))


@lru_cache(maxsize=4096)
def student_t(level: float, freedom: int) -> float:
    """Return the bound that the magnitude of Student's t stays below with the probability
    ``level``, below 1.
    """
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, (1 - level) / 2))


def detectable_effect(level: float, power: float, freedom: int) -> float:
    """Return the effect, in standard errors, whose interval excludes 0 with the probability
    ``power``.

    Source: the normal approximation of the noncentral t, Abramowitz and Stegun, 26.7.10. It needs
    no search, unlike the exact distribution in scipy.
    """
    t = student_t(level, freedom)
    spread = math.sqrt(1 + t * t / (2 * freedom))
    return t * (1 - 1 / (4 * freedom)) + NORMAL.inv_cdf(power) * spread
