"""One law for collectives on other numbers of ranks and other links, from measured curves.

A collective of n bytes over p ranks takes S(p) start-ups of alpha, and W(p) n bytes cross the link
of each host at beta per byte: S alpha + W n beta. Both are fitted to a measured curve; the law then
states what more ranks or a slower link add to the time of that curve.

W is the factor of the bus bandwidth (nccl-tests, doc/PERFORMANCE.md). S is p W for the rings of
all_reduce, all_gather and reduce_scatter (2(p-1) and p-1: Thakur, Rabenseifner and Gropp, IJHPCA
19(1), 2005) and the pairwise all_to_all, and ceil(log2 p) for the binomial trees of the rooted
operations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.fits import fit_line, log_half_width
from commbench.analysis.prediction.links import WITHIN_HOST, Link, link_of
from commbench.analysis.prediction.network import CurveKey, NetworkModel
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.findings import UnpredictedError
from commbench.results.info import RunInfo
from commbench.stats import DEFAULT_LEVEL

#: Operations in which all ranks send alike, and those with a root.
RINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
TREES = ("broadcast", "reduce", "gather", "scatter")
#: One rank sends nothing.
FEWEST_RANKS = 2
#: Errors of forecasts on more ranks or another link, for each doubling of either, over the kept
#: runs (``benchmarks/evidence/forecast_error.py``): of a collective, and of a step of training.
KEPT_ERROR, KEPT_STEP_ERROR = 0.27, 0.13
OVER_KEPT_RUNS = "for each doubling of ranks or rate, over the runs that commbench keeps"
OVER_OWN_RUNS = "for each doubling of ranks or rate, over these runs"
OVER_SIZES = "over the message sizes of these runs"


class Family(NamedTuple):
    """The operation, backend and data type that curves on several networks share."""

    operation: str
    backend: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.backend} {self.operation} of {self.dtype}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A network to predict for."""

    world_size: int
    ranks_per_node: int = 1
    rate_bps: float | None = None
    """Bits per second of every host's link; None: as measured."""

    @property
    def is_within_host(self) -> bool:
        """Whether all ranks fit on one host, so that they use no link."""
        return self.world_size <= self.ranks_per_node

    def doublings(self, other: Place) -> float:
        """Return how often ranks and rate double or halve from one network to another."""
        doublings = abs(math.log2(other.world_size / self.world_size))
        if self.rate_bps and other.rate_bps and math.isfinite(self.rate_bps):
            doublings += abs(math.log2(other.rate_bps / self.rate_bps))
        return doublings


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted time of an operation, in microseconds."""

    time_us: float
    low_us: float
    """Lower end of the 95 % interval: of launches, of sizes beyond the measured, of the law."""
    high_us: float
    level: float | None
    """None if no number of ranks or rate of the given runs could be held out, and for the lower
    bounds across hosts that measurements within one host give."""
    held_out_error: float | None
    """Median absolute relative error of such predictions."""
    held_out_over: str
    """What was held out, in words."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """The times of one operation over message sizes, on one number of ranks and one link."""

    operation: str
    curve: Curve
    world_size: int
    link: Link

    def time_us(self, message_bytes: float, place: Place) -> float:
        """Return the predicted time on another network, in microseconds.

        It lies between those of the next measured sizes, of which a larger one takes no less time.
        """
        time_us = self._time_us(message_bytes, place)
        least_us = 0.0
        for size in self.curve.sizes:
            at_size_us = max(least_us, self._time_us(size, place))
            if size > message_bytes:
                return min(max(time_us, least_us), at_size_us)
            least_us = at_size_us
        return max(time_us, least_us)

    def _time_us(self, message_bytes: float, place: Place) -> float:
        """Return the predicted time of one size.

        What the law adds to the measured time is added; what falls away falls in proportion, so
        that the time stays above 0.
        """
        measured_us = self.curve.time_us(message_bytes)
        here_us = self._law_us(message_bytes, self.world_size, self.link)
        there_us = self._law_us(message_bytes, place.world_size, self.link_at(place))
        if there_us >= here_us:
            return measured_us + there_us - here_us
        return measured_us * there_us / here_us

    def link_at(self, place: Place) -> Link:
        """Return the link of a network: this one's, with the rate that is to be predicted."""
        if place.is_within_host or place.rate_bps is None:
            return self.link
        return self.link.with_rate(place.rate_bps)

    def is_at(self, place: Place) -> bool:
        """Return whether a network is the measured one."""
        return self.world_size == place.world_size and self.link_at(place) == self.link

    def doublings(self, place: Place) -> float:
        """Return `Place.doublings` from the measured network to another."""
        here = Place(world_size=self.world_size, rate_bps=self.link.rate_bps)
        return here.doublings(place)

    def _law_us(self, message_bytes: float, ranks: int, link: Link) -> float:
        alpha_us, rest_us_per_byte, link_us_per_byte = self._costs
        if link is not self.link:
            link_us_per_byte = link.us_per_byte
        crossing_bytes = _crossings(self.operation, ranks) * message_bytes
        per_byte_us = rest_us_per_byte + link_us_per_byte
        return start_ups(self.operation, ranks) * alpha_us + crossing_bytes * per_byte_us

    @cached_property
    def _costs(self) -> tuple[float, float, float]:
        """Return alpha, and beta in two parts: of local work and of the link; in microseconds."""
        sizes, times_us = np.array(self.curve.sizes, float), np.array(self.curve.times_us)
        start_us, per_byte_us = fit_line(sizes, times_us)
        alpha_us = start_us / start_ups(self.operation, self.world_size)
        beta_us = per_byte_us / _crossings(self.operation, self.world_size)
        if self.link.rate_bps is None:
            return alpha_us, 0.0, beta_us
        link_us = self.link.us_per_byte
        return alpha_us, max(0.0, beta_us - link_us), link_us


def start_ups(operation: str, ranks: int) -> float:
    """Return S(p): how many messages a rank waits for, one after the other."""
    if operation in TREES:
        return math.ceil(math.log2(ranks))
    return ranks * _crossings(operation, ranks)


def _crossings(operation: str, ranks: int) -> float:
    """Return W(p): how often each byte of a message crosses the busiest link."""
    return OPERATIONS[operation].busbw_factor(ranks)


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """The curves of a run, and the facts about its network."""

    model: NetworkModel
    records: Sequence[Record]
    """Records of collectives; they name the transports."""
    info: RunInfo
    """Contents of ``run.json``."""

    @property
    def ranks_per_node(self) -> int:
        """The most ranks on one host."""
        return int(self.info.get("ranks_per_node") or 1)

    @property
    def is_across_hosts(self) -> bool:
        """Whether the ranks were on several hosts."""
        return (self.info.get("nodes") or 1) > 1

    def link(self, key: CurveKey) -> Link:
        """Return the link that a curve's messages used; a part of the ranks may fit on one host."""
        if self.is_across_hosts and key.world_size <= self.ranks_per_node:
            return WITHIN_HOST
        for record in self.records:
            case = record.case
            found = case.operation, case.backend, case.pattern
            if record.status == "ok" and found == (key.operation, key.backend, key.pattern):
                return link_of(self.info, record.transport)
        return link_of(self.info, "")


@dataclass(frozen=True, kw_only=True)
class ForecastNetwork:
    """The curves of one or more runs on the same kind of hosts, for predictions on others."""

    curves: Mapping[Family, Sequence[MeasuredCurve]]
    """Each family's by number of ranks, ascending."""
    ranks_per_node: int = 1
    """Of the runs across hosts; of runs on one host, the largest."""

    @classmethod
    def fit(cls, runs: Iterable[MeasuredRun]) -> ForecastNetwork:
        """Join the flat curves of runs.

        Raises:
            InputError: the runs differ in libraries or in ranks on a host.
        """
        runs = list(runs)
        _check_conditions(runs)
        curves: dict[Family, list[MeasuredCurve]] = {}
        for run in runs:
            for key, curve in run.model.curves.items():
                follows_law = key.pattern == "flat" and key.operation in RINGS + TREES
                if follows_law and key.world_size >= FEWEST_RANKS:
                    measured = MeasuredCurve(
                        operation=key.operation,
                        curve=curve,
                        world_size=key.world_size,
                        link=run.link(key),
                    )
                    family = Family(key.operation, key.backend, key.dtype)
                    curves.setdefault(family, []).append(measured)
        for measured_curves in curves.values():
            measured_curves.sort(key=lambda curve: curve.world_size)
        per_node = [run.ranks_per_node for run in runs if run.is_across_hosts]
        per_node = per_node or [run.ranks_per_node for run in runs]
        ordered = {family: curves[family] for family in sorted(curves)}
        return cls(curves=ordered, ranks_per_node=max(per_node, default=1))

    def time_us(self, family: Family, message_bytes: float, place: Place) -> float:
        """Return the predicted time of an operation, in microseconds.

        An operation without reduction falls back to another data type.

        Raises:
            InputError: the operation was not measured, or on no network from which this one can be
                predicted.
        """
        return self._nearest(self._family(family), place).time_us(message_bytes, place)

    def estimate(self, family: Family, message_bytes: float, place: Place) -> Estimate:
        """Return the predicted time with its interval.

        Raises:
            InputError: as `time_us`.
        """
        nearest = self._nearest(family, place)
        time_us, curve = nearest.time_us(message_bytes, place), nearest.curve
        low = high = curve.half_width_beyond_sizes(message_bytes)
        if interval := curve.interval_us(message_bytes):
            measured_us = curve.time_us(message_bytes)
            low = math.log(measured_us / interval.low)
            high = math.log(interval.high / measured_us)
        error, over = curve.held_out_error, OVER_SIZES
        level: float | None = DEFAULT_LEVEL
        of_law = 0.0
        if not nearest.is_at(place):
            error, over = self.held_out(family.backend)
            is_bound = nearest.link.is_within_host != place.is_within_host
            if is_bound or family.backend not in self.own_errors:
                level = None
            of_law = log_half_width(error, max(1.0, nearest.doublings(place)))
        return Estimate(
            time_us=time_us,
            low_us=time_us * math.exp(-math.hypot(low, of_law)),
            high_us=time_us * math.exp(math.hypot(high, of_law)),
            level=level,
            held_out_error=error,
            held_out_over=over,
        )

    def held_out(self, backend: str) -> tuple[float, str]:
        """Return the error of predictions for other networks, and over what it was measured.

        It is that over these runs if it is larger than that over the kept runs: few curves can be
        held out of these.
        """
        own_error = self.own_errors.get(backend, 0.0)
        if own_error > KEPT_ERROR:
            return own_error, OVER_OWN_RUNS
        return KEPT_ERROR, OVER_KEPT_RUNS

    @cached_property
    def own_errors(self) -> dict[str, float]:
        """The error over these runs by backend; without one, no curve can be held out."""
        held_out: dict[str, list[HeldOut]] = {}
        for family, curves in self.curves.items():
            held_out.setdefault(family.backend, []).extend(hold_out(curves))
        return {name: error_per_doubling(pairs) for name, pairs in held_out.items() if pairs}

    def _family(self, wanted: Family) -> Family:
        if wanted in self.curves:
            return wanted
        operation, backend, dtype = wanted
        for family in self.curves:
            if family[:2] == wanted[:2] and not OPERATIONS[operation].reduces:
                return family
        subject = f"{backend} {operation}"
        raise UnpredictedError(
            "operation_unmeasured", subject, dtype=dtype, backend=backend, operation=operation
        )

    def _nearest(self, family: Family, place: Place) -> MeasuredCurve:
        """Return the measured curve that differs least from a network in ranks and rate."""
        within = [curve for curve in self.curves[family] if curve.link.is_within_host]
        across = [curve for curve in self.curves[family] if not curve.link.is_within_host]
        code, usable = "", across or within
        if place.is_within_host:
            usable = within
            code = "" if within else "within_host_unmeasured"
        elif not across and place.rate_bps is None:
            code = "links_unmeasured"
        if code:
            raise UnpredictedError(
                code,
                f"{family.backend} {family.operation}",
                ranks=place.world_size,
                ranks_per_node=place.ranks_per_node,
            )
        return min(usable, key=lambda curve: curve.doublings(place))


class HeldOut(NamedTuple):
    """A prediction of what was measured."""

    ratio: float
    """Predicted over measured."""
    doublings: float
    """From the measurement behind the prediction, see `Place.doublings`."""


def hold_out(curves: Sequence[MeasuredCurve]) -> list[HeldOut]:
    """Return a prediction of each time that curves on fewer ranks, or over other links on as many,
    predict.
    """
    pairs = []
    for target in curves:
        place = Place(world_size=target.world_size, rate_bps=target.link.rate_bps)
        others = []
        for other in curves:
            is_like = other.link.is_within_host == target.link.is_within_host
            if is_like and other.world_size <= target.world_size and not other.is_at(place):
                others.append(other)
        if others:
            nearest = min(others, key=lambda curve: curve.doublings(place))
            doublings = nearest.doublings(place)
            for size, time_us in zip(target.curve.sizes, target.curve.times_us, strict=True):
                pairs.append(HeldOut(nearest.time_us(size, place) / time_us, doublings))
    return pairs


def error_per_doubling(pairs: Iterable[HeldOut]) -> float:
    """Return the median absolute relative error for each doubling.

    Doublings count as independent: the logarithm of an error grows with the root of their number.
    """
    logs = [abs(math.log(pair.ratio)) / math.sqrt(max(1.0, pair.doublings)) for pair in pairs]
    return math.expm1(statistics.median(logs))


def _check_conditions(runs: Sequence[MeasuredRun]) -> None:
    """Check that the runs agree in libraries and, across hosts, in ranks per host."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for backend, library in (run.info.get("libraries") or {}).items():
            found.setdefault(f"libraries of {backend}", set()).add(library)
        if run.is_across_hosts:
            found.setdefault("numbers of ranks on a host", set()).add(str(run.ranks_per_node))
    for condition, values in found.items():
        if len(values) > 1:
            raise InputError(
                f"The runs have different {condition} ({' and '.join(sorted(values))}), which do"
                " not mix; predict from runs that were measured alike."
            )
