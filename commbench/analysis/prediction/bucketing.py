"""Which bucket sizes are worth a thought: one for each different layout, and the list that the model likes best."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.prediction.messages import needs_shapes
from commbench.analysis.prediction.steps import StepModel
from commbench.analysis.prediction.timeline import BucketWork
from commbench.ddp.plan.cases import DEFAULT_CAP, SMALLEST_CAP_MB, TrainingCase, canonical_cap
from commbench.ddp.plan.layout import MIB, Layout, caps_bytes, rebuilt_layout
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.hooks.message import FLOAT32_BYTES

#: The smallest bucket size that is tried, unless the model has less than `FEWEST` times as much; MiB.
SMALLEST_MB = 0.25
FEWEST = 4
#: Factor between neighbouring bucket sizes.
STEP = math.sqrt(2)
#: A list of bucket sizes is worth its words where its step is predicted to be shorter by more than this, which is how
#: far predictions at bucket sizes that were not measured are off.
WORTHWHILE = 0.03
#: Lists whose steps differ by less than this share are equally good: the one that is easiest to write is taken.
EQUAL = 0.005
#: A bucket of less than this share of the model is no bucket worth its message.
SMALLEST_SHARE = 0.01
#: How much larger the last size may be than its bucket, so that it holds what rounding the others leaves.
ROOM = 1.25
#: Significant digits that sizes of a list are rounded to, as far as the step allows.
DIGITS = (2, 3)
#: Places at most at which the search for a list may cut: neighbouring parameters are taken together in larger models.
MOST_CUTS = 400
#: Bucket sizes at which the cost of a bucket is computed; in between it is interpolated.
COST_POINTS = 256
_DECIMALS = 9


def candidate_caps(facts: WorkloadFacts, *, most: int = 12) -> list[str]:
    """Bucket sizes as ``bucket_cap_mb`` writes them, ``default`` first, no two with the same layout.

    A geometric series from 0.25 MiB, or a fourth of a model of less than 1 MiB, to one bucket for the whole model; if
    more than ``most`` remain, keep an evenly spaced subset that includes both ends.
    """
    total_mb, smallest = _total_mb(facts), _smallest_mb(facts)
    count = math.ceil(math.log(max(1.0, total_mb / smallest), STEP))
    series = [canonical_cap(f"{float(f'{smallest * STEP**i:.2g}'):.9f}") for i in range(count + 2)]
    caps = unique_layouts([DEFAULT_CAP, *series], facts)
    if len(caps) <= most:
        return caps
    kept = np.linspace(1, len(caps) - 1, max(1, most - 1)).round().astype(int)
    return [caps[0], *(caps[i] for i in dict.fromkeys(kept.tolist()))]


def _total_mb(facts: WorkloadFacts) -> float:
    return sum(parameter.numel * parameter.itemsize for parameter in facts.parameters) / MIB


def _smallest_mb(facts: WorkloadFacts) -> float:
    return max(SMALLEST_CAP_MB, min(SMALLEST_MB, _total_mb(facts) / FEWEST))


def unique_layouts(caps: Sequence[str], facts: WorkloadFacts) -> list[str]:
    """``caps`` without those whose buckets an earlier one makes already."""
    first: dict[Layout, str] = {}
    for cap in caps:
        first.setdefault(_layout(caps_bytes(cap), facts), cap)
    return list(first.values())


def best_list(model: StepModel, case: TrainingCase, *, most: int = 4) -> str | None:
    """The ``bucket_cap_mb_list`` of at most ``most`` sizes with the shortest predicted step, by dynamic programming.

    The search is exact for a network that serves one bucket at a time and for communication that takes nothing from
    computing. Elsewhere it is a heuristic: the best lists of every length are predicted, as they are and with sizes
    rounded, and of those within 0.5 % of the best the shortest is taken. No bucket is smaller than the smallest single
    size that is tried or 1 % of the model: what such buckets gain is less than what the model knows. None where the
    list is not predicted to beat the best single size by more than 3 %, or than the model's own error where that is
    more, or where not all parameters are of float32: DDP counts each type separately.

    Args:
        model: predicts steps of the case's hook.
        case: the configuration; its bucket size does not count.
        most: entries of the list at most.
    """
    facts = model.facts
    if {parameter.dtype for parameter in facts.parameters} != {"float32"}:
        return None
    smallest_mb = max(_smallest_mb(facts), SMALLEST_SHARE * _total_mb(facts))
    cuts = best_cuts(model, case, most=most, smallest_mb=smallest_mb)
    lists = dict.fromkeys(caps for ends in cuts for caps in _as_caps(ends, facts, smallest_mb))
    found = {caps: _step_ms(model, case, caps) for caps in lists}
    single = min(_step_ms(model, case, cap) for cap in candidate_caps(facts))
    good = [caps for caps in found if found[caps] <= (1 + EQUAL) * min(found.values())]
    best = min(good, key=lambda caps: (caps.count("+"), len(caps), found[caps]), default=None)
    return best if best is not None and found[best] < (1 - max(WORTHWHILE, model.error)) * single else None


def _step_ms(model: StepModel, case: TrainingCase, cap: str) -> float:
    return model.predict(dataclasses.replace(case, bucket_cap_mb=cap)).step_ms


def best_cuts(model: StepModel, case: TrainingCase, *, most: int, smallest_mb: float = 0.0) -> list[tuple[int, ...]]:
    """For each number of buckets up to ``most`` the ends of the buckets, as numbers of parameters in ready order.

    No bucket is smaller than ``smallest_mb``, in MiB, so that there may be none of some numbers.

    The last bucket of b that ends with parameter j is done at ``max(ready_j, done before) + cost``: the earlier what is
    before it is done, the earlier it is, so that for each j and b only the earliest needs to be known.
    """
    ends, elements, ready = _places(model)
    cost = _Cost(model, case, int(elements[-1]))
    sizes = elements[:, None] - np.concatenate(([0.0], elements[:-1]))[None, :]  # of a bucket from place i to place j
    comm = cost.of(np.maximum(sizes, 0.0))
    comm[(sizes <= 0) | (sizes * FLOAT32_BYTES < min(smallest_mb, _total_mb(model.facts)) * MIB)] = np.inf
    done = np.full(len(ends), -np.inf)
    done[1:] = np.inf  # before the first bucket nothing may be left out
    before: list[NDArray[np.int64]] = []
    found = []
    for count in range(1, most + 1):
        entered = ready + cost.delay(elements, count)
        total = np.maximum(entered[:, None], done[None, :]) + comm
        before.append(total.argmin(axis=1))
        reached = total.min(axis=1)
        if np.isfinite(reached[-1]):
            found.append(tuple(int(ends[place]) for place in _trace(before)))
        done = np.concatenate(([np.inf], reached[:-1]))
    return found


def _trace(before: Sequence[NDArray[np.int64]]) -> list[int]:
    """The last place of each bucket: ``before[b][j]`` is the first place of bucket b if that ends with place j."""
    place, places = len(before[0]) - 1, []
    for starts in reversed(before):
        places.append(place)
        place = int(starts[place]) - 1
    return places[::-1]


def _places(model: StepModel) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Where buckets may end: parameters, elements up to there, and when these are ready in milliseconds."""
    facts = model.facts
    ordered = [facts.parameters[i] for i in facts.ready_order]
    elements = np.cumsum([float(parameter.numel) for parameter in ordered])
    scale = model.backward_ms / facts.backward_ms
    ready = np.maximum.accumulate([scale * parameter.ready_ms for parameter in ordered])
    smallest = elements[-1] / MOST_CUTS if len(ordered) > MOST_CUTS else 0.0
    ends = list(_spaced(elements, smallest))
    chosen = np.array(ends) - 1
    return np.array(ends), elements[chosen], ready[chosen]


def _spaced(elements: Iterable[float], smallest: float) -> Iterator[int]:
    """Numbers of parameters after which at least ``smallest`` elements have been added, and all of them."""
    last, number, reached = 0.0, 0, 0.0
    for number, reached in enumerate(elements, start=1):
        if reached - last >= smallest:
            yield number
            last = reached
    if reached > last:
        yield number


class _Cost:
    """What a bucket costs by its elements: on the network and decoding, and on the thread of the backward pass."""

    def __init__(self, model: StepModel, case: TrainingCase, elements: int) -> None:
        works = _by_tensors(model, case) if needs_shapes(case) else _by_elements(model, case, elements)
        self._points = np.array([work.size_bytes / FLOAT32_BYTES for work in works])
        self._served_ms = np.array([work.comm_ms + work.decode_ms for work in works])
        cost = model.hooks[case.hook_name]
        self._fixed_ms = cost.encode_ms
        self._ms_per_element = cost.encode_ms_per_element + model.copy_ms_per_byte * FLOAT32_BYTES

    def of(self, elements: NDArray[np.float64]) -> NDArray[np.float64]:
        """Milliseconds that a bucket keeps a server."""
        return np.asarray(np.interp(elements, self._points, self._served_ms))

    def delay(self, elements: NDArray[np.float64], buckets: int) -> NDArray[np.float64]:
        """Milliseconds by which so many buckets of so many elements together hold up the backward pass."""
        return buckets * self._fixed_ms + self._ms_per_element * elements


def _by_elements(model: StepModel, case: TrainingCase, elements: int) -> list[BucketWork]:
    """Buckets of all sizes up to ``elements``."""
    points = np.unique(np.geomspace(1, max(1, elements), COST_POINTS).astype(int))
    return [model.bucket(case, int(n)) for n in points]


def _by_tensors(model: StepModel, case: TrainingCase) -> list[BucketWork]:
    """Buckets of the parameters that are ready first: a bucket of later ones is taken to send as much."""
    ordered = [model.facts.parameters[i] for i in model.facts.ready_order]
    ends = list(
        _spaced(itertools.accumulate(float(p.numel) for p in ordered), sum(p.numel for p in ordered) / MOST_CUTS)
    )
    return [model.bucket_of(case, model.facts.ready_order[:end]) for end in ends]


def _as_caps(cuts: Sequence[int], facts: WorkloadFacts, smallest_mb: float) -> Iterator[str]:
    """Lists that make these buckets, or with rounded sizes nearly these, and none that is smaller than asked for."""
    sizes_mb = [facts.parameters[i].numel * facts.parameters[i].itemsize / MIB for i in facts.ready_order]
    ranges = []
    for start, end in itertools.pairwise([0, *cuts]):
        bucket = sum(sizes_mb[start:end])
        ranges.append((bucket - sizes_mb[end - 1], bucket if end < cuts[-1] else ROOM * bucket))
    rounded = ([f"{float(f'{sum(ends) / 2:.{digits}g}'):.{_DECIMALS}f}" for ends in ranges] for digits in DIGITS)
    for caps in ([_between(*ends) for ends in ranges], *rounded):
        layout = _layout(caps_bytes("+".join(caps)), facts)
        numels = (sum(facts.parameters[i].numel for i in bucket) for bucket in layout)
        if len(layout) <= len(cuts) and min(numels) * FLOAT32_BYTES >= min(smallest_mb, sum(sizes_mb)) * MIB:
            yield canonical_cap("+".join(caps))


def _between(low: float, high: float) -> str:
    """A number above ``low`` and below ``high``, near their middle, with as few decimals as do."""
    middle = (low + high) / 2
    for decimals in range(_DECIMALS):
        text = f"{middle:.{decimals}f}"
        if low < float(text) < high:
            return text
    return f"{middle:.{_DECIMALS}f}"


def _layout(caps: Sequence[int], facts: WorkloadFacts) -> Layout:
    numels, itemsizes, dtypes = zip(*((p.numel, p.itemsize, p.dtype) for p in facts.parameters), strict=True)
    return rebuilt_layout(numels, itemsizes, dtypes, facts.ready_order, caps)
