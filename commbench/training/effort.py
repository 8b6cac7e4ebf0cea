"""What a recommendation cost in training steps, what a full sweep would, and what it takes to be surer of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commbench.training.cases import CONFIRM, SWEEP, blocks_of_sweep
from commbench.training.records import TrainingRecord
from commbench.units import counted, format_duration

_NORMAL = statistics.NormalDist()
#: How much wider a median's interval is than a mean's (normal launches), and how probable a decision shall be.
_MEDIAN, _POWER = math.sqrt(math.pi / 2), 0.8
#: Twice as many as the largest budget makes: who needs more needs a quieter machine.
_MOST_LAUNCHES = 40
#: A gain that is nearer to the margin than this share is on neither side of it for any practical number of launches.
_TOO_NEAR = 0.004


def steps_of(record: TrainingRecord) -> int:
    """Optimiser steps of all blocks, those included that were not timed."""
    return record.block_steps * len(record.block_lengths) or len(record.step_ms)


def measured_steps(records: Iterable[TrainingRecord]) -> int:
    """Optimiser steps that were made with DDP, in all stages."""
    return sum(steps_of(record) for record in records if record.case.uses_ddp)


def exhaustive_steps(records: Iterable[TrainingRecord], info: Mapping[str, Any]) -> int:
    """Steps that a full sweep makes: a block of every configuration asked for in each launch, and those of `schedule`.

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


def surer(ratios: Sequence[float], margin: float, entries: Iterable[Mapping[str, Any]], *, level: float = 0.95) -> str:
    """A sentence on what would decide whether a gain exceeds the margin; empty where nothing can be told.

    The interval of the median must leave the margin with a probability of 80 %: n = ((z_level + z_80) sqrt(pi / 2)
    spread / distance)^2 for normal logarithms, the usual size of a sample, and as many as such an interval takes at
    all. The spread is known from few launches only, so that the quartiles of what it may be (chi-square by Wilson
    and Hilferty, PNAS 17, 1931) give a range.

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
    fewest = math.ceil(1 - math.log2(1 - level))  # an order-statistic interval: 1 - 2^(1 - n)
    reach = (_NORMAL.inv_cdf((1 + level) / 2) + _NORMAL.inv_cdf(_POWER)) * _MEDIAN
    if distance < _TOO_NEAR and spread * reach < margin * math.sqrt(len(ratios)):
        return f"The gain lies so near the margin of {100 * margin:g} % that more launches would hardly decide."
    needs = [reach * end / max(distance, _TOO_NEAR) for end in _spread_ends(spread, len(logs))]
    low, high = (max(fewest, len(ratios) + 1, math.ceil(need**2)) - len(ratios) for need in needs)
    if low + len(ratios) > _MOST_LAUNCHES:
        return (
            f"Launches differ by {100 * math.expm1(spread):.2g} %, which is too much to tell a gain beyond "
            f"{100 * margin:g} % with {_MOST_LAUNCHES} of them: a quieter machine helps more than further launches."
        )
    is_open = high + len(ratios) > _MOST_LAUNCHES
    high = low if is_open else high
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


def _spread_ends(spread: float, count: int) -> tuple[float, float]:
    """The quartiles of what a standard deviation may be that was estimated from so many values."""
    freedom = count - 1
    share = 2 / (9 * freedom)
    least, most = ((1 - share + sign * _NORMAL.inv_cdf(0.75) * math.sqrt(share)) ** 3 for sign in (-1, 1))
    return spread / math.sqrt(most), spread / math.sqrt(max(least, 1e-3))
