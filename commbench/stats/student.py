"""Student's t: quantiles and two-sided p-values for whole degrees of freedom."""

import math
from functools import lru_cache
from statistics import NormalDist

#: Halvings of the angle's range: to the last bit of a double.
_HALVINGS = 60


def student_p(t: float, freedom: int) -> float:
    """Return the probability that Student's t lies at least as far from 0 as ``t``, with ``freedom`` of at least 1."""
    return max(0.0, 1.0 - _within(math.atan(abs(t) / math.sqrt(freedom)), freedom))


@lru_cache(maxsize=4096)
def student_t(level: float, freedom: int) -> float:
    """Return how far from 0 Student's t lies at most with the probability ``level``, below 1."""
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def student_reach(level: float, power: float, freedom: int) -> float:
    """Return by how many standard errors something must differ from 0 for its interval to leave 0 out so often.

    Source: the normal approximation of the noncentral t, Abramowitz and Stegun, 26.7.10.
    """
    t = student_t(level, freedom)
    return t * (1 - 1 / (4 * freedom)) + NormalDist().inv_cdf(power) * math.sqrt(1 + t * t / (2 * freedom))


def _within(angle: float, freedom: int) -> float:
    """Return the probability that |t| <= sqrt(freedom) tan(angle).

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    is_odd = freedom % 2
    term = math.sin(angle) * (math.cos(angle) if is_odd else 1.0)
    total = angle if is_odd else 0.0
    for k in range(2 + is_odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    return total * 2 / math.pi if is_odd else total
