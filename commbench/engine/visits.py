"""The record that the visits of a case in a launch make together, and its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from commbench.engine.flags import raised_flags
from commbench.engine.records import Clocks, Record, Times
from commbench.stats import Values, is_bimodal, median

#: Above this share of late starts a record is flagged.
FLAGGED_LATE = 0.2
#: Flags that are determined again when a visit is added.
_JUDGED = frozenset({"bimodal", "unsteady", "late"})

#: Fields with a value for each repetition, and with one for each rank.
_LISTS = ("times_us", "rank_mean_us", "skew_us")
_BY_RANK = ("rank_median_us", "rank_average_us", "rank_arrival_us")

TimesT = TypeVar("TimesT", bound=Times)


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
