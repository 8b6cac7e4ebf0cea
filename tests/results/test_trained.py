"""Tests of comparing configurations by speed and by learning."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fields import fields_of
from training_builders import (
    EVEN,
    launches_of,
    make_training_case,
    make_training_info,
    make_training_launches,
    make_training_record,
    rows_of,
    training_rows,
)

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.results.trained import (
    Speedup,
    ratio_of_neighbours,
    speedup_of,
    time_to_target_s,
    trained,
)
from commbench.stats import student_interval

FP16 = make_training_case("fp16")


# ------------------------------------------------------------------------------------------ speedup


def test_speedup_is_paired_by_launch():
    """Divide within each launch, so that slow launches cancel out."""
    slow = [1.0, 3.0, 1.5, 2.0, 1.2, 1.7]
    records = [
        *make_training_launches([20 * factor for factor in slow]),
        *make_training_launches(
            [10 * factor * even for factor, even in zip(slow, EVEN, strict=True)], FP16
        ),
    ]
    row = rows_of(records)["fp16 default"]
    assert 2.0 == pytest.approx(row.speedup, rel=1e-5)
    assert 2 / 1.005 == pytest.approx(row.speedup_ci_low)
    assert 2 / 0.995 == pytest.approx(row.speedup_ci_high)


def test_speedup_uses_launches_that_have_both():
    """Ignore launches without one of the two configurations."""
    records = [*make_training_launches([20, 22]), make_training_record(FP16, launch=1, step_ms=11)]
    row = rows_of(records)["fp16 default"]
    assert pytest.approx(2.0) == row.speedup
    assert row.speedup_ci_low is None
    assert "inconclusive" == row.verdict
    alone = rows_of([make_training_record(), make_training_record(FP16, launch=1)])["fp16 default"]
    assert (None, "inconclusive") == (alone.speedup, alone.verdict)


def test_speedup_counts_samples_not_steps():
    """Count accumulated batches of a step."""
    records = [*launches_of(20), *launches_of(40, make_training_case(accumulation=4))]
    rows = training_rows(records, make_training_info())
    assert [1.0, pytest.approx(2.0)] == fields_of(rows, "speedup")


@pytest.mark.parametrize(
    ("step_ms", "verdict"),
    [(16.0, "faster"), (25.0, "slower"), (20.05, "same"), (20.4, "inconclusive")],
)
def test_verdicts(step_ms, verdict):
    """Judge as the command compare does, with a margin of 2 %."""
    other = make_training_launches([step_ms * factor for factor in reversed(EVEN)], FP16)
    assert verdict == rows_of([*launches_of(20), *other])["fp16 default"].verdict


def test_verdicts_are_of_one_family():
    """Detect a change in few configurations but not among very many, with six launches."""
    few = [
        *launches_of(20),
        *launches_of(15, FP16),
        *launches_of(20.01, make_training_case(cap="5")),
    ]
    assert "faster" == rows_of(few)["fp16 default"].verdict
    many = [r for cap in range(1, 40) for r in launches_of(20.01, make_training_case(cap=str(cap)))]
    assert "inconclusive" == rows_of([*few, *many])["fp16 default"].verdict


# ----------------------------------------------------------------------------------------- learning


DOWN = [100.0 - step for step in range(60)]


@pytest.mark.parametrize(
    ("lengths", "step_ms", "at_equal_steps", "at_equal_time"),
    [
        ((40, 40), (20, 20), (62.5, 62.5), (62.5, 62.5)),  # the mean of the last tenth
        ((20, 60), (20, 20), (81.5, 81.5), (81.5, 81.5)),  # where the shortest stops
        ((20, 20), (20, 10), (81.5, 81.5), (91.5, 81.5)),  # when the fastest ends
    ],
)
def test_losses_are_compared_after_equal_steps_and_equal_time(
    lengths,
    step_ms,
    at_equal_steps,
    at_equal_time,
):
    """Return the mean loss over a tenth of the steps that both configurations made."""
    cases = (make_training_case(), FP16)
    records = [
        make_training_record(case, step_ms=each_ms, losses=DOWN[:length])
        for case, length, each_ms in zip(cases, lengths, step_ms, strict=True)
    ]
    rows = rows_of(records).values()
    assert {100.0} == set(fields_of(rows, "loss_first"))
    assert list(at_equal_steps) == fields_of(rows, "loss_equal_steps")
    assert list(at_equal_time) == fields_of(rows, "loss_equal_time")


@pytest.mark.parametrize(
    ("name", "target", "steps"),
    [("accuracy", 0.8, 20), ("loss", 0.5, 10), ("accuracy", 0.95, None), ("loss", 0.1, None)],
)
def test_time_to_target(name, target, steps):
    """Multiply the first step that meets the target by the median step time, for losses and
    metrics.
    """
    metrics = [(10, 0.5), (20, 0.8), (30, 0.9)]
    (one,) = trained(launches_of(20, metric_name=name, metrics=metrics, target=target)).values()
    assert (None if steps is None else pytest.approx(steps * 20 / 1e3)) == time_to_target_s(one)


@pytest.mark.parametrize(("reaching", "known"), [(2, False), (3, True)])
def test_time_to_target_needs_most_launches(reaching, known):
    """Return a time only if most launches reached the target."""
    records = [
        make_training_record(
            launch=i,
            metric_name="accuracy",
            metrics=[(10, 0.9 if i < reaching else 0.1)],
            target=0.8,
        )
        for i in range(4)
    ]
    (row,) = training_rows(records, {})
    assert known == (row.time_to_target_s is not None)


# -------------------------------------------------------------------------------------- live tuning


OWN = make_training_case(cap="25")
FIVE = make_training_case(cap="5")
#: Block medians of the baseline in rounds in which the machine slows down, and the speedup in each
#: round.
SLOWING_MS = [20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
SPEEDUPS = [1.19, 1.2, 1.21, 1.2, 1.18, 1.22, 1.2]


def blocks_of(
    case: TrainingCase, medians_ms: Sequence[float], launch: int = 0, **changes: Any
) -> TrainingRecord:
    """Return a record of a live tuning whose three-step blocks have these medians."""
    return dataclasses.replace(
        make_training_record(case, launch=launch, **changes),
        step_ms=[factor * median_ms for median_ms in medians_ms for factor in (1.5, 1.0, 0.9)],
        block_lengths=[3] * len(medians_ms),
        block_at=[5 * block for block in range(len(medians_ms))],
    )


def divided(case: TrainingCase, medians_ms: Sequence[float], launch: int = 0) -> TrainingRecord:
    """Return a record of a launch whose blocks were divided into blocks of three timed steps with
    these medians.
    """
    steps = 4 * len(medians_ms)
    record = blocks_of(case, medians_ms, launch, block_steps=steps, total_steps=steps)
    return dataclasses.replace(record, block_at=())


def paired(*records: TrainingRecord, level: float = 0.95) -> Speedup:
    """Return the speedup of 5 MiB buckets over the script's own setting."""
    by_key = trained(records)
    speedup = speedup_of(by_key[FIVE.key], by_key[OWN.key], level=level)
    assert speedup is not None
    return speedup


def faster_by(factor: float) -> list[float]:
    """Return the times of the rounds at their speedups and a common factor."""
    pairs = zip(SLOWING_MS, SPEEDUPS, strict=True)
    return [own_ms / factor / speedup for own_ms, speedup in pairs]


def in_rounds(launch: int = 0, factor: float = 1.0) -> list[TrainingRecord]:
    """Return both settings in one launch."""
    faster = faster_by(factor)
    return [blocks_of(OWN, SLOWING_MS, launch), blocks_of(FIVE, faster, launch)]


def test_blocks_of_one_launch_are_paired_by_round():
    """Average the ratios of equal rounds on logarithms, with the interval of their signed ranks."""
    speedup = paired(*in_rounds())
    assert 1.2 == pytest.approx(speedup.ratio)
    assert 1 == speedup.launches
    assert 7 == speedup.blocks
    ends = (math.sqrt(1.18 * 1.2), 1.21)  # the third of the means of two rounds from either end
    assert ends == (pytest.approx(speedup.interval.low), pytest.approx(speedup.interval.high))


def test_a_block_without_partner_is_left_out():
    """Compare only rounds that both settings have."""
    base, five = in_rounds()
    longer = blocks_of(OWN, [*SLOWING_MS, 500.0, 500.0])
    assert paired(base, five) == paired(longer, five)


def test_two_launches_are_compared_by_all_their_blocks():
    """Narrow the interval for two launches that agree, and widen it if they differ."""
    one, agreeing = paired(*in_rounds()), paired(*in_rounds(), *in_rounds(launch=1))
    assert (2, 14) == (agreeing.launches, agreeing.blocks)
    differing = paired(*in_rounds(), *in_rounds(launch=1, factor=1.1))
    assert agreeing.interval.high - agreeing.interval.low < one.interval.high - one.interval.low
    assert 1.2 < differing.interval.low < 1.21
    assert 1.31 < differing.interval.high < 1.1 * 1.2


def test_rows_honour_the_baseline_of_the_run():
    """Compare with the script's own setting, list it first, and flag a single launch."""
    records = [make_training_record(step_ms=30, block_at=[50]), *in_rounds()]
    first, *others = training_rows(records, make_training_info(baseline=OWN.key))
    assert "25" == first.bucket_cap_mb
    assert 1.0 == first.speedup
    assert "" == first.verdict
    assert 7 == first.blocks
    five = next(row for row in others if row.bucket_cap_mb == "5")
    assert 1.2 == pytest.approx(five.speedup)
    assert math.sqrt(1.18 * 1.2) == pytest.approx(five.speedup_ci_low)
    assert "one_launch" in five.flags.split(";")
    default = next(
        row for row in training_rows(records, make_training_info()) if row.speedup == 1.0
    )
    assert "default" == default.bucket_cap_mb


@pytest.mark.parametrize(
    ("factors", "is_student"),
    [
        ([1.0, 1.01, 0.99, 1.02, 0.98, 1.0], True),
        ([1.3, 1.01, 1.31, 1.0, 1.29, 1.0, 1.3, 1.0, 1.01, 1.0], False),  # two modes
    ],
)
def test_divided_blocks_are_compared_by_round(factors, *, is_student):
    """Average the logarithms of the ratios of rounds in each launch.

    Take Student's interval over launches, or of two modes the one from one mode to the other.
    """
    records = []
    for launch, factor in enumerate(factors):
        faster = faster_by(factor)
        records += [divided(OWN, SLOWING_MS, launch), divided(FIVE, faster, launch)]
    speedup = paired(*records)
    in_launches = [1.2 * factor for factor in factors]
    launches = len(factors)
    assert (launches, 0) == (speedup.launches, speedup.blocks)
    assert pytest.approx(np.median(in_launches)) == speedup.ratio
    if is_student:
        assert speedup.interval == student_interval(in_launches)
    else:
        assert speedup.interval.low == pytest.approx(1.2)
        assert speedup.interval.high == pytest.approx(1.2 * 1.3)


def test_steps_of_neighbouring_rounds_are_compared():
    """Let slow steps pass, of which every other round has one, and a machine that halves its speed
    on the way.
    """
    own, theirs = {}, {}
    for number, pace in enumerate([1.0] * 5 + [2.0] * 5):
        own[number] = pace * np.array([10.0, 10.1 + 40 * (number % 2)])
        theirs[number] = pace * np.array([12.0, 12.1])
    assert 1.2 == pytest.approx(ratio_of_neighbours(own, theirs), rel=0.01)


def test_long_blocks_count_by_their_quantiles():
    """Compare 25 quantiles of each of 650 steps, which are 40 million pairs otherwise."""
    steps = np.random.default_rng(3).lognormal(2.0, 0.1, (2, 32, 650))
    quantiles = np.moveaxis(np.quantile(steps, (np.arange(25) + 0.5) / 25, axis=2), 0, 2)
    ratios = []
    for own, theirs in (steps, quantiles):
        ratios.append(ratio_of_neighbours(dict(enumerate(own)), dict(enumerate(theirs))))
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-12)
    assert 1.0 == pytest.approx(ratios[0], rel=0.01)
