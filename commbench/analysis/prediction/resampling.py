"""Resampling launches: the noise of launch medians, and predictions from resampled launches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from commbench.analysis.prediction.fits import UNKNOWN, Noise
from commbench.stats import Floats, Interval
from commbench.stats.intervals import STUDENT_T_975

RESAMPLES = 1000


LEVEL = 0.95


_SEED = 20_261_121


#: Half the width of a 95 % interval over the median absolute error, where errors are normal.
_HALF_WIDTH = 1.96 / 0.6745


#: Fewer launches on both sides of a median than this have no spread to speak of.
_LEAST = 2


def reach(error: float, doublings: float = 1.0) -> float:
    """Return half the width, in natural logarithms, of a 95 % interval of predictions with a median absolute error.

    That error is one of each doubling, of ranks for instance, and independent of those of the others.
    """
    return _HALF_WIDTH * math.log1p(error) * math.sqrt(doublings)


def table_of(launches_us: Sequence[Sequence[float | None]]) -> Floats:
    """Return the times of shape (sizes, launches), NaN where a launch has none."""
    return np.array([[math.nan if time is None else time for time in row] for row in launches_us])


def medians_over_launches(table: Floats) -> Floats:
    """Return the median of what is not NaN along the last axis, NaN where all is; shape without that axis.

    As `numpy.nanmedian`, which is ten times as slow and warns of what has no median.
    """
    ordered = np.sort(table, axis=-1)  # NaN last
    counts = np.isfinite(table).sum(axis=-1, keepdims=True)
    middles = (np.take_along_axis(ordered, np.maximum((counts - less) // 2, 0), axis=-1) for less in (1, 0))
    return np.where(counts > 0, np.mean([*middles], axis=0), math.nan)[..., 0]


def noise_of(table: Floats) -> Noise:
    """Return how far medians over launches are off, from how far launches differ; shape (sizes, launches).

    What a launch has in common at all sizes is taken out, for it moves a curve and does not bend it. The variance is
    the median over sizes, since at some a launch strays far, divided by the median of chi-square over its mean
    (Wilson and Hilferty, PNAS 17, 1931). A median's error is sqrt(pi / 2) that of a mean.
    """
    logs = np.log(table[np.isfinite(table).sum(axis=1) >= _LEAST])
    if not len(logs):
        return UNKNOWN
    strayed = logs - medians_over_launches(logs)[:, None]
    if len(logs) > 1:
        strayed = strayed - medians_over_launches(strayed.T)
    counts = np.isfinite(strayed).sum(axis=1)
    variances = np.nansum(strayed**2, axis=1) / (counts - 1)
    degrees, launches = float(np.mean(counts - 1)), float(np.mean(counts))
    variance = float(np.median(variances)) / (1 - 2 / (9 * degrees)) ** 3 / launches
    of_median = math.pi / 2 if launches > _LEAST else 1
    return Noise(error=math.sqrt(variance * of_median), degrees=int((counts - 1).sum()))


def resampled_medians(table: Floats) -> Floats:
    """Return medians over launches drawn with replacement, the same at all sizes, of shape (resamples, sizes).

    The same, since a slow launch is slow at all sizes. Where a resample has drawn no launch that has a size, it says
    nothing about it and the median stays.
    """
    draws = np.random.default_rng(_SEED).integers(0, table.shape[1], (RESAMPLES, table.shape[1]))
    medians = medians_over_launches(table[:, draws]).T
    return np.where(np.isfinite(medians), medians, medians_over_launches(table))


def interval_of(centre: float, resampled: Floats, launches: int) -> Interval | None:
    """Return the 95 % interval of a prediction from those of its resamples; None for one launch.

    From 6 launches on these are the resamples' quantiles. Resamples of fewer stray too little and too coarsely: then it
    is Student's t on logarithms, as for a row of ``collectives.csv``, with the spread of the resamples, whose variance
    is too small by (n - 1) / n.
    """
    logarithm = parameter_interval(math.log(centre), np.log(resampled), launches, least=-math.inf)
    if logarithm is None:
        return None
    return Interval(low=math.exp(logarithm.low), high=math.exp(logarithm.high), level=LEVEL)


def parameter_interval(centre: float, resampled: Floats, launches: int, *, least: float = 0.0) -> Interval | None:
    """Return the 95 % interval of a parameter, which may be 0 and is at least ``least``; None for one launch."""
    if launches < _LEAST:
        return None
    if launches in STUDENT_T_975:
        reach = STUDENT_T_975[launches] * float(np.std(resampled)) * math.sqrt(launches / (launches - 1))
        return Interval(low=max(least, centre - reach), high=centre + reach, level=LEVEL)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(low=min(low, centre), high=max(high, centre), level=LEVEL)
