"""What a recommendation cost in training steps, what a full sweep would, and what it takes to be surer of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commbench.training.cases import CONFIRM, SWEEP
from commbench.training.records import TrainingRecord
from commbench.units import counted, format_duration

#: Of a median's interval: standard errors at 95 %, and how much wider it is than a mean's (normal launches).
_REACH, _MEDIAN = 1.96, math.sqrt(math.pi / 2)
#: A gain that is nearer to the margin than this share is on neither side of it for any practical number of launches.
_TOO_NEAR = 0.004


def steps_of(record: TrainingRecord) -> int:
    """Optimiser steps of all blocks, those included that were not timed."""
    return record.block_steps * len(record.block_lengths) or len(record.step_ms)


def measured_steps(records: Iterable[TrainingRecord]) -> int:
    """Optimiser steps that were made with DDP, in all stages."""
    return sum(steps_of(record) for record in records if record.case.uses_ddp)


def exhaustive_steps(records: Iterable[TrainingRecord], info: Mapping[str, Any]) -> int:
    """Steps of a full sweep: every configuration asked for, one block in each launch of the sweep.

    Confirming what it finds in fresh launches is not counted, nor are further blocks of the baseline.

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
    return cases * launches * max((steps // count for steps, count in blocks), default=0)


def surer(
    ratios: Sequence[float], margin: float, entries: Iterable[Mapping[str, Any]], *, level_reach: float = _REACH
) -> str:
    """A sentence on what would decide whether a gain exceeds the margin; empty where nothing can be told.

    The half-width of a median's interval, ``level_reach`` times sqrt(pi / 2n) spreads, must fall below the distance
    of the gain to the margin, both as logarithms.

    Args:
        ratios: the speedup in each fresh launch so far.
        margin: a gain up to this share is none.
        entries: ``launches`` of run.json, from which the time of a fresh launch is taken.
        level_reach: standard errors that the interval extends to either side.
    """
    if len(ratios) < 2 or min(ratios) <= 0:  # noqa: PLR2004 - one launch has no spread
        return ""
    logs = [math.log(ratio) for ratio in ratios]
    distance = abs(statistics.median(logs) - math.log1p(margin))
    if distance < _TOO_NEAR:
        return f"The gain lies so near the margin of {100 * margin:g} % that more launches would hardly decide."
    needed = math.ceil((level_reach * _MEDIAN * statistics.stdev(logs) / distance) ** 2)
    more = max(1, needed - len(ratios))
    seconds = [entry["seconds"] for entry in entries if entry["stage"] == CONFIRM and entry["status"] == "ok"]
    time = f", {format_duration(more * statistics.median(seconds))}," if seconds else ""
    return (
        f"About {counted(more, 'more fresh launch')}{time} would show on which side of {100 * margin:g} % the gain "
        f"lies, if launches differ as they did: the same command with --confirm-launches {len(ratios) + more} and the "
        "same --out makes them."
    )
