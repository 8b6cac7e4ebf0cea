"""Tests of closed forms: against published formulas at powers of two, other rank counts, and lower
bounds.
"""

import math

import numpy as np
import pytest
from builders import MIB

from commbench.analysis.prediction.closed_forms import (
    ALGORITHMS,
    Hop,
    binomial_broadcast,
    bruck_all_to_all,
    dissemination_barrier,
    double_tree_all_reduce,
    double_tree_broadcast,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    recursive_doubling_all_gather,
    recursive_doubling_all_reduce,
    recursive_halving_reduce_scatter,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce,
    ring_reduce_scatter,
    scatter_all_gather_broadcast,
)

A, B, G = 3.0, 0.01, 0.002
HOP = Hop(alpha_us=A, beta_us_per_byte=B, gamma_us_per_byte=G)
N = 1000.0


@pytest.mark.parametrize("p", [2, 4, 8, 1024])
def test_formulas_at_powers_of_two(p: int) -> None:
    """Return the time of the published formula at powers of two."""
    lg, share = math.log2(p), (p - 1) / p
    expected = {
        ring_all_reduce: 2 * (p - 1) * A + 2 * share * N * B + share * N * G,
        ring_reduce_scatter: (p - 1) * A + share * N * (B + G),
        ring_all_gather: (p - 1) * A + share * N * B,
        ring_reduce: p * A + 2 * share * N * B + share * N * G,
        recursive_doubling_all_reduce: lg * (A + N * B + N * G),
        halving_doubling_all_reduce: 2 * lg * A + 2 * share * N * B + share * N * G,
        recursive_doubling_all_gather: lg * A + share * N * B,
        recursive_halving_reduce_scatter: lg * A + share * N * (B + G),
        binomial_broadcast: lg * (A + N * B),
        scatter_all_gather_broadcast: (lg + p - 1) * A + 2 * share * N * B,
        double_tree_broadcast: 2 * lg * A + N * B + math.sqrt(8 * lg * A * N * B),
        bruck_all_to_all: lg * (A + N * B / 2),
        dissemination_barrier: lg * A,
    }
    for form, time_us in expected.items():
        assert float(form(p, N, HOP)) == pytest.approx(time_us), form.__name__


def test_other_numbers_of_ranks_take_one_more_round() -> None:
    """Add one exchange before and one after the doubling if the rank count is no power of two."""
    assert float(recursive_doubling_all_reduce(5, N, HOP)) == pytest.approx(
        4 * (A + N * B) + 3 * N * G
    )
    extra = 2 * A + N * (2 * B + G)
    assert float(halving_doubling_all_reduce(5, N, HOP)) == pytest.approx(
        float(halving_doubling_all_reduce(4, N, HOP)) + extra
    )
    assert float(binomial_broadcast(5, N, HOP)) == pytest.approx(3 * (A + N * B))


@pytest.mark.parametrize("operation", sorted(ALGORITHMS))
def test_no_algorithm_beats_the_bounds(operation: str) -> None:
    """Take at least log2 p latencies and the bandwidth bound, and no less time on more ranks."""
    ranks = np.array([2, 3, 4, 7, 8, 100, 10_000])
    for name, form in ALGORITHMS[operation].items():
        times = form(ranks, float(MIB), HOP)
        assert (ranks.size,) == times.shape
        assert (times >= np.ceil(np.log2(ranks)) * A * (1 - 1e-9)).all(), name
        powers = form(np.array([2, 4, 8, 16, 32]), float(MIB), HOP)
        assert (np.diff(powers) > 0).all(), name
        if operation == "all_reduce":  # Patarasuk's bound
            assert (times >= 2 * (ranks - 1) / ranks * MIB * B * (1 - 1e-9)).all(), name


def test_arrays_broadcast() -> None:
    """Return a table for ranks along one axis and sizes along the other."""
    table = double_tree_all_reduce(np.array([[2], [4], [8]]), np.array([1e3, 1e6]), HOP)
    assert table.shape == (3, 2)
    assert table[2, 1] == pytest.approx(float(double_tree_all_reduce(8, 1e6, HOP)))


def test_hierarchical_is_inner_and_outer() -> None:
    """Add the rings within hosts and the ring across hosts."""
    outer = Hop(alpha_us=100.0, beta_us_per_byte=1.0)
    assert float(hierarchical_all_reduce(4, N, HOP, outer, 4)) == pytest.approx(
        float(ring_all_reduce(4, N, HOP))
    )
    assert float(hierarchical_all_reduce(4, N, HOP, outer, 1)) == pytest.approx(
        float(ring_all_reduce(4, N, outer))
    )
    both = float(hierarchical_all_reduce(8, N, HOP, outer, 4))
    assert both == pytest.approx(
        float(ring_all_reduce(4, N, HOP)) + float(ring_all_reduce(2, N, outer))
    )
