"""Workloads by formula."""

from collections.abc import Sequence

from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts

MIB = 2**20


def make_facts(sizes_mb: Sequence[float]) -> WorkloadFacts:
    """Return a model with parameters in order of readiness."""
    parameters = [
        ParameterFacts(
            name=f"p{i}",
            numel=round(size * MIB / 4),
            itemsize=4,
            dtype="float32",
            shape=(size_of(size),),
        )
        for i, size in enumerate(sizes_mb)
    ]
    return WorkloadFacts(
        parameters=tuple(reversed(parameters)),
        ready_order=tuple(reversed(range(len(parameters)))),
        buffer_bytes=0,
        batch_size=32,
        metric="",
        target=None,
        steps=None,
    )


def size_of(size_mb: float) -> int:
    """Return the float32 elements of a size in MiB."""
    return round(size_mb * MIB / 4)
