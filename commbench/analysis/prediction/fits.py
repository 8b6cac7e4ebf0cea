"""Fits over message size; noise and intervals of fits from resampled launches.

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

from commbench.stats import DEFAULT_LEVEL, Floats, Interval
from commbench.stats.intervals import STUDENT_T_975


def isotonic(values: Floats) -> Floats:
    """Return the non-decreasing sequence nearest to ``values`` in the sum of squares, along the
    last axis.

    It uses the min-max formula g_i = max over j <= i of min over k >= i of mean(values[j..k])
    (Robertson, Wright and Dykstra, Order Restricted Statistical Inference, 1988, theorem 1.4.4),
    which handles all 1000 resamples at once; scipy.optimize.isotonic_regression takes one row. It
    needs O(points^2) memory per row.
    """
    count = values.shape[-1]
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    first, last = np.arange(count)[:, None], np.arange(count)[None, :]
    lengths = np.where(last >= first, last - first + 1, 1)
    means = (sums[..., None, 1:] - sums[..., :-1, None]) / lengths
    means = np.where(last >= first, means, np.inf)
    least = np.flip(np.minimum.accumulate(np.flip(means, -1), axis=-1), -1)  # over k >= i
    best = np.where(last >= first, least, -np.inf).max(axis=-2)
    return np.asarray(np.maximum.accumulate(best, axis=-1))  # rounding must not make it decrease


def monotone_cubics(x: Floats, y: Floats) -> Floats:
    """Return the coefficients of the cubic between neighbouring points, shape (..., points - 1, 4),
    lowest first.

    The variable runs from 0 at the lower to 1 at the upper point. The cubics are monotone where
    ``y`` is (PCHIP: Fritsch and Butland, SIAM J. Sci. Stat. Comput. 5, 1984). Needs 2 points.
    """
    from scipy.interpolate import PchipInterpolator  # slow to import, and most commands fit nothing

    powers = np.moveaxis(PchipInterpolator(x, y, axis=-1).c, (0, 1), (-1, -2))[..., ::-1]
    return np.asarray(powers * np.diff(x)[:, None] ** np.arange(4))


AnyFloat = TypeVar("AnyFloat", float, Floats)


def cubic(coefficients: Iterable[AnyFloat], place: float) -> AnyFloat:
    """Return the value of one cubic, for numbers or arrays as its four coefficients."""
    a, b, c, d = coefficients
    return a + place * (b + place * (c + place * d))


def interval_position(x: Sequence[float], at: float) -> tuple[int, float]:
    """Return the index of the interval of ``x`` that contains ``at``, and the position within it, 0
    to 1.
    """
    i = min(max(bisect_right(x, at) - 1, 0), len(x) - 2)
    return i, (at - x[i]) / (x[i + 1] - x[i])


Mask: TypeAlias = NDArray[np.bool_]

#: Protocols such as eager, rendezvous and pipelined; more segments are noise on usual grids of
#: sizes.
MOST_SEGMENTS = 3
#: Any line meets two points exactly, so splitting would always pay.
LEAST_SIZES = 3


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Random error of measured times."""

    error: float
    """Relative standard error of a time."""
    degrees: int
    """Degrees of freedom of the estimate; 0: unknown."""


UNKNOWN = Noise(error=0.0, degrees=0)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A range of message sizes over which time = alpha + beta n."""

    from_bytes: int
    """The smallest measured size."""
    to_bytes: int
    """The largest measured size; the protocol changes somewhere between it and the next segment."""
    alpha_us: float
    beta_us_per_byte: float

    def time_us(self, message_bytes: float) -> float:
        """Return the time on the line, also for a size outside the segment."""
        return self.alpha_us + self.beta_us_per_byte * message_bytes


def fit_line(sizes: Floats, times_us: Floats, mask: Mask | None = None) -> Floats:
    """Return (alpha, beta), neither below 0, that minimise the sum of squares of (alpha + beta n) /
    t - 1.

    Errors are relative, because times span six decades and the largest message would otherwise
    decide alpha.

    Args:
        sizes: bytes, shape (points,).
        times_us: above 0, shape (..., points); the result is of shape (..., 2).
        mask: the points to fit, shape (..., points); None: all.
    """
    weights = np.where(True if mask is None else mask, 1 / times_us, 0.0)
    scaled = sizes * weights
    aa, ab, bb = (
        np.sum(u * v, axis=-1) for u, v in ((weights, weights), (weights, scaled), (scaled, scaled))
    )
    a, b = weights.sum(axis=-1), scaled.sum(axis=-1)
    determinant = aa * bb - ab * ab
    solvable = determinant > 1e-12 * aa * bb  # else there is a single size
    safe = np.where(solvable, determinant, 1.0)
    alpha = np.where(solvable, (a * bb - b * ab) / safe, a / aa)
    beta = np.where(solvable, (b * aa - a * ab) / safe, 0.0)
    # with two unknowns, if the unconstrained optimum is not allowed, the constrained one lies on
    # the border
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

    Segments need not meet, because time jumps where a library changes its protocol. All ways to
    split are tried. The number of segments K minimises n ln(RSS / n) + p ln(n) n / (n - p - 2) with
    p = 3 K - 1 parameters: BIC with McQuarrie's correction for few points (McQuarrie and Tsai,
    Regression and Time Series Model Selection, 1998). Without the correction, ten noisy points are
    split in three. The noise between launches enters as additional points with known residual.

    Args:
        sizes: bytes, ascending, shape (points,).
        times_us: above 0, shape (points,).
        noise: random error of the times.
    """
    count = len(sizes)
    costs = _costs(sizes, times_us)
    best = min(
        (cuts for number in range(1, MOST_SEGMENTS + 1) for cuts in _all_cuts(count, number)),
        key=lambda cuts: _criterion(
            sum(costs[stretch] for stretch in cuts), len(cuts), count, noise
        ),
    )
    return [_segment(sizes[i:j], times_us[i:j]) for i, j in best]


def lines_at(segments: Sequence[Segment], sizes: Floats, times_us: Floats) -> Floats:
    """Return the segments' lines at the sizes, refitted to ``times_us`` with the same breakpoints.

    The shape is that of ``times_us``, (..., points).
    """
    parts = []
    for segment in segments:
        within = (sizes >= segment.from_bytes) & (sizes <= segment.to_bytes)
        alpha, beta = np.moveaxis(fit_line(sizes[within], times_us[..., within]), -1, 0)
        parts.append(alpha[..., None] + beta[..., None] * sizes[within])
    return np.concatenate(parts, axis=-1)


def _costs(sizes: Floats, times_us: Floats) -> dict[tuple[int, int], float]:
    """Return the sum of squared relative errors of the line through sizes i to j - 1, for every
    allowed (i, j).
    """
    count = len(sizes)
    stretches = [
        (i, j)
        for i, j in itertools.combinations(range(count + 1), 2)
        if j - i >= min(LEAST_SIZES, count)
    ]
    first, last = np.array(stretches).T[:, :, None]
    masks = (first <= np.arange(count)) & (np.arange(count) < last)
    lines = fit_line(sizes, np.broadcast_to(times_us, masks.shape), masks)
    errors = (lines[:, :1] + lines[:, 1:] * sizes) / times_us - 1
    return dict(
        zip(stretches, np.sum(np.where(masks, errors, 0.0) ** 2, axis=-1).tolist(), strict=True)
    )


@lru_cache(maxsize=64)
def _all_cuts(count: int, number: int) -> list[Sequence[tuple[int, int]]]:
    """Return every way to split ``count`` sizes into ``number`` ranges of at least
    `LEAST_SIZES`.
    """
    cuts: list[Sequence[tuple[int, int]]] = []
    for inner in itertools.combinations(range(LEAST_SIZES, count - LEAST_SIZES + 1), number - 1):
        stretches = list(itertools.pairwise((0, *inner, count)))
        if number == 1 or all(j - i >= LEAST_SIZES for i, j in stretches):
            cuts.append(stretches)
    return cuts


def _criterion(squares: float, segments: int, count: int, noise: Noise) -> float:
    parameters, points = 3 * segments - 1, count + noise.degrees
    if segments > 1 and points <= parameters + 2:
        return math.inf
    penalty = parameters * math.log(points) * points / max(points - parameters - 2, 1)
    # errors below 0.1 % count as 0.1 %: a perfect fit must not have a criterion of minus infinity
    mean_square = max((squares + noise.degrees * noise.error**2) / points, 1e-6)
    return points * math.log(mean_square) + penalty


def _segment(sizes: Floats, times_us: Floats) -> Segment:
    alpha, beta = fit_line(sizes, times_us).tolist()
    return Segment(
        from_bytes=int(sizes[0]), to_bytes=int(sizes[-1]), alpha_us=alpha, beta_us_per_byte=beta
    )


RESAMPLES = 1000
_SEED = 20_261_121
#: Half-width of a 95 % interval over the median absolute error, for normal errors.
_HALF_WIDTH = 1.96 / 0.6745
#: The fewest launches from which a spread can be estimated.
_LEAST = 2


def log_half_width(error: float, doublings: float = 1.0) -> float:
    """Return the half-width, in natural logarithms, of the 95 % interval of predictions with a
    median absolute error.

    ``error`` is per doubling (of ranks, for instance); doublings are independent.
    """
    return _HALF_WIDTH * math.log1p(error) * math.sqrt(doublings)


def times_array(launches_us: Sequence[Sequence[float | None]]) -> Floats:
    """Return the times in shape (sizes, launches), NaN if a launch has none."""
    return np.array([[math.nan if time is None else time for time in row] for row in launches_us])


def medians_over_launches(table: Floats) -> Floats:
    """Return the median along the last axis without NaN; NaN if all are.

    The same as `numpy.nanmedian`, but ten times as fast and without warnings.
    """
    ordered = np.sort(table, axis=-1)  # NaN last
    counts = np.isfinite(table).sum(axis=-1, keepdims=True)
    middles = (
        np.take_along_axis(ordered, np.maximum((counts - less) // 2, 0), axis=-1) for less in (1, 0)
    )
    return np.where(counts > 0, np.mean([*middles], axis=0), math.nan)[..., 0]


def noise_of(table: Floats) -> Noise:
    """Return the random error of medians over launches, from the spread of launches.

    Shape (sizes, launches).

    The mean deviation of each launch over sizes is removed, because it shifts a curve without
    bending it. The variance is the median over sizes, because a launch may have an outlier at some
    size, divided by the ratio of median to mean of chi-square (Wilson and Hilferty, PNAS 17, 1931).
    The error of a median is sqrt(pi / 2) that of a mean.
    """
    logs = np.log(table[np.isfinite(table).sum(axis=1) >= _LEAST])
    if not len(logs):
        return UNKNOWN
    deviations = logs - medians_over_launches(logs)[:, None]
    if len(logs) > 1:
        deviations = deviations - medians_over_launches(deviations.T)
    counts = np.isfinite(deviations).sum(axis=1)
    variances = np.nansum(deviations**2, axis=1) / (counts - 1)
    degrees, launches = float(np.mean(counts - 1)), float(np.mean(counts))
    variance = float(np.median(variances)) / (1 - 2 / (9 * degrees)) ** 3 / launches
    of_median = math.pi / 2 if launches > _LEAST else 1
    return Noise(error=math.sqrt(variance * of_median), degrees=int((counts - 1).sum()))


def resampled_medians(table: Floats) -> Floats:
    """Return medians over launches drawn with replacement, shape (resamples, sizes).

    A resample draws the same launches for all sizes, because a slow launch is slow at all sizes. If
    none of its launches has a size, the median of all launches takes its place.
    """
    draws = np.random.default_rng(_SEED).integers(0, table.shape[1], (RESAMPLES, table.shape[1]))
    medians = medians_over_launches(table[:, draws]).T
    return np.where(np.isfinite(medians), medians, medians_over_launches(table))


def interval_of(centre: float, resampled: Floats, launches: int) -> Interval | None:
    """Return the 95 % interval of a prediction from its resamples; None for one launch.

    With 6 launches or more it consists of the resamples' quantiles. With fewer, resamples spread
    too little and too coarsely. Then it is Student's t interval on logarithms, as for a row of
    ``collectives.csv``, with the resamples' standard deviation corrected by sqrt(n / (n - 1)).
    """
    logarithm = parameter_interval(math.log(centre), np.log(resampled), launches, least=-math.inf)
    if logarithm is None:
        return None
    return Interval(low=math.exp(logarithm.low), high=math.exp(logarithm.high), level=DEFAULT_LEVEL)


def parameter_interval(
    centre: float, resampled: Floats, launches: int, *, least: float = 0.0
) -> Interval | None:
    """Return the 95 % interval of a parameter, which is at least ``least``; None for one launch."""
    if launches < _LEAST:
        return None
    if launches in STUDENT_T_975:
        half_width = (
            STUDENT_T_975[launches]
            * float(np.std(resampled))
            * math.sqrt(launches / (launches - 1))
        )
        return Interval(
            low=max(least, centre - half_width), high=centre + half_width, level=DEFAULT_LEVEL
        )
    low, high = np.quantile(resampled, [(1 - DEFAULT_LEVEL) / 2, (1 + DEFAULT_LEVEL) / 2]).tolist()
    return Interval(low=min(low, centre), high=max(high, centre), level=DEFAULT_LEVEL)
