"""Tests of training steps on larger networks: unchanged parts, growing parts, and the best
buckets.
"""

import dataclasses

import pytest
from networks import growing, training_of, workload_facts

from commbench.analysis.prediction.larger import (
    GrowingNetwork,
    TrainedWorkload,
    best_buckets,
    hook_case,
    local_step_ms,
    model_on_network,
    model_on_own_cores,
)
from commbench.analysis.prediction.steps import StepModel

STEPS = {"none": 420.0, "topk:0.01": 140.0}


def calibrated(network: GrowingNetwork | None = None) -> tuple[StepModel, GrowingNetwork]:
    """Return the model of a workload trained on 2 ranks, and its network."""
    network = network or growing((2, 4))
    return (
        StepModel.calibrate(
            workload_facts(), network.at("gloo", 2, has_shared_cores=True), training_of(STEPS)
        ),
        network,
    )


def test_on_its_own_network_nothing_changes() -> None:
    """Predict the same step on the network of the calibration."""
    model, network = calibrated()
    larger_model = model_on_network(model, network.at("gloo", 2))
    for hook in STEPS:
        case = hook_case(model, hook, "default")
        assert larger_model.predict(case).step_ms == pytest.approx(
            model.predict(case).step_ms, rel=1e-6
        )
    assert local_step_ms(model) == pytest.approx(130.0, rel=0.01)


def test_more_ranks_and_slower_links_take_longer() -> None:
    """Predict a longer dense step on more ranks and a shorter one over a faster link."""
    model, network = calibrated()
    steps = [
        best_buckets(model_on_network(model, network.at("gloo", n)), "none", ["default", "5"])
        for n in (2, 8, 64)
    ]
    assert sorted(step.step_ms for step in steps) == [step.step_ms for step in steps]
    fast = best_buckets(
        model_on_network(model, network.at("gloo", 8, rate_bps=25e9)), "none", ["default", "5"]
    )
    assert fast.step_ms < steps[1].step_ms
    assert fast.exposed_comm_ms < steps[1].exposed_comm_ms


def test_hosts_with_cores_of_their_own_compute_faster() -> None:
    """Halve compute times without sharing of cores, and keep the network unchanged."""
    model, _ = calibrated()
    freed = model_on_own_cores(model, 2.0)
    assert 2 * local_step_ms(freed) == pytest.approx(local_step_ms(model))
    case = hook_case(model, "topk:0.01", "5")
    assert 2 * freed.hooks["topk:0.01"].encoding_ms(1e6) == pytest.approx(
        model.hooks["topk:0.01"].encoding_ms(1e6)
    )
    assert freed.predict(case).step_ms < 0.75 * model.predict(case).step_ms
    trained = TrainedWorkload(facts=workload_facts(), records=training_of(STEPS), shared_cores=1)
    assert (
        trained.oversubscription,
        dataclasses.replace(trained, shared_cores=4).oversubscription,
    ) == (2.0, 1.0)
    assert dataclasses.replace(trained, shared_cores=None).oversubscription == 1.0
    assert model_on_own_cores(model, 1.0).predict(case) == model.predict(case)
    buffered = dataclasses.replace(
        model, facts=dataclasses.replace(model.facts, buffer_bytes=4096), ddp_forward_ms=8.0
    )
    local = dataclasses.replace(model, ddp_forward_ms=8.0)
    assert [8.0, 4.0] == [
        model_on_own_cores(each, 2.0).ddp_forward_ms for each in (buffered, local)
    ]
    assert freed.network is model.network


def test_decoding_grows_with_the_ranks() -> None:
    """Raise the decoding cost of top-k with the ranks, and leave dense gradients unchanged."""
    model, network = calibrated()
    larger_model = model_on_network(model, network.at("gloo", 1000))
    before, after = model.hooks["topk:0.01"], larger_model.hooks["topk:0.01"]
    assert after.decode_ms_per_element / before.decode_ms_per_element == pytest.approx(201 / 1.4)
    assert after.encode_ms_per_element == before.encode_ms_per_element
    assert larger_model.hooks["none"] == model.hooks["none"]


def test_the_best_buckets_are_the_shortest_step() -> None:
    """Return the bucket size with the shortest predicted step."""
    model, network = calibrated()
    larger_model = model_on_network(model, network.at("gloo", 64))
    caps = ["default", "4", "8", "100"]
    steps = [larger_model.predict(hook_case(larger_model, "none", cap)).step_ms for cap in caps]
    assert best_buckets(larger_model, "none", caps).step_ms == min(steps)
