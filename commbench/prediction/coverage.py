"""Which collectives to time so that the network of a training step is known: those that its hooks issue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from commbench.cases import Case, Sweep
from commbench.datatypes import find_dtype
from commbench.prediction.exchange import messages_of
from commbench.prediction.network import LEAST_SIZES
from commbench.training.cases import TrainingCase, parse_hook
from commbench.training.layout import MIB
from commbench.training.workload import WorkloadFacts

#: Buckets whose messages are timed, in bytes of gradients: the whole model, at most the larger, and down by the factor.
SMALLEST_BUCKET, LARGEST_BUCKET, FACTOR = 4096, 64 * MIB, 4


def network_cases(hooks: Sequence[str], facts: WorkloadFacts, ranks: int, backend: str) -> list[Case]:
    """The collectives that hooks issue for buckets of all sizes up to the whole model, and those of no hook.

    A bucket is taken to be one square matrix: what hooks that look at tensors send of others lies between these sizes,
    or little beyond them. Of a model too small for as many sizes as a curve takes, larger ones are timed, too.

    ``backend`` is that of training.

    Raises:
        InputError: a parameter is of a type that is not timed.
    """
    wanted: dict[tuple[str, str], set[int]] = {}
    plain = TrainingCase(workload="", world_size=ranks, batch_per_rank=1, backend=backend)
    for hook in dict.fromkeys(["none", *hooks]):
        case = replace(plain, **parse_hook(hook))
        for dtype, elements in _buckets(facts):
            side = max(1, math.isqrt(elements))
            for message in messages_of(case, elements, ranks, shapes=[(side, elements // side)], dtype=dtype):
                share = find_dtype(message.dtype).itemsize * ranks
                size = share * math.ceil(message.message_bytes / share)
                wanted.setdefault((message.operation, message.dtype), set()).add(size)
    for found in wanted.values():
        while len(found) < LEAST_SIZES:
            found.add(FACTOR * max(found))
    sweeps = [
        Sweep(operations=(operation,), sizes=sorted(sizes), backends=(plain.carrier,), dtypes=(dtype,))
        for (operation, dtype), sizes in wanted.items()
    ]
    return [case for sweep in sweeps for case in sweep.cases(ranks)]


def _buckets(facts: WorkloadFacts) -> Iterator[tuple[str, int]]:
    """The type and the elements of buckets, which hold parameters of one type each; of each type the largest first."""
    for dtype in dict.fromkeys(p.dtype for p in facts.parameters):
        itemsize = find_dtype(dtype).itemsize
        largest = min(sum(itemsize * p.numel for p in facts.parameters if p.dtype == dtype), LARGEST_BUCKET)
        powers = range(1 + max(0, math.ceil(math.log(largest / SMALLEST_BUCKET, FACTOR))))
        yield from ((dtype, max(1, largest // FACTOR**power // itemsize)) for power in powers)
