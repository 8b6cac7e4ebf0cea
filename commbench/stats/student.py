"""Student's t: quantiles, two-sided p-values and the power of its intervals, for whole degrees of freedom."""

import math
from functools import lru_cache
from statistics import NormalDist


def student_p(t: float, freedom: int) -> float:
    """Return the probability that Student's t lies at least as far from 0 as ``t``, with ``freedom`` of at least 1."""
    from scipy.special import stdtr

    return 2.0 * float(stdtr(freedom, -abs(t)))


@lru_cache(maxsize=4096)
def student_t(level: float, freedom: int) -> float:
    """Return the bound that the magnitude of Student's t stays below with the probability ``level``, below 1."""
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, (1 - level) / 2))


def detectable_effect(level: float, power: float, freedom: int) -> float:
    """Return the effect, in standard errors, whose interval excludes 0 with the probability ``power``.

    Source: the normal approximation of the noncentral t, Abramowitz and Stegun, 26.7.10. It needs no search, unlike
    the exact distribution in scipy.
    """
    t = student_t(level, freedom)
    return t * (1 - 1 / (4 * freedom)) + NormalDist().inv_cdf(power) * math.sqrt(1 + t * t / (2 * freedom))
