"""The record that the visits of a case in a launch make together, and its time."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from commbench.engine.gpu_clocks import joined_clocks
from commbench.engine.records import Record, Times
from commbench.stats import Values, median

#: Above this share of late starts a record is flagged.
FLAGGED_LATE = 0.2
#: Flags of one visit: ``late`` is judged again with each visit, ``bimodal`` when rows are made.
_JUDGED = frozenset({"bimodal", "unsteady", "late"})

#: Fields with a value for each repetition, and with one for each rank.
_LISTS = ("times_us", "rank_mean_us", "skew_us")
_BY_RANK = ("rank_median_us", "rank_average_us", "rank_arrival_us")
#: Fields with values for each visit, and fields that are sums over visits.
_BY_VISIT = ("visit_lengths", "probes_us")
_SECONDS = ("measuring_s", "other_s", "repeating_s")


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
    joined = {}
    if len(visit.times_us):  # else every repetition started late
        lengths = (len(record.times_us), len(visit.times_us))
        joined = _joined_times(record, visit, lengths)
        groups = []
        for group, more in zip(record.groups, visit.groups, strict=True):
            groups.append(replace(group, **_joined_times(group, more, lengths)))
        joined["groups"] = tuple(groups)
    late = record.late_discarded + visit.late_discarded
    flags = [flag for flag in (*record.flags, *visit.flags) if flag not in _JUDGED]
    if are_many_late(late, len(record.times_us) + len(visit.times_us)):
        flags.append("late")
    for field in _SECONDS:
        joined[field] = round(getattr(record, field) + getattr(visit, field), 6)
    revisiting_s = visit.measuring_s + visit.other_s - visit.repeating_s
    for field in _BY_VISIT:
        joined[field] = [*getattr(record, field), *getattr(visit, field)]
    return replace(
        record,
        **joined,
        visit=0,
        points=(*record.points, *visit.points),
        late_discarded=late,
        revisiting_s=round(record.revisiting_s + revisiting_s, 6),
        clocks=joined_clocks([record.clocks, visit.clocks]),
        flags=tuple(dict.fromkeys(flags)),
    )


def are_many_late(late: int, valid: int) -> bool:
    """Return whether so many repetitions began late that the record is flagged."""
    return late > FLAGGED_LATE * (late + valid)


def _joined_times(times: Times, more: Times, lengths: tuple[int, int]) -> dict[str, Any]:
    """Return the fields of the times of two stretches of the same ranks.

    Values by rank are averaged over repetitions.

    ``lengths``: the repetitions of each stretch.
    """
    joined = {}
    for name in _LISTS:
        joined[name] = [*getattr(times, name), *getattr(more, name)]
    for name in _BY_RANK:
        first = np.asarray(getattr(times, name), dtype=float)
        second = np.asarray(getattr(more, name), dtype=float)
        if len(first) == len(second):
            weighted = first * lengths[0] + second * lengths[1]
            joined[name] = np.round(weighted / max(1, sum(lengths)), 4).tolist()
    slowest = zip(times.rank_slowest, more.rank_slowest, strict=True)
    joined["rank_slowest"] = [sum(counts) for counts in slowest]
    return joined
