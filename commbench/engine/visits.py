"""The visits of a case in a launch: how many, how long, in which rounds, and the record that they
make together.

A launch measures a case in several short visits, spread over the launch in shuffled rounds.
Consecutive repetitions share a state of the machine, so that one long stretch says less about a
launch than several short ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from commbench.engine.flags import raised_flags
from commbench.engine.records import Clocks, FixedSettings, GroupTimes, Record
from commbench.stats import StoppingRule, Values, is_bimodal, median
from commbench.stats.budgets import Budget
from commbench.stats.components import FEWEST_REPETITIONS, FEWEST_VISITS, components_of, plan_visits

#: The most visits while components of variance are unknown.
PILOT_VISITS = 8
#: Duration of the repetitions of such a visit.
PILOT_S = 0.002
#: Discarded repetitions before a later visit: at least one, at most this number, at most for this
#: time in seconds.
MOST_WARMUPS, WARMUP_S = 20, 0.001
#: Operations that a launch makes of a case at least where there is time: of each visit a warm-up
#: and the fewest repetitions.
USUAL_OPERATIONS = FEWEST_VISITS * (1 + FEWEST_REPETITIONS)
#: Above this share of late starts a record is flagged.
FLAGGED_LATE = 0.2
#: A visit is disturbed if a rank waited longer than this share of it for a CPU, or if other guests
#: had CPUs so long.
DISTURBED_SHARE = 0.25
#: Flags that are determined again when a visit is added.
_JUDGED = frozenset({"bimodal", "unsteady", "late"})

#: Fields with a value for each repetition, and with one for each rank.
_LISTS = ("times_us", "rank_mean_us", "skew_us")
_BY_RANK = ("rank_median_us", "rank_average_us", "rank_arrival_us")

TimesT = TypeVar("TimesT", bound=Record | GroupTimes)


def pilot_visits(most: int, *, left_s: float, operation_s: float) -> int:
    """Return the visits of a launch that determines the components of variance, 1 to ``most``.

    Args:
        most: the budget's.
        left_s: time left for the case in this launch.
        operation_s: typical time of one repetition.
    """
    least_s = max(PILOT_S, (1 + FEWEST_REPETITIONS) * operation_s)
    return max(min(FEWEST_VISITS, most), min(PILOT_VISITS, most, int(left_s / max(least_s, 1e-9))))


def visit_rule(rule: StoppingRule, settings: FixedSettings) -> StoppingRule:
    """Return the stopping rule of each visit.

    A single visit of no fixed length has to be precise by itself.
    """
    if settings.visits <= 1 and not settings.repetitions:
        return rule
    repetitions = settings.repetitions or -(-rule.minimum // settings.visits)
    floor = FEWEST_REPETITIONS
    if settings.is_brief:
        floor = 1
    repetitions = max(floor, repetitions)
    return replace(
        rule,
        relative_half_width=None,
        minimum=repetitions,
        floor=floor,
        maximum=max(repetitions, rule.maximum // settings.visits),
    )


def soak_rule(rule: StoppingRule) -> StoppingRule:
    """Return the stopping rule of a visit that only time ends."""
    return replace(rule, relative_half_width=None, minimum=1, floor=1, maximum=sys.maxsize)


def rounds_of_launch(settings: Sequence[FixedSettings | None], budget: Budget) -> int:
    """Return the rounds of a launch: the most visits of any case."""
    pilot = budget.visits if budget.is_soak else min(PILOT_VISITS, budget.visits)
    return max(1, *(fixed.visits if fixed and fixed.visits else pilot for fixed in settings))


def is_due(visit: int, visits: int, number: int, rounds: int) -> bool:
    """Return whether the next visit of a case, counted from 0, belongs to round ``number`` of
    ``rounds``.

    The visits are spread evenly over the rounds; the first is in the first round.
    """
    return visit < visits and visit * rounds // visits <= number


def settings_after(record: Record, budget: Budget) -> FixedSettings | None:
    """Return the settings that later launches keep from a launch.

    None if the case was not measured.
    """
    if not record.times_us:
        return None
    settings = FixedSettings(warmups=record.warmups, batch=record.batch, sync=record.sync)
    if "small_window" in record.flags:
        settings = replace(settings, window=record.window)
    repetitions = sum(record.visit_lengths) + record.late_discarded
    if "brief" in record.flags:
        return replace(settings, visits=1, repetitions=repetitions, is_brief=True)
    visits = visit_times(record)
    if record.pairs or not visits or budget.is_soak:
        return settings
    if len(visits) == 1:
        return replace(settings, visits=1)
    plan = plan_visits(
        components_of([visits]),
        budget,
        visit_s=record.revisiting_s / (len(visits) - 1),
        repetition_s=record.repeating_s / max(1, repetitions),
        most_repetitions=2 * max(record.visit_lengths),
    )
    return replace(settings, visits=plan.visits, repetitions=plan.repetitions)


def visit_times(record: Record) -> list[Values]:
    """Return the times of each visit in microseconds, of shape (repetitions,).

    A visit without any is left out.
    """
    values = record.times_us
    if not len(values) or not len(record.visit_lengths):
        return [values] if len(values) else []
    ends = list(accumulate(record.visit_lengths))
    return [
        values[end - length : end]
        for end, length in zip(ends, record.visit_lengths, strict=True)
        if length
    ]


def launch_value(record: Record) -> float:
    """Return the time of a launch in microseconds: the median over visits of the median over
    repetitions.
    """
    return median([median(np.asarray(visit).tolist()) for visit in visit_times(record)])


def extended(record: Record, visit: Record) -> Record:
    """Return the record of a launch with one more visit.

    A visit without result takes the place of all before it.

    A disturbed visit is counted only: another one has taken its place. So is a visit of which every
    repetition started late.
    """
    if visit.disturbed and record.status == "ok":
        return replace(record, disturbed=record.disturbed + visit.disturbed)
    if visit.status == "ok" and not len(visit.times_us) and record.status != "ok":
        return replace(record, late_discarded=record.late_discarded + visit.late_discarded)
    if visit.status != "ok" or record.status != "ok":
        return replace(visit, visit=0)
    lengths = [len(record.times_us), len(visit.times_us)]
    joined = record
    if lengths[1]:  # else every repetition started late
        groups = tuple(
            _join_times(*pair, lengths) for pair in zip(record.groups, visit.groups, strict=True)
        )
        joined = replace(_join_times(record, visit, lengths), groups=groups)
    late = record.late_discarded + visit.late_discarded
    judged = {"bimodal": is_bimodal(joined.times_us), "late": are_many_late(late, sum(lengths))}
    other_flags = [flag for flag in (*record.flags, *visit.flags) if flag not in _JUDGED]
    seconds = {
        field: round(getattr(record, field) + getattr(visit, field), 6)
        for field in ("measuring_s", "other_s", "repeating_s", "revisiting_s")
    }
    return replace(
        joined,
        **seconds,
        visit=0,
        visit_lengths=[*record.visit_lengths, *visit.visit_lengths],
        probes_us=[*record.probes_us, *visit.probes_us],
        points=(*record.points, *visit.points),
        late_discarded=late,
        clocks=_join_clocks(record.clocks, visit.clocks),
        flags=tuple(dict.fromkeys([*other_flags, *raised_flags(judged)])),
    )


def are_many_late(late: int, valid: int) -> bool:
    """Return whether so many repetitions began late that the record is flagged."""
    return late > FLAGGED_LATE * (late + valid)


def _join_times(times: TimesT, more: TimesT, lengths: Sequence[int]) -> TimesT:
    """Return the times of two stretches of the same ranks.

    Values by rank are averaged over repetitions.

    ``lengths``: the repetitions of each stretch.
    """
    joined: dict[str, Any] = {
        name: [*getattr(times, name), *getattr(more, name)] for name in _LISTS
    }
    for by_rank in _BY_RANK:
        first, second = (np.asarray(getattr(part, by_rank), dtype=float) for part in (times, more))
        if len(first) == len(second):
            joined[by_rank] = np.round(
                (first * lengths[0] + second * lengths[1]) / max(1, sum(lengths)), 4
            ).tolist()
    joined["rank_slowest"] = [
        a + b for a, b in zip(times.rank_slowest, more.rank_slowest, strict=True)
    ]
    return replace(times, **joined)


def _join_clocks(first: Clocks | None, second: Clocks | None) -> Clocks | None:
    if first is None or second is None:
        return first or second
    lows = [clocks.sm_low_MHz for clocks in (first, second) if clocks.sm_low_MHz is not None]
    highs = [clocks.sm_high_MHz for clocks in (first, second) if clocks.sm_high_MHz is not None]
    return Clocks(
        sm_low_MHz=min(lows, default=None),
        sm_high_MHz=max(highs, default=None),
        slowed_by=tuple(dict.fromkeys([*first.slowed_by, *second.slowed_by])),
    )
