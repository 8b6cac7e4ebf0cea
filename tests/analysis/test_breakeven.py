"""Tests of where top-k breaks even: byte and time crossovers, the map, and agreement with measurements."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from builders import MIB
from networks import growing
from numpy.typing import ArrayLike, NDArray
from test_larger_steps import calibrated
from training_builders import make_training_case

from commbench.analysis.prediction.breakeven import DENSEST, BreakEven, break_even, compare_with_measured
from commbench.analysis.prediction.closed_forms import ALGORITHMS, Hop
from commbench.analysis.prediction.larger import best_buckets, model_on_network, model_with_density
from commbench.ddp.plan.records import TrainingRow
from commbench.errors import InputError

CAPS = ["default", "8"]
FREE = Hop(alpha_us=0.0, beta_us_per_byte=8e-3)


def crossover_density(
    p: ArrayLike, n: ArrayLike, hop: Hop, *, select_us: float = 0.0, zero_us: float = 0.0, add_us: float = 0.0
) -> NDArray[np.float64]:
    """Return where a ring all_gather of top-k takes as long as a ring all_reduce, as docs/predicting.md has it."""
    p, n = np.asarray(p, dtype=float), np.asarray(n, dtype=float)
    saved = (p - 1) * hop.alpha_us + 8 * n * (p - 1) / p * hop.beta_us_per_byte - select_us - zero_us
    return np.asarray(saved / (8 * n * (p - 1) * hop.beta_us_per_byte + p * n * add_us))


def test_bytes_cross_at_one_over_p() -> None:
    """Where only bytes count, and the formula says so too."""
    ranks = np.array([2, 4, 8, 16, 64])
    assert crossover_density(ranks, MIB, FREE) == pytest.approx(1 / ranks)
    assert BreakEven(world_size=8, dense_ms=1.0, density=None).byte_density == 1 / 8


def test_times_cross_at_the_density_of_the_formula() -> None:
    """Compare the all_gather of k entries per rank plus local work with the all_reduce."""
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
    """A little below it top-k is faster, a little above slower; on a slow link it lies near the byte crossover."""
    model, network = calibrated()
    there = model_on_network(model, network.at("gloo", 8))
    found = break_even(there, CAPS)
    assert found.density is not None
    for factor, is_faster in ((0.9, True), (1.1, False)):
        sparse, name = model_with_density(there, factor * found.density)
        assert is_faster == (best_buckets(sparse, name, CAPS).step_ms < found.dense_ms)
    assert 0.3 * found.byte_density < found.density < 2 * found.byte_density


def test_the_map_falls_with_ranks_and_bandwidth() -> None:
    """More ranks and faster links leave top-k less room, until it never pays."""
    model, network = calibrated()
    densities = {
        (ranks, gbit): break_even(model_on_network(model, network.at("gloo", ranks, rate_bps=1e9 * gbit)), CAPS).density
        for ranks in (2, 32)
        for gbit in (0.1, 1, 1000)
    }
    slow, usual, fast = (densities[32, gbit] or 0.0 for gbit in (0.1, 1, 1000))
    assert fast <= usual <= slow * 1.1
    assert (densities[32, 1] or 0.0) < (densities[2, 1] or 0.0)
    cost = dataclasses.replace(model.hooks["topk:0.01"], encode_ms=1000.0)
    dear = dataclasses.replace(model, hooks={**model.hooks, "topk:0.01": cost})
    assert break_even(model_on_network(dear, network.at("gloo", 8, rate_bps=1e12)), CAPS).density is None


def test_it_may_always_pay() -> None:
    """Where sending whole gradients is made dear, top-k wins at any density."""
    model, network = calibrated()
    cost = dataclasses.replace(model.hooks["none"], encode_ms=1e5)
    dear = dataclasses.replace(model, hooks={**model.hooks, "none": cost})
    assert break_even(model_on_network(dear, network.at("gloo", 2)), CAPS).density == DENSEST


def row(hook: str, step_ms: float, *, off: float = 0.01, cap: str = "default", ranks: int = 4) -> TrainingRow:
    """Return a row of ``ddp.csv`` whose interval reaches so far."""
    case = dataclasses.asdict(make_training_case(hook, cap, world_size=ranks))
    del case["phase"]
    fields: dict[str, Any] = case | {"step_ms": step_ms}
    return TrainingRow(**fields, step_ms_ci_low=step_ms * (1 - off), step_ms_ci_high=step_ms * (1 + off))


def test_measured_wins_and_losses_agree_or_not() -> None:
    """A win below the break-even and a loss above it agree; overlapping intervals show nothing."""
    rows = [
        row("none", 100.0),
        row("none", 110.0, cap="5"),
        row("topk:0.001", 60.0),
        row("topk:0.01", 80.0),
        row("topk:0.01", 120.0, cap="5"),
        row("topk:0.05", 99.0, off=0.1),
        row("topk:0.1", 130.0),
        row("topk:0.1", 10.0, ranks=2),
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


@pytest.mark.parametrize(("bounds", "won"), [((1.1, 1.3), True), ((0.7, 0.9), False), ((0.9, 1.2), None)])
def test_launches_are_paired_against_the_default(bounds: tuple[float, float], won: bool | None) -> None:
    """Go by the speedup's own interval where it is over the best dense setting, however far launches differ."""
    sparse = dataclasses.replace(row("topk:0.01", 99.0, off=0.5), speedup_ci_low=bounds[0], speedup_ci_high=bounds[1])
    (point,) = compare_with_measured(
        BreakEven(world_size=4, dense_ms=100.0, density=0.03), [row("none", 100.0, off=0.5), sparse]
    )
    assert won is point.has_won
    (point,) = compare_with_measured(
        BreakEven(world_size=4, dense_ms=100.0, density=0.03), [row("none", 100.0, off=0.5, cap="5"), sparse]
    )
    assert point.has_won is None


def test_one_launch_shows_nothing() -> None:
    """Without intervals neither side has won."""
    rows = [dataclasses.replace(each, step_ms_ci_low=None) for each in (row("none", 100.0), row("topk:0.01", 50.0))]
    (point,) = compare_with_measured(BreakEven(world_size=4, dense_ms=100.0, density=0.03), rows)
    assert (point.has_won, point.agrees) == (None, None)


def test_networks_that_lack_an_operation_are_named() -> None:
    """Top-k gathers: without a curve of all_gather one sentence says what to measure."""
    reduced = growing((2, 4), algorithms={"all_reduce": "ring"})
    model, _ = calibrated()
    with pytest.raises(InputError, match="Nothing is known of gloo all_gather"):
        break_even(model_on_network(model, reduced.at("gloo", 8)), CAPS)
