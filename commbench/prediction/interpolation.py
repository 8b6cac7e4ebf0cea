"""Monotone interpolation between measured points: isotonic regression, then cubic Hermite pieces that never overshoot.

Arrays are of shape (..., points): leading axes, such as resamples, are computed at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

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
