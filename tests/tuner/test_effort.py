"""Tests of the cost of a recommendation and of the launches that would decide it."""

from typing import Any

import numpy as np
import pytest
from training_builders import make_training_case, make_training_record

from commbench import stats
from commbench.tuner.conclusion import launch_advice, measured_steps
from commbench.tuner.decision import steps_of

ENTRIES = [
    {"stage": "confirm", "status": "ok", "seconds": 10.0},
    {"stage": "sweep", "status": "ok", "seconds": 99.0},
]


def advice_of(ratios: list[float], level: float = 0.95) -> Any:
    """Return the advice on launches that would decide."""
    return launch_advice(ratios, ENTRIES, level=level)


def test_steps_count_all_blocks():
    """Count early steps too, and none without DDP."""
    record = make_training_record(block_steps=9, block_lengths=[6, 6, 6])
    assert 27 == steps_of(record)
    assert 27 == measured_steps([record, make_training_record(make_training_case("local"))])


def test_so_many_launches_would_decide():
    """Name launches that decide most cases, their time, and the number to give."""
    ratios = [0.97, 1.03, 0.99, 1.01, 1.02, 0.98]
    advice = advice_of(ratios)
    more = int(advice.numbers["high"])
    assert "decide_between" == advice.code
    assert 6 + more == advice.numbers["launches"]
    assert 0 < int(advice.numbers["low"]) < more
    assert [10 * more] == [detail.numbers["seconds"] for detail in advice.details]
    generator = np.random.default_rng(1)
    spread = float(np.std(np.log(ratios), ddof=1))
    decided = 0
    for _ in range(200):
        interval = stats.median_interval(np.exp(spread * generator.standard_normal(6 + more)))
        decided += interval.high <= 1.02
    assert decided > 130


def test_another_level_takes_more_launches():
    """Name more launches at a higher level, and at least what an interval needs."""
    near, sure = [0.98, 1.015, 0.99, 1.01], [1.5, 1.51, 1.49]
    found = [advice_of(ratios, n).numbers["high"] for ratios in (near, sure) for n in (0.95, 0.975)]
    assert found[0] < found[1]
    assert [3, 4] == found[2:]
    advice = launch_advice(near, [])
    assert not advice.details  # no launch says how long they take


@pytest.mark.parametrize("shift", [1.0, 1.02, 1.05])
def test_a_noisy_machine_is_named(shift):
    """Name no launches if hundreds are needed, also for a gain near the margin."""
    noisy = [shift * ratio for ratio in (0.05, 0.4, 1.0, 2.5, 19.8)]
    assert "decide_noisy" == advice_of(noisy).code


@pytest.mark.parametrize("ratios", [[], [1.1], [1.0, 0.0]])
def test_too_few_launches_give_no_advice(ratios):
    """Return nothing for one launch."""
    assert launch_advice(ratios, ENTRIES) is None


def test_a_gain_at_the_margin_is_not_decided():
    """Report a gain at the margin instead of thousands of launches."""
    assert "decide_near" == advice_of([1.019, 1.021, 1.020, 1.022, 1.018, 1.02]).code
