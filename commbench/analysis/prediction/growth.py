"""Extrapolation of one measured operation to other rank counts and link rates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from commbench.analysis.prediction.closed_forms import SHARE_BY_SHARE, Hop
from commbench.analysis.prediction.curves import ASSUMED_ERROR, Curve
from commbench.analysis.prediction.fits import LEVEL, reach
from commbench.analysis.prediction.hops import FittedHop, MeasuredCurve, fit_hop, forms_of
from commbench.analysis.prediction.links import Link
from commbench.analysis.prediction.reasons import Code, UnpredictedError
from commbench.stats import Floats
from commbench.units import format_size

#: Numbers of ranks in each doubling at which times are made non-decreasing; between them they are interpolated.
_STEPS = 4
_TINY = 1e-9


def carried_us(
    hop: FittedHop, measured: MeasuredCurve, *, alike_bytes: Floats, message_bytes: float, ranks: Floats, link: Link
) -> Floats:
    """Times of a message on each number of ranks over a link, from what was measured of ones of ``alike_bytes``.

    What the link takes follows from its rate; the rest of what was measured, start-up and local work, grows as the
    textbook's rest does: t = link there + (measured - link here) (rest there) / (rest here). So nothing beats its link,
    nor does a slower link slow down further what was slow for another reason. But nothing exceeds the textbook by a
    larger factor there than here: where the textbook has hardly any rest, what was measured beyond it is noise.
    """
    time_us = np.array([measured.curve.time_us(size) for size in alike_bytes])
    here_us = hop.time_us(alike_bytes, measured.world_size, measured.link)
    there_us = hop.time_us(message_bytes, ranks, link)
    as_whole_us = there_us * time_us / here_us
    if link.rate_bps is None:
        return np.asarray(as_whole_us)
    link_here_us = hop.link_us(alike_bytes, measured.world_size, measured.link)
    link_there_us = hop.link_us(message_bytes, ranks, link)
    rest_us = here_us - link_here_us
    share = (time_us - link_here_us) / np.where(rest_us > 0, rest_us, math.inf)
    apart_us = np.where(rest_us > 0, link_there_us + share * (there_us - link_there_us), as_whole_us)
    found_us = np.where(time_us < here_us, apart_us, np.minimum(apart_us, as_whole_us))
    # What beats its link has fewer headers than was assumed: at least none.
    beating_us = link_there_us * np.maximum(link.payload, time_us / np.maximum(link_here_us, _TINY))
    found_us = np.where(time_us < link_here_us, beating_us, np.maximum(found_us, link_there_us))
    is_here = (ranks == measured.world_size) & (alike_bytes == message_bytes) & measured.holds(message_bytes, link)
    return np.where(is_here, time_us, found_us)


def rising_us(times_us: Callable[[Floats], Floats], measured: Sequence[int], world_size: int) -> float:
    """The time on so many ranks, made non-decreasing from one measured number of ranks to the next and beyond.

    Args:
        times_us: of numbers of ranks, not necessarily whole.
        measured: numbers of ranks, ascending, at which the time stays.
        world_size: which is asked for.
    """
    below = [ranks for ranks in measured if ranks <= world_size]
    above = [ranks for ranks in measured if ranks >= world_size]
    start = below[-1] if below else above[0]
    place = _STEPS * math.log2(world_size / start)
    steps = np.arange(math.ceil(abs(place) - _TINY) + 1)
    knots = start * 2 ** (math.copysign(1, place) * steps / _STEPS)
    level_us = (np.maximum if below else np.minimum).accumulate(times_us(knots))
    upwards = slice(None, None, 1 if knots[-1] < start else -1)
    # Over 1/p the link's (p-1)/p is straight.
    found_us = float(np.interp(1 / world_size, 1 / knots[upwards], level_us[upwards]))
    if below and above:  # a time between two that were measured is no longer than both
        found_us = min(found_us, max(float(level_us[0]), float(times_us(np.array(above[:1], float))[0])))
    return found_us


#: An algorithm is plausible at a size if its fit there is at most so many times as far off as the best one's, or
#: no further than this.
_AS_GOOD, _GOOD_ENOUGH = 2.0, 0.10
#: Beyond such a ratio between plausible algorithms nothing is predicted.
DISAGREEMENT = 4.0
#: A distance between logarithms that counts as none: there nothing else has any weight.
_NEAR = 1e-9


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted time of an operation, in microseconds."""

    time_us: float
    low_us: float
    """Its 95 % interval: how launches differ, how plausible algorithms do, and how far off such predictions were."""
    high_us: float
    algorithm: str
    """What is taken to run; several where the measurements allow for several."""
    level: float | None
    """Of the interval; None where it rests on an assumed error, since no number of ranks could be left out."""
    held_out_error: float | None = None
    """Median error of such predictions; None where it is not known, or the time was measured and is none."""
    is_least: bool = False
    """Whether it takes longer: start-ups between hosts are unknown, and count as within the one that was measured."""
    start_up: float = 0.0
    """The share of start-ups in it."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How far off predictions were of what was measured and left out of the fit."""

    error: float | None
    """Median absolute relative error; None where nothing could be left out."""
    over: str
    """Over what, for people."""
    of_ranks: bool = False
    """Whether numbers of ranks were left out."""


@dataclass(frozen=True, kw_only=True)
class GrowingCurve:
    """One operation, backend, data type and pattern, measured on one or more numbers of ranks.

    A prediction scales what was measured by what the textbook says of there and here (`carried_us`), so that where it
    was measured it is the measurement. It keeps the curve's shape: where an algorithm sends n/p bytes at a time, the
    measurement with messages of that length is scaled. Several numbers of ranks count by how near they are.
    """

    operation: str
    backend: str
    measured: Sequence[MeasuredCurve]
    """Ascending in the number of ranks."""
    pattern: str = "flat"
    """``flat``, ``cross`` or ``hierarchical``."""
    ranks_per_node: int = 1
    """Of the hosts that were measured."""
    inner: Curve | None = None
    """The same operation within each host (pattern ``node``), for ``hierarchical``."""
    within: Sequence[MeasuredCurve] = ()
    """The same operation and pattern among ranks of one host; of the rest nothing is of one host, or all."""
    hops: Mapping[str, FittedHop] = field(init=False)
    """By algorithm, those that may be at work."""

    def __post_init__(self) -> None:
        forms = forms_of(
            self.operation, self.backend, self.pattern, ranks_per_node=self.ranks_per_node, inner=self.inner
        )
        object.__setattr__(self, "measured", sorted(self.measured, key=lambda one: one.world_size))
        object.__setattr__(self, "hops", {name: fit_hop(form, self.measured) for name, form in forms.items()})

    def check_hosts(self, world_size: int, ranks_per_node: int, rate_bps: float | None = None) -> None:
        """Check that so many ranks on hosts of so many, over links of a rate, can be predicted from what was measured.

        A ring crosses each host's link once, however many ranks the host has; other algorithms cross it more often.

        Raises:
            InputError: they cannot.
        """
        code: Code | None = None
        if self.pattern != "flat" and (world_size % ranks_per_node or world_size <= ranks_per_node):
            code = "hosts_incomplete"
        elif world_size <= ranks_per_node:
            code = "within_host_unmeasured" if self._inside is None else None
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
        """Whether only rings are plausible."""
        return self.pattern == "flat" and set(self.hops) <= {"ring", "ring all_reduce"}

    @cached_property
    def _inside(self) -> GrowingCurve | None:
        """The growth of what was measured within one host."""
        if self.link.is_within_host:
            return self
        return dataclasses.replace(self, measured=self.within, within=()) if self.within else None

    def starts_are_unknown(self, world_size: int, rate_bps: float | None, ranks_per_node: int | None = None) -> bool:
        """Whether start-ups between hosts count as those within the one host that was measured: times are the least."""
        is_inside = ranks_per_node is not None and world_size <= ranks_per_node
        return self.link.is_within_host and rate_bps is not None and not is_inside

    def _met(self, world_size: int, rate_bps: float | None, ranks_per_node: int | None) -> tuple[GrowingCurve, Any]:
        """The curve and the rate for so many ranks; within a host there is no rate."""
        if ranks_per_node is None:
            return self, rate_bps
        self.check_hosts(world_size, ranks_per_node, rate_bps)
        return (self._inside or self, None) if world_size <= ranks_per_node else (self, rate_bps)

    @property
    def world_sizes(self) -> list[int]:
        """Numbers of ranks that were measured, ascending."""
        return sorted({one.world_size for one in self.measured})

    @property
    def link(self) -> Link:
        """The link of the curve on the most ranks."""
        return self.measured[-1].link

    def estimate(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None = None,
        *,
        ranks_per_node: int | None = None,
        crowded: bool = False,
    ) -> Estimate:
        """Predict one operation's time.

        Args:
            message_bytes: as in ``collectives.csv``.
            world_size: ranks that take part, 2 or more.
            rate_bps: of every host's link, in bits per second; None: as measured.
            ranks_per_node: of each host; ranks that fit on one meet no link. None: they are on hosts as measured.
            crowded: whether emulated hosts go on sharing one machine's cores, as when they were measured.

        Raises:
            InputError: as `check_hosts`; or the algorithms that are plausible disagree by more than `DISAGREEMENT`.
        """
        curve, rate_bps = self._met(world_size, rate_bps, ranks_per_node)
        return curve._estimate(message_bytes, world_size, rate_bps, crowded=crowded)  # noqa: SLF001 - of the same class

    def _estimate(self, message_bytes: float, world_size: int, rate_bps: float | None, *, crowded: bool) -> Estimate:
        times = self._agreeing(message_bytes, world_size, rate_bps, crowded=crowded)
        low, high = min(times.values()), max(times.values())
        middle = math.sqrt(low * high)
        least = self._least_us(times, message_bytes, world_size, rate_bps)
        below, above = self._spread(message_bytes, world_size, rate_bps, rest=1 - least / middle)
        link = self._link_at(rate_bps)
        starts = [self.hops[name].start_up(message_bytes, world_size, link) for name in times]
        is_measured = world_size in self.world_sizes
        return Estimate(
            time_us=middle,
            low_us=min(middle, max(low / below, least)),
            high_us=max(above * high, self._without_gain(message_bytes, world_size, rate_bps, crowded=crowded)),
            algorithm=" or ".join(times),
            level=LEVEL if self.held_out.of_ranks or is_measured else None,
            held_out_error=None if is_measured and rate_bps is None else self.held_out.error,
            is_least=self.starts_are_unknown(world_size, rate_bps),
            start_up=max(starts),
        )

    def _least_us(self, names: Iterable[str], message_bytes: float, world_size: int, rate_bps: float | None) -> float:
        """What the links take at least for what any of the algorithms sends; 0 where that was measured."""
        link = self._link_at(rate_bps)
        there = (one for one in self.measured if one.world_size == world_size and one.link.rate_bps == link.rate_bps)
        if any(one.holds(message_bytes, one.link) for one in there):
            return 0.0
        return min(self.hops[name].least_us(message_bytes, world_size, link) for name in names)

    def _link_at(self, rate_bps: float | None) -> Link:
        return self.link if rate_bps is None else self.link.at_rate(rate_bps)

    def _without_gain(self, message_bytes: float, world_size: int, rate_bps: float | None, *, crowded: bool) -> float:
        """The upper end if local work that a slower link hid eats up all that a faster one than any measured gains."""
        known = [one.link.rate_bps for one in self.measured if one.link.rate_bps is not None]
        fastest = max(known) if len(known) == len(self.measured) else None
        if rate_bps is None or (fastest is not None and rate_bps <= fastest):
            return 0.0
        _, above = self._spread(message_bytes, world_size, fastest, rest=1.0)
        return above * max(self.times_us(message_bytes, world_size, fastest, crowded=crowded).values())

    def time_us(
        self,
        message_bytes: float,
        world_size: int,
        rate_bps: float | None = None,
        *,
        ranks_per_node: int | None = None,
        crowded: bool = False,
    ) -> float:
        """The time alone of `estimate`."""
        curve, rate_bps = self._met(world_size, rate_bps, ranks_per_node)
        times = curve._agreeing(message_bytes, world_size, rate_bps, crowded=crowded).values()  # noqa: SLF001 - as above
        return math.sqrt(min(times) * max(times))

    def _agreeing(
        self, message_bytes: float, world_size: int, rate_bps: float | None, *, crowded: bool
    ) -> dict[str, float]:
        times = self.times_us(message_bytes, world_size, rate_bps, crowded=crowded)
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
        self, message_bytes: float, world_size: int, rate_bps: float | None = None, *, crowded: bool = False
    ) -> dict[str, float]:
        """What each plausible algorithm predicts, in microseconds; arguments as for `estimate`."""
        link = self._link_at(rate_bps)
        link = link if crowded else dataclasses.replace(link, shared_cores=None)
        return {name: self._time_us(name, message_bytes, world_size, link) for name in self._plausible(message_bytes)}

    def _time_us(self, name: str, message_bytes: float, world_size: int, link: Link) -> float:
        """What one algorithm predicts; where its textbook time does not fall with the ranks, nor does the prediction.

        A textbook time of n/p bytes at a time rises with every rank; those of halving and doubling fall after all but
        powers of two.
        """
        hop, most = self.hops[name], self.world_sizes[-1]
        measured_on = [one.world_size for one in self.measured]

        def times_us(ranks: Floats, weighed_at: Floats) -> Floats:
            logs_us = np.zeros_like(ranks)
            for one, weights in zip(self.measured, _weights(measured_on, weighed_at), strict=True):
                alike_bytes = message_bytes * (
                    one.world_size / ranks if name in SHARE_BY_SHARE else np.ones_like(ranks)
                )
                found_us = carried_us(
                    hop, one, alike_bytes=alike_bytes, message_bytes=message_bytes, ranks=ranks, link=link
                )
                logs_us += weights * np.log(found_us)
            return np.exp(logs_us)

        if name in SHARE_BY_SHARE:
            time_us = rising_us(lambda ranks: times_us(ranks, ranks), self.world_sizes, world_size)
            return time_us if world_size in measured_on else max(time_us, hop.least_us(message_bytes, world_size, link))
        there = np.array([world_size, most], float)
        there_us, most_us = times_us(there, np.where(there > most, 2.0 * most, there)).tolist()
        rises = hop.time_us(message_bytes, most, link) <= hop.time_us(message_bytes, world_size, link)
        return float(max(there_us, most_us) if world_size > most and rises else there_us)

    @cached_property
    def held_out(self) -> HeldOut:
        """How far off it is, of larger numbers of ranks predicted from the smaller ones that were measured.

        Of one number of ranks alone it is the error over message sizes.
        """
        sizes = self.world_sizes
        errors = [error for most in sizes[:-1] for error in self._errors_beyond(most)]
        if errors:
            over = "larger numbers of ranks, predicted from the smaller"
            return HeldOut(error=float(np.median(errors)), over=over, of_ranks=True)
        known = [one.curve.held_out_error for one in self.measured if one.curve.held_out_error is not None]
        return HeldOut(
            error=float(np.median(known)) if known else None,
            over="message sizes; one world size only: the algorithm is assumed",
        )

    def _errors_beyond(self, most: int) -> list[float]:
        """Absolute relative errors on more than ``most`` ranks, predicted from what was measured on no more."""
        below = [one for one in self.measured if one.world_size <= most]
        fitted = dataclasses.replace(self, measured=below)
        errors = []
        for one in self.measured:
            if one.world_size > most:
                for size, time in zip(one.curve.sizes, one.curve.times_us, strict=True):
                    times = fitted.times_us(size, one.world_size, one.link.rate_bps, crowded=True)
                    errors.append(abs(math.sqrt(min(times.values()) * max(times.values())) / time - 1))
        return errors

    def _plausible(self, message_bytes: float) -> list[str]:
        """The algorithms that agree with what was measured at about this size, best first.

        On one number of ranks all can be fitted, so that only those are ruled out for which the link is too slow.
        """
        if len(self.hops) == 1:
            return list(self.hops)
        off = {name: self._misfit(hop, message_bytes) for name, hop in self.hops.items()}
        if len(self.world_sizes) == 1:
            chosen = [name for name, hop in self.hops.items() if self._is_possible(hop, message_bytes)] or list(off)
        else:
            allowed = max(_AS_GOOD * min(off.values()), _GOOD_ENOUGH)
            chosen = [name for name in off if off[name] <= allowed]
        return sorted(chosen, key=off.__getitem__)

    def _is_possible(self, hop: FittedHop, message_bytes: float) -> bool:
        """Whether the link alone would not have taken longer than was measured."""
        one = self.measured[0]
        if one.link.rate_bps is None:
            return True
        least = hop.form(one.world_size, message_bytes, Hop(alpha_us=0.0, beta_us_per_byte=one.link.us_per_byte))
        return float(least) <= (1 + _GOOD_ENOUGH) * one.curve.time_us(message_bytes)

    def _misfit(self, hop: FittedHop, message_bytes: float) -> float:
        """How far off a hop is at the measured size next to this one: the mean over curves."""
        misfits = []
        for one in self.measured:
            nearest = int(np.argmin(np.abs(np.log(np.asarray(one.curve.sizes) / message_bytes))))
            misfits.append(abs(float(hop.errors(one)[nearest])))
        return float(np.mean(misfits))

    def _spread(
        self, message_bytes: float, world_size: int, rate_bps: float | None, *, rest: float
    ) -> tuple[float, float]:
        """By which factors an interval lies below and above the prediction.

        What was measured differs between launches; beyond the sizes, ranks and rates of the link that were measured
        errors of each doubling are taken to be independent. At another rate only the ``rest`` is uncertain, the share
        of the time that is not the link's.
        """
        nearest = min(self.measured, key=lambda one: abs(math.log(one.world_size / world_size)))
        shares = set(self.hops) <= SHARE_BY_SHARE
        alike_bytes = message_bytes * (nearest.world_size / world_size if shares else 1.0)
        interval, time_us = nearest.curve.interval_us(alike_bytes), nearest.curve.time_us(alike_bytes)
        low = high = nearest.curve.stray(alike_bytes)
        if interval:
            low, high = math.log(time_us / interval.low), math.log(interval.high / time_us)
        error = self.held_out.error or 0.0
        error = error if self.held_out.of_ranks else max(error, ASSUMED_ERROR)
        doublings = abs(math.log2(world_size / nearest.world_size))
        of_ranks = reach(error, max(1.0, doublings)) if doublings else 0.0
        of_rate = reach(error, self._doublings_of_rate(rate_bps))
        faster, slower = (abs(math.log1p(rest * math.expm1(off))) for off in (-of_rate, of_rate))
        return math.exp(math.hypot(low, of_ranks, faster)), math.exp(math.hypot(high, of_ranks, slower))

    def _doublings_of_rate(self, rate_bps: float | None) -> float:
        """From the nearest rate that was measured; of an unknown one as it was fitted."""
        if rate_bps is None or self.link.is_within_host:
            return 0.0
        fitted = [8e6 / hop.link_us_per_byte for hop in self.hops.values() if hop.link_us_per_byte]
        known = [one.link.rate_bps for one in self.measured if one.link.rate_bps and math.isfinite(one.link.rate_bps)]
        return min((abs(math.log2(rate_bps / each)) for each in known or fitted), default=1.0)


def _weights(measured: Sequence[int], wanted: Floats) -> Floats:
    """What each measured number of ranks counts, for each that is wanted; shape (measured, wanted), columns sum to 1.

    It falls with the square of the distance between logarithms: the nearest decides. From twice the most ranks on
    it stays as it is.
    """
    ratios = np.minimum(wanted, 2 * measured[-1]) / np.asarray(measured, float)[:, None]
    distances = np.maximum(np.abs(np.log(ratios)), _NEAR)
    return np.asarray(distances**-2 / (distances**-2).sum(axis=0))
