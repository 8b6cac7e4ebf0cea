"""Workloads by formula."""

import itertools
from collections.abc import Sequence

from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts

MIB = 2**20


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
