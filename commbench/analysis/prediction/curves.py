"""Time of an operation over message size: piecewise alpha + beta n, fitted to launches, with its
error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from commbench.analysis.prediction.fits import Segment, fit_segments, log_half_width, noise_of
from commbench.schema import JsonObject
from commbench.stats import Floats, Interval, bounds_of, launch_interval, median


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Time over message size of one operation, as measured and as fitted."""

    sizes: tuple[int, ...]
    """Measured message sizes in bytes, ascending."""
    times_us: tuple[float, ...]
    """Median over launches at each size."""
    segments: tuple[Segment, ...]
    """Ascending and adjacent."""
    residuals: tuple[float, ...] = ()
    """(fitted - measured) / measured at each size."""
    held_out_error: float = math.nan
    """Median absolute relative error at held-out sizes; NaN in `launch_curves`."""
    launches_us: tuple[tuple[float | None, ...], ...] = ()
    """Median time of each launch, by size; the order of launches is the same for all sizes;
    None: no time."""

    def time_us(self, message_bytes: float) -> float:
        """Return the predicted time: interpolated between sizes, extrapolated by the outer
        segments.

        Outside the sizes, the outer segment is scaled to meet the outermost time: the curve is
        continuous, non-decreasing and positive.
        """
        nearest = min(max(message_bytes, self.sizes[0]), self.sizes[-1])
        time_us = self._between(nearest)
        if message_bytes == nearest:
            return time_us
        outer = self.segments[0 if message_bytes < nearest else -1]
        return time_us * outer.time_us(max(message_bytes, 0)) / outer.time_us(nearest)

    def interval_us(self, message_bytes: float) -> Interval | None:
        """Return the 95 % interval over launches of `time_us`.

        None with fewer than 2 launches that have all sizes. Between sizes it covers the spread of
        launches only; `held_out_error` covers the rest. Outside the sizes it also covers the
        extrapolation error (`half_width_beyond_sizes`).
        """
        time_us = self.time_us(message_bytes)
        of_launches = [launch.time_us(message_bytes) for launch in self.launch_curves]
        interval = launch_interval(of_launches)
        if interval is None:
            return None
        beyond = self.half_width_beyond_sizes(message_bytes)
        low, high = (
            math.hypot(width, beyond) for width in interval.including(time_us).logs(time_us)
        )
        return replace(interval, low=time_us * math.exp(-low), high=time_us * math.exp(high))

    def half_width_beyond_sizes(self, message_bytes: float) -> float:
        """Return the half-width of the 95 % interval of an extrapolation, in natural logarithms; 0
        between sizes.

        The error per doubling is that at held-out sizes. Above the sizes it grows with each
        doubling. Below them it counts once, because time hardly falls further.
        """
        error = self.held_out_error
        if message_bytes < self.sizes[0]:
            return log_half_width(error, min(1.0, math.log2(self.sizes[0] / max(message_bytes, 1))))
        return log_half_width(error, max(0.0, math.log2(message_bytes / self.sizes[-1])))

    @cached_property
    def parameter_intervals(self) -> Sequence[tuple[Interval | None, Interval | None]]:
        """Return the 95 % intervals of each segment's alpha (us) and beta (us per byte), over
        launches.

        The breakpoints count as known. None with fewer than 2 launches that have all sizes, and
        with 2 to 5 if a value is 0.
        """
        intervals = []
        for place, segment in enumerate(self.segments):
            own = [launch.segments[place] for launch in self.launch_curves]
            alpha = launch_interval([each.alpha_us for each in own])
            beta = launch_interval([each.beta_us_per_byte for each in own])
            alpha = alpha and alpha.including(segment.alpha_us)
            intervals.append((alpha, beta and beta.including(segment.beta_us_per_byte)))
        return intervals

    @cached_property
    def launch_curves(self) -> list[Curve]:
        """The curve of each launch that has all sizes, with the same breakpoints."""
        curves = []
        sizes = np.array(self.sizes, dtype=float)
        for times_us in zip(*self.launches_us, strict=True):
            if None not in times_us:
                segments = []
                for each in self.segments:
                    within = (sizes >= each.from_bytes) & (sizes <= each.to_bytes)
                    segments.append(Segment.fit(sizes[within], np.array(times_us)[within]))
                curves.append(Curve(sizes=self.sizes, times_us=times_us, segments=tuple(segments)))
        return curves

    @cached_property
    def _between(self) -> Callable[[float], float]:
        return joined(np.array(self.sizes, dtype=float), np.array(self.times_us))

    def to_json(self) -> JsonObject:
        """Return lists and numbers."""
        columns = dataclasses.asdict(self)
        for segment, intervals in zip(columns["segments"], self.parameter_intervals, strict=True):
            segment["alpha_us_ci"], segment["beta_us_per_byte_ci"] = map(bounds_of, intervals)
        return columns


def joined(sizes: Floats, times_us: Floats) -> Callable[[float], float]:
    """Return the time by size between the sizes, of which there are two or more.

    Times are made non-decreasing by isotonic regression and joined by monotone cubics (PCHIP:
    Fritsch and Butland, SIAM J. Sci. Stat. Comput. 5, 1984) of log time over log size. The
    logarithms are there because sizes and times span decades; the cubics, because straight lines
    would lie above a curve that bends from start-up time to bandwidth.
    """
    # slow to import, and most commands fit nothing
    from scipy.interpolate import PchipInterpolator
    from scipy.optimize import isotonic_regression

    # pooling sums values: rounding must not make them decrease
    logs = np.maximum.accumulate(isotonic_regression(np.log(times_us)).x)
    cubics = PchipInterpolator(np.log(sizes), logs)
    return lambda size: float(np.exp(cubics(np.log(size))))


def fit_curve(table: Mapping[int, Mapping[int, float]]) -> Curve:
    """Fit a curve to relative error, with breakpoints chosen by BIC.

    Args:
        table: for three or more message sizes the median time of each launch, above 0; a launch may
            lack sizes.
    """
    launches = sorted(set().union(*table.values()))
    sizes = np.array(sorted(table), dtype=float)
    launches_us = tuple(tuple(map(table[size].get, launches)) for size in sorted(table))
    times_us = np.array(launches_us, dtype=float)
    medians_us = np.nanmedian(times_us, axis=1)
    complete_us = times_us[:, np.isfinite(times_us).all(axis=0)]
    segments = fit_segments(sizes, medians_us, noise_of(complete_us))
    residuals = []
    held_out_errors = []
    for place, (size, time_us) in enumerate(zip(sizes.tolist(), medians_us.tolist(), strict=True)):
        segment = next(each for each in segments if size <= each.to_bytes)
        residuals.append(segment.time_us(size) / time_us - 1)
        if 0 < place < len(sizes) - 1:
            others = joined(np.delete(sizes, place), np.delete(medians_us, place))
            held_out_errors.append(abs(others(size) / time_us - 1))
    return Curve(
        sizes=tuple(sorted(table)),
        times_us=tuple(medians_us.tolist()),
        segments=tuple(segments),
        residuals=tuple(residuals),
        held_out_error=median(held_out_errors),
        launches_us=launches_us,
    )
