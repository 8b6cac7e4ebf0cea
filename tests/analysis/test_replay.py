"""Tests of steps of training on other networks, replayed from measured buckets."""

import dataclasses

import pytest
from fields import fields_of
from networks import LAYERS, forecast_network, training_of
from training_builders import make_bucket, make_training_case, make_training_record

from commbench.analysis.prediction.law import Place
from commbench.analysis.prediction.replay import TrainedWorkload
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError
from commbench.findings import UnpredictedError

HERE = Place(world_size=2, rate_bps=1e9)
NETWORK = forecast_network((2, 4))


def trained(records: list[TrainingRecord] | None = None) -> TrainedWorkload:
    """Return the training of two hooks on two hosts."""
    return TrainedWorkload(
        facts=LAYERS,
        records=records or training_of({"none": 420.0, "topk:0.01": 140.0}),
        place=HERE,
        run="t",
    )


@pytest.mark.parametrize(("hook", "step_ms"), [("none", 420.0), ("topk:0.01", 140.0)])
def test_a_step_as_trained_is_as_measured(hook, step_ms):
    """Return the measured step on the network of the training."""
    replay = trained().replay(NETWORK, hook, HERE)
    assert replay.step_ms == pytest.approx(step_ms)
    assert replay.exposed_comm_ms == pytest.approx(step_ms - 50 - 80)


def test_communication_takes_as_much_longer_as_its_collectives():
    """Lengthen a step without overlap by what its all_reduces take longer."""
    slow = dataclasses.replace(HERE, rate_bps=1e8)
    replay = trained().replay(NETWORK, "none", slow)
    # the link carries gradients for 360 of 420 ms, as long as 32 MiB take tenfold
    assert replay.step_ms == pytest.approx(420 + 9 * 360, rel=0.05)
    assert replay.exposed_comm_ms == pytest.approx(replay.step_ms - 130, rel=0.05)


def test_the_best_of_the_trained_bucket_sizes_is_taken():
    """Return the shortest step of a hook's settings, and its launches' interval."""
    records = training_of({"none": 420.0})
    for launch, step_ms in enumerate((400.0, 402.0, 404.0)):
        (_, record) = training_of({"none": step_ms})
        case = dataclasses.replace(record.case, bucket_cap_mb="5")
        records.append(dataclasses.replace(record, case=case, launch=launch))
    replay = trained(records).replay(NETWORK, "none", HERE)
    assert "5" == replay.case.bucket_cap_mb
    assert 402.0 == pytest.approx(replay.step_ms)
    assert replay.interval.low < 402 < replay.interval.high


def test_buckets_that_overtake_each_other_end_as_measured():
    """Return the measured step also if a later bucket was done first."""
    times = ((4, 10.0, 100.0), (20, 40.0, 300.0), (8, 80.0, 250.0))
    buckets = [make_bucket(n * 2**20, ready_ms=r, done_ms=d) for n, r, d in times]
    record = make_training_record(make_training_case(), step_ms=350.0, buckets=buckets)
    replay = trained([record]).replay(NETWORK, "none", HERE)
    assert replay.step_ms == pytest.approx(350.0)
    assert replay.exposed_comm_ms == pytest.approx(220.0)


def test_what_cannot_be_replayed_says_why():
    """Refuse an unmeasured collective."""
    network = forecast_network((2,), operations=["all_reduce"])
    with pytest.raises(InputError, match="Nothing is known of gloo all_gather"):
        trained().replay(network, "topk:0.01", HERE)


def test_a_hook_without_a_result_is_not_predicted():
    """Refuse a hook that only another training has."""
    with pytest.raises(UnpredictedError) as refused:
        trained().replay(NETWORK, "fp16", HERE)
    assert "hook_unmeasured" == refused.value.reason.code


def test_hooks_come_in_the_registrys_order():
    """Order settings by hook, the densest first, and leave out compiled ones."""
    records = training_of({"topk:0.001": 100.0, "topk:0.01": 140.0, "none": 420.0})
    compiled = dataclasses.replace(records[-1].case, compile="default", bucket_cap_mb="7")
    records.append(dataclasses.replace(records[-1], case=compiled))
    names = fields_of(trained(records).settings, "hook_name")
    assert ["none", "topk:0.01", "topk:0.001"] == names
    assert 130.0 == pytest.approx(trained(records).local_step_ms)
