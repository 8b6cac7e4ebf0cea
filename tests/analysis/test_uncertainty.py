"""Tests of the intervals of predicted steps: they include network and step
errors.
"""

import dataclasses
import math

import pytest
from networks import HOP, growing, measured_run
from test_larger_steps import calibrated

from commbench.analysis.prediction.forecast import NetworkEnd, UncertainSteps
from commbench.analysis.prediction.growth import HeldOut
from commbench.analysis.prediction.larger import GrowingNetwork, best_buckets

CAPS = ["default", "8"]
SURE = HeldOut(error=0.0, over="nothing")


def unsure_network() -> GrowingNetwork:
    """Return a network whose 4 ranks took twice what its 2 ranks predicted."""
    slower = dataclasses.replace(HOP, beta_us_per_byte=2 * HOP.beta_us_per_byte)
    return GrowingNetwork.fit([measured_run((2,)), measured_run((4,), hop=slower)])


def steps_on(
    ranks: int, network: GrowingNetwork | None = None, error: float = 0.0
) -> UncertainSteps:
    """Return the calibrated workload on ``ranks`` ranks."""
    model, network = calibrated(network)
    return UncertainSteps.on(
        model, network.at("gloo", ranks), HeldOut(error=error, over="settings")
    )


def test_the_interval_of_a_step_includes_network_errors() -> None:
    """Give a communication-bound step nearly the relative interval of its all_reduce."""
    for network in (growing((2, 4)), unsure_network()):
        steps = steps_on(1024, network)
        best = best_buckets(steps.likely, "none", CAPS)
        interval = dataclasses.replace(steps, ends=steps.ends[:1]).interval_ms(best)
        estimate = network.at("gloo", 1024).curve("all_reduce", "float32").estimate(8 * 2**20, 1024)
        assert interval.low <= best.step_ms <= interval.high
        share = math.log(interval.high / best.step_ms) / math.log(
            estimate.high_us / estimate.time_us
        )
        assert 0.5 < share < 1.1
        assert steps.interval_ms(best).high >= interval.high


def test_the_ends_of_a_network_enclose_it() -> None:
    """Enclose the time of every operation and size, closely at measured ranks."""
    network = unsure_network()
    for ranks in (2, 4, 64):
        larger_network = network.at("gloo", ranks)
        low, high = (
            NetworkEnd(network=larger_network, is_high=is_high) for is_high in (False, True)
        )
        assert (ranks, larger_network.servers) == (low.world_size, low.servers)
        for operation in ("all_reduce", "all_gather"):
            for size in (4, 2**16, 3e6):
                times = [
                    each.time_us(operation, "float32", size) for each in (low, larger_network, high)
                ]
                assert sorted(times) == times
                assert ranks == 64 or times[2] < 1.1 * times[0]


def test_the_error_of_steps_widens_the_interval() -> None:
    """Widen by 1.1 to the power of 2.9 for a median step error of 10 %."""
    steps = steps_on(2, error=0.1)
    best = best_buckets(steps.likely, "none", CAPS)
    interval = steps.interval_ms(best)
    assert interval.high / best.step_ms == pytest.approx(1.1**2.906, rel=0.02)
    assert best.step_ms / interval.low == pytest.approx(1.1**2.906, rel=0.02)


def test_what_calibration_allows_widens_the_interval() -> None:
    """Widen the interval by the range of slowdowns that the calibration allows."""
    steps = steps_on(64)
    best = best_buckets(steps.likely, "none", CAPS)
    network_alone = dataclasses.replace(steps, ends=steps.ends[:1]).interval_ms(best)
    slower = dataclasses.replace(steps.likely, slowdown=1.5 * steps.likely.slowdown)
    open_steps = dataclasses.replace(steps, ends=[*steps.ends[:1], (steps.likely, slower)])
    assert open_steps.interval_ms(best).high > 1.2 * network_alone.high
    assert open_steps.interval_ms(best).low == network_alone.low
