"""The cost of a recommendation in training steps, and the launches needed for a decision."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from commbench.ddp.plan.cases import CONFIRM
from commbench.ddp.plan.records import TrainingRecord
from commbench.schema import JsonMapping
from commbench.stats import fewest_launches
from commbench.stats.ratios import MOST_LAUNCHES, Scatter, further_launches
from commbench.units import counted, format_duration


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
    ratios: Sequence[float], margin: float, entries: Iterable[JsonMapping], *, level: float = 0.95
) -> str:
    """Return a sentence on the launches that would decide whether a gain exceeds the margin.

    Empty if unknown.

    For the estimate see `commbench.stats.ratios`.

    Args:
        ratios: the speedup in each fresh launch so far.
        margin: smallest gain that matters.
        entries: ``launches`` of run.json, for the time of a fresh launch.
        level: of the deciding interval.
    """
    if len(ratios) < 2 or min(ratios) <= 0:  # noqa: PLR2004 - one launch has no spread
        return ""
    logs = [math.log(ratio) for ratio in ratios]
    spread, distance = statistics.stdev(logs), abs(statistics.median(logs) - math.log1p(margin))
    effort = further_launches(
        Scatter(spread=spread, freedom=len(logs) - 1, launches=len(logs)),
        distance,
        margin=margin,
        level=level,
        fewest=fewest_launches(level),
    )
    if effort.forecast == "near":
        return (
            f"The gain lies too near the margin of {100 * margin:g} % for more launches to decide."
        )
    if effort.forecast == "noisy":
        return (
            f"Launches differ by {100 * math.expm1(spread):.2g} %, too much to show a gain beyond"
            f" {100 * margin:g} % with {MOST_LAUNCHES} of them: a quieter machine helps more than"
            " further launches."
        )
    is_open = effort.high is None
    low, high = effort.low, effort.low if effort.high is None else effort.high
    seconds = [
        entry.get("seconds", 0.0)
        for entry in entries
        if entry.get("stage") == CONFIRM and entry.get("status") == "ok"
    ]
    times = (
        [format_duration(more * statistics.median(seconds)) for more in (low, high)]
        if seconds
        else []
    )
    time = f", {' to '.join(dict.fromkeys(times))}{' at least' * is_open}," if times else ""
    number = (
        counted(high, "more fresh launch")
        if low == high
        else f"{low} to {high} more fresh launches"
    )
    return (
        f"{'At least' if is_open else 'About'} {number}{time} would show on which side of"
        f" {100 * margin:g} % the gain lies, if the estimate holds: the same command with"
        f" --confirm-launches {len(ratios) + high} and the same --out makes them."
    )
