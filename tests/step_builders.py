"""Workloads, networks and steps by formula, for tests of step predictions."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from training_builders import make_bucket, make_training_case, make_training_record

from commbench.analysis.prediction.steps import HookCost, StepModel
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class LinearNetwork:
    """A network on which every collective takes alpha + beta n."""

    alpha_us: float = 100.0
    beta_us_per_byte: float = 1e-3
    world_size: int = 2
    servers: int = 1
    knows: Sequence[str] = ("float32", "float16", "bfloat16")

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """Return the time; raise InputError for an unknown type."""
        from commbench.errors import InputError

        if dtype not in self.knows:
            raise InputError(f"Nothing is known about {operation} of {dtype}: measure it.")
        return self.alpha_us + self.beta_us_per_byte * message_bytes


def make_facts(
    sizes_mb: Sequence[float],
    *,
    backward_ms: float = 100.0,
    ready_ms: Sequence[float] = (),
    forward_ms: float = 40.0,
) -> WorkloadFacts:
    """Return a model with parameters in order of readiness, ready in proportion to their sizes."""
    done = list(itertools.accumulate(sizes_mb))
    times = ready_ms or [backward_ms * part / done[-1] for part in done]
    parameters = [
        ParameterFacts(
            name=f"p{i}",
            numel=round(size * MIB / 4),
            itemsize=4,
            dtype="float32",
            ready_ms=time,
            shape=(size_of(size),),
        )
        for i, (size, time) in enumerate(zip(sizes_mb, times, strict=True))
    ]
    return WorkloadFacts(
        parameters=tuple(reversed(parameters)),
        ready_order=tuple(reversed(range(len(parameters)))),
        buffer_bytes=0,
        batch_size=32,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        optimizer_ms=10.0,
        metric="",
        target=None,
        steps=None,
    )


def size_of(size_mb: float) -> int:
    """Return the float32 elements of a size in MiB."""
    return round(size_mb * MIB / 4)


def make_step_model(facts: WorkloadFacts, network: LinearNetwork, **changes: object) -> StepModel:
    """Return a model of a step of 150 ms without DDP, with hook none and perfect overlap."""
    fields = {
        "facts": facts,
        "network": network,
        "reference": make_training_case("local", world_size=network.world_size),
        "forward_ms": facts.forward_ms,
        "backward_ms": facts.backward_ms,
        "optimizer_ms": facts.optimizer_ms,
        "other_ms": 0.0,
        "hooks": {"none": HookCost()},
        "overlap": {"none": 1.0},
    }
    return StepModel(**{**fields, **changes})


def make_local_records(model: StepModel) -> list[TrainingRecord]:
    """Return two launches of the local step exactly as in the model."""
    step_ms = model.forward_ms + model.backward_ms + model.optimizer_ms + model.other_ms
    times = {
        "forward_ms": model.forward_ms,
        "backward_ms": model.backward_ms,
        "optimizer_ms": model.optimizer_ms,
        "step_ms": [step_ms] * 3,
    }
    return [
        _with(make_training_record(model.reference, launch=launch), **times) for launch in range(2)
    ]


def make_step_records(model: StepModel, case: TrainingCase) -> list[TrainingRecord]:
    """Return two launches of a configuration exactly as in the model, bucket by bucket."""
    predicted, work = model.predict(case), model.work(case)
    encode_ms = sum(bucket.encode_ms for bucket in work)
    divide_ms_per_byte = 0.5 * model.copy_ms_per_byte
    buckets = [
        make_bucket(
            bucket.size_bytes,
            ready_ms=timed.ready_ms,
            start_ms=timed.start_ms,
            done_ms=timed.done_ms,
            compress_ms=divide_ms_per_byte * bucket.size_bytes
            if case.hook == "none"
            else bucket.encode_ms + bucket.decode_ms,
        )
        for bucket, timed in zip(work, predicted.buckets, strict=True)
    ]
    times = {
        "step_ms": [predicted.step_ms] * 3,
        "forward_ms": model.forward_ms + model.ddp_forward_ms,
        "encode_ms": encode_ms,
        "compress_ms": sum(bucket.compress_ms for bucket in buckets),
        "buckets": buckets,
    }
    return [_with(make_training_record(case, launch=launch), **times) for launch in range(2)]


def _with(record: TrainingRecord, **changes: object) -> TrainingRecord:
    return dataclasses.replace(record, **changes)
