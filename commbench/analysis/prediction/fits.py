"""Fits over message size: lines and segments, and the noise of the times they are fitted to."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from commbench.stats import Floats, median

#: Protocols such as eager, rendezvous and pipelined; more segments are noise on usual grids of
#: sizes.
MOST_SEGMENTS = 3
#: Any line meets two points exactly: it would have no error to report, and splitting would always
#: pay.
LEAST_SIZES = 3
#: Median absolute value of normal errors over their standard deviation.
MEDIAN_OF_NORMAL = 0.6745
#: Half-width of a 95 % interval over the median absolute error, for normal errors.
_HALF_WIDTH = 1.96 / MEDIAN_OF_NORMAL


class Noise(NamedTuple):
    """Random error of measured times."""

    error: float
    """Relative standard error of a time."""
    degrees: int
    """Degrees of freedom of the estimate; 0: unknown."""


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

    @classmethod
    def fit(cls, sizes: Floats, times_us: Floats) -> Segment:
        """Return the line through the times of ascending sizes."""
        alpha, beta = fit_line(sizes, times_us)
        first, last = int(sizes[0]), int(sizes[-1])
        return cls(from_bytes=first, to_bytes=last, alpha_us=alpha, beta_us_per_byte=beta)


def fit_line(sizes: Floats, times_us: Floats) -> tuple[float, float]:
    """Return (alpha, beta), neither below 0, that minimise the sum of squares of (alpha + beta n) /
    t - 1.

    Errors are relative, because times span six decades and the largest message would otherwise
    decide alpha.

    Args:
        sizes: bytes, shape (points,), two or more.
        times_us: above 0, shape (points,).
    """
    from scipy.optimize import nnls  # slow to import, and most commands fit nothing

    largest = sizes.max()
    columns = np.array([1 / times_us, sizes / largest / times_us]).T
    (alpha, beta), _ = nnls(columns, np.ones(len(sizes)))
    return float(alpha), float(beta / largest)


def fit_segments(sizes: Floats, times_us: Floats, noise: Noise) -> list[Segment]:
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

    @cache
    def squares_of(i: int, j: int) -> float:
        alpha, beta = fit_line(sizes[i:j], times_us[i:j])
        return float(np.sum(((alpha + beta * sizes[i:j]) / times_us[i:j] - 1) ** 2))

    count = len(sizes)
    least = math.inf
    best: tuple[int, ...] = (0, count)
    inner_places = range(LEAST_SIZES, count - LEAST_SIZES + 1)
    for number in range(1, MOST_SEGMENTS + 1):
        for inner in itertools.combinations(inner_places, number - 1):
            ends = (0, *inner, count)
            if number == 1 or min(np.diff(ends)) >= LEAST_SIZES:
                squares = sum(itertools.starmap(squares_of, itertools.pairwise(ends)))
                criterion = _criterion(squares, number, count, noise)
                if criterion < least:
                    least, best = criterion, ends
    return [Segment.fit(sizes[i:j], times_us[i:j]) for i, j in itertools.pairwise(best)]


def _criterion(squares: float, segments: int, count: int, noise: Noise) -> float:
    parameters, points = 3 * segments - 1, count + noise.degrees
    if segments > 1 and points <= parameters + 2:
        return math.inf
    penalty = parameters * math.log(points) * points / max(points - parameters - 2, 1)
    # errors below 0.1 % count as 0.1 %: a perfect fit must not have a criterion of minus infinity
    mean_square = max((squares + noise.degrees * noise.error**2) / points, 1e-6)
    return points * math.log(mean_square) + penalty


def log_half_width(error: float, doublings: float = 1.0) -> float:
    """Return the half-width, in natural logarithms, of the 95 % interval of predictions with a
    median absolute error.

    ``error`` is per doubling (of ranks, for instance); doublings are independent.
    """
    return _HALF_WIDTH * math.log1p(error) * math.sqrt(doublings)


def noise_of(launches_us: Floats) -> Noise:
    """Return the random error of medians over launches, from the spread of launches; of none for
    one launch.

    The mean deviation of each launch over sizes is removed, because it shifts a curve without
    bending it. The variance is the median over sizes, because a launch may have an outlier at some
    size, divided by the ratio of median to mean of chi-square (Wilson and Hilferty, PNAS 17, 1931).
    The error of a median is sqrt(pi / 2) that of a mean.

    Args:
        launches_us: above 0, shape (sizes, launches); no time may be missing.
    """
    sizes, launches = launches_us.shape
    degrees = launches - 1
    if degrees < 1:
        return Noise(0.0, 0)
    logs = np.log(launches_us)
    deviations = logs - np.median(logs, axis=1, keepdims=True)
    if sizes > 1:
        deviations -= np.median(deviations, axis=0)
    variances = np.sum(deviations**2, axis=1) / degrees
    variance = median(variances) / (1 - 2 / (9 * degrees)) ** 3 / launches
    if degrees > 1:
        variance *= math.pi / 2
    return Noise(math.sqrt(variance), degrees * sizes)
