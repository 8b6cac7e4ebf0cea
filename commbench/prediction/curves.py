"""How long an operation takes over its message size: piecewise alpha + beta n, fitted to launches, with its error."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from commbench.errors import InputError
from commbench.prediction.interpolation import cubic, isotonic, monotone_cubics
from commbench.prediction.segments import Segment, fit_line, fit_segments
from commbench.stats import Floats, Interval
from commbench.stats.ratios import widening

__all__ = ["Curve", "Segment", "fit_curve"]

RESAMPLES = 1000
_SEED = 20_261_121
LEVEL = 0.95
#: One size does not tell a start-up time from a rate.
LEAST_CURVE = 2


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Time over message size of one operation, as measured and as fitted."""

    sizes: Sequence[int]
    """Message sizes that were measured, in bytes, ascending."""
    times_us: Sequence[float]
    """The median over launches at each."""
    segments: Sequence[Segment]
    """Ascending and adjacent."""
    residuals: Sequence[float]
    """(fitted - measured) / measured at each size."""
    held_out_error: float | None = None
    """Median absolute relative error at sizes left out of the fit; None where there are too few to leave one out."""
    launches_us: Sequence[Sequence[float | None]] = ()
    """For each size the median time in every launch, in the same order of launches; None where one has none."""

    def time_us(self, message_bytes: float) -> float:
        """The predicted time: between sizes interpolated, beyond them by the outer segments.

        Inside the data the measured medians themselves predict, not the segments, which miss them by their residuals:
        made non-decreasing first (a longer message is no faster; where it was, noise or a change of protocol is
        pooled), then joined by monotone cubics of log time over log size. Logarithms, since sizes and times spread over
        decades; cubics, since a straight line there lies above every curve that bends from start-up time to rate.
        Beyond the data the outer segment, scaled to meet the outermost time: no jump, never down and never below 0.
        Scaled, not shifted, since what a segment misses there is rather its rate than a constant.
        """
        first_us, last_us, pieces = self._joined
        if not self.sizes[0] < message_bytes < self.sizes[-1]:
            at = 0 if message_bytes <= self.sizes[0] else -1
            outer, anchor_us = self.segments[at], (first_us, last_us)[at]
            return anchor_us * outer.time_us(max(message_bytes, 0)) / outer.time_us(self.sizes[at])
        i, place = _place(self._logs, message_bytes)
        return math.exp(cubic(pieces[i], place))

    def interval_us(self, message_bytes: float) -> Interval | None:
        """Its 95 % interval, by resampling launches; None where fewer than 2 launches bear on that size.

        All sizes keep the same launches in a resample, since a slow launch is slow at all of them. The interval knows
        how launches differ and not what lies between sizes: for that see `held_out_error`. Same data, same interval.
        """
        launches = self._launches_at(message_bytes)
        if launches < 2:  # noqa: PLR2004 - one launch has no spread
            return None
        centre = self.time_us(message_bytes)
        resampled = self._resampled_us(message_bytes)
        sides = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        low, high = (centre * (sides / centre) ** widening(launches)).tolist()
        return Interval(low=min(low, centre), high=max(high, centre), level=LEVEL)

    @cached_property
    def _joined(self) -> tuple[float, float, list[list[float]]]:
        """The monotone times at both ends, and the cubics between: plain numbers, for predictions ask very often."""
        y, pieces = _join(self._logs, np.asarray(self.times_us))
        return math.exp(y[0]), math.exp(y[-1]), pieces.tolist()

    @cached_property
    def _logs(self) -> list[float]:
        return [math.log(size) for size in self.sizes]

    def _launches_at(self, message_bytes: float) -> int:
        """How many launches there are at the size's neighbours, or where it is beyond them in the outer segment."""
        if not self.launches_us:
            return 0
        after = bisect_right(self.sizes, message_bytes)
        near = range(max(after - 1, 0), min(after + 1, len(self.sizes)))
        if message_bytes > self.sizes[-1] or message_bytes < self.sizes[0]:
            outer = self.segments[-1 if after else 0]
            near = range(self.sizes.index(outer.from_bytes), self.sizes.index(outer.to_bytes) + 1)
        elif message_bytes == self.sizes[after - 1]:
            near = range(after - 1, after)
        return min(sum(time is not None for time in self.launches_us[i]) for i in near)

    @cached_property
    def _resamples(self) -> Floats:
        """Medians over resampled launches, shape (resamples, sizes)."""
        table = _table(self.launches_us)
        draws = np.random.default_rng(_SEED).integers(0, table.shape[1], (RESAMPLES, table.shape[1]))
        drawn = np.sort(table[:, draws], axis=-1)  # NaN last
        counts = np.isfinite(drawn).sum(axis=-1, keepdims=True)
        middles = (np.take_along_axis(drawn, np.maximum((counts - less) // 2, 0), axis=-1) for less in (1, 0))
        medians = np.mean([*middles], axis=0)[..., 0].T
        # a resample may have drawn no launch that has this size: then it says nothing about it
        return np.where(counts[..., 0].T > 0, medians, self.times_us)

    @cached_property
    def _resampled_joined(self) -> tuple[Floats, Floats]:
        return _join(self._logs, self._resamples)

    def _resampled_us(self, message_bytes: float) -> Floats:
        """`time_us` of every resample, with the breakpoints as they are; shape (resamples,)."""
        y, pieces = self._resampled_joined
        if not self.sizes[0] < message_bytes < self.sizes[-1]:
            at = 0 if message_bytes <= self.sizes[0] else -1
            alpha, beta = np.moveaxis(self._refitted(self.segments[at]), -1, 0)
            line = (alpha + beta * max(message_bytes, 0)) / (alpha + beta * self.sizes[at])
            return np.asarray(np.exp(y[:, at]) * line)
        i, place = _place(self._logs, message_bytes)
        return np.asarray(np.exp(cubic(np.moveaxis(pieces[:, i], -1, 0), place)))

    def _refitted(self, segment: Segment) -> Floats:
        within = slice(self.sizes.index(segment.from_bytes), self.sizes.index(segment.to_bytes) + 1)
        return fit_line(np.asarray(self.sizes[within], dtype=float), self._resamples[:, within])

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers."""
        return {
            "sizes": list(self.sizes),
            "times_us": list(self.times_us),
            "segments": [dataclasses.asdict(segment) for segment in self.segments],
            "residuals": list(self.residuals),
            "held_out_error": self.held_out_error,
            "launches_us": [list(launches) for launches in self.launches_us],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Curve:
        """Return what `to_json` wrote; entries that this version does not know are ignored.

        Raises:
            InputError: it is no curve.
        """
        try:
            curve = cls(
                sizes=tuple(int(size) for size in data["sizes"]),
                times_us=tuple(float(time) for time in data["times_us"]),
                segments=tuple(Segment.from_json(segment) for segment in data["segments"]),
                residuals=tuple(float(residual) for residual in data["residuals"]),
                held_out_error=None if data["held_out_error"] is None else float(data["held_out_error"]),
                launches_us=tuple(
                    tuple(None if time is None else float(time) for time in launches)
                    for launches in data["launches_us"]
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"This is no curve of commbench ({type(error).__name__}: {error}); fit the run anew."
            ) from error
        if not _is_sound(curve):
            raise InputError(
                "This is no curve of commbench (its sizes, times and segments disagree); fit the run anew."
            )
        return curve


def _is_sound(curve: Curve) -> bool:
    """Whether a curve that was read can be computed with."""
    sizes, ends = list(curve.sizes), [end for s in curve.segments for end in (s.from_bytes, s.to_bytes)]
    return (
        len(sizes) >= LEAST_CURVE
        and sizes == sorted(set(sizes))
        and sizes[0] > 0
        and {len(curve.times_us), len(curve.residuals), len(curve.launches_us)} == {len(sizes)}
        and len({len(launches) for launches in curve.launches_us}) == 1
        and all(math.isfinite(time) and time > 0 for time in curve.times_us)
        and all(time is None or time > 0 for launches in curve.launches_us for time in launches)
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
    table = _table(launches)
    times, sized = np.nanmedian(table, axis=1), np.asarray(kept, dtype=float)
    segments = fit_segments(sized, times, *_noise(table, times))
    fitted = [next(s for s in segments if size <= s.to_bytes).time_us(size) for size in kept]
    return Curve(
        sizes=tuple(kept),
        times_us=tuple(times.tolist()),
        segments=tuple(segments),
        residuals=tuple((np.asarray(fitted) / times - 1).tolist()),
        held_out_error=_held_out_error(sized, times),
        launches_us=launches,
    )


def _known(time: float | None) -> float | None:
    return float(time) if time is not None and math.isfinite(time) and time > 0 else None


def _table(launches_us: Sequence[Sequence[float | None]]) -> Floats:
    """Shape (sizes, launches), NaN where there is none."""
    return np.array([[math.nan if time is None else time for time in row] for row in launches_us])


def _noise(table: Floats, times: Floats) -> tuple[float, int]:
    """The relative standard error of the medians, and the degrees of freedom behind it; (0, 0) from one launch.

    Pooled over sizes, from the median distance of launches to their median, since single launches stray far. A median's
    error is sqrt(pi / 2) that of a mean.
    """
    counts = np.isfinite(table).sum(axis=1)
    several = counts > 1
    if not several.any():
        return 0.0, 0
    distances = np.abs(table[several] / times[several, None] - 1)
    # a launch is nearer to a median that it helped to make
    spread = 1.4826 * float(np.nanmedian(distances)) * math.sqrt(counts[several].mean() / (counts[several].mean() - 1))
    error = spread * math.sqrt(math.pi / 2 / counts[several].mean())
    return error, int((counts[several] - 1).sum())


def _join(logs: Sequence[float] | Floats, times_us: Floats) -> tuple[Floats, Floats]:
    """Logarithms of the times, made monotone, and the cubics between them."""
    y = isotonic(np.log(times_us))
    return y, monotone_cubics(np.asarray(logs), y)


def _place(logs: Sequence[float], message_bytes: float) -> tuple[int, float]:
    """Between which two sizes one lies, and how far from the lower one, as a share of the logarithmic distance."""
    at = math.log(message_bytes)
    i = min(max(bisect_right(logs, at) - 1, 0), len(logs) - 2)
    return i, (at - logs[i]) / (logs[i + 1] - logs[i])


def _held_out_error(sizes: Floats, times_us: Floats) -> float | None:
    """The median of |predicted / measured - 1| at every inner size, predicted from all the others."""
    errors = []
    for i in range(1, len(sizes) - 1):
        logs = np.log(np.delete(sizes, i))
        _, pieces = _join(logs, np.delete(times_us, i))
        piece, place = _place(logs.tolist(), sizes[i])
        errors.append(abs(math.exp(cubic(pieces[piece].tolist(), place)) / times_us[i] - 1))
    return float(np.median(errors)) if errors else None
