"""Tests of the errors of predictions and launches, and of the posterior of both."""

import dataclasses
import math

import numpy as np
import pytest
from training_builders import make_training_case, make_training_record

from commbench.ddp.plan.records import TrainingRecord
from commbench.tuner.choice import (
    LEAST_MODEL_ERROR,
    block_spread,
    combine,
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
