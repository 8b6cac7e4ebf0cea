"""Tests of the step model: calibrated on simulated steps it predicts others, and refuses unmeasured
conditions.
"""

import dataclasses

import numpy as np
import pytest
from builders import KIB
from step_builders import (
    LinearNetwork,
    make_facts,
    make_local_records,
    make_step_model,
    make_step_records,
)
from training_builders import make_training_case

from commbench.analysis.prediction.curves import fit_curve
from commbench.analysis.prediction.network import MeasuredNetwork
from commbench.analysis.prediction.steps import HookCost, StepModel
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError

FACTS = make_facts([9, 9, 5, 3, 2, 2, 1, 0.5, 0.5, 0.25])
#: Encoding and decoding at 0.2 and 0.1 ns an element and 0.1 ms a bucket.
COST = HookCost(
    encode_ms=0.1, encode_ms_per_element=2e-7, decode_ms=0.05, decode_ms_per_element=1e-7
)
CAPS = ("default", "0.25", "1", "4", "10", "100")


def make_truth(
    *, beta: float = 3e-3, servers: int = 2, overlap: float = 0.7, slowdown: float = 1.0
) -> StepModel:
    """Return the simulating model: a step of 150 ms without DDP, and 32 MiB of gradients."""
    return make_step_model(
        FACTS,
        LinearNetwork(beta_us_per_byte=beta, servers=servers),
        ddp_forward_ms=1.5,
        other_ms=0.5,
        copy_ms_per_byte=2e-7,
        hooks={"none": HookCost(), "fp16": COST, "topk:0.01": COST},
        overlap={"none": overlap, "fp16": overlap, "topk:0.01": overlap},
        slowdown=slowdown,
    )


def records_of(truth: StepModel, *cases: TrainingCase) -> list[TrainingRecord]:
    """Return records of the step without DDP, the baseline and ``cases``."""
    distinct_cases = dict.fromkeys([make_training_case(), *cases])
    return [
        *make_local_records(truth),
        *(record for case in distinct_cases for record in make_step_records(truth, case)),
    ]


@pytest.mark.parametrize(
    ("truth", "hook"),
    [
        (make_truth(), "none"),
        (make_truth(beta=3e-4), "fp16"),
        (make_truth(servers=1, overlap=0.4), "topk:0.01"),
        (make_truth(overlap=1.0), "fp16"),
        (make_truth(overlap=0.0, slowdown=1.3), "none"),
        (make_truth(overlap=1.0, slowdown=0.8), "topk:0.01"),
    ],
)
def test_other_bucket_sizes_are_predicted_from_one(truth: StepModel, hook: str) -> None:
    """Predict every bucket size within 5 % from the default's step."""
    case = make_training_case(hook)
    model = StepModel.calibrate(FACTS, truth.network, records_of(truth, case))
    for cap in CAPS:
        other = dataclasses.replace(case, bucket_cap_mb=cap)
        assert model.predict(other).step_ms == pytest.approx(truth.predict(other).step_ms, rel=0.05)
    assert model.predict(case).step_ms == pytest.approx(truth.predict(case).step_ms, rel=0.005)


def test_several_measured_settings_are_all_used() -> None:
    """Recover overlap and slowdown from several settings."""
    truth = make_truth(beta=2e-3, overlap=0.6, slowdown=1.25)
    cases = [make_training_case(cap=cap) for cap in ("default", "100", "1")]
    model = StepModel.calibrate(FACTS, truth.network, records_of(truth, *cases))
    assert model.slowdown == pytest.approx(1.25, rel=0.05)
    assert model.overlap["none"] == pytest.approx(0.6, abs=0.1)


def test_bounds_hold_the_prediction() -> None:
    """Predict between the overlapped and the serial bound; one bucket makes them equal."""
    model = make_truth()
    several, single = (model.predict(make_training_case(cap=cap)) for cap in ("1", "100"))
    assert several.overlapped_ms < several.step_ms < several.serial_ms
    assert single.overlapped_ms == pytest.approx(single.step_ms) == pytest.approx(single.serial_ms)
    assert 0 < several.exposed_comm_ms < several.step_ms


def test_accumulation_exchanges_in_the_last_pass() -> None:
    """Add one forward and one backward pass per further micro-batch."""
    model = make_truth()
    once, four = (model.predict(make_training_case(accumulation=passes)) for passes in (1, 4))
    assert four.step_ms - once.step_ms == pytest.approx(3 * (model.forward_ms + model.backward_ms))
    assert four.exposed_comm_ms == pytest.approx(once.exposed_comm_ms)


def test_a_hook_with_unmeasured_collectives_is_left_out() -> None:
    """Calibrate the other hooks, and name the missing measurement."""
    truth = make_truth()
    records = records_of(truth, make_training_case("fp16"))
    model = StepModel.calibrate(
        FACTS, dataclasses.replace(truth.network, knows=("float32",)), records
    )
    assert ["none"] == list(model.hooks)
    with pytest.raises(InputError, match="hook fp16 was to be predicted"):
        model.predict(make_training_case("fp16"))


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [("local", "step without DDP, which was not measured"), ("none", "baseline")],
)
def test_calibrating_needs_the_step_without_ddp_and_the_baseline(
    missing: str, sentence: str
) -> None:
    """Refuse records without the local step or without the baseline."""
    truth = make_truth()
    records = [r for r in records_of(truth, make_training_case("fp16")) if r.case.hook != missing]
    with pytest.raises(InputError, match=sentence):
        StepModel.calibrate(FACTS, truth.network, records)


def test_failed_records_do_not_count() -> None:
    """Calibrate only on valid records."""
    truth = make_truth()
    failed = [
        dataclasses.replace(r, status="wrong", step_ms=[1.0])
        for r in make_step_records(truth, make_training_case())
    ]
    models = [
        StepModel.calibrate(FACTS, truth.network, [*records_of(truth), *more])
        for more in ([], failed)
    ]
    assert models[0] == models[1]


def noisy_network(truth: StepModel, seed: int) -> MeasuredNetwork:
    """Return curves of two launches: up to twice the true time below 256 KiB, within 3 % above."""
    draw = np.random.default_rng(seed)
    sizes = [KIB * 4**power for power in range(9)]
    curves = {}
    for operation, dtype in (
        ("all_reduce", "float32"),
        ("all_reduce", "float16"),
        ("all_gather", "float32"),
    ):
        launches = [
            [
                truth.network.time_us(operation, dtype, size)
                * (draw.uniform(1, 2) if size < 256 * KIB else draw.normal(1, 0.03))
                for _ in range(2)
            ]
            for size in sizes
        ]
        curves[operation, dtype] = fit_curve(sizes, launches)
    return MeasuredNetwork(backend="gloo", world_size=2, pattern="flat", curves=curves)


@pytest.mark.parametrize("hook", ["none", "fp16", "topk:0.01"])
def test_noise_of_small_messages_does_not_distort_predictions(hook: str) -> None:
    """Predict within 2 % at the median despite noisy small messages."""
    truth = make_truth()
    case = make_training_case(hook)
    errors = []
    for seed in range(4):
        network = noisy_network(truth, seed)
        assert network.time_us("all_reduce", "float32", KIB) > 1.1 * truth.network.time_us(
            "all_reduce", "float32", KIB
        )
        model = StepModel.calibrate(FACTS, network, records_of(truth, case))
        others = [dataclasses.replace(case, bucket_cap_mb=cap) for cap in CAPS[1:]]
        errors += [
            abs(model.predict(other).step_ms / truth.predict(other).step_ms - 1) for other in others
        ]
    assert np.median(errors) < 0.02
    assert max(errors) < 0.1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"workload": "resnet18"}, "workload resnet18 cannot be predicted from one with mlp"),
        ({"batch_per_rank": 8}, "batch 8"),
        ({"precision": "amp-bf16"}, "precision amp-bf16 cannot be predicted from one with fp32"),
        ({"world_size": 8}, "world_size 8"),
        ({"hook": "bf16"}, "hook bf16"),
    ],
)
def test_other_conditions_are_refused(changes: dict[str, object], sentence: str) -> None:
    """Refuse a case under other conditions; name the requested and the measured ones."""
    case = dataclasses.replace(make_training_case(), **changes)
    with pytest.raises(InputError, match=sentence):
        make_truth().predict(case)
