"""Fits over message size, and the noise and intervals of fits by resampling launches.

Arrays are of shape (..., points): leading axes, such as resamples, are computed at once.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from commbench.stats import Floats, Interval
from commbench.stats.intervals import STUDENT_T_975


def isotonic(values: Floats) -> Floats:
    """Return the non-decreasing sequence nearest to ``values`` in the sum of squares, along the last axis.

    By the min-max formula g_i = max over j <= i of min over k >= i of mean(values[j..k]) (Robertson, Wright and
    Dykstra, Order Restricted Statistical Inference, 1988, theorem 1.4.4), which works on all rows at once;
    scipy.optimize.isotonic_regression takes one row, and there are 1000 resamples. O(points^2) memory a row.
    """
    count = values.shape[-1]
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    first, last = np.arange(count)[:, None], np.arange(count)[None, :]
    lengths = np.where(last >= first, last - first + 1, 1)
    means = (sums[..., None, 1:] - sums[..., :-1, None]) / lengths
    means = np.where(last >= first, means, np.inf)
    least = np.flip(np.minimum.accumulate(np.flip(means, -1), axis=-1), -1)  # over k >= i
    best = np.where(last >= first, least, -np.inf).max(axis=-2)
    return np.asarray(np.maximum.accumulate(best, axis=-1))  # rounding must not make a step down


def monotone_cubics(x: Floats, y: Floats) -> Floats:
    """Return the coefficients of the cubic between each two neighbours, shape (..., points - 1, 4), lowest first.

    They are of the place within the piece, from 0 at its lower end to 1 at its upper. The cubics are monotone where
    ``y`` is (PCHIP: Fritsch and Butland, SIAM J. Sci. Stat. Comput. 5, 1984). Needs 2 points.
    """
    from scipy.interpolate import PchipInterpolator  # loading it takes long, and most commands fit nothing

    powers = np.moveaxis(PchipInterpolator(x, y, axis=-1).c, (0, 1), (-1, -2))[..., ::-1]
    return np.asarray(powers * np.diff(x)[:, None] ** np.arange(4))


AnyFloat = TypeVar("AnyFloat", float, Floats)


def cubic(coefficients: Iterable[AnyFloat], place: float) -> AnyFloat:
    """Return the value of one piece, for numbers or arrays as its four coefficients."""
    a, b, c, d = coefficients
    return a + place * (b + place * (c + place * d))


def place_between(x: Sequence[float], at: float) -> tuple[int, float]:
    """Return the piece in which a place lies, and how far from its lower end to its upper, 0 to 1."""
    i = min(max(bisect_right(x, at) - 1, 0), len(x) - 2)
    return i, (at - x[i]) / (x[i + 1] - x[i])


Mask: TypeAlias = NDArray[np.bool_]

#: Protocols such as eager, rendezvous and pipelined give so many regimes; more are noise on the grids people measure.
MOST_SEGMENTS = 3
#: Two would be met exactly by any line, so that splitting would always pay.
LEAST_SIZES = 3


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far measured times are off by chance."""

    error: float
    """Relative standard error of a time."""
    degrees: int
    """Degrees of freedom behind it; 0: unknown."""


UNKNOWN = Noise(error=0.0, degrees=0)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of message sizes over which time = alpha + beta n."""

    from_bytes: int
    """The first size of it that was measured."""
    to_bytes: int
    """The last one; between this and the next segment's first the protocol changes, nobody knows where."""
    alpha_us: float
    beta_us_per_byte: float

    def time_us(self, message_bytes: float) -> float:
        """The line at a size, also one outside the segment."""
        return self.alpha_us + self.beta_us_per_byte * message_bytes


def fit_line(sizes: Floats, times_us: Floats, chosen: Mask | None = None) -> Floats:
    """Return (alpha, beta), neither below 0, with the least sum of squares of (alpha + beta n) / t - 1.

    Relative, for over six decades of time the largest message would decide alpha otherwise.

    Args:
        sizes: bytes, shape (points,).
        times_us: above 0, shape (..., points); the result is of shape (..., 2).
        chosen: which points count, shape (..., points); None for all.
    """
    weights = np.where(True if chosen is None else chosen, 1 / times_us, 0.0)
    scaled = sizes * weights
    aa, ab, bb = (np.sum(u * v, axis=-1) for u, v in ((weights, weights), (weights, scaled), (scaled, scaled)))
    a, b = weights.sum(axis=-1), scaled.sum(axis=-1)
    determinant = aa * bb - ab * ab
    solvable = determinant > 1e-12 * aa * bb  # else one size
    safe = np.where(solvable, determinant, 1.0)
    alpha = np.where(solvable, (a * bb - b * ab) / safe, a / aa)
    beta = np.where(solvable, (b * aa - a * ab) / safe, 0.0)
    # with two unknowns the best on the border is the best allowed one where the free optimum lies beyond it
    through_zero, flat = alpha < 0, beta < 0
    return np.stack(
        [
            np.where(through_zero, 0.0, np.where(flat, a / aa, alpha)),
            np.where(flat, 0.0, np.where(through_zero, b / bb, beta)),
        ],
        axis=-1,
    )


def fit_segments(sizes: Floats, times_us: Floats, noise: Noise = UNKNOWN) -> list[Segment]:
    """Return the segments that explain the times best for their number.

    They need not meet: where a library changes its protocol, time jumps. Every way of cutting is tried, and the number
    of segments is the one with the least n ln(RSS / n) + p ln(n) n / (n - p - 2), p = 3 K - 1 being an alpha and a beta
    each and the breakpoints: BIC with McQuarrie's correction for few points (McQuarrie and Tsai, Regression and Time
    Series Model Selection, 1998), without which ten noisy points are cut in three. What launches say about noise counts
    like so many more points of which the residual is known.

    Args:
        sizes: bytes, ascending, shape (points,).
        times_us: above 0, shape (points,).
        noise: how far the times themselves may be off.
    """
    count = len(sizes)
    costs = _costs(sizes, times_us)
    best = min(
        (cuts for number in range(1, MOST_SEGMENTS + 1) for cuts in _all_cuts(count, number)),
        key=lambda cuts: _criterion(sum(costs[stretch] for stretch in cuts), len(cuts), count, noise),
    )
    return [_segment(sizes[i:j], times_us[i:j]) for i, j in best]


def lines_at(segments: Sequence[Segment], sizes: Floats, times_us: Floats) -> Floats:
    """Return what the segments say at measured sizes, with lines fitted anew to ``times_us``; its shape (..., points).

    Where they end stays.
    """
    parts = []
    for segment in segments:
        within = (sizes >= segment.from_bytes) & (sizes <= segment.to_bytes)
        alpha, beta = np.moveaxis(fit_line(sizes[within], times_us[..., within]), -1, 0)
        parts.append(alpha[..., None] + beta[..., None] * sizes[within])
    return np.concatenate(parts, axis=-1)


def _costs(sizes: Floats, times_us: Floats) -> dict[tuple[int, int], float]:
    """The sum of squares of the relative errors of the line through sizes i to j - 1, for every such stretch."""
    count = len(sizes)
    stretches = [(i, j) for i, j in itertools.combinations(range(count + 1), 2) if j - i >= min(LEAST_SIZES, count)]
    first, last = np.array(stretches).T[:, :, None]
    chosen = (first <= np.arange(count)) & (np.arange(count) < last)
    lines = fit_line(sizes, np.broadcast_to(times_us, chosen.shape), chosen)
    errors = (lines[:, :1] + lines[:, 1:] * sizes) / times_us - 1
    return dict(zip(stretches, np.sum(np.where(chosen, errors, 0.0) ** 2, axis=-1).tolist(), strict=True))


@lru_cache(maxsize=64)
def _all_cuts(count: int, number: int) -> list[Sequence[tuple[int, int]]]:
    """Every way to cut ``count`` sizes into so many stretches of at least `LEAST_SIZES`."""
    found: list[Sequence[tuple[int, int]]] = []
    for inner in itertools.combinations(range(LEAST_SIZES, count - LEAST_SIZES + 1), number - 1):
        stretches = list(itertools.pairwise((0, *inner, count)))
        if number == 1 or all(j - i >= LEAST_SIZES for i, j in stretches):
            found.append(stretches)
    return found


def _criterion(squares: float, segments: int, count: int, noise: Noise) -> float:
    parameters, points = 3 * segments - 1, count + noise.degrees
    if segments > 1 and points <= parameters + 2:
        return math.inf
    penalty = parameters * math.log(points) * points / max(points - parameters - 2, 1)
    # an error of 0.1 % is nobody's concern, and a perfect fit must not have a criterion of minus infinity
    mean_square = max((squares + noise.degrees * noise.error**2) / points, 1e-6)
    return points * math.log(mean_square) + penalty


def _segment(sizes: Floats, times_us: Floats) -> Segment:
    alpha, beta = fit_line(sizes, times_us).tolist()
    return Segment(from_bytes=int(sizes[0]), to_bytes=int(sizes[-1]), alpha_us=alpha, beta_us_per_byte=beta)


RESAMPLES = 1000
LEVEL = 0.95
_SEED = 20_261_121
#: Half the width of a 95 % interval over the median absolute error, where errors are normal.
_HALF_WIDTH = 1.96 / 0.6745
#: Fewer launches on both sides of a median than this have no spread to speak of.
_LEAST = 2


def log_half_width(error: float, doublings: float = 1.0) -> float:
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
        half_width = STUDENT_T_975[launches] * float(np.std(resampled)) * math.sqrt(launches / (launches - 1))
        return Interval(low=max(least, centre - half_width), high=centre + half_width, level=LEVEL)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(low=min(low, centre), high=max(high, centre), level=LEVEL)
