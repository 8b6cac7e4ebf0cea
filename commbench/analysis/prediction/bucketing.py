"""Candidate bucket sizes: one for each different layout, and the list with the shortest predicted
step.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.prediction.steps import StepModel, needs_shapes
from commbench.analysis.prediction.timeline import BucketWork
from commbench.ddp.plan.cases import DEFAULT_CAP, SMALLEST_CAP_MB, TrainingCase, canonical_cap
from commbench.ddp.plan.layout import MIB, Layout, caps_bytes, rebuilt_layout
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.hooks.message import FLOAT32_BYTES

#: The smallest candidate in MiB, unless the model has less than `FEWEST` times as much.
SMALLEST_MB = 0.25
FEWEST = 4
#: Factor between neighbouring bucket sizes.
STEP = math.sqrt(2)
#: A list of bucket sizes is recommended if its predicted step is shorter by more than this: the
#: typical prediction error.
WORTHWHILE = 0.03
#: Lists whose steps differ by less than this share count as equal; the shortest text wins.
EQUAL = 0.005
#: The smallest bucket as a share of the model.
SMALLEST_SHARE = 0.01
#: Factor by which the last size may exceed its bucket, to hold what rounding of the others leaves.
ROOM = 1.25
#: Significant digits to which the sizes of a list are rounded, if the step stays equal.
DIGITS = (2, 3)
#: The most positions at which a list may split; in larger models neighbouring parameters are
#: merged.
MOST_CUTS = 400
#: Bucket sizes at which a bucket's cost is computed; between them it is interpolated.
COST_POINTS = 256
_DECIMALS = 9


def candidate_caps(facts: WorkloadFacts, *, most: int = 12) -> list[str]:
    """Bucket sizes as ``bucket_cap_mb`` writes them, ``default`` first, no two with the same
    layout.

    A geometric series from 0.25 MiB, or a fourth of a model of less than 1 MiB, to one bucket for
    the whole model; if more than ``most`` remain, keep an evenly spaced subset that includes both
    ends.
    """
    total_mb, smallest = _total_mb(facts), _smallest_mb(facts)
    count = math.ceil(math.log(max(1.0, total_mb / smallest), STEP))
    series = [canonical_cap(f"{float(f'{smallest * STEP**i:.2g}'):.9f}") for i in range(count + 2)]
    caps = unique_layouts([DEFAULT_CAP, *series], facts)
    if len(caps) <= most:
        return caps
    positions = np.linspace(1, len(caps) - 1, max(1, most - 1)).round().astype(int)
    return [caps[0], *(caps[i] for i in dict.fromkeys(positions.tolist()))]


def _total_mb(facts: WorkloadFacts) -> float:
    return sum(parameter.numel * parameter.itemsize for parameter in facts.parameters) / MIB


def _smallest_mb(facts: WorkloadFacts) -> float:
    return max(SMALLEST_CAP_MB, min(SMALLEST_MB, _total_mb(facts) / FEWEST))


def unique_layouts(caps: Sequence[str], facts: WorkloadFacts) -> list[str]:
    """Return ``caps`` without sizes whose layout an earlier size has."""
    first: dict[Layout, str] = {}
    for cap in caps:
        first.setdefault(_layout(caps_bytes(cap), facts), cap)
    return list(first.values())


def best_list(model: StepModel, case: TrainingCase, *, most: int = 4) -> str | None:
    """Return the ``bucket_cap_mb_list`` of at most ``most`` sizes with the shortest predicted step,
    or None.

    The search uses dynamic programming. It is exact for a network that carries one bucket at a time
    and communication that does not slow computing down. Elsewhere it is a heuristic: the best lists
    of every length are predicted, exact and rounded, and among those within 0.5 % of the best the
    shortest text is taken.

    No bucket is smaller than the smallest single candidate or 1 % of the model, because the model
    of a step is not accurate enough for smaller gains. The result is None in two cases. The list
    must be predicted to beat the best single size by more than 3 % or the model's own error. All
    parameters must be of float32, because DDP counts each type separately.

    Args:
        model: predicts steps of the case's hook.
        case: the configuration; its bucket size is ignored.
        most: the most entries of the list.
    """
    facts = model.facts
    if {parameter.dtype for parameter in facts.parameters} != {"float32"}:
        return None
    smallest_mb = max(_smallest_mb(facts), SMALLEST_SHARE * _total_mb(facts))
    cuts = best_cuts(model, case, most=most, smallest_mb=smallest_mb)
    lists = dict.fromkeys(caps for ends in cuts for caps in _as_caps(ends, facts, smallest_mb))
    predicted_ms = {caps: _step_ms(model, case, caps) for caps in lists}
    single = min(_step_ms(model, case, cap) for cap in candidate_caps(facts))
    nearly_best = [
        caps
        for caps in predicted_ms
        if predicted_ms[caps] <= (1 + EQUAL) * min(predicted_ms.values())
    ]
    best = min(
        nearly_best, key=lambda caps: (caps.count("+"), len(caps), predicted_ms[caps]), default=None
    )
    return (
        best
        if best is not None and predicted_ms[best] < (1 - max(WORTHWHILE, model.error)) * single
        else None
    )


def _step_ms(model: StepModel, case: TrainingCase, cap: str) -> float:
    return model.predict(dataclasses.replace(case, bucket_cap_mb=cap)).step_ms


def best_cuts(
    model: StepModel, case: TrainingCase, *, most: int, smallest_mb: float = 0.0
) -> list[tuple[int, ...]]:
    """Return, for each number of buckets up to ``most``, the buckets' ends as numbers of parameters
    in ready order.

    Buckets are at least ``smallest_mb`` MiB, so some numbers of buckets may be impossible.

    The last of b buckets, ending with parameter j, is done at ``max(ready_j, previous done) +
    cost``. This is monotone in the previous end, so for each j and b only the earliest end is kept.
    """
    ends, elements, ready = _possible_ends(model)
    cost = _Cost(model, case, int(elements[-1]))
    sizes = (
        elements[:, None] - np.concatenate(([0.0], elements[:-1]))[None, :]
    )  # of a bucket from place i to place j
    comm = cost.of(np.maximum(sizes, 0.0))
    comm[
        (sizes <= 0) | (sizes * FLOAT32_BYTES < min(smallest_mb, _total_mb(model.facts)) * MIB)
    ] = np.inf
    done = np.full(len(ends), -np.inf)
    done[1:] = np.inf  # the first bucket starts with the first parameter
    before: list[NDArray[np.int64]] = []
    cuts = []
    for count in range(1, most + 1):
        entered = ready + cost.delay(elements, count)
        total = np.maximum(entered[:, None], done[None, :]) + comm
        before.append(total.argmin(axis=1))
        reached = total.min(axis=1)
        if np.isfinite(reached[-1]):
            cuts.append(tuple(int(ends[place]) for place in _trace(before)))
        done = np.concatenate(([np.inf], reached[:-1]))
    return cuts


def _trace(before: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the last position of each bucket.

    ``before[b][j]`` is the first position of bucket b if it ends with j.
    """
    position, positions = len(before[0]) - 1, []
    for starts in reversed(before):
        positions.append(position)
        position = int(starts[position]) - 1
    return positions[::-1]


def _possible_ends(
    model: StepModel,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return possible bucket ends: parameters, elements up to there, and their ready times in
    milliseconds.
    """
    facts = model.facts
    ordered = [facts.parameters[i] for i in facts.ready_order]
    elements = np.cumsum([float(parameter.numel) for parameter in ordered])
    scale = model.backward_ms / facts.backward_ms
    ready = np.maximum.accumulate([scale * parameter.ready_ms for parameter in ordered])
    smallest = elements[-1] / MOST_CUTS if len(ordered) > MOST_CUTS else 0.0
    ends = list(_spaced(elements, smallest))
    last_parameters = np.array(ends) - 1
    return np.array(ends), elements[last_parameters], ready[last_parameters]


def _spaced(elements: Iterable[float], smallest: float) -> Iterator[int]:
    """Yield numbers of parameters after which at least ``smallest`` more elements have accumulated,
    and the total.
    """
    last, number, reached = 0.0, 0, 0.0
    for number, reached in enumerate(elements, start=1):
        if reached - last >= smallest:
            yield number
            last = reached
    if reached > last:
        yield number


class _Cost:
    """Cost of a bucket by its elements: on the network with decoding, and on the thread of the
    backward pass.
    """

    def __init__(self, model: StepModel, case: TrainingCase, elements: int) -> None:
        works = (
            _by_tensors(model, case) if needs_shapes(case) else _by_elements(model, case, elements)
        )
        self._points = np.array([work.size_bytes / FLOAT32_BYTES for work in works])
        self._served_ms = np.array([work.comm_ms + work.decode_ms for work in works])
        cost = model.hooks[case.hook_name]
        self._fixed_ms = cost.encode_ms
        self._ms_per_element = cost.encode_ms_per_element + model.copy_ms_per_byte * FLOAT32_BYTES

    def of(self, elements: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the milliseconds for which a bucket occupies a server."""
        return np.asarray(np.interp(elements, self._points, self._served_ms))

    def delay(self, elements: NDArray[np.float64], buckets: int) -> NDArray[np.float64]:
        """Return the milliseconds by which ``buckets`` buckets with ``elements`` in total delay the
        backward pass.
        """
        return buckets * self._fixed_ms + self._ms_per_element * elements


def _by_elements(model: StepModel, case: TrainingCase, elements: int) -> list[BucketWork]:
    """Return buckets of all sizes up to ``elements``."""
    points = np.unique(np.geomspace(1, max(1, elements), COST_POINTS).astype(int))
    return [model.bucket(case, int(n)) for n in points]


def _by_tensors(model: StepModel, case: TrainingCase) -> list[BucketWork]:
    """Return buckets of the parameters that are ready first.

    Buckets of later ones are assumed to send as much.
    """
    ordered = [model.facts.parameters[i] for i in model.facts.ready_order]
    ends = list(
        _spaced(
            itertools.accumulate(float(p.numel) for p in ordered),
            sum(p.numel for p in ordered) / MOST_CUTS,
        )
    )
    return [model.bucket_of(case, model.facts.ready_order[:end]) for end in ends]


def _as_caps(cuts: Sequence[int], facts: WorkloadFacts, smallest_mb: float) -> Iterator[str]:
    """Yield lists that make these buckets, exact and with rounded sizes, without too small ones."""
    sizes_mb = [
        facts.parameters[i].numel * facts.parameters[i].itemsize / MIB for i in facts.ready_order
    ]
    ranges = []
    for start, end in itertools.pairwise([0, *cuts]):
        bucket = sum(sizes_mb[start:end])
        ranges.append((bucket - sizes_mb[end - 1], bucket if end < cuts[-1] else ROOM * bucket))
    rounded = (
        [f"{float(f'{sum(ends) / 2:.{digits}g}'):.{_DECIMALS}f}" for ends in ranges]
        for digits in DIGITS
    )
    for caps in ([_between(*ends) for ends in ranges], *rounded):
        layout = _layout(caps_bytes("+".join(caps)), facts)
        numels = (sum(facts.parameters[i].numel for i in bucket) for bucket in layout)
        if (
            len(layout) <= len(cuts)
            and min(numels) * FLOAT32_BYTES >= min(smallest_mb, sum(sizes_mb)) * MIB
        ):
            yield canonical_cap("+".join(caps))


def _between(low: float, high: float) -> str:
    """Return a number between ``low`` and ``high``, near their middle, with the fewest decimals."""
    middle = (low + high) / 2
    for decimals in range(_DECIMALS):
        text = f"{middle:.{decimals}f}"
        if low < float(text) < high:
            return text
    return f"{middle:.{_DECIMALS}f}"


def _layout(caps: Sequence[int], facts: WorkloadFacts) -> Layout:
    numels, itemsizes, dtypes = zip(
        *((p.numel, p.itemsize, p.dtype) for p in facts.parameters), strict=True
    )
    return rebuilt_layout(numels, itemsizes, dtypes, facts.ready_order, caps)
