"""Closed forms of collectives, time over p ranks by algorithm, and fits of their cost per hop to
measured times.

Every form takes the number of ranks ``p`` and the message size ``n`` in bytes (numbers or arrays
that broadcast) and returns microseconds. ``n`` is the message size of ``collectives.csv``: the
total for all_gather, reduce_scatter, all_to_all, gather and scatter. The forms assume that a rank
sends and receives at the same time, that every rank has its own link to all others, and that
nothing else uses it.

Sources: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication
operations in MPICH, IJHPCA 19(1), 2005 ("Thakur"); P. Patarasuk and X. Yuan, Bandwidth optimal
all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009 ("Patarasuk"); P. Sanders, J.
Speck and J. L. Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan,
Parallel Computing 35(12), 2009 ("Sanders").
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.links import WITHIN_HOST, Link
from commbench.collectives.backends import backend_of_any_tool
from commbench.collectives.operations import OPERATIONS
from commbench.errors import InputError
from commbench.stats import Floats

#: Rounding error of a computed logarithm of a power of two.
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Hop:
    """Cost of a message to another rank: alpha + beta n, and gamma n to reduce it there."""

    alpha_us: float | Floats
    beta_us_per_byte: float | Floats
    gamma_us_per_byte: float | Floats = 0.0


Form: TypeAlias = Callable[[ArrayLike, ArrayLike, Hop], Floats]


# --------------------------------------------------------------------------------------- all_reduce


def ring_all_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma: reduce_scatter, then all_gather (Patarasuk,
    section 3).
    """
    return ring_reduce_scatter(p, n, hop) + ring_all_gather(p, n, hop)


def recursive_doubling_all_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """log2 p (alpha + n beta + n gamma) for powers of two (Thakur, 4.5).

    Ranks beyond the largest power of two send their data to another rank first and receive the
    result at the end.
    """
    rounds, extra = _rounds(p)
    n = _floats(n)
    return (rounds + 2 * extra) * (hop.alpha_us + n * hop.beta_us_per_byte) + (
        rounds + extra
    ) * n * hop.gamma_us_per_byte


def halving_doubling_all_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """2 log2 p alpha + 2(p-1)/p n beta + (p-1)/p n gamma for powers of two (Rabenseifner's; Thakur,
    4.5).

    Ranks beyond the largest power of two send their data to another rank first and receive the
    result at the end.
    """
    (rounds, extra), n = _rounds(p), _floats(n)
    share = 1 - 2.0**-rounds
    inner = 2 * rounds * hop.alpha_us + share * n * (
        2 * hop.beta_us_per_byte + hop.gamma_us_per_byte
    )
    return inner + extra * (
        2 * hop.alpha_us + n * (2 * hop.beta_us_per_byte + hop.gamma_us_per_byte)
    )


def double_tree_all_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """Return the time of a reduction, then a broadcast, in blocks over two binary trees (Sanders,
    sections 3 and 4).
    """
    return double_tree_broadcast(p, n, hop) * 2 + _floats(n) * hop.gamma_us_per_byte * (
        _floats(p) > 1
    )


def hierarchical_all_reduce(
    p: ArrayLike, n: ArrayLike, inner: Hop, outer: Hop, ranks_per_node: int
) -> Floats:
    """Reduce_scatter in each host, all_reduce of the shares across hosts, all_gather in each host.

    Each step is a ring.

    The k ranks of a host reduce n/k each across hosts, at the same time over the host's one link
    (``outer``). Together
    they take as long as one all_reduce of n: 2(m-1) alpha + 2(m-1)/m n beta with m = p/k hosts.
    """
    k, hosts = float(ranks_per_node), _floats(p) / ranks_per_node
    return (
        ring_reduce_scatter(k, n, inner)
        + ring_all_reduce(hosts, n, outer)
        + ring_all_gather(k, n, inner)
    )


# ------------------------------------------------------------------------------ parts of all_reduce


def ring_reduce_scatter(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(p-1) alpha + (p-1)/p n (beta + gamma) (Thakur, 4.3, pairwise exchange; Patarasuk, section
    3).
    """
    p = _floats(p)
    return (p - 1) * hop.alpha_us + (p - 1) / p * _floats(n) * (
        hop.beta_us_per_byte + hop.gamma_us_per_byte
    )


def recursive_halving_reduce_scatter(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """log2 p alpha + (p-1)/p n (beta + gamma) for powers of two (Thakur, 4.3), else a round of n
    before and after.
    """
    (rounds, extra), n = _rounds(p), _floats(n)
    per_byte = hop.beta_us_per_byte + hop.gamma_us_per_byte
    before_and_after = 2 * hop.alpha_us + n * per_byte + n / _floats(p) * hop.beta_us_per_byte
    return rounds * hop.alpha_us + (1 - 2.0**-rounds) * n * per_byte + extra * before_and_after


def ring_all_gather(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(p-1) alpha + (p-1)/p n beta (Thakur, 4.1)."""
    p = _floats(p)
    return (p - 1) * hop.alpha_us + (p - 1) / p * _floats(n) * hop.beta_us_per_byte


def recursive_doubling_all_gather(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) alpha + (p-1)/p n beta (Thakur, 4.1).

    Bruck's, if p is no power of two, takes as long.
    """
    p = _floats(p)
    return _depth(p) * hop.alpha_us + (p - 1) / p * _floats(n) * hop.beta_us_per_byte


# ---------------------------------------------------------------------------------- from and to one


def binomial_broadcast(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) (alpha + n beta) (Thakur, 4.2)."""
    return _depth(p) * (hop.alpha_us + _floats(n) * hop.beta_us_per_byte)


def scatter_all_gather_broadcast(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(ceil(log2 p) + p - 1) alpha + 2(p-1)/p n beta: van de Geijn's (Thakur, 4.2)."""
    return binomial_scatter(p, n, hop) + ring_all_gather(p, n, hop)


def double_tree_broadcast(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """2h alpha + n beta + sqrt(8 h alpha n beta) with h = ceil(log2 p), in the best number of
    blocks (Sanders, 3).
    """
    depth, transfer = _depth(p), _floats(n) * hop.beta_us_per_byte
    return (
        2 * depth * hop.alpha_us
        + (depth > 0) * transfer
        + np.sqrt(8 * depth * hop.alpha_us * transfer)
    )


def binomial_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) (alpha + n beta + n gamma) (Thakur, 4.4)."""
    return binomial_broadcast(p, n, hop) + _depth(p) * _floats(n) * hop.gamma_us_per_byte


def ring_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """reduce_scatter in a ring, then a gather of all shares at once: p alpha + 2(p-1)/p n beta +
    (p-1)/p n gamma.

    Source: ``gloo/reduce.cc``.
    """
    p = _floats(p)
    gathered = hop.alpha_us * (p > 1) + (p - 1) / p * _floats(n) * hop.beta_us_per_byte
    return ring_reduce_scatter(p, n, hop) + gathered


def binomial_scatter(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) alpha + (p-1)/p n beta; the same as a binomial gather (Thakur, 4.2 and 4.4)."""
    return recursive_doubling_all_gather(p, n, hop)


def linear_scatter(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(p-1) alpha + (p-1)/p n beta: the root sends to one rank after the other.

    The same as a linear gather.
    """
    return ring_all_gather(p, n, hop)


# -------------------------------------------------------------------------------------------- other


def pairwise_all_to_all(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(p-1) alpha + (p-1)/p n beta (Thakur, 4.6, where n counts what a rank sends to all, as
    here).
    """
    return ring_all_gather(p, n, hop)


def bruck_all_to_all(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) (alpha + n/2 beta) (Thakur, 4.6, store and forward)."""
    return _depth(p) * (hop.alpha_us + _floats(n) / 2 * hop.beta_us_per_byte)


def dissemination_barrier(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) alpha, whatever ``n`` (D.

    Hensgen, R. Finkel and U. Manber, IJPP 17(1), 1988).
    """
    return _depth(p) * hop.alpha_us + 0 * _floats(n)


_FORMS: Mapping[str, Form] = {
    form.__name__: form
    for form in (
        ring_all_reduce,
        recursive_doubling_all_reduce,
        halving_doubling_all_reduce,
        double_tree_all_reduce,
        ring_all_gather,
        recursive_doubling_all_gather,
        ring_reduce_scatter,
        recursive_halving_reduce_scatter,
        binomial_broadcast,
        scatter_all_gather_broadcast,
        double_tree_broadcast,
        binomial_reduce,
        ring_reduce,
        linear_scatter,
        binomial_scatter,
        pairwise_all_to_all,
        bruck_all_to_all,
        dissemination_barrier,
    )
}
#: By operation, its closed forms by algorithm, as the operation's entry lists them.
ALGORITHMS: Mapping[str, Mapping[str, Form]] = MappingProxyType(
    {
        operation.name: {
            algorithm: _FORMS[form] for algorithm, form in operation.closed_forms.items()
        }
        for operation in OPERATIONS.values()
        if operation.closed_forms
    }
)

#: Algorithms whose messages are all of n/p bytes: with n proportional to p the messages keep their
#: length.
SHARE_SIZED_MESSAGES = frozenset(
    {"ring", "ring all_reduce", "hierarchical rings", "linear", "pairwise"}
)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=float)


def _depth(p: ArrayLike) -> Floats:
    """ceil(log2 p)."""
    return np.ceil(np.log2(_floats(p)) - _TINY)


def _rounds(p: ArrayLike) -> tuple[Floats, Floats]:
    """Return log2 of the largest power of two up to p, and 1 if p is larger than that, else 0."""
    logarithm = np.log2(_floats(p))
    rounds = np.floor(logarithm + _TINY)
    return rounds, (logarithm - rounds > _TINY).astype(float)


#: Grid search: values per axis by the number of unknowns, rounds, and the range of the first round
#: (largest / smallest).
_TRIED, _REFINED, _LARGEST_OVER_SMALLEST = {2: 61, 3: 25}, 8, 1e9


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """A curve with its number of ranks and link."""

    curve: Curve
    world_size: int
    link: Link

    def covers(self, message_bytes: float, link: Link) -> bool:
        """Return whether messages of this size, or of sizes around it, were measured over an
        equivalent link.
        """
        sizes = self.curve.sizes
        return sizes[0] <= message_bytes <= sizes[-1] and link.is_like(self.link, self.world_size)


@dataclass(frozen=True, kw_only=True)
class FittedHop:
    """One algorithm's fitted cost per hop: the part that a faster link shortens and the part that
    it does not.
    """

    form: Form
    alpha_us: float
    """Start-up time of a message. This and the next two hold if every rank has its own core."""
    local_us_per_byte: float = 0.0
    """A rank's own work per byte sent, independent of the link: copying, protocol, reduction."""
    link_excess: float = 0.0
    """Share by which the link takes longer than its nominal rate implies."""
    link_us_per_byte: float | None = None
    """Fitted time of the link per byte if its rate is unknown; None: the rate gives it."""
    call_us: float = 0.0
    """Fixed time of a call, independent of ranks and bytes, for instance to wake threads."""

    def at(self, link: Link, world_size: float | Floats) -> Hop:
        """Return the hop's cost over a link for ``world_size`` ranks."""
        oversubscription = link.oversubscription(world_size)
        of_link = link.us_per_byte if link.rate_bps is not None else self.link_us_per_byte or 0.0
        beta = (
            of_link * (1 + oversubscription * self.link_excess)
            + oversubscription * self.local_us_per_byte
        )
        return Hop(alpha_us=oversubscription * self.alpha_us, beta_us_per_byte=beta)

    def time_us(
        self, message_bytes: float | Floats, world_size: float | Floats, link: Link
    ) -> Floats:
        """Return the algorithm's time in microseconds, in the shape of ``message_bytes``."""
        return self.call_us + self.form(world_size, message_bytes, self.at(link, world_size))

    def link_us(
        self, message_bytes: float | Floats, world_size: float | Floats, link: Link
    ) -> Floats:
        """Return the time of the link alone for the algorithm's bytes, in microseconds."""
        beta = link.us_per_byte if link.rate_bps is not None else self.link_us_per_byte or 0.0
        with_bytes, without_bytes = (
            Hop(alpha_us=0.0, beta_us_per_byte=us_per_byte) for us_per_byte in (beta, 0.0)
        )
        return self.form(world_size, message_bytes, with_bytes) - self.form(
            world_size, message_bytes, without_bytes
        )

    def start_up_share(self, message_bytes: float, world_size: int, link: Link) -> float:
        """Return the share of the time that does not depend on the bytes."""
        start = dataclasses.replace(self.at(link, world_size), beta_us_per_byte=0.0)
        start_us = self.call_us + float(self.form(world_size, message_bytes, start))
        return start_us / float(self.time_us(message_bytes, world_size, link))

    def lower_bound_us(self, message_bytes: float, world_size: int, link: Link) -> float:
        """Return the link's time without any headers, which no time can undercut; 0 if the rate is
        unknown.
        """
        bare = dataclasses.replace(link, payload=1.0)
        return (
            0.0 if link.rate_bps is None else float(self.link_us(message_bytes, world_size, bare))
        )

    def errors(self, measured: MeasuredCurve) -> Floats:
        """Return log(fitted / measured) at each size of a curve."""
        sizes, times = (
            np.asarray(measured.curve.sizes, float),
            np.asarray(measured.curve.times_us, float),
        )
        return np.asarray(np.log(self.time_us(sizes, measured.world_size, measured.link) / times))


def fit_hop(form: Form, measured: Sequence[MeasuredCurve]) -> FittedHop:
    """Fit the cost per hop to curves on one or more numbers of ranks.

    Minimise the mean absolute log error.

    If a rate is unknown, the whole cost per byte is the link's. If all rates are known, the cost
    per byte beyond the rate is either inefficiency of the link or local work:

    - Over several rates, the better fit decides. - Over one rate, it is the link's inefficiency if
    it is less than the link's time. Local work of that length would
      overlap with the transfer of the next segment.

    The fixed time of a call is fitted only if several numbers of ranks were measured.
    """
    if any(curve.link.rate_bps is None for curve in measured):
        fitted, _ = _fit(form, measured, "link_us_per_byte")
        return fitted
    local, loss = _fit(form, measured, "local_us_per_byte")
    rates = {curve.link.rate_bps for curve in measured}
    if math.inf in rates:
        return local
    excess, loss_of_link = _fit(form, measured, "link_excess")
    if len(rates) > 1:
        return excess if loss_of_link < loss else local
    widest = max(float(curve.link.oversubscription(curve.world_size)) for curve in measured)
    return excess if widest * excess.link_excess < 1 else local


def _fit(form: Form, measured: Sequence[MeasuredCurve], name: str) -> tuple[FittedHop, float]:
    """Return the best fit with field ``name`` as the cost per byte beyond the link's rate, and its
    loss.
    """
    points = [
        (
            curve.world_size,
            size,
            time,
            float(curve.link.oversubscription(curve.world_size)),
            curve.link.us_per_byte,
        )
        for curve in measured
        for size, time in zip(curve.curve.sizes, curve.curve.times_us, strict=True)
    ]
    ranks, sizes, times, oversubscription, of_link = np.asarray(points, float).T
    fixed_us, unit, largest = {
        "link_us_per_byte": (
            np.zeros_like(times),
            np.ones_like(times),
            float((times / sizes).max()),
        ),
        "local_us_per_byte": (of_link, oversubscription, float((times / sizes).max())),
        "link_excess": (of_link, of_link * oversubscription, 10.0),
    }[name]

    def loss(alpha_us: Floats, fitted_cost: Floats, call_us: Floats | float = 0.0) -> Floats:
        hop = Hop(
            alpha_us=alpha_us * oversubscription, beta_us_per_byte=fixed_us + fitted_cost * unit
        )
        fitted = np.maximum(call_us + form(ranks, sizes, hop), np.finfo(float).tiny)
        return np.asarray(np.abs(np.log(fitted / times)).mean(axis=-1))

    longest = float(times.max())
    has_several_ranks = len(set(ranks.tolist())) > 1
    (alpha_us, cost, *call_us), loss_at_minimum = _minimise(
        loss, [longest, largest, longest] if has_several_ranks else [longest, largest]
    )
    fields = {name: cost, "call_us": call_us[0] if call_us else 0.0}
    return FittedHop(form=form, alpha_us=alpha_us, **fields), loss_at_minimum


def _minimise(loss: Callable[..., Floats], largest: Sequence[float]) -> tuple[list[float], float]:
    """Return the arguments that minimise ``loss`` and the minimum, by a logarithmic grid that is
    refined.

    scipy.optimize.differential_evolution finds the same minima in 20 times the time, and its bounds
    exclude 0.

    Args:
        loss: takes one array for each argument; they broadcast and end in an axis of length 1,
            which the result lacks.
        largest: the largest value of each argument; each may also be 0.
    """
    values, half_range = _TRIED[len(largest)], math.log(_LARGEST_OVER_SMALLEST) / 2
    middles = [math.log(value) - half_range for value in largest]
    best = math.inf, [0.0] * len(largest)
    for _ in range(_REFINED):
        axes = [
            np.append(np.exp(np.linspace(middle - half_range, middle + half_range, values)), 0.0)
            for middle in middles
        ]
        losses = loss(*(axis[..., None] for axis in np.ix_(*axes)))
        at = np.unravel_index(int(np.argmin(losses)), losses.shape)
        arguments = [float(axis[i]) for axis, i in zip(axes, at, strict=True)]
        best = min(best, (float(losses[at]), arguments))
        half_range *= 4 / values
        middles = [
            math.log(value) if value else middle
            for value, middle in zip(best[1], middles, strict=True)
        ]
    return best[1], best[0]


#: Patterns with more ranks on more hosts.
GROWING_PATTERNS = ("flat", "cross", "hierarchical")


def closed_forms_of(
    operation: str,
    backend: str,
    pattern: str,
    *,
    ranks_per_node: int = 1,
    inner: Curve | None = None,
) -> dict[str, Form]:
    """Return the closed forms that may describe an operation, by algorithm.

    One if the backend's algorithm is known.

    Args:
        operation: as in ``collectives.csv``.
        backend: Gloo's algorithms are known; other libraries choose by message size and number of
            ranks.
        pattern: see `GROWING_PATTERNS`.
        ranks_per_node: ranks on each host.
        inner: the operation within each host (pattern ``node``); for ``hierarchical``.

    Raises:
        InputError: the operation or the pattern has no closed form.
    """
    forms = ALGORITHMS.get(operation)
    if forms is None:
        raise InputError(
            f"No closed form of {operation} over the number of ranks exists; choose from"
            f" {', '.join(ALGORITHMS)}."
        )
    algorithm = (
        OPERATIONS[operation].gloo_algorithm
        if backend_of_any_tool(backend).has_fixed_algorithms
        else ""
    )
    candidates = {algorithm: forms[algorithm]} if algorithm else forms
    if pattern == "flat":
        return dict(candidates)
    if pattern == "cross":
        return {name: _across(form, ranks_per_node) for name, form in candidates.items()}
    if pattern == "hierarchical" and operation == "all_reduce" and algorithm:
        return {"hierarchical rings": _hierarchical(ranks_per_node, inner)}
    raise InputError(
        f"No closed form of {backend} {operation} in pattern {pattern} exists; choose flat or"
        " cross."
    )


def _across(form: Form, k: int) -> Form:
    """Return the form of a group of every k-th rank: k groups share the hosts' links at the same
    time.
    """
    return lambda p, n, hop: form(
        np.asarray(p, float) / k,
        n,
        dataclasses.replace(hop, beta_us_per_byte=k * hop.beta_us_per_byte),
    )


def _hierarchical(k: int, inner: Curve | None) -> Form:
    """Return the form of a hierarchical operation on hosts of k ranks.

    Zero cost within hosts without ``inner``.
    """
    within = Hop(alpha_us=0.0, beta_us_per_byte=0.0)
    if inner:
        measured = MeasuredCurve(curve=inner, world_size=k, link=WITHIN_HOST)
        within = fit_hop(ring_all_reduce, [measured]).at(WITHIN_HOST, k)
    return lambda p, n, hop: hierarchical_all_reduce(p, n, within, hop, k)
