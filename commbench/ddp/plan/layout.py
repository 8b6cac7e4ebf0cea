"""The buckets that DDP makes of a model at a bucket size, by DDP's own rule, and candidate bucket
sizes: one for each different layout.

Equal layouts are measured once.

Source: ``compute_bucket_assignment_by_size`` and ``Reducer::rebuild_buckets`` in PyTorch's
``torch/csrc/distributed/c10d/reducer.cpp``, and ``_BucketCapacityConfig`` in
``torch/nn/parallel/distributed.py``.
A cap is a threshold for closing a bucket: tensors are never split, so a bucket exceeds its cap by
up to one tensor. Parameters with sparse gradients, which DDP puts into separate buckets, are not
supported.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from commbench.ddp.plan.cases import (
    DEFAULT_CAP,
    TrainingCase,
    canonical_cap,
)
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts

MIB = 1 << 20
#: Caps of DDP's default in bytes: ``torch.distributed._DEFAULT_FIRST_BUCKET_BYTES``, then 25 MiB.
DEFAULT_CAPS = (MIB, 25 * MIB)

#: The smallest candidate in MiB, unless the model has less than `FEWEST` times as much.
SMALLEST_MB = 0.25
FEWEST = 4
#: Factor between neighbouring bucket sizes.
STEP = math.sqrt(2)

#: Parameter indices of each bucket, in the order of sending.
Layout: TypeAlias = tuple[tuple[int, ...], ...]


def caps_bytes(bucket_cap_mb: str) -> list[int]:
    """Return the caps of the successive buckets, in bytes; the last applies to all further buckets.

    Args:
        bucket_cap_mb: ``default``, MiB such as ``25``, or a list ``1+5+25``, as in ``ddp.csv``.
    """
    if bucket_cap_mb == DEFAULT_CAP:
        return list(DEFAULT_CAPS)
    return [int(float(cap) * MIB) for cap in bucket_cap_mb.split("+")]


def rebuilt_layout(
    parameters: Sequence[ParameterFacts], ready_order: Sequence[int], caps: Sequence[int]
) -> Layout:
    """Return the buckets that DDP uses from the second step on (the third with a static graph).

    Args:
        parameters: the trainable ones, in the order of registration in the model.
        ready_order: indices of all parameters in the order in which their gradients became ready on
            rank 0.
        caps: as from `caps_bytes`.
    """
    # One bucket is open for each dtype, and each dtype counts through the caps separately.
    closed = []
    filling: dict[str, list[int]] = {}
    filled: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for index in ready_order:
        kind = parameters[index].dtype
        filling.setdefault(kind, []).append(index)
        filled[kind] += parameters[index].size_bytes
        if filled[kind] >= caps[min(reached[kind], len(caps) - 1)]:
            closed.append(filling[kind])
            filling[kind], filled[kind] = [], 0
            reached[kind] += 1
    # Buckets that are open at the end are sent last, the first dtype at the very end: the hash
    # table of GNU's C++ library, which Linux builds of torch use, lists its entries in this order.
    closed += [bucket for bucket in reversed(filling.values()) if bucket]
    return tuple(tuple(bucket) for bucket in closed)


def first_layout(parameters: Sequence[ParameterFacts], caps: Sequence[int]) -> Layout:
    """Return the buckets of DDP's construction, which it keeps if it looks for unused parameters.

    DDP fills them in the order of registration and sends the last one first. Arguments are those of
    `rebuilt_layout`.
    """
    layout = rebuilt_layout(parameters, range(len(parameters)), caps)
    return tuple(sorted(layout, key=min, reverse=True))


def case_layout(case: TrainingCase, facts: WorkloadFacts) -> Layout:
    """Return the buckets of a configuration after the first steps; empty if it makes none."""
    if not case.uses_ddp:
        return ()
    caps = caps_bytes(case.bucket_cap_mb)
    if case.keeps_first_buckets:
        return first_layout(facts.parameters, caps)
    return rebuilt_layout(facts.parameters, facts.ready_order, caps)


def case_bucket_bytes(case: TrainingCase, facts: WorkloadFacts) -> list[int]:
    """Return the bytes of each bucket's parameters after the first steps."""
    sizes = []
    for bucket in case_layout(case, facts):
        sizes.append(sum(facts.parameters[index].size_bytes for index in bucket))
    return sizes


def group_by_layout(
    cases: Sequence[TrainingCase], facts: WorkloadFacts
) -> dict[TrainingCase, TrainingCase]:
    """Return for each configuration, in order, the configuration that is measured in its place.

    Configurations that differ only in their bucket size and get the same buckets are equivalent.
    DDP's default buckets are measured if they are among them, else the first configuration.
    """
    measured_case: dict[tuple[TrainingCase, Layout], TrainingCase] = {}
    keys: dict[TrainingCase, tuple[TrainingCase, Layout]] = {}
    for case in cases:
        alike = dataclasses.replace(case, bucket_cap_mb=DEFAULT_CAP)
        key = keys[case] = alike, case_layout(case, facts)
        if key not in measured_case or case.bucket_cap_mb == DEFAULT_CAP:
            measured_case[key] = case
    return {case: measured_case[key] for case, key in keys.items()}


def candidate_caps(facts: WorkloadFacts, *, most: int = 12) -> list[str]:
    """Bucket sizes as ``bucket_cap_mb`` writes them, ``default`` first, no two with the same
    layout.

    A geometric series from 0.25 MiB, or a fourth of a model of less than 1 MiB, to one bucket for
    the whole model; if more than ``most`` remain, keep an evenly spaced subset that includes both
    ends.
    """
    total_mb = sum(parameter.size_bytes for parameter in facts.parameters) / MIB
    smallest = max(1e-6, min(SMALLEST_MB, total_mb / FEWEST))  # some byte, in two digits
    count = math.ceil(math.log(max(1.0, total_mb / smallest), STEP))
    series = [canonical_cap(f"{float(f'{smallest * STEP**i:.2g}'):.9f}") for i in range(count + 2)]
    caps = unique_layouts([DEFAULT_CAP, *series], facts)
    if len(caps) <= most:
        return caps
    positions = np.linspace(1, len(caps) - 1, max(1, most - 1)).round().astype(int)
    return [caps[0], *(caps[i] for i in dict.fromkeys(positions.tolist()))]


def unique_layouts(caps: Sequence[str], facts: WorkloadFacts) -> list[str]:
    """Return ``caps`` without sizes whose layout an earlier size has."""
    first: dict[Layout, str] = {}
    for cap in caps:
        layout = rebuilt_layout(facts.parameters, facts.ready_order, caps_bytes(cap))
        first.setdefault(layout, cap)
    return list(first.values())
