"""The ratio of two medians with its interval, by resampling launches.

The launches needed for a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from commbench.errors import InputError
from commbench.stats.intervals import (
    DEFAULT_LEVEL,
    NORMAL,
    STUDENT_T_975,
    Floats,
    Interval,
    Values,
)

#: How much wider a median's interval is than a mean's (normal launches), and how probable a
#: decision shall be.
_MEDIAN, POWER = math.sqrt(math.pi / 2), 0.8
#: Twice the launches of the largest budget; beyond, a quieter machine helps more.
MOST_LAUNCHES = 40
#: A ratio that is nearer to the margin than this share is on neither side of it for any practical
#: number of launches.
_TOO_NEAR = 0.004

DecisionForecast = Literal["settles", "near", "noisy"]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The launches needed for an interval outside the margin with 80 % probability, if the ratio is
    as observed.
    """

    forecast: DecisionForecast
    """``settles``: the further launches decide; ``near``: the ratio is too near the margin for
    any practical number; ``noisy``: launches or runs differ too much, so that more than
    `MOST_LAUNCHES` are needed."""
    low: int = 0
    """Further launches of each run, lower end of a range: the spread is estimated from few
    launches."""
    high: int | None = 0
    """Upper end of the range; None if it exceeds `MOST_LAUNCHES`."""


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """How the logarithms of the launches so far vary."""

    spread: float
    """Standard deviation of the logarithms of launches."""
    freedom: int
    """Degrees of freedom of the spread."""
    launches: int
    """Of each run."""
    sides: float = 1
    """The ratio's variance in that of a run: 1 for ratios of pairs, 2 for the ratio of two runs."""
    fixed: float = 0.0
    """The standard deviation of the ratio's logarithm that further launches do not reduce:
    between runs."""


def further_launches(
    scatter: Scatter,
    distance: float,
    *,
    margin: float,
    level: float = DEFAULT_LEVEL,
    margin_errors: float | None = None,
    fewest: int = 2,
) -> Effort:
    """Return the number of further launches that would decide.

    The interval of the median must leave the margin with a probability of 80 %: n = sides ((z_level
    + z_80) sqrt(pi / 2) spread / distance)^2 for normal logarithms, the usual size of a sample. The
    quartiles of the estimated spread (chi-square by Wilson and Hilferty, PNAS 17, 1931) give a
    range.

    Args:
        scatter: of the launches so far.
        distance: from the margin, of the logarithm of the ratio.
        margin: a relative difference up to this is none.
        level: of the deciding interval.
        margin_errors: the required distance from the margin, in standard errors of the ratio; None:
            z_level + z_80.
        fewest: the smallest number of launches that gives an interval of this level.
    """
    margin_errors = margin_errors or NORMAL.inv_cdf((1 + level) / 2) + NORMAL.inv_cdf(POWER)
    launches, spread = scatter.launches, scatter.spread
    per_launch = margin_errors * _MEDIAN * math.sqrt(scatter.sides)
    if distance < _TOO_NEAR and spread * per_launch < margin * math.sqrt(launches):
        return Effort(forecast="near")
    left = max(distance, _TOO_NEAR) ** 2 - (margin_errors * scatter.fixed) ** 2
    if left <= 0:
        return Effort(forecast="noisy")
    needs = [
        math.ceil((per_launch * end) ** 2 / left) for end in _spread_ends(spread, scatter.freedom)
    ]
    low, high = (max(fewest, launches + 1, need) - launches for need in needs)
    if low + launches > MOST_LAUNCHES:
        return Effort(forecast="noisy")
    return Effort(
        forecast="settles", low=low, high=None if high + launches > MOST_LAUNCHES else high
    )


def _spread_ends(spread: float, freedom: int) -> tuple[float, float]:
    """Return the quartiles of a standard deviation estimated with ``freedom`` degrees of
    freedom.
    """
    share = 2 / (9 * freedom)
    least, most = (
        (1 - share + sign * NORMAL.inv_cdf(0.75) * math.sqrt(share)) ** 3 for sign in (-1, 1)
    )
    return spread / math.sqrt(most), spread / math.sqrt(max(least, 1e-3))


def both_sides(a: Values, b: Values, *, paired: bool) -> tuple[Floats, Floats]:
    """Return both sides as arrays, refusing to pair sides of different length."""
    if paired and len(a) != len(b):
        raise InputError(
            f"paired launches must match and A has {len(a)}, B {len(b)}: compare them unpaired."
        )
    return np.asarray(a, dtype=float), np.asarray(b, dtype=float)


def median_ratio(a: Floats, b: Floats) -> float:
    """Return median(b) / median(a), NaN where either is missing or not above 0."""
    are_positive = all(len(side) > 0 and float(np.median(side)) > 0 for side in (a, b))
    return float(np.median(b) / np.median(a)) if are_positive else math.nan


@lru_cache(maxsize=64)
def _resampled_middles(
    n: int, resamples: int, seed: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where, among n sorted values, the two middle ones of each resample lie: the same for
    all such values.
    """
    draws = np.sort(np.random.default_rng(seed).integers(0, n, (resamples, n)), axis=1)
    return draws[:, (n - 1) // 2].copy(), draws[:, n // 2].copy()


def resampled_medians(values: Floats, resamples: int, seed: tuple[int, int]) -> Floats:
    """Return the medians of ``resamples`` bootstrap resamples of ``values``."""
    low, high = _resampled_middles(len(values), resamples, seed)
    ordered = np.sort(values)
    return np.asarray((ordered[low] + ordered[high]) / 2)


def ratio_intervals(
    a: Floats, b: Floats, levels: Sequence[float], *, resamples: int, seed: int, paired: bool
) -> list[Interval]:
    """Return the bootstrap percentile interval of median(b) / median(a) at each level."""
    ratio = median_ratio(a, b)
    if paired:
        draws = np.random.default_rng((seed, 2)).integers(0, len(a), (resamples, len(a)))
        middle = slice(
            (len(a) - 1) // 2, len(a) // 2 + 1
        )  # sorting is four times as fast as np.median here
        ratios = np.divide(
            *(np.sort(side[draws], axis=1)[:, middle].mean(axis=1) for side in (b, a))
        )
    else:
        ratios = resampled_medians(b, resamples, (seed, 1)) / resampled_medians(
            a, resamples, (seed, 0)
        )
    sides = np.quantile(ratios, [((1 - level) / 2, (1 + level) / 2) for level in levels])
    bounds = (ratio * (sides / ratio) ** widening(min(len(a), len(b)))).tolist()
    return [
        Interval(low=low, high=high, level=level)
        for level, (low, high) in zip(levels, bounds, strict=True)
    ]


def widening(launches: int) -> float:
    """Return the power to which a bootstrap from so few launches must raise its bounds.

    With 2, 3 or 4 launches it covers 68, 91 and 93 % instead of 95 %. Widened in logarithms by the
    ratio of Student's t to the normal quantile it covers 99, 98 and 98 %; from 5 launches on it
    needs no help (simulated, lognormal).
    """
    return STUDENT_T_975[launches] / NORMAL.inv_cdf(0.975) if launches < 5 else 1.0  # noqa: PLR2004 - as documented


def ratio_interval(
    a: Values, b: Values, *, level: float, resamples: int = 10_000, seed: int, paired: bool = False
) -> tuple[float, Interval]:
    """Return median(b) / median(a) of launch medians and its bootstrap percentile interval.

    Launches are resampled, or pairs of launches if ``paired``: a[i] and b[i] then ran side by side.
    Below 5 launches a side the interval is widened. The launches must be above 0.

    Raises:
        InputError: if a side has fewer than 2 launches, or sides to be paired differ in length.
    """
    first, second = both_sides(a, b, paired=paired)
    launches = min(len(first), len(second))
    if launches < 2:  # noqa: PLR2004 - one launch has no spread
        raise InputError(
            f"an interval of a ratio needs 2 launches a side and got {launches}: measure more"
            " launches."
        )
    (interval,) = ratio_intervals(
        first, second, [level], resamples=resamples, seed=seed, paired=paired
    )
    return median_ratio(first, second), interval
