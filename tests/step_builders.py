"""Workloads and the times of their steps by formula."""

from collections.abc import Sequence

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts

MIB = 2**20
#: Milliseconds of a step by hook; another bucket size than the default changes them by a factor.
STEP_MS = {"none": 100.0, "fp16": 60.0, "topk:0.01": 20.0, "bf16": 90.0, "local": 10.0}
FACTORS = {"default": 1.0, "1": 1.2, "5": 0.9, "25": 1.05}


def make_facts(sizes_mb: Sequence[float]) -> WorkloadFacts:
    """Return a model with parameters in order of readiness."""
    parameters = []
    for number, size_mb in enumerate(sizes_mb):
        elements = round(size_mb * MIB / 4)
        parameters.append(
            ParameterFacts(
                name=f"p{number}",
                numel=elements,
                itemsize=4,
                dtype="float32",
                shape=(elements,),
            )
        )
    return WorkloadFacts(
        parameters=tuple(reversed(parameters)),
        ready_order=tuple(reversed(range(len(parameters)))),
        batch_size=32,
    )


def true_ms(case: TrainingCase) -> float:
    """Return the time of a step."""
    return STEP_MS[case.hook_name] * FACTORS[case.bucket_cap_mb]
