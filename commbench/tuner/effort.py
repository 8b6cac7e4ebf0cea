"""The cost of a recommendation in training steps, and the launches needed for a decision."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from commbench.ddp.plan.cases import CONFIRM
from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding, Value
from commbench.schema import JsonMapping
from commbench.stats import DEFAULT_LEVEL, MARGIN, fewest_launches
from commbench.stats.ratios import MOST_LAUNCHES, Scatter, further_launches, margin_errors_of


def steps_of(record: TrainingRecord) -> int:
    """Return the optimiser steps of all blocks, including untimed steps."""
    if record.total_steps:
        return record.total_steps
    blocks = len(record.block_lengths)
    if record.block_at:  # blocks of different lengths
        return len(record.step_ms) + record.discarded * blocks
    return record.block_steps * blocks or len(record.step_ms)


def measured_steps(records: Iterable[TrainingRecord]) -> int:
    """Return the optimiser steps with DDP in all stages, from the blocks of the records."""
    return sum(steps_of(record) for record in records if record.case.uses_ddp)


def launch_advice(
    ratios: Sequence[float], entries: Iterable[JsonMapping], *, level: float = DEFAULT_LEVEL
) -> Finding | None:
    """Return the launches that would decide whether a gain exceeds the margin of 2 %; None if
    unknown.

    For the estimate see `commbench.stats.ratios`.

    Args:
        ratios: the speedup in each new launch so far.
        entries: ``launches`` of run.json, for the time of a new launch.
        level: of the deciding interval.
    """
    if len(ratios) < 2 or min(ratios) <= 0:  # one launch has no spread
        return None
    logs = [math.log(ratio) for ratio in ratios]
    spread, distance = statistics.stdev(logs), abs(statistics.median(logs) - math.log1p(MARGIN))
    effort = further_launches(
        Scatter(spread=spread, freedom=len(logs) - 1, launches=len(logs)),
        distance,
        margin=MARGIN,
        margin_errors=margin_errors_of(level),
        fewest=fewest_launches(level),
    )
    numbers: dict[str, Value] = {"margin": MARGIN}
    if effort.forecast == "near":
        return Finding(code="decide_near", numbers=numbers)
    if effort.forecast == "noisy":
        numbers |= {"spread": 100 * math.expm1(spread), "most": MOST_LAUNCHES}
        return Finding(code="decide_noisy", numbers=numbers)
    code, high = "decide_between", effort.high
    if high is None:
        code, high = "decide_at_least", effort.low
    elif high == effort.low:
        code = "decide_about"
    numbers |= {"low": effort.low, "high": high, "launches": len(ratios) + high}
    seconds = []
    for entry in entries:
        if entry.get("stage") == CONFIRM and entry.get("status") == "ok":
            seconds.append(entry.get("seconds", 0.0))
    details = []
    if seconds:
        time = {"seconds": high * statistics.median(seconds)}
        details.append(Finding(code="decide_time", numbers=time))
    return Finding(code=code, numbers=numbers, details=tuple(details))
