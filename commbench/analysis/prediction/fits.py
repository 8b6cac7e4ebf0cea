"""Fits over message size: alpha + beta n on segments chosen by BIC, and monotone interpolation.

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

from commbench.stats import Floats


def isotonic(values: Floats) -> Floats:
    """Return the non-decreasing sequence nearest to ``values`` in the sum of squares, along the last axis.

    By the min-max formula g_i = max over j <= i of min over k >= i of mean(values[j..k]) (Robertson, Wright and
    Dykstra, Order Restricted Statistical Inference, 1988, theorem 1.4.4), which unlike pooling works on all rows at
    once; O(points^2) memory a row.
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


def monotone_slopes(x: Floats, y: Floats) -> Floats:
    """Return the slope of ``y`` (..., points) at each of ``x`` (points) for pieces that are monotone where ``y`` is.

    Inside it is the weighted harmonic mean of the neighbouring secants (Fritsch and Butland, SIAM J. Sci. Stat. Comput.
    5, 1984), at the ends the three-point formula kept within the bounds of Fritsch and Carlson. Needs 2 points.
    """
    steps = np.diff(x)
    secants = np.diff(y, axis=-1) / steps
    if len(x) == 2:  # noqa: PLR2004 - a straight line
        return np.concatenate([secants, secants], axis=-1)
    before, after = secants[..., :-1], secants[..., 1:]
    weights = 2 * steps[1:] + steps[:-1], steps[1:] + 2 * steps[:-1]
    same_way = before * after > 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # where a secant is 0 the slope is
        mean = (weights[0] + weights[1]) / (weights[0] / before + weights[1] / after)
    inner = np.where(same_way, mean, 0.0)
    first = _end_slope(steps[0], steps[1], secants[..., 0], secants[..., 1])
    last = _end_slope(steps[-1], steps[-2], secants[..., -1], secants[..., -2])
    return np.concatenate([first[..., None], inner, last[..., None]], axis=-1)


def _end_slope(step: float, next_step: float, secant: Floats, next_secant: Floats) -> Floats:
    """The three-point slope at an end, no steeper than 3 secants and never against the nearest one."""
    slope = ((2 * step + next_step) * secant - step * next_secant) / (step + next_step)
    bounded = np.where(np.abs(slope) > 3 * np.abs(secant), 3 * secant, slope)
    return np.asarray(np.where(slope * secant <= 0, 0.0, bounded))


def monotone_cubics(x: Floats, y: Floats) -> Floats:
    """Return the coefficients of the cubic between each two neighbours, shape (..., points - 1, 4), lowest first.

    They are of the place within the piece, from 0 at its lower end to 1 at its upper.
    """
    steps, rises, slopes = np.diff(x), np.diff(y, axis=-1), monotone_slopes(x, y)
    start, end = steps * slopes[..., :-1], steps * slopes[..., 1:]
    return np.stack([y[..., :-1], start, 3 * rises - 2 * start - end, start + end - 2 * rises], axis=-1)


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
