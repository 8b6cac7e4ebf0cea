"""The cost of a recommendation in training steps, that of a full sweep, and the launches needed for
a decision.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from commbench.ddp.plan.cases import CONFIRM, SWEEP, blocks_of_sweep
from commbench.ddp.plan.records import TrainingRecord
from commbench.results.info import RunInfo
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


def exhaustive_steps(records: Iterable[TrainingRecord], info: RunInfo) -> int:
    """Return the steps of a full sweep: one block per configuration and launch, and those of
    `schedule`.

    The confirmation in fresh launches is not counted.

    Args:
        records: of the run, which have the steps of a block.
        info: contents of ``run.json``. ``exhaustive_cases`` and ``exhaustive_launches`` give the
            size of a full sweep; without them it is that of the run, with the configurations of
            ``same_layout``.
    """
    ddp = [record for record in records if record.case.uses_ddp]
    swept = [record for record in ddp if record.case.phase == SWEEP]
    own = len({record.case for record in swept}) + len(info.get("same_layout") or {})
    cases = int(info.get("exhaustive_cases") or own)
    launches = int(info.get("exhaustive_launches") or len({record.launch for record in swept}))
    blocks = ((steps_of(record), max(1, len(record.block_lengths))) for record in ddp)
    return blocks_of_sweep(cases, launches) * max(
        (steps // count for steps, count in blocks), default=0
    )


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
