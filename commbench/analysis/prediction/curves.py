"""Time of an operation over message size: piecewise alpha + beta n, fitted to launches, with its
error.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.prediction.fits import (
    Noise,
    Segment,
    cubic,
    fit_line,
    fit_segments,
    interval_of,
    interval_position,
    isotonic,
    lines_at,
    log_half_width,
    medians_over_launches,
    monotone_cubics,
    noise_of,
    parameter_interval,
    resampled_medians,
    times_array,
)
from commbench.errors import InputError
from commbench.schema import JsonObject
from commbench.stats import Floats, Interval

#: A single size cannot separate start-up time from bandwidth.
LEAST_CURVE = 2
#: Assumed median absolute error per doubling if it was not measured.
ASSUMED_ERROR = 0.25


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Time over message size of one operation, as measured and as fitted."""

    sizes: tuple[int, ...]
    """Measured message sizes in bytes, ascending."""
    times_us: tuple[float, ...]
    """Median over launches at each size."""
    segments: tuple[Segment, ...]
    """Ascending and adjacent."""
    residuals: tuple[float, ...]
    """(fitted - measured) / measured at each size."""
    held_out_error: float | None = None
    """Median absolute relative error at held-out sizes; None if there are too few sizes to hold
    one out."""
    launches_us: tuple[tuple[float | None, ...], ...] = ()
    """Median time of each launch, by size; the order of launches is the same for all sizes;
    None: no time."""
    trust: float = 1.0
    """Weight of measured times against the segments, 0 to 1: the share of residual variance
    beyond noise."""

    def time_us(self, message_bytes: float) -> float:
        """Return the predicted time: interpolated between sizes, extrapolated by the outer
        segments.

        Between sizes, measured medians and segments are averaged with weight `trust`, made
        non-decreasing by isotonic regression, and joined by monotone cubics of log time over log
        size. The logarithms are there because sizes and times span decades. The cubics are there
        because straight lines would lie above a curve that bends from start-up time to bandwidth.
        Outside the sizes, the outer segment is scaled to meet the outermost time: it is continuous,
        non-decreasing and positive.
        """
        first_us, last_us, pieces = self._joined
        if not self.sizes[0] < message_bytes < self.sizes[-1]:
            at = 0 if message_bytes <= self.sizes[0] else -1
            outer, anchor_us = self.segments[at], (first_us, last_us)[at]
            return anchor_us * outer.time_us(max(message_bytes, 0)) / outer.time_us(self.sizes[at])
        i, position = interval_position(self._logs, math.log(message_bytes))
        return math.exp(cubic(pieces[i], position))

    def interval_us(self, message_bytes: float) -> Interval | None:
        """Return the 95 % interval from resampled launches.

        None with fewer than 2 launches at that size.

        Between sizes it covers the spread of launches only; `held_out_error` covers the rest.
        Outside the sizes it also covers the extrapolation error (`half_width_beyond_sizes`). The
        same data give the same interval.
        """
        launches, time_us = self._launches_at(message_bytes), self.time_us(message_bytes)
        resampled = self._resampled_us(message_bytes) if launches > 1 else np.array([])
        interval, half_width = (
            interval_of(time_us, resampled, launches),
            self.half_width_beyond_sizes(message_bytes),
        )
        if interval is None or not half_width:
            return interval
        low, high = (
            math.hypot(math.log(end / time_us), half_width) for end in (interval.low, interval.high)
        )
        return dataclasses.replace(
            interval, low=time_us * math.exp(-low), high=time_us * math.exp(high)
        )

    def half_width_beyond_sizes(self, message_bytes: float) -> float:
        """Return the half-width of the 95 % interval of an extrapolation, in natural logarithms; 0
        between sizes.

        The error per doubling is that at held-out sizes, or assumed if no size could be held out.
        Above the sizes it grows with each doubling. Below them it counts once, because time hardly
        falls further.
        """
        error = ASSUMED_ERROR if self.held_out_error is None else self.held_out_error
        if message_bytes < self.sizes[0]:
            return log_half_width(error, min(1.0, math.log2(self.sizes[0] / max(message_bytes, 1))))
        return log_half_width(error, max(0.0, math.log2(message_bytes / self.sizes[-1])))

    @cached_property
    def parameter_intervals(self) -> Sequence[tuple[Interval | None, Interval | None]]:
        """Return the 95 % intervals of each segment's alpha (us) and beta (us per byte), from
        resampled launches.

        The breakpoints count as known. None with fewer than 2 launches in the segment.
        """
        intervals = []
        for segment in self.segments:
            launches = self._launches_of(segment)
            fitted = (segment.alpha_us, segment.beta_us_per_byte)
            resampled = self._refitted(segment).T if launches > 1 else np.zeros((len(fitted), 1))
            alpha, beta = (
                parameter_interval(at, line, launches)
                for at, line in zip(fitted, resampled, strict=True)
            )
            intervals.append((alpha, beta))
        return intervals

    @cached_property
    def _joined(self) -> tuple[float, float, list[list[float]]]:
        """Return the monotone times at both ends and the cubics between them, as plain numbers for
        speed.
        """
        y, pieces = self._join(np.asarray(self.times_us))
        return math.exp(y[0]), math.exp(y[-1]), pieces.tolist()

    @cached_property
    def _logs(self) -> list[float]:
        return [math.log(size) for size in self.sizes]

    def _join(self, times_us: Floats) -> tuple[Floats, Floats]:
        """Return log times, made monotone, at the sizes, and the cubics between them.

        Leading axes are kept.
        """
        lines = np.log(lines_at(self.segments, np.asarray(self.sizes, dtype=float), times_us))
        y = isotonic(lines + self.trust * (np.log(times_us) - lines))
        return y, monotone_cubics(np.asarray(self._logs), y)

    def _launches_at(self, message_bytes: float) -> int:
        """Return the number of launches at the neighbouring sizes, or of the outer segment outside
        the sizes.
        """
        if not self.launches_us:
            return 0
        after = bisect_right(self.sizes, message_bytes)
        near = range(max(after - 1, 0), min(after + 1, len(self.sizes)))
        if message_bytes > self.sizes[-1] or message_bytes < self.sizes[0]:
            return self._launches_of(self.segments[-1 if after else 0])
        if message_bytes == self.sizes[after - 1]:
            near = range(after - 1, after)
        return min(sum(time is not None for time in self.launches_us[i]) for i in near)

    def _launches_of(self, segment: Segment) -> int:
        """Return the number of launches that have all sizes of a segment."""
        within = self.launches_us[self._within(segment)]
        return min((sum(time is not None for time in times) for times in within), default=0)

    def _within(self, segment: Segment) -> slice:
        return slice(self.sizes.index(segment.from_bytes), self.sizes.index(segment.to_bytes) + 1)

    @cached_property
    def _resamples(self) -> Floats:
        return resampled_medians(times_array(self.launches_us))

    @cached_property
    def _resampled_joined(self) -> tuple[Floats, Floats]:
        return self._join(self._resamples)

    def _resampled_us(self, message_bytes: float) -> Floats:
        """Return `time_us` of every resample with the same breakpoints; shape (resamples,)."""
        y, pieces = self._resampled_joined
        if not self.sizes[0] < message_bytes < self.sizes[-1]:
            at = 0 if message_bytes <= self.sizes[0] else -1
            alpha, beta = np.moveaxis(self._refitted(self.segments[at]), -1, 0)
            line = (alpha + beta * max(message_bytes, 0)) / (alpha + beta * self.sizes[at])
            return np.asarray(np.exp(y[:, at]) * line)
        i, position = interval_position(self._logs, math.log(message_bytes))
        return np.asarray(np.exp(cubic(np.moveaxis(pieces[:, i], -1, 0), position)))

    def _refitted(self, segment: Segment) -> Floats:
        within = self._within(segment)
        return fit_line(np.asarray(self.sizes[within], dtype=float), self._resamples[:, within])

    def to_json(self) -> JsonObject:
        """Return lists and numbers."""
        return {
            "sizes": list(self.sizes),
            "times_us": list(self.times_us),
            "segments": [
                dataclasses.asdict(segment)
                | {
                    "alpha_us_ci": _ends(alpha),
                    "beta_us_per_byte_ci": _ends(beta),
                }
                for segment, (alpha, beta) in zip(
                    self.segments, self.parameter_intervals, strict=True
                )
            ],
            "residuals": list(self.residuals),
            "held_out_error": self.held_out_error,
            "launches_us": [list(launches) for launches in self.launches_us],
            "trust": self.trust,
        }


def _ends(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def fit_curve(sizes: Sequence[int], launches_us: Sequence[Sequence[float | None]]) -> Curve:
    """Fit a curve to relative error, with breakpoints chosen by BIC.

    Args:
        sizes: message sizes in bytes, each once, in any order.
        launches_us: for each size the median time of every launch, in the same order of launches;
            None or NaN if a launch has no time. Times of 0, below the clock's resolution, count as
            missing.

    Raises:
        InputError: fewer than 2 sizes have a time above 0, or a size is given twice.
    """
    if len(set(sizes)) < len(sizes) or len(sizes) != len(launches_us):
        raise InputError(
            "A curve takes each message size once, with its launches; merge repeated sizes first."
        )
    positive_times = {
        size: [_positive_time(time) for time in launches]
        for size, launches in zip(sizes, launches_us, strict=True)
    }
    timed_sizes = sorted(
        size
        for size, launches in positive_times.items()
        if size > 0 and any(time is not None for time in launches)
    )
    if len(timed_sizes) < LEAST_CURVE:
        raise InputError(
            f"A curve needs {LEAST_CURVE} message sizes with a time above 0 and {len(timed_sizes)} "
            f"{'has' if len(timed_sizes) == 1 else 'have'} one; measure more sizes."
        )
    most = max(len(positive_times[size]) for size in timed_sizes)
    launches = tuple(
        (*positive_times[size], *[None] * (most - len(positive_times[size])))
        for size in timed_sizes
    )
    table, sized = times_array(launches), np.array(timed_sizes)
    times, noise = medians_over_launches(table), noise_of(table)
    errors = [
        abs(
            _fit(np.delete(sized, i), np.delete(times, i), noise).time_us(timed_sizes[i]) / times[i]
            - 1
        )
        for i in range(1, len(timed_sizes) - 1)
    ]
    held_out_error = float(np.median(errors)) if errors else None
    return replace(_fit(sized, times, noise), launches_us=launches, held_out_error=held_out_error)


def _positive_time(time: float | None) -> float | None:
    return float(time) if time is not None and math.isfinite(time) and time > 0 else None


def _fit(sizes: NDArray[np.int64], times_us: Floats, noise: Noise) -> Curve:
    """Return the curve of medians, without launches and held-out error."""
    segments = fit_segments(sizes.astype(float), times_us, noise)
    residuals = lines_at(segments, sizes.astype(float), times_us) / times_us - 1
    return Curve(
        sizes=tuple(sizes.tolist()),
        times_us=tuple(times_us.tolist()),
        segments=tuple(segments),
        residuals=tuple(residuals.tolist()),
        trust=_trust(residuals, 3 * len(segments) - 1, noise),
    )


def _trust(residuals: Floats, parameters: int, noise: Noise) -> float:
    """Return the share of the residuals' variance that noise does not explain (James-Stein); 0 if
    it explains all.
    """
    variance = float(np.sum(residuals**2)) / max(len(residuals) - parameters, 1)
    return max(0.0, 1 - noise.error**2 / variance) if noise.degrees and variance > 0 else 1.0
