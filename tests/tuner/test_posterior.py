"""Tests of the errors of predictions and launches, and of the posterior of both."""

import dataclasses
import math

import numpy as np
import pytest
from builders import make_case, make_record
from training_builders import make_training_case, make_training_record

from commbench.ddp.plan.records import TrainingRecord
from commbench.tuner.choice import (
    LAUNCH_SPREAD,
    LEAST_MODEL_ERROR,
    MODEL_ERROR,
    block_spread,
    combine,
    launch_spread,
    network_spread,
)


def test_the_spread_of_short_blocks_follows_from_their_steps() -> None:
    """Match the simulated ratio of two blocks' medians."""
    rng = np.random.default_rng(5)
    steps_ms = 100 * np.exp(0.1 * rng.standard_normal((4000, 15)))
    records = [_block(list(steps)) for steps in steps_ms[:200]]
    medians = np.log(np.median(steps_ms, axis=1))
    true = float((medians[::2] - medians[1::2]).std())
    assert true == pytest.approx(block_spread(records), rel=0.1)
    assert 0.0 == block_spread(
        [_block([5.0]), make_training_record(make_training_case("local"), step_ms=1.0)]
    )


def _block(steps_ms: list[float]) -> TrainingRecord:
    return dataclasses.replace(make_training_record(make_training_case("fp16")), step_ms=steps_ms)


def test_long_collectives_count_most() -> None:
    """Weight the spread over launches by time."""
    long, short = make_case(message_bytes=2**20), make_case(message_bytes=8)
    records = [
        make_record(long, launch=i, time_us=us) for i, us in enumerate((900.0, 1000.0, 1100.0))
    ]
    assert 0.1 == pytest.approx(network_spread(records))
    wild = [make_record(short, launch=i, time_us=us) for i, us in enumerate((1.0, 10.0, 19.0))]
    assert 0.1 == pytest.approx(network_spread([*records, *wild]), rel=0.01)
    assert 0.0 == network_spread(records[:1])


def test_the_spread_of_launches_moves_from_prior_to_data() -> None:
    """Move the spread from the prior to the observed value."""
    assert LAUNCH_SPREAD[0] == pytest.approx(launch_spread([{0: 1.0}], 0.01))
    assert 0.2 == pytest.approx(launch_spread([], 0.2))
    rng = np.random.default_rng(1)
    ratios_by_launch = [dict(enumerate(rng.normal(0.0, 0.1, 20))) for _ in range(30)]
    assert 0.1 == pytest.approx(launch_spread(ratios_by_launch), rel=0.1)


def test_nothing_measured_leaves_the_predictions() -> None:
    """Return the predictions with the prior error without measurements."""
    ratios, errors, error = combine(np.array([-0.2, 0.1]), [{}, {}], 0.03)
    assert [-0.2, 0.1] == pytest.approx(ratios.tolist())
    assert [MODEL_ERROR[0]] * 2 == pytest.approx(errors.tolist())
    assert MODEL_ERROR[0] == pytest.approx(error)


@pytest.mark.parametrize("true_error", [0.05, 0.3])
def test_the_models_error_is_found_though_settings_share_the_default(true_error: float) -> None:
    """Recover the model's error in simulations with a shared default."""
    rng, estimates, inside = np.random.default_rng(3), [], []
    settings, spread = 40, 0.04
    for _ in range(200):
        expected = rng.normal(-0.1, 0.1, settings)
        true = expected + true_error / math.sqrt(2) * (
            rng.standard_normal(settings) - rng.standard_normal()
        )
        own = rng.standard_normal((settings, 2)) - rng.standard_normal(2)
        observed = true[:, None] + spread / math.sqrt(2) * own
        measured = [
            dict(enumerate(row)) if i < settings // 2 else {} for i, row in enumerate(observed)
        ]
        ratios, errors, error = combine(expected, measured, spread)
        estimates.append(error)
        inside.append(np.abs(ratios - true) < 1.96 * errors)
    assert true_error == pytest.approx(float(np.mean(estimates)), rel=0.15)
    assert 0.92 < float(np.mean(inside)) < 0.98


def test_noise_is_no_error_of_the_model() -> None:
    """Attribute misses within the launches' noise to noise."""
    measured = [{0: 0.03}, {0: -0.02}, {0: 0.01}] * 20
    *_, error = combine(np.zeros(60), measured, 0.03)
    assert LEAST_MODEL_ERROR <= error < 0.02
    *_, error = combine(np.zeros(60), measured, 0.001)
    assert error > 0.025
