"""One law for collectives on other numbers of ranks and other links, from measured curves.

A collective of n bytes over p ranks takes S(p) start-ups of alpha, and W(p) n bytes cross the link
of each host at beta per byte: S alpha + W n beta. Both are fitted to a measured curve; the law then
states what more ranks or a slower link add to the time of that curve.

W is the factor of the bus bandwidth (nccl-tests, doc/PERFORMANCE.md); an all_to_all of k ranks on
each host sends k(p-k)/p n bytes over the host's link instead. S is p W for the rings of
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
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.fits import MEDIAN_OF_NORMAL, fit_line
from commbench.analysis.prediction.links import WITHIN_HOST, Link, link_of
from commbench.analysis.prediction.network import CurveKey, network_model
from commbench.collectives.operations import OPERATIONS
from commbench.errors import InputError
from commbench.findings import UnpredictedError
from commbench.results import Run
from commbench.results.info import network_records

#: Operations in which all ranks send alike, and those with a root.
RINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
TREES = ("broadcast", "reduce", "gather", "scatter")
#: One rank sends nothing.
FEWEST_RANKS = 2
#: Errors of forecasts on more ranks or another link, for each doubling of either, over the kept
#: runs (``benchmarks/evidence/forecast_error.py``): of a collective, and of a step of training.
KEPT_ERROR, KEPT_STEP_ERROR = 0.33, 0.13
OVER_KEPT_RUNS = "for each doubling of ranks or rate, over the runs that commbench keeps"
OVER_OWN_RUNS = "for each doubling of ranks or rate, over these runs"


class Family(NamedTuple):
    """The operation, backend and data type that curves on several networks share."""

    operation: str
    backend: str
    dtype: str


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
class MeasuredCurve:
    """The times of one operation over message sizes, on one number of ranks and one link."""

    operation: str
    curve: Curve
    place: Place
    """The measured network."""
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
        here_us = self._law_us(message_bytes, self.place, self.link)
        there_us = self._law_us(message_bytes, place, self.link_at(place))
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
        return self.place.world_size == place.world_size and self.link_at(place) == self.link

    def _law_us(self, message_bytes: float, place: Place, link: Link) -> float:
        alpha_us, local_us_per_byte, link_us_per_byte = self._costs
        if link is not self.link:
            link_us_per_byte = link.us_per_byte
        starts_us = start_ups(self.operation, place.world_size) * alpha_us
        local_us = bus_factor(self.operation, place.world_size) * local_us_per_byte
        link_us = crossings(self.operation, place) * link_us_per_byte
        return starts_us + message_bytes * (local_us + link_us)

    @cached_property
    def _costs(self) -> tuple[float, float, float]:
        """Return alpha, and beta in two parts: of local work and of the link; in microseconds.

        All is the link's if its rate is unknown.
        """
        sizes, times_us = np.array(self.curve.sizes, float), np.array(self.curve.times_us)
        start_us, per_byte_us = fit_line(sizes, times_us)
        ranks = self.place.world_size
        alpha_us = start_us / start_ups(self.operation, ranks)
        on_link = crossings(self.operation, self.place)
        if self.link.rate_bps is None:
            return alpha_us, 0.0, per_byte_us / on_link
        link_us = self.link.us_per_byte
        local_us = max(0.0, per_byte_us - on_link * link_us)
        return alpha_us, local_us / bus_factor(self.operation, ranks), link_us


def start_ups(operation: str, ranks: int) -> float:
    """Return S(p): how many messages a rank waits for, one after the other."""
    if operation in TREES:
        return math.ceil(math.log2(ranks))
    return ranks * bus_factor(operation, ranks)


def bus_factor(operation: str, ranks: int) -> float:
    """Return the factor of the bus bandwidth."""
    return OPERATIONS[operation].busbw_factor(ranks)


def crossings(operation: str, place: Place) -> float:
    """Return W: how often each byte of a message crosses the link of a host."""
    ranks, on_host = place.world_size, place.ranks_per_node
    if operation == "all_to_all" and not place.is_within_host:
        return on_host * (ranks - on_host) / ranks
    return bus_factor(operation, ranks)


def _ranks_per_node(run: Run) -> int:
    return run.info.get("ranks_per_node") or 1


def _is_across_hosts(run: Run) -> bool:
    return (run.info.get("nodes") or 1) > 1


def _link(run: Run, key: CurveKey) -> Link:
    """Return the link that a curve's messages used; a part of the ranks may fit on one host."""
    if _is_across_hosts(run) and key.world_size <= _ranks_per_node(run):
        return WITHIN_HOST
    for record in network_records(run.records, run.info):
        case = record.case
        found = case.operation, case.backend, case.pattern
        if record.status == "ok" and found == (key.operation, key.backend, key.pattern):
            return link_of(run.info, record.transport)
    return link_of(run.info, "")


@dataclass(frozen=True, kw_only=True)
class ForecastNetwork:
    """The curves of one or more runs on the same kind of hosts, for predictions on others."""

    curves: Mapping[Family, Sequence[MeasuredCurve]]
    """Each family's by number of ranks, ascending."""
    ranks_per_node: int = 1
    """Of the runs across hosts; of runs on one host, the largest."""

    @classmethod
    def fit(cls, runs: Sequence[Run]) -> ForecastNetwork:
        """Join the flat curves of runs.

        Raises:
            InputError: the runs differ in libraries or in ranks on a host.
        """
        _check_conditions(runs)
        curves: dict[Family, list[MeasuredCurve]] = {}
        for run in runs:
            for key, curve in network_model(run).curves.items():
                follows_law = key.pattern == "flat" and key.operation in RINGS + TREES
                if follows_law and key.world_size >= FEWEST_RANKS:
                    link = _link(run, key)
                    place = Place(
                        world_size=key.world_size,
                        ranks_per_node=_ranks_per_node(run),
                        rate_bps=link.rate_bps,
                    )
                    measured = MeasuredCurve(
                        operation=key.operation, curve=curve, place=place, link=link
                    )
                    family = Family(key.operation, key.backend, key.dtype)
                    curves.setdefault(family, []).append(measured)
        for measured_curves in curves.values():
            measured_curves.sort(key=attrgetter("place.world_size"))
        across = [run for run in runs if _is_across_hosts(run)]
        return cls(
            curves={family: curves[family] for family in sorted(curves)},
            ranks_per_node=max(map(_ranks_per_node, across or runs), default=1),
        )

    def time_us(self, family: Family, message_bytes: float, place: Place) -> float:
        """Return the predicted time of an operation, in microseconds.

        Raises:
            InputError: as `nearest`.
        """
        return self.nearest(family, place).time_us(message_bytes, place)

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

    def nearest(self, family: Family, place: Place) -> MeasuredCurve:
        """Return the measured curve that differs least from a network in ranks and rate.

        An operation without reduction falls back to another data type.

        Raises:
            InputError: the operation was not measured, or on no network from which this one can be
                predicted.
        """
        operation, backend, dtype = family
        measured = [family] if family in self.curves else []
        if not OPERATIONS[operation].reduces:
            measured += [other for other in self.curves if other[:2] == family[:2]]
        subject = f"{backend} {operation}"
        if not measured:
            raise UnpredictedError(
                "operation_unmeasured", subject, dtype=dtype, backend=backend, operation=operation
            )
        curves = self.curves[measured[0]]
        within = [curve for curve in curves if curve.link.is_within_host]
        across = [curve for curve in curves if not curve.link.is_within_host]
        code, usable = "", across or within
        if place.is_within_host:
            usable = within
            code = "" if within else "within_host_unmeasured"
        elif not across and place.rate_bps is None:
            code = "links_unmeasured"
        if code:
            raise UnpredictedError(code, subject)
        return min(usable, key=lambda curve: curve.place.doublings(place))


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
        place, others = target.place, []
        for other in curves:
            is_like = other.link.is_within_host == target.link.is_within_host
            if is_like and other.place.world_size <= place.world_size and not other.is_at(place):
                others.append(other)
        if others:
            nearest = min(others, key=lambda curve: curve.place.doublings(place))
            for size, time_us in zip(target.curve.sizes, target.curve.times_us, strict=True):
                ratio = nearest.time_us(size, place) / time_us
                pairs.append(HeldOut(ratio, nearest.place.doublings(place)))
    return pairs


def error_per_doubling(pairs: Iterable[HeldOut]) -> float:
    """Return the median absolute relative error for each doubling.

    Doublings count as independent: the logarithm of an error grows with the root of their number.
    The median of few errors says little about the large ones. So it is at least the median of
    normal errors with the same root mean square.
    """
    logs = [abs(math.log(pair.ratio)) / math.sqrt(max(1.0, pair.doublings)) for pair in pairs]
    root_mean_square = math.sqrt(statistics.fmean(log**2 for log in logs))
    return math.expm1(max(statistics.median(logs), MEDIAN_OF_NORMAL * root_mean_square))


def _check_conditions(runs: Iterable[Run]) -> None:
    """Check that the runs agree in libraries and, across hosts, in ranks per host."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for backend, library in run.info.get("libraries", {}).items():
            found.setdefault(f"libraries of {backend}", set()).add(library)
        if _is_across_hosts(run):
            found.setdefault("numbers of ranks on a host", set()).add(str(_ranks_per_node(run)))
    for condition, values in found.items():
        if len(values) > 1:
            raise InputError(
                f"The runs have different {condition} ({' and '.join(sorted(values))}), which do"
                " not mix; predict from runs that were measured alike."
            )
