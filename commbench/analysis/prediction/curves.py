"""How long an operation takes over its message size: piecewise alpha + beta n, fitted to launches, with its error."""

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
    isotonic,
    lines_at,
    log_half_width,
    medians_over_launches,
    monotone_cubics,
    noise_of,
    parameter_interval,
    place_between,
    resampled_medians,
    table_of,
)
from commbench.errors import InputError
from commbench.schema import JsonMapping, JsonObject, Signed, read_as
from commbench.stats import Floats, Interval

#: A picosecond: no time that was measured is shorter, and what is computed from longer ones stays finite.
SHORTEST_US = 1e-6

__all__ = ["Curve", "Segment", "fit_curve"]

#: One size does not tell a start-up time from a rate.
LEAST_CURVE = 2
#: What is assumed of a prediction's median absolute error, for each doubling, where it was not measured.
ASSUMED_ERROR = 0.25


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Time over message size of one operation, as measured and as fitted."""

    sizes: tuple[int, ...]
    """Message sizes that were measured, in bytes, ascending."""
    times_us: tuple[float, ...]
    """The median over launches at each."""
    segments: tuple[Segment, ...]
    """Ascending and adjacent."""
    residuals: tuple[Signed, ...]
    """(fitted - measured) / measured at each size."""
    held_out_error: float | None = None
    """Median absolute relative error at sizes left out of the fit; None where there are too few to leave one out."""
    launches_us: tuple[tuple[float | None, ...], ...] = ()
    """For each size the median time in every launch, in the same order of launches; None where one has none."""
    trust: float = 1.0
    """How far measured times count beside the segments, 0 to 1: what of the residuals noise does not explain."""

    def time_us(self, message_bytes: float) -> float:
        """The predicted time: between sizes interpolated, beyond them by the outer segments.

        Inside the data measured medians predict better than segments, which miss them by their residuals, and worse
        where these are mere noise: each counts by `trust`. The result is made non-decreasing (a longer message is no
        faster; where it was, noise or a change of protocol is pooled) and joined by monotone cubics of log time over
        log size. Logarithms, since sizes and times spread over decades; cubics, since a straight line there lies above
        every curve that bends from start-up time to rate. Beyond the data it is the outer segment, scaled to meet the
        outermost time: no jump, never down and never below 0. Scaled, not shifted, since what a segment misses there is
        rather its rate than a constant.
        """
        first_us, last_us, pieces = self._joined
        if not self.sizes[0] < message_bytes < self.sizes[-1]:
            at = 0 if message_bytes <= self.sizes[0] else -1
            outer, anchor_us = self.segments[at], (first_us, last_us)[at]
            return anchor_us * outer.time_us(max(message_bytes, 0)) / outer.time_us(self.sizes[at])
        i, place = place_between(self._logs, math.log(message_bytes))
        return math.exp(cubic(pieces[i], place))

    def interval_us(self, message_bytes: float) -> Interval | None:
        """Its 95 % interval, by resampling launches; None where fewer than 2 launches bear on that size.

        It knows how launches differ and not what lies between sizes: for that see `held_out_error`. Beyond the sizes
        it knows that, too (`half_width_beyond_sizes`). Same data, same interval.
        """
        launches, time_us = self._launches_at(message_bytes), self.time_us(message_bytes)
        resampled = self._resampled_us(message_bytes) if launches > 1 else np.array([])
        interval, off = interval_of(time_us, resampled, launches), self.half_width_beyond_sizes(message_bytes)
        if interval is None or not off:
            return interval
        low, high = (math.hypot(math.log(end / time_us), off) for end in (interval.low, interval.high))
        return dataclasses.replace(interval, low=time_us * math.exp(-low), high=time_us * math.exp(high))

    def half_width_beyond_sizes(self, message_bytes: float) -> float:
        """How far a time beyond the sizes may be off, in natural logarithms: half a 95 % interval; 0 between them.

        For each doubling of the largest size the error is that at sizes left out, or assumed where none could be; below
        the smallest, where time hardly falls further, it is that once.
        """
        error = ASSUMED_ERROR if self.held_out_error is None else self.held_out_error
        if message_bytes < self.sizes[0]:
            return log_half_width(error, min(1.0, math.log2(self.sizes[0] / max(message_bytes, 1))))
        return log_half_width(error, max(0.0, math.log2(message_bytes / self.sizes[-1])))

    @cached_property
    def parameter_intervals(self) -> Sequence[tuple[Interval | None, Interval | None]]:
        """For each segment the 95 % intervals of its alpha (us) and beta (us per byte), by resampling launches.

        Where the segment ends is taken as known. None where fewer than 2 launches have a size of it.
        """
        found = []
        for segment in self.segments:
            launches = self._launches_of(segment)
            own = (segment.alpha_us, segment.beta_us_per_byte)
            resampled = self._refitted(segment).T if launches > 1 else np.zeros((len(own), 1))
            alpha, beta = (parameter_interval(at, drawn, launches) for at, drawn in zip(own, resampled, strict=True))
            found.append((alpha, beta))
        return found

    @cached_property
    def _joined(self) -> tuple[float, float, list[list[float]]]:
        """The monotone times at both ends, and the cubics between: plain numbers, for predictions ask very often."""
        y, pieces = self._join(np.asarray(self.times_us))
        return math.exp(y[0]), math.exp(y[-1]), pieces.tolist()

    @cached_property
    def _logs(self) -> list[float]:
        return [math.log(size) for size in self.sizes]

    def _join(self, times_us: Floats) -> tuple[Floats, Floats]:
        """Logarithms of monotone times at the sizes, and the cubics between; for times of shape (..., sizes)."""
        lines = np.log(lines_at(self.segments, np.asarray(self.sizes, dtype=float), times_us))
        y = isotonic(lines + self.trust * (np.log(times_us) - lines))
        return y, monotone_cubics(np.asarray(self._logs), y)

    def _launches_at(self, message_bytes: float) -> int:
        """How many launches there are at the size's neighbours, or where it is beyond them in the outer segment."""
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
        """How many launches all sizes of a segment have."""
        within = self.launches_us[self._within(segment)]
        return min((sum(time is not None for time in times) for times in within), default=0)

    def _within(self, segment: Segment) -> slice:
        return slice(self.sizes.index(segment.from_bytes), self.sizes.index(segment.to_bytes) + 1)

    @cached_property
    def _resamples(self) -> Floats:
        return resampled_medians(table_of(self.launches_us))

    @cached_property
    def _resampled_joined(self) -> tuple[Floats, Floats]:
        return self._join(self._resamples)

    def _resampled_us(self, message_bytes: float) -> Floats:
        """`time_us` of every resample, with the breakpoints as they are; shape (resamples,)."""
        y, pieces = self._resampled_joined
        if not self.sizes[0] < message_bytes < self.sizes[-1]:
            at = 0 if message_bytes <= self.sizes[0] else -1
            alpha, beta = np.moveaxis(self._refitted(self.segments[at]), -1, 0)
            line = (alpha + beta * max(message_bytes, 0)) / (alpha + beta * self.sizes[at])
            return np.asarray(np.exp(y[:, at]) * line)
        i, place = place_between(self._logs, math.log(message_bytes))
        return np.asarray(np.exp(cubic(np.moveaxis(pieces[:, i], -1, 0), place)))

    def _refitted(self, segment: Segment) -> Floats:
        within = self._within(segment)
        return fit_line(np.asarray(self.sizes[within], dtype=float), self._resamples[:, within])

    def to_json(self) -> JsonObject:
        """Return plain lists and numbers."""
        return {
            "sizes": list(self.sizes),
            "times_us": list(self.times_us),
            "segments": [
                dataclasses.asdict(segment) | {"alpha_us_ci": _ends(alpha), "beta_us_per_byte_ci": _ends(beta)}
                for segment, (alpha, beta) in zip(self.segments, self.parameter_intervals, strict=True)
            ],
            "residuals": list(self.residuals),
            "held_out_error": self.held_out_error,
            "launches_us": [list(launches) for launches in self.launches_us],
            "trust": self.trust,
        }

    @classmethod
    def from_json(cls, data: JsonMapping) -> Curve:
        """Return what `to_json` wrote; entries that this version does not know are ignored.

        Raises:
            InputError: it is no curve.
        """
        try:
            curve = read_as(cls, data)
        except InputError as error:
            raise InputError(f"This is no curve of commbench ({error}); fit the run anew.") from error
        if not _is_sound(curve):
            raise InputError(
                "This is no curve of commbench (its sizes, times and segments disagree); fit the run anew."
            )
        return curve


def _ends(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def _is_sound(curve: Curve) -> bool:
    """Whether a curve that was read can be computed with."""
    sizes, ends = list(curve.sizes), [end for s in curve.segments for end in (s.from_bytes, s.to_bytes)]
    return (
        len(sizes) >= LEAST_CURVE
        and sizes == sorted(set(sizes))
        and sizes[0] > 0
        and {len(curve.times_us), len(curve.residuals), len(curve.launches_us)} == {len(sizes)}
        and len({len(launches) for launches in curve.launches_us}) == 1
        and all(time >= SHORTEST_US for time in curve.times_us)
        and all(time is None or time >= SHORTEST_US for launches in curve.launches_us for time in launches)
        and 0 <= curve.trust <= 1
        and bool(ends)
        and [ends[0], ends[-1]] == [sizes[0], sizes[-1]]
        and ends == sorted(ends)
        and set(ends) <= set(sizes)
        and all(min(s.alpha_us, s.beta_us_per_byte) >= 0 < s.time_us(s.from_bytes) for s in curve.segments)
    )


def fit_curve(sizes: Sequence[int], launches_us: Sequence[Sequence[float | None]]) -> Curve:
    """Fit a curve to relative error, with breakpoints chosen by BIC.

    Args:
        sizes: message sizes in bytes, each once, in any order.
        launches_us: for each size the median time of every launch, in the same order of launches, None or NaN where
            one has none. A time that is not above 0 counts as none: the clock did not see it, and no error is relative
            to 0.

    Raises:
        InputError: fewer than 2 sizes have a time above 0, or a size is given twice.
    """
    if len(set(sizes)) < len(sizes) or len(sizes) != len(launches_us):
        raise InputError("A curve takes each message size once, with its launches; sum up repeated sizes first.")
    known = {size: [_known(time) for time in launches] for size, launches in zip(sizes, launches_us, strict=True)}
    kept = sorted(size for size, launches in known.items() if size > 0 and any(time is not None for time in launches))
    if len(kept) < LEAST_CURVE:
        raise InputError(
            f"A curve needs {LEAST_CURVE} message sizes with a time above 0 and {len(kept)} "
            f"{'has' if len(kept) == 1 else 'have'} one; measure more sizes."
        )
    most = max(len(known[size]) for size in kept)
    launches = tuple((*known[size], *[None] * (most - len(known[size]))) for size in kept)
    table, sized = table_of(launches), np.array(kept)
    times, noise = medians_over_launches(table), noise_of(table)
    errors = [
        abs(_fit(np.delete(sized, i), np.delete(times, i), noise).time_us(kept[i]) / times[i] - 1)
        for i in range(1, len(kept) - 1)
    ]
    held_out_error = float(np.median(errors)) if errors else None
    return replace(_fit(sized, times, noise), launches_us=launches, held_out_error=held_out_error)


def _known(time: float | None) -> float | None:
    return float(time) if time is not None and math.isfinite(time) and time > 0 else None


def _fit(sizes: NDArray[np.int64], times_us: Floats, noise: Noise) -> Curve:
    """The curve of medians, without what is known of launches and errors."""
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
    """The share of the residuals' variance that noise does not explain, after James and Stein: 0 if it explains all."""
    variance = float(np.sum(residuals**2)) / max(len(residuals) - parameters, 1)
    return max(0.0, 1 - noise.error**2 / variance) if noise.degrees and variance > 0 else 1.0
