"""Tests of comparing predictions and the tuner's choice with a full sweep."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from builders import make_case, make_launches
from training_builders import make_training_case, make_training_info, make_training_launches

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.tuner.validation import (
    Exhaustive,
    compare_held_out_ranks,
    compare_held_out_sizes,
    median_error,
)

BASE, FIVE = make_training_case(), make_training_case(cap="5")
FP16, TOPK = make_training_case("fp16"), make_training_case("topk:0.01", "5")
#: What slows a launch slows all of it.
LAUNCHES = (1.0, 1.3, 0.9)


def sweep(**changes: Sequence[float]) -> Exhaustive:
    """Return a sweep of four settings in three uneven launches: 20, 18, 15 and 10 ms."""
    times = {
        "base": (20.0,) * 3,
        "five": (18.0,) * 3,
        "fp16": (15.0,) * 3,
        "topk": (10.0,) * 3,
        **changes,
    }
    cases = {"base": BASE, "five": FIVE, "fp16": FP16, "topk": TOPK}
    records = [
        record
        for name, steps in times.items()
        for record in make_training_launches(
            [a * b for a, b in zip(steps, LAUNCHES, strict=True)], cases[name]
        )
    ]
    passthrough = make_training_launches([1.0] * 3, make_training_case("passthrough"))
    return Exhaustive.of([*records, *passthrough, *_failed()], make_training_info())


def _failed() -> list[TrainingRecord]:
    return make_training_launches(
        [1.0] * 3, make_training_case("bf16"), status="failed", reason="no memory"
    )


def test_the_best_is_found_launch_by_launch() -> None:
    """Compare within launches, without failed cases and instruments."""
    swept = sweep()
    assert {BASE, FIVE, FP16, TOPK} == set(swept.settings)
    assert (BASE, TOPK, pytest.approx(1.0)) == (swept.baseline.case, swept.best.case, swept.gain)
    assert (4 + 2) * 3 * 22 == swept.steps
    assert swept.gain_interval is not None
    assert swept.gain_interval.low <= 1 + swept.gain <= swept.gain_interval.high


def test_regret_is_a_ratio_of_steps() -> None:
    """Return no regret for the best, and the ratio of steps for others."""
    swept = sweep()
    assert (0.0, None, 0.0) == dataclasses.astuple(swept.regret(TOPK))
    assert "within" == swept.regret(TOPK).outcome
    lost = swept.regret(FP16)
    assert (0.5, 0.5) == (pytest.approx(lost.against_best), pytest.approx(lost.fair))
    assert "slower" == lost.outcome


def test_fair_regret_is_free_of_luck() -> None:
    """Return no mean regret among twenty equal settings."""
    generator = np.random.default_rng(3)
    against_best, fair = [], []
    for _ in range(60):
        times = generator.lognormal(0, 0.03, (20, 3))
        cases = [make_training_case(cap="default" if not i else str(i)) for i in range(20)]
        records = [
            r
            for case, row in zip(cases, times, strict=True)
            for r in make_training_launches(list(row), case)
        ]
        regret = Exhaustive.of(records, {}).regret(cases[7])
        against_best.append(regret.against_best)
        fair.append(regret.fair or 0.0)
    assert np.mean(against_best) > 0.03
    assert abs(np.mean(fair)) < 0.015


def test_choice_with_the_same_buckets_counts() -> None:
    """Replace an unmeasured setting by one with the same buckets, and refuse others."""
    ten, records = (
        make_training_case(cap="10"),
        [r for one in sweep().settings.values() for r in one.records],
    )
    swept = Exhaustive.of(records, {"same_layout": {ten.key: FIVE.key}})
    assert swept.find(ten) is swept.settings[FIVE]
    assert swept.regret(dataclasses.replace(FIVE, phase="confirm")) == swept.regret(ten)
    with pytest.raises(InputError, match="not measured mlp, 50 MiB buckets"):
        swept.find(make_training_case(cap="50"))
    with pytest.raises(InputError, match="default"):
        Exhaustive.of(make_training_launches([1.0], FIVE), {})


# -------------------------------------------------------------------------------------- the network


def ring(ranks: int, size: int) -> float:
    """Return the microseconds of a ring all-reduce over 1 Gbit/s."""
    return 2 * (ranks - 1) * (30 + size / ranks / 125)


def collectives(world_sizes: Sequence[int], sizes: Sequence[int]) -> list[Record]:
    """Return six launches of Gloo's all-reduce on some of 8 ranks."""
    return [
        record
        for ranks in world_sizes
        for size in sizes
        for record in make_launches(
            [factor * ring(ranks, size) for factor in (0.99, 0.995, 0.999, 1.001, 1.005, 1.01)],
            make_case(backend="gloo", message_bytes=size, world_size=ranks),
            group_size=ranks,
            transport="tcp",
        )
    ]


SIZES = [2**power for power in range(12, 24)]


def test_every_other_size_is_held_out() -> None:
    """Predict sizes between measured ones within a few percent."""
    ((key, held),) = compare_held_out_sizes(collectives([2], SIZES)).items()
    assert ("all_reduce", "gloo", 2) == (key.operation, key.backend, key.world_size)
    assert [f"{size} B" for size in SIZES[1:-1:2]] == [one.what for one in held]
    assert max(abs(one.error) for one in held) < 0.06
    assert [ring(2, size) for size in SIZES[1:-1:2]] == [
        pytest.approx(one.measured, rel=0.01) for one in held
    ]


def test_more_ranks_are_held_out() -> None:
    """Predict 6 and 8 ranks from 2 to 4."""
    records = collectives([2, 3, 4, 6, 8], SIZES[4:])
    info = {"nodes": 8, "ranks_per_node": 1, "world_size": 8}
    held = compare_held_out_ranks(records, info, 4)
    assert {6, 8} == {key.world_size for key, _ in held}
    assert 2 * len(SIZES[4:]) == len(held)
    assert (median_error(held.values()) or 1.0) < 0.1
    spoilt = [
        dataclasses.replace(r, times_us=[9e9] * 9) if r.group_size > 4 else r for r in records
    ]
    again = compare_held_out_ranks(spoilt, info, 4)
    assert [one.predicted for one in held.values()] == [one.predicted for one in again.values()]
