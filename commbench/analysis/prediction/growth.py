"""Extrapolation of one measured operation to other rank counts and link rates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from commbench.analysis.prediction.closed_forms import (
    SHARE_SIZED_MESSAGES,
    FittedHop,
    Hop,
    MeasuredCurve,
    closed_forms_of,
    fit_hop,
)
from commbench.analysis.prediction.curves import ASSUMED_ERROR, Curve
from commbench.analysis.prediction.fits import LEVEL, log_half_width
from commbench.analysis.prediction.links import Link
from commbench.errors import UnpredictedError
from commbench.stats import Floats
from commbench.units import format_size

#: Times are made non-decreasing at this many rank counts per doubling; between them they are
#: interpolated.
_STEPS = 4
_TINY = 1e-9


def extrapolated_us(
    hop: FittedHop,
    measured: MeasuredCurve,
    *,
    curve_bytes: Floats,
    message_bytes: float,
    ranks: Floats,
    link: Link,
) -> Floats:
    """Return the predicted time for each number of ranks over a link, from a measured curve.

    The measured time consists of the link's time and the rest (start-up, local work). The link's
    time follows from its rate. The rest scales as the rest of the closed form: t = link_target +
    (measured - link_measured) * rest_target / rest_measured. Two bounds apply. No time is shorter
    than the link's. If the measurement exceeds the closed form, the prediction exceeds it by no
    larger factor.

    Args:
        hop: the fitted algorithm.
        measured: the measured curve.
        curve_bytes: for each number of ranks, the message size at which to read the curve.
        message_bytes: the message size to predict.
        ranks: the numbers of ranks to predict.
        link: the link to predict for.
    """
    time_us = np.array([measured.curve.time_us(size) for size in curve_bytes])
    form_measured_us = hop.time_us(curve_bytes, measured.world_size, measured.link)
    form_target_us = hop.time_us(message_bytes, ranks, link)
    scaled_us = form_target_us * time_us / form_measured_us
    if link.rate_bps is None:
        return np.asarray(scaled_us)
    link_measured_us = hop.link_us(curve_bytes, measured.world_size, measured.link)
    link_target_us = hop.link_us(message_bytes, ranks, link)
    rest_us = form_measured_us - link_measured_us
    rest_ratio = (time_us - link_measured_us) / np.where(rest_us > 0, rest_us, math.inf)
    separated_us = np.where(
        rest_us > 0, link_target_us + rest_ratio * (form_target_us - link_target_us), scaled_us
    )
    predicted_us = np.where(
        time_us < form_measured_us, separated_us, np.minimum(separated_us, scaled_us)
    )
    # A measurement faster than its link has fewer headers than assumed, at the least none.
    faster_than_link_us = link_target_us * np.maximum(
        link.payload, time_us / np.maximum(link_measured_us, _TINY)
    )
    predicted_us = np.where(
        time_us < link_measured_us, faster_than_link_us, np.maximum(predicted_us, link_target_us)
    )
    is_measured = (
        (ranks == measured.world_size)
        & (curve_bytes == message_bytes)
        & measured.covers(message_bytes, link)
    )
    return np.where(is_measured, time_us, predicted_us)


def non_decreasing_us(
    times_us: Callable[[Floats], Floats], measured: Sequence[int], world_size: int
) -> float:
    """Return the time on ``world_size`` ranks, made non-decreasing from each measured number of
    ranks upwards.

    Args:
        times_us: function from numbers of ranks, not necessarily integers, to times.
        measured: measured numbers of ranks, ascending; times there stay as they are.
        world_size: the number of ranks to predict.
    """
    below = [ranks for ranks in measured if ranks <= world_size]
    above = [ranks for ranks in measured if ranks >= world_size]
    start = below[-1] if below else above[0]
    position = _STEPS * math.log2(world_size / start)
    steps = np.arange(math.ceil(abs(position) - _TINY) + 1)
    knots = start * 2 ** (math.copysign(1, position) * steps / _STEPS)
    level_us = (np.maximum if below else np.minimum).accumulate(times_us(knots))
    upwards = slice(None, None, 1 if knots[-1] < start else -1)
    # The link's (p-1)/p is linear in 1/p.
    time_us = float(np.interp(1 / world_size, 1 / knots[upwards], level_us[upwards]))
    if below and above:  # between two measured numbers of ranks, no longer than the longer of both
        time_us = min(
            time_us, max(float(level_us[0]), float(times_us(np.array(above[:1], float))[0]))
        )
    return time_us


#: An algorithm is plausible at a size if its error there is at most `_AS_GOOD` times the best
#: algorithm's error, or at most `_GOOD_ENOUGH`.
_AS_GOOD, _GOOD_ENOUGH = 2.0, 0.10
#: If plausible algorithms differ by more than this ratio, nothing is predicted.
DISAGREEMENT = 4.0
#: A difference of logarithms that counts as zero: the measurement there gets all the weight.
_NEAR = 1e-9


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted time of an operation, in microseconds."""

    time_us: float
    low_us: float
    """Lower end of the 95 % interval: spread of launches, of plausible algorithms, and held-out
    error."""
    high_us: float
    algorithm: str
    """The assumed algorithm; all plausible ones if the measurements do not decide."""
    level: float | None
    """Level of the interval; None if it uses an assumed error, because no number of ranks could
    be held out."""
    held_out_error: float | None = None
    """Median held-out error of such predictions; None if unknown, or if the time was measured."""
    is_lower_bound: bool = False
    """Whether the time is a lower bound: start-ups between hosts are unknown and counted as
    within a host."""
    start_up: float = 0.0
    """Share of start-ups in the time."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Error of predictions on measurements that were held out of the fit."""

    error: float | None
    """Median absolute relative error; None if nothing could be held out."""
    over: str
    """What was held out, in words."""
    of_ranks: bool = False
    """Whether numbers of ranks were held out."""


@dataclass(frozen=True, kw_only=True)
class GrowingCurve:
    """One operation, backend, data type and pattern, measured on one or more numbers of ranks.

    A prediction scales a measurement by the ratio of the closed form (`extrapolated_us`), so at a
    measured point it is the measurement. If an algorithm sends n/p bytes at a time, the measurement
    with messages of that length is scaled. Measurements on several numbers of ranks are weighted by
    their distance (`_weights`).
    """

    operation: str
    backend: str
    measured: Sequence[MeasuredCurve]
    """Curves in ascending order of ranks."""
    pattern: str = "flat"
    """``flat``, ``cross`` or ``hierarchical``."""
    ranks_per_node: int = 1
    """Ranks on each measured host."""
    inner: Curve | None = None
    """The operation within each host (pattern ``node``); for ``hierarchical``."""
    within: Sequence[MeasuredCurve] = ()
    """Curves among the ranks of one host.

    The curves in `measured` are all within a host or all across hosts.
    """
    hops: Mapping[str, FittedHop] = field(init=False)
    """The plausible algorithms by name."""

    def __post_init__(self) -> None:
        forms = closed_forms_of(
            self.operation,
            self.backend,
            self.pattern,
            ranks_per_node=self.ranks_per_node,
            inner=self.inner,
        )
        object.__setattr__(self, "measured", sorted(self.measured, key=lambda one: one.world_size))
        object.__setattr__(
            self, "hops", {name: fit_hop(form, self.measured) for name, form in forms.items()}
        )

    def check_hosts(
        self, world_size: int, ranks_per_node: int, rate_bps: float | None = None
    ) -> None:
        """Check that these ranks, hosts and link rate can be predicted from the measurements.

        A ring crosses each host's link once for any number of ranks on the host. Other algorithms
        cross it more often, so they need measurements with the same number of ranks on a host.

        Raises:
            InputError: they cannot be predicted.
        """
        code: str | None = None
        if self.pattern != "flat" and (world_size % ranks_per_node or world_size <= ranks_per_node):
            code = "hosts_incomplete"
        elif world_size <= ranks_per_node:
            code = "within_host_unmeasured" if self._within_host_curve is None else None
        elif ranks_per_node != self.ranks_per_node and not self._is_ring:
            code = "ranks_per_host_differ"
        elif self.link.is_within_host and rate_bps is None:
            code = "links_unmeasured"
        if code:
            raise UnpredictedError(
                code,
                self._subject,
                pattern="" if self.pattern == "flat" else f", pattern {self.pattern},",
                ranks=world_size,
                ranks_per_node=ranks_per_node,
                measured_ranks_per_node=self.ranks_per_node,
            )

    @property
    def _subject(self) -> str:
        return f"{self.backend} {self.operation}"

    @property
    def _is_ring(self) -> bool:
        """Return whether only rings are plausible."""
        return self.pattern == "flat" and set(self.hops) <= {"ring", "ring all_reduce"}

    @cached_property
    def _within_host_curve(self) -> GrowingCurve | None:
        """Return the curve measured within one host, or None."""
        if self.link.is_within_host:
            return self
        return dataclasses.replace(self, measured=self.within, within=()) if self.within else None

    def has_unknown_start_up(
        self, world_size: int, rate_bps: float | None, ranks_per_node: int | None = None
    ) -> bool:
        """Return whether start-ups between hosts are unmeasured.

        Predicted times are then lower bounds.
        """
        is_within_host = ranks_per_node is not None and world_size <= ranks_per_node
        return self.link.is_within_host and rate_bps is not None and not is_within_host

    def _curve_and_rate(
        self, world_size: int, rate_bps: float | None, ranks_per_node: int | None
    ) -> tuple[GrowingCurve, Any]:
        """Return the curve and link rate for ``world_size`` ranks; no rate within a host."""
        if ranks_per_node is None:
            return self, rate_bps
        self.check_hosts(world_size, ranks_per_node, rate_bps)
        return (
            (self._within_host_curve or self, None)
            if world_size <= ranks_per_node
            else (self, rate_bps)
        )

    @property
    def world_sizes(self) -> list[int]:
        """The measured numbers of ranks, ascending."""
        return sorted({curve.world_size for curve in self.measured})

    @property
    def link(self) -> Link:
        """The link of the curve with the most ranks."""
        return self.measured[-1].link

    def estimate(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None = None,
        *,
        ranks_per_node: int | None = None,
        has_shared_cores: bool = False,
    ) -> Estimate:
        """Predict the time of one operation with its interval.

        Args:
            message_bytes: as in ``collectives.csv``.
            world_size: number of ranks, 2 or more.
            rate_bps: rate of every host's link in bits per second; None: as measured.
            ranks_per_node: ranks on each host; ranks that fit on one host use no link. None: as
                measured.
            has_shared_cores: whether emulated hosts share one machine's cores, as when they were
                measured.

        Raises:
            InputError: as `check_hosts`, or plausible algorithms differ by more than
                `DISAGREEMENT`.
        """
        curve, rate_bps = self._curve_and_rate(world_size, rate_bps, ranks_per_node)
        return curve._estimate(  # noqa: SLF001 - of the same class
            message_bytes, world_size, rate_bps, has_shared_cores=has_shared_cores
        )

    def _estimate(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None,
        *,
        has_shared_cores: bool,
    ) -> Estimate:
        times = self._agreeing(
            message_bytes, world_size, rate_bps, has_shared_cores=has_shared_cores
        )
        low, high = min(times.values()), max(times.values())
        middle = math.sqrt(low * high)
        least = self._lower_bound_us(times, message_bytes, world_size, rate_bps)
        below, above = self._spread(
            message_bytes, world_size, rate_bps, non_link_share=1 - least / middle
        )
        link = self._link_at(rate_bps)
        starts = [self.hops[name].start_up_share(message_bytes, world_size, link) for name in times]
        is_measured = world_size in self.world_sizes
        return Estimate(
            time_us=middle,
            low_us=min(middle, max(low / below, least)),
            high_us=max(
                above * high,
                self._high_without_gain_us(
                    message_bytes, world_size, rate_bps, has_shared_cores=has_shared_cores
                ),
            ),
            algorithm=" or ".join(times),
            level=LEVEL if self.held_out.of_ranks or is_measured else None,
            held_out_error=None if is_measured and rate_bps is None else self.held_out.error,
            is_lower_bound=self.has_unknown_start_up(world_size, rate_bps),
            start_up=max(starts),
        )

    def _lower_bound_us(
        self, names: Iterable[str], message_bytes: float, world_size: int, rate_bps: float | None
    ) -> float:
        """Return the shortest time that the links allow for any of the algorithms; 0 if the time
        was measured.
        """
        link = self._link_at(rate_bps)
        same_link = (
            curve
            for curve in self.measured
            if curve.world_size == world_size and curve.link.rate_bps == link.rate_bps
        )
        if any(curve.covers(message_bytes, curve.link) for curve in same_link):
            return 0.0
        return min(
            self.hops[name].lower_bound_us(message_bytes, world_size, link) for name in names
        )

    def _link_at(self, rate_bps: float | None) -> Link:
        return self.link if rate_bps is None else self.link.with_rate(rate_bps)

    def _high_without_gain_us(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None,
        *,
        has_shared_cores: bool,
    ) -> float:
        """Return the upper end if local work cancels the gain of a link faster than any measured; 0
        otherwise.
        """
        known_rates = [
            curve.link.rate_bps for curve in self.measured if curve.link.rate_bps is not None
        ]
        fastest = max(known_rates) if len(known_rates) == len(self.measured) else None
        if rate_bps is None or (fastest is not None and rate_bps <= fastest):
            return 0.0
        _, above = self._spread(message_bytes, world_size, fastest, non_link_share=1.0)
        return above * max(
            self.times_us(
                message_bytes, world_size, fastest, has_shared_cores=has_shared_cores
            ).values()
        )

    def time_us(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None = None,
        *,
        ranks_per_node: int | None = None,
        has_shared_cores: bool = False,
    ) -> float:
        """Return the time of `estimate`, without the interval."""
        curve, rate_bps = self._curve_and_rate(world_size, rate_bps, ranks_per_node)
        times = curve._agreeing(  # noqa: SLF001 - as above
            message_bytes, world_size, rate_bps, has_shared_cores=has_shared_cores
        ).values()
        return math.sqrt(min(times) * max(times))

    def _agreeing(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None,
        *,
        has_shared_cores: bool,
    ) -> dict[str, float]:
        times = self.times_us(
            message_bytes, world_size, rate_bps, has_shared_cores=has_shared_cores
        )
        ratio = max(times.values()) / min(times.values())
        if ratio > DISAGREEMENT:
            raise UnpredictedError(
                "algorithm_unknown",
                self._subject,
                size=format_size(round(message_bytes)),
                ranks=world_size,
                algorithms=" and ".join(times),
                factor=round(ratio),
            )
        return times

    def times_us(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None = None,
        *,
        has_shared_cores: bool = False,
    ) -> dict[str, float]:
        """Return the time in microseconds that each plausible algorithm predicts.

        Arguments as for `estimate`.
        """
        link = self._link_at(rate_bps)
        link = link if has_shared_cores else dataclasses.replace(link, shared_cores=None)
        return {
            name: self._time_us(name, message_bytes, world_size, link)
            for name in self._plausible(message_bytes)
        }

    def _time_us(self, name: str, message_bytes: float, world_size: int, link: Link) -> float:
        """Return the time that one algorithm predicts.

        If the closed form does not fall with the number of ranks, the prediction does not either.
        The closed form with n/p bytes per message rises with every rank. Halving and doubling may
        fall from a non-power of two to the next power of two.
        """
        hop, most = self.hops[name], self.world_sizes[-1]
        measured_on = [curve.world_size for curve in self.measured]

        def times_us(ranks: Floats, weights_at: Floats) -> Floats:
            logs_us = np.zeros_like(ranks)
            for curve, weights in zip(
                self.measured, _weights(measured_on, weights_at), strict=True
            ):
                curve_bytes = message_bytes * (
                    curve.world_size / ranks
                    if name in SHARE_SIZED_MESSAGES
                    else np.ones_like(ranks)
                )
                predicted_us = extrapolated_us(
                    hop,
                    curve,
                    curve_bytes=curve_bytes,
                    message_bytes=message_bytes,
                    ranks=ranks,
                    link=link,
                )
                logs_us += weights * np.log(predicted_us)
            return np.exp(logs_us)

        if name in SHARE_SIZED_MESSAGES:
            time_us = non_decreasing_us(
                lambda ranks: times_us(ranks, ranks), self.world_sizes, world_size
            )
            return (
                time_us
                if world_size in measured_on
                else max(time_us, hop.lower_bound_us(message_bytes, world_size, link))
            )
        sizes = np.array([world_size, most], float)
        time_us, most_us = times_us(sizes, np.where(sizes > most, 2.0 * most, sizes)).tolist()
        rises = hop.time_us(message_bytes, most, link) <= hop.time_us(
            message_bytes, world_size, link
        )
        return float(max(time_us, most_us) if world_size > most and rises else time_us)

    @cached_property
    def held_out(self) -> HeldOut:
        """The error of larger numbers of ranks predicted from smaller ones.

        With one number of ranks, over sizes.
        """
        sizes = self.world_sizes
        errors = [error for most in sizes[:-1] for error in self._errors_beyond(most)]
        if errors:
            over = "larger numbers of ranks, predicted from the smaller"
            return HeldOut(error=float(np.median(errors)), over=over, of_ranks=True)
        size_errors = [
            curve.curve.held_out_error
            for curve in self.measured
            if curve.curve.held_out_error is not None
        ]
        return HeldOut(
            error=float(np.median(size_errors)) if size_errors else None,
            over="message sizes; one world size only: the algorithm is assumed",
        )

    def _errors_beyond(self, most: int) -> list[float]:
        """Return absolute relative errors on more than ``most`` ranks, predicted from smaller
        numbers of ranks.
        """
        below = [curve for curve in self.measured if curve.world_size <= most]
        fitted = dataclasses.replace(self, measured=below)
        errors = []
        for curve in self.measured:
            if curve.world_size > most:
                for size, time in zip(curve.curve.sizes, curve.curve.times_us, strict=True):
                    times = fitted.times_us(
                        size, curve.world_size, curve.link.rate_bps, has_shared_cores=True
                    )
                    errors.append(
                        abs(math.sqrt(min(times.values()) * max(times.values())) / time - 1)
                    )
        return errors

    def _plausible(self, message_bytes: float) -> list[str]:
        """Return the algorithms that agree with measurements near this size, best first.

        Every algorithm can be fitted to one number of ranks. Then only algorithms that would exceed
        the link's rate are ruled out.
        """
        if len(self.hops) == 1:
            return list(self.hops)
        misfits = {name: self._misfit(hop, message_bytes) for name, hop in self.hops.items()}
        if len(self.world_sizes) == 1:
            names = [
                name for name, hop in self.hops.items() if self._is_possible(hop, message_bytes)
            ] or list(misfits)
        else:
            allowed = max(_AS_GOOD * min(misfits.values()), _GOOD_ENOUGH)
            names = [name for name in misfits if misfits[name] <= allowed]
        return sorted(names, key=misfits.__getitem__)

    def _is_possible(self, hop: FittedHop, message_bytes: float) -> bool:
        """Return whether the link's time alone is at most the measured time."""
        curve = self.measured[0]
        if curve.link.rate_bps is None:
            return True
        least = hop.form(
            curve.world_size,
            message_bytes,
            Hop(alpha_us=0.0, beta_us_per_byte=curve.link.us_per_byte),
        )
        return float(least) <= (1 + _GOOD_ENOUGH) * curve.curve.time_us(message_bytes)

    def _misfit(self, hop: FittedHop, message_bytes: float) -> float:
        """Return the mean absolute log error over curves, each at its measured size nearest to this
        one.
        """
        misfits = []
        for curve in self.measured:
            nearest = int(np.argmin(np.abs(np.log(np.asarray(curve.curve.sizes) / message_bytes))))
            misfits.append(abs(float(hop.errors(curve)[nearest])))
        return float(np.mean(misfits))

    def _spread(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None,
        *,
        non_link_share: float,
    ) -> tuple[float, float]:
        """Return the factors by which the interval extends below and above the prediction.

        Three independent errors are combined: the spread between launches, the error per doubling
        beyond the measured sizes and ranks, and the error per doubling of the link rate. The last
        applies to ``non_link_share`` of the time only.
        """
        nearest = min(self.measured, key=lambda curve: abs(math.log(curve.world_size / world_size)))
        shares = set(self.hops) <= SHARE_SIZED_MESSAGES
        curve_bytes = message_bytes * (nearest.world_size / world_size if shares else 1.0)
        interval, time_us = (
            nearest.curve.interval_us(curve_bytes),
            nearest.curve.time_us(curve_bytes),
        )
        low = high = nearest.curve.half_width_beyond_sizes(curve_bytes)
        if interval:
            low, high = math.log(time_us / interval.low), math.log(interval.high / time_us)
        error = self.held_out.error or 0.0
        error = error if self.held_out.of_ranks else max(error, ASSUMED_ERROR)
        doublings = abs(math.log2(world_size / nearest.world_size))
        of_ranks = log_half_width(error, max(1.0, doublings)) if doublings else 0.0
        of_rate = log_half_width(error, self._doublings_of_rate(rate_bps))
        faster, slower = (
            abs(math.log1p(non_link_share * math.expm1(error))) for error in (-of_rate, of_rate)
        )
        return math.exp(math.hypot(low, of_ranks, faster)), math.exp(
            math.hypot(high, of_ranks, slower)
        )

    def _doublings_of_rate(self, rate_bps: float | None) -> float:
        """Return the doublings from the nearest measured rate, or from the fitted rate if none is
        known.
        """
        if rate_bps is None or self.link.is_within_host:
            return 0.0
        fitted = [8e6 / hop.link_us_per_byte for hop in self.hops.values() if hop.link_us_per_byte]
        known_rates = [
            curve.link.rate_bps
            for curve in self.measured
            if curve.link.rate_bps and math.isfinite(curve.link.rate_bps)
        ]
        return min((abs(math.log2(rate_bps / each)) for each in known_rates or fitted), default=1.0)


def _weights(measured: Sequence[int], ranks: Floats) -> Floats:
    """Return the weight of each measured number of ranks for each wanted one, shape (measured,
    wanted).

    Columns sum to 1. Weights fall with the square of the distance between logarithms. Beyond twice
    the most ranks they stay constant.
    """
    ratios = np.minimum(ranks, 2 * measured[-1]) / np.asarray(measured, float)[:, None]
    distances = np.maximum(np.abs(np.log(ratios)), _NEAR)
    return np.asarray(distances**-2 / (distances**-2).sum(axis=0))
