"""Candidate bucket sizes: one for each different layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from commbench.ddp.plan.cases import DEFAULT_CAP, SMALLEST_CAP_MB, canonical_cap
from commbench.ddp.plan.layout import MIB, Layout, caps_bytes, rebuilt_layout
from commbench.ddp.plan.workload import WorkloadFacts

#: The smallest candidate in MiB, unless the model has less than `FEWEST` times as much.
SMALLEST_MB = 0.25
FEWEST = 4
#: Factor between neighbouring bucket sizes.
STEP = math.sqrt(2)


def candidate_caps(facts: WorkloadFacts, *, most: int = 12) -> list[str]:
    """Bucket sizes as ``bucket_cap_mb`` writes them, ``default`` first, no two with the same
    layout.

    A geometric series from 0.25 MiB, or a fourth of a model of less than 1 MiB, to one bucket for
    the whole model; if more than ``most`` remain, keep an evenly spaced subset that includes both
    ends.
    """
    total_mb = sum(parameter.size_bytes for parameter in facts.parameters) / MIB
    smallest = max(SMALLEST_CAP_MB, min(SMALLEST_MB, total_mb / FEWEST))
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
