"""Tests of the density at which top-k breaks even: byte and time crossovers, ranks and bandwidths,
measured wins.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from builders import MIB
from networks import growing
from numpy.typing import ArrayLike, NDArray
from test_larger_steps import calibrated
from training_builders import make_training_case

from commbench.analysis.prediction.breakeven import (
    DENSEST,
    BreakEven,
    break_even,
    compare_with_measured,
    measured_break_even,
)
from commbench.analysis.prediction.closed_forms import ALGORITHMS, Hop
from commbench.analysis.prediction.larger import best_buckets, model_on_network, model_with_density
from commbench.analysis.prediction.steps import HookCost
from commbench.ddp.plan.records import TrainingRow
from commbench.errors import InputError

CAPS = ["default", "8"]
FREE = Hop(alpha_us=0.0, beta_us_per_byte=8e-3)


def crossover_density(
    p: ArrayLike,
    n: ArrayLike,
    hop: Hop,
    *,
    select_us: float = 0.0,
    zero_us: float = 0.0,
    add_us: float = 0.0,
) -> NDArray[np.float64]:
    """Return the density at which top-k by all_gather takes as long as a ring all_reduce
    (docs/predicting.md).
    """
    p, n = np.asarray(p, dtype=float), np.asarray(n, dtype=float)
    saved = (
        (p - 1) * hop.alpha_us + 8 * n * (p - 1) / p * hop.beta_us_per_byte - select_us - zero_us
    )
    return np.asarray(saved / (8 * n * (p - 1) * hop.beta_us_per_byte + p * n * add_us))


def test_bytes_cross_at_one_over_p() -> None:
    """Set the byte crossover to 1/p.

    Without latency and local work the time crossover is the same.
    """
    ranks = np.array([2, 4, 8, 16, 64])
    assert crossover_density(ranks, MIB, FREE) == pytest.approx(1 / ranks)
    assert BreakEven(world_size=8, dense_ms=1.0, density=None).byte_density == 1 / 8


def test_times_cross_at_the_density_of_the_formula() -> None:
    """Dense all_reduce and top-k take equally long at the density of the closed form."""
    hop, n, p = Hop(alpha_us=50.0, beta_us_per_byte=8e-3), 4.0 * MIB, 8
    local = {"select_us": 7000.0, "zero_us": 500.0, "add_us": 2e-3}
    density = float(crossover_density(p, n, hop, **local))
    dense = float(ALGORITHMS["all_reduce"]["ring"](p, 4 * n, hop))
    sparse = float(ALGORITHMS["all_gather"]["ring"](p, p * 8 * density * n, hop))
    sparse += local["select_us"] + local["zero_us"] + p * density * n * local["add_us"]
    assert 0 < density < 1 / p
    assert dense == pytest.approx(sparse)
    assert crossover_density(p, n, hop, select_us=1e9) < 0, "no density wins"


def test_the_break_even_is_where_both_take_as_long() -> None:
    """Predict top-k to be faster 10 % below the break-even density and slower 10 % above it."""
    model, network = calibrated()
    larger_model = model_on_network(model, network.at("gloo", 8))
    crossover = break_even(larger_model, CAPS)
    assert crossover.density is not None
    for factor, is_faster in ((0.9, True), (1.1, False)):
        sparse, name = model_with_density(larger_model, factor * crossover.density)
        assert is_faster == (best_buckets(sparse, name, CAPS).step_ms < crossover.dense_ms)
    assert 0.3 * crossover.byte_density < crossover.density < 2 * crossover.byte_density


def test_only_gathered_top_k_decodes_more_on_more_ranks() -> None:
    """Scale the decoding cost of gathered top-k with the ranks, and no other hook's."""
    model, network = calibrated()
    cost = HookCost(encode_ms=1.0, decode_ms_per_element=1e-6)
    names = ("topk:0.01", "topk:0.01:chunk=64:exchange=aligned", "int8")
    larger_model = model_on_network(
        dataclasses.replace(model, hooks=dict.fromkeys(names, cost)), network.at("gloo", 32)
    )
    assert [True, False, False] == [larger_model.hooks[name] != cost for name in names]


def test_the_map_falls_with_ranks_and_bandwidth() -> None:
    """Lower the break-even density with more ranks and faster links, down to none."""
    model, network = calibrated()
    densities = {
        (ranks, gbit): (
            break_even(
                model_on_network(model, network.at("gloo", ranks, rate_bps=1e9 * gbit)), CAPS
            ).density
        )
        for ranks in (2, 32)
        for gbit in (0.1, 1, 1000)
    }
    slow, usual, fast = (densities[32, gbit] or 0.0 for gbit in (0.1, 1, 1000))
    assert fast <= usual <= slow * 1.1
    assert (densities[32, 1] or 0.0) < (densities[2, 1] or 0.0)
    cost = dataclasses.replace(model.hooks["topk:0.01"], encode_ms=1000.0)
    dear = dataclasses.replace(model, hooks={**model.hooks, "topk:0.01": cost})
    assert (
        break_even(model_on_network(dear, network.at("gloo", 8, rate_bps=1e12)), CAPS).density
        is None
    )


def test_it_may_always_pay() -> None:
    """Predict that top-k always pays if encoding whole gradients is expensive."""
    model, network = calibrated()
    cost = dataclasses.replace(model.hooks["none"], encode_ms=1e5)
    dear = dataclasses.replace(model, hooks={**model.hooks, "none": cost})
    assert break_even(model_on_network(dear, network.at("gloo", 2)), CAPS).density == DENSEST


def row(
    hook: str, step_ms: float, *, off: float = 0.01, cap: str = "default", ranks: int = 4
) -> TrainingRow:
    """Return a row of ``ddp.csv`` whose interval extends by the share ``off`` to both sides."""
    case = dataclasses.asdict(make_training_case(hook, cap, world_size=ranks))
    del case["phase"]
    fields: dict[str, Any] = case | {"step_ms": step_ms}
    return TrainingRow(
        **fields, step_ms_ci_low=step_ms * (1 - off), step_ms_ci_high=step_ms * (1 + off)
    )


def test_measured_wins_and_losses_agree_or_not() -> None:
    """A win below the break-even or a loss above it agrees.

    Overlapping intervals decide nothing.
    """
    rows = [
        row("none", 100.0),
        row("none", 110.0, cap="5"),
        row("topk:0.001", 60.0),
        row("topk:0.01", 80.0),
        row("topk:0.01", 120.0, cap="5"),
        row("topk:0.05", 99.0, off=0.1),
        row("topk:0.1", 130.0),
        row("topk:0.1", 10.0, ranks=2),
        row("topk:0.01:exchange=aligned", 10.0),
    ]
    points = compare_with_measured(BreakEven(world_size=4, dense_ms=100.0, density=0.03), rows)
    assert [point.density for point in points] == [0.001, 0.01, 0.05, 0.1]
    assert [point.has_won for point in points] == [True, True, None, False]
    assert [point.agrees for point in points] == [True, True, None, True]
    assert points[1].speedup == pytest.approx(100 / 80)
    never = compare_with_measured(BreakEven(world_size=4, dense_ms=100.0, density=None), rows)
    assert [point.agrees for point in never] == [False, False, None, True]
    with pytest.raises(InputError, match="no step with none was measured on 8 ranks"):
        compare_with_measured(BreakEven(world_size=8, dense_ms=1.0, density=0.1), rows)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [((0.1, 0.2, 0.4), 0.25), ((0.25, 0.5), 0.25), ((0.01, 0.2), None), ((0.3, 0.5), None)],
)
def test_the_measured_break_even_lies_between_a_win_and_a_loss(
    tried: tuple[float, ...], expected: float | None
) -> None:
    """Recover the break-even of steps of 50 ms plus 200 ms times the density, beside a dense step
    of 100 ms.
    """
    rows = [row("none", 100.0), *(row(f"topk:{density}", 50 + 200 * density) for density in tried)]
    points = compare_with_measured(BreakEven(world_size=4, dense_ms=100.0, density=0.3), rows)
    assert measured_break_even(points) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("bounds", "won"), [((1.1, 1.3), True), ((0.7, 0.9), False), ((0.9, 1.2), None)]
)
def test_launches_are_paired_against_the_default(
    bounds: tuple[float, float], won: bool | None
) -> None:
    """Judge a win by the interval of the speedup if the default setting is the best dense one."""
    sparse = dataclasses.replace(
        row("topk:0.01", 99.0, off=0.5), speedup_ci_low=bounds[0], speedup_ci_high=bounds[1]
    )
    (point,) = compare_with_measured(
        BreakEven(world_size=4, dense_ms=100.0, density=0.03), [row("none", 100.0, off=0.5), sparse]
    )
    assert won is point.has_won
    (point,) = compare_with_measured(
        BreakEven(world_size=4, dense_ms=100.0, density=0.03),
        [row("none", 100.0, off=0.5, cap="5"), sparse],
    )
    assert point.has_won is None


def test_one_launch_shows_nothing() -> None:
    """Report neither win nor loss without intervals."""
    rows = [
        dataclasses.replace(each, step_ms_ci_low=None)
        for each in (row("none", 100.0), row("topk:0.01", 50.0))
    ]
    (point,) = compare_with_measured(BreakEven(world_size=4, dense_ms=100.0, density=0.03), rows)
    assert (point.has_won, point.agrees) == (None, None)


def test_networks_that_lack_an_operation_are_named() -> None:
    """Name the missing measurement if a network has no all_gather curve for top-k."""
    reduced = growing((2, 4), algorithms={"all_reduce": "ring"})
    model, _ = calibrated()
    with pytest.raises(InputError, match="Nothing is known of gloo all_gather"):
        break_even(model_on_network(model, reduced.at("gloo", 8)), CAPS)
