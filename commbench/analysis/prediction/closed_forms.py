"""Closed forms of collectives: time over p ranks by algorithm, from latency, bandwidth and reduction cost of a hop.

Every function takes the number of ranks ``p`` and the message size ``n`` in bytes (numbers or arrays that broadcast)
and returns microseconds. ``n`` is the message size of ``collectives.csv``: the total for all_gather, reduce_scatter,
all_to_all, gather and scatter. The forms assume that a rank sends and receives at the same time, that every rank has
its own link to all others, and that nothing else uses it.

Sources: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations in MPICH, IJHPCA
19(1), 2005 ("Thakur"); P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
JPDC 69(2), 2009 ("Patarasuk"); P. Sanders, J. Speck and J. L. Traeff, Two-tree algorithms for full bandwidth broadcast,
reduction and scan, Parallel Computing 35(12), 2009 ("Sanders").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from commbench.collectives.operations import OPERATIONS

Floats: TypeAlias = NDArray[np.float64]

#: Rounding error of a computed logarithm of a power of two.
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Hop:
    """Cost of a message to another rank: alpha + beta n, and gamma n to reduce it there."""

    alpha_us: float | Floats
    beta_us_per_byte: float | Floats
    gamma_us_per_byte: float | Floats = 0.0


Form: TypeAlias = Callable[[ArrayLike, ArrayLike, Hop], Floats]


# ------------------------------------------------------------------------------------------------------ all_reduce


def ring_all_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma: reduce_scatter, then all_gather (Patarasuk, section 3)."""
    return ring_reduce_scatter(p, n, hop) + ring_all_gather(p, n, hop)


def recursive_doubling_all_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """log2 p (alpha + n beta + n gamma) for powers of two (Thakur, 4.5).

    Ranks beyond the largest power of two send their data to another rank first and receive the result at the end.
    """
    rounds, extra = _rounds(p)
    n = _floats(n)
    return (rounds + 2 * extra) * (hop.alpha_us + n * hop.beta_us_per_byte) + (
        rounds + extra
    ) * n * hop.gamma_us_per_byte


def halving_doubling_all_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """2 log2 p alpha + 2(p-1)/p n beta + (p-1)/p n gamma for powers of two (Rabenseifner's; Thakur, 4.5).

    Ranks beyond the largest power of two send their data to another rank first and receive the result at the end.
    """
    (rounds, extra), n = _rounds(p), _floats(n)
    share = 1 - 2.0**-rounds
    inner = 2 * rounds * hop.alpha_us + share * n * (2 * hop.beta_us_per_byte + hop.gamma_us_per_byte)
    return inner + extra * (2 * hop.alpha_us + n * (2 * hop.beta_us_per_byte + hop.gamma_us_per_byte))


def double_tree_all_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """A reduction, then a broadcast, each in blocks over two binary trees at once (Sanders, sections 3 and 4)."""
    return double_tree_broadcast(p, n, hop) * 2 + _floats(n) * hop.gamma_us_per_byte * (_floats(p) > 1)


def hierarchical_all_reduce(p: ArrayLike, n: ArrayLike, inner: Hop, outer: Hop, ranks_per_node: int) -> Floats:
    """Reduce_scatter in each host, all_reduce of the shares across hosts, all_gather in each host; all of them rings.

    The k ranks of a host reduce n/k each across hosts, at the same time over the host's one link (``outer``). Together
    they take as long as one all_reduce of n: 2(m-1) alpha + 2(m-1)/m n beta with m = p/k hosts.
    """
    k, hosts = float(ranks_per_node), _floats(p) / ranks_per_node
    return ring_reduce_scatter(k, n, inner) + ring_all_reduce(hosts, n, outer) + ring_all_gather(k, n, inner)


# ------------------------------------------------------------------------------------------------ parts of all_reduce


def ring_reduce_scatter(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(p-1) alpha + (p-1)/p n (beta + gamma) (Thakur, 4.3, pairwise exchange; Patarasuk, section 3)."""
    p = _floats(p)
    return (p - 1) * hop.alpha_us + (p - 1) / p * _floats(n) * (hop.beta_us_per_byte + hop.gamma_us_per_byte)


def recursive_halving_reduce_scatter(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """log2 p alpha + (p-1)/p n (beta + gamma) for powers of two (Thakur, 4.3), else a round of n before and after."""
    (rounds, extra), n = _rounds(p), _floats(n)
    per_byte = hop.beta_us_per_byte + hop.gamma_us_per_byte
    before_and_after = 2 * hop.alpha_us + n * per_byte + n / _floats(p) * hop.beta_us_per_byte
    return rounds * hop.alpha_us + (1 - 2.0**-rounds) * n * per_byte + extra * before_and_after


def ring_all_gather(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(p-1) alpha + (p-1)/p n beta (Thakur, 4.1)."""
    p = _floats(p)
    return (p - 1) * hop.alpha_us + (p - 1) / p * _floats(n) * hop.beta_us_per_byte


def recursive_doubling_all_gather(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) alpha + (p-1)/p n beta (Thakur, 4.1); Bruck's, if p is no power of two, takes as long."""
    p = _floats(p)
    return _depth(p) * hop.alpha_us + (p - 1) / p * _floats(n) * hop.beta_us_per_byte


# -------------------------------------------------------------------------------------------------- from and to one


def binomial_broadcast(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) (alpha + n beta) (Thakur, 4.2)."""
    return _depth(p) * (hop.alpha_us + _floats(n) * hop.beta_us_per_byte)


def scatter_all_gather_broadcast(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(ceil(log2 p) + p - 1) alpha + 2(p-1)/p n beta: van de Geijn's (Thakur, 4.2)."""
    return binomial_scatter(p, n, hop) + ring_all_gather(p, n, hop)


def double_tree_broadcast(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """2h alpha + n beta + sqrt(8 h alpha n beta) with h = ceil(log2 p), in the best number of blocks (Sanders, 3)."""
    depth, transfer = _depth(p), _floats(n) * hop.beta_us_per_byte
    return 2 * depth * hop.alpha_us + (depth > 0) * transfer + np.sqrt(8 * depth * hop.alpha_us * transfer)


def binomial_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) (alpha + n beta + n gamma) (Thakur, 4.4)."""
    return binomial_broadcast(p, n, hop) + _depth(p) * _floats(n) * hop.gamma_us_per_byte


def ring_reduce(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """reduce_scatter in a ring, then a gather of all shares at once: p alpha + 2(p-1)/p n beta + (p-1)/p n gamma.

    Source: ``gloo/reduce.cc``.
    """
    p = _floats(p)
    gathered = hop.alpha_us * (p > 1) + (p - 1) / p * _floats(n) * hop.beta_us_per_byte
    return ring_reduce_scatter(p, n, hop) + gathered


def binomial_scatter(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) alpha + (p-1)/p n beta; the same as a binomial gather (Thakur, 4.2 and 4.4)."""
    return recursive_doubling_all_gather(p, n, hop)


def linear_scatter(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(p-1) alpha + (p-1)/p n beta: the root sends to one rank after the other; the same as a linear gather."""
    return ring_all_gather(p, n, hop)


# ------------------------------------------------------------------------------------------------------- other


def pairwise_all_to_all(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """(p-1) alpha + (p-1)/p n beta (Thakur, 4.6, where n counts what a rank sends to all, as here)."""
    return ring_all_gather(p, n, hop)


def bruck_all_to_all(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) (alpha + n/2 beta) (Thakur, 4.6, store and forward)."""
    return _depth(p) * (hop.alpha_us + _floats(n) / 2 * hop.beta_us_per_byte)


def dissemination_barrier(p: ArrayLike, n: ArrayLike, hop: Hop) -> Floats:
    """ceil(log2 p) alpha, whatever ``n`` (D. Hensgen, R. Finkel and U. Manber, IJPP 17(1), 1988)."""
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
        operation.name: {algorithm: _FORMS[form] for algorithm, form in operation.closed_forms.items()}
        for operation in OPERATIONS.values()
        if operation.closed_forms
    }
)

#: Algorithms whose messages are all of n/p bytes: with n proportional to p the messages keep their length.
SHARE_SIZED_MESSAGES = frozenset({"ring", "ring all_reduce", "hierarchical rings", "linear", "pairwise"})


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
