"""What a recommendation cost in training steps, what a full sweep would, and what it takes to be surer of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from commbench.ddp.plan.cases import CONFIRM, SWEEP, blocks_of_sweep
from commbench.ddp.plan.records import TrainingRecord
from commbench.results.info import RunInfo
from commbench.schema import JsonMapping
from commbench.stats import fewest_launches
from commbench.stats.ratios import MOST_LAUNCHES, further_launches
from commbench.units import counted, format_duration


def steps_of(record: TrainingRecord) -> int:
    """Optimiser steps of all blocks, those included that were not timed."""
    blocks = len(record.block_lengths)
    if record.block_at:  # blocks of different lengths
        return len(record.step_ms) + record.discarded * blocks
    return record.block_steps * blocks or len(record.step_ms)


def measured_steps(records: Iterable[TrainingRecord]) -> int:
    """Optimiser steps that were made with DDP, in all stages: of the blocks that are in the records."""
    return sum(steps_of(record) for record in records if record.case.uses_ddp)


def exhaustive_steps(records: Iterable[TrainingRecord], info: RunInfo) -> int:
    """Steps of a full sweep in all its launches: a block of every configuration in each, and those of `schedule`.

    Confirming what it finds in fresh launches is not counted.

    Args:
        records: of the run; they tell the steps of a block.
        info: as ``run.json`` holds it. ``exhaustive_cases`` and ``exhaustive_launches`` say how many configurations
            and launches a full sweep has; without, they are those of the run's own, with the configurations that
            ``same_layout`` lists.
    """
    ddp = [record for record in records if record.case.uses_ddp]
    swept = [record for record in ddp if record.case.phase == SWEEP]
    own = len({record.case for record in swept}) + len(info.get("same_layout") or {})
    cases = int(info.get("exhaustive_cases") or own)
    launches = int(info.get("exhaustive_launches") or len({record.launch for record in swept}))
    blocks = ((steps_of(record), max(1, len(record.block_lengths))) for record in ddp)
    return blocks_of_sweep(cases, launches) * max((steps // count for steps, count in blocks), default=0)


def surer(ratios: Sequence[float], margin: float, entries: Iterable[JsonMapping], *, level: float = 0.95) -> str:
    """A sentence on what would decide whether a gain exceeds the margin; empty where nothing can be told.

    How many it takes: `commbench.stats.ratios`.

    Args:
        ratios: the speedup in each fresh launch so far.
        margin: a gain up to this share is none.
        entries: ``launches`` of run.json, from which the time of a fresh launch is taken.
        level: of the interval that shall decide.
    """
    if len(ratios) < 2 or min(ratios) <= 0:  # noqa: PLR2004 - one launch has no spread
        return ""
    logs = [math.log(ratio) for ratio in ratios]
    spread, distance = statistics.stdev(logs), abs(statistics.median(logs) - math.log1p(margin))
    effort = further_launches(
        spread,
        len(logs),
        distance,
        freedom=len(logs) - 1,
        margin=margin,
        level=level,
        fewest=fewest_launches(level),
    )
    if effort.forecast == "near":
        return f"The gain lies so near the margin of {100 * margin:g} % that more launches would hardly decide."
    if effort.forecast == "noisy":
        return (
            f"Launches differ by {100 * math.expm1(spread):.2g} %, which is too much to tell a gain beyond "
            f"{100 * margin:g} % with {MOST_LAUNCHES} of them: a quieter machine helps more than further launches."
        )
    is_open = effort.high is None
    low, high = effort.low, effort.low if effort.high is None else effort.high
    seconds = [
        entry.get("seconds", 0.0) for entry in entries if entry.get("stage") == CONFIRM and entry.get("status") == "ok"
    ]
    times = [format_duration(more * statistics.median(seconds)) for more in (low, high)] if seconds else []
    time = f", {' to '.join(dict.fromkeys(times))}{' at least' * is_open}," if times else ""
    number = counted(high, "more fresh launch") if low == high else f"{low} to {high} more fresh launches"
    return (
        f"{'At least' if is_open else 'About'} {number}{time} would show on which side of {100 * margin:g} % "
        f"the gain lies, if it is what it looks like: the same command with --confirm-launches {len(ratios) + high} "
        "and the same --out makes them."
    )
