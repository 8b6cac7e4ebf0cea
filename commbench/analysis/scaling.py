"""Scaling studies: growth of a case's time with the number of ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from commbench import stats
from commbench.collectives.cases import Case
from commbench.engine.records import Record, Row
from commbench.results import Run, once_per_run
from commbench.results.info import measures_interconnect
from commbench.results.summary import keyed_records, launch_values, time_interval

#: Sizes that differ by less count as equal: a rank's share is rounded up to one element.
SAME_SIZE = 0.01
#: A law holds if each time is within its interval widened by this share.
TOLERANCE = 0.02
#: A time is constant if it is shown to change by no more than this ratio.
CONSTANT = 1.1
#: A law has two unknowns, so it needs at least this many numbers of ranks.
FEWEST_SIZES = 3

#: Candidate laws of growth, as functions of the number of ranks.
_LAWS = {"log2 n": math.log2, "n": float}


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One case on several numbers of ranks."""

    case: Case
    """The case on the most ranks, without their number."""
    rows: Mapping[int, Row]
    """By number of ranks, ascending."""
    ratio: float
    """Time on the most ranks over time on the fewest."""
    interval: stats.Interval | None
    """The ratio's 95 % interval over launches; None below two launches."""
    law: str
    """``constant`` (within `CONSTANT`), ``log2 n``, ``n``, ``log2 n or n`` if the intervals
    allow both, ``neither``. ``undecided`` if growth is neither shown nor excluded. Empty with
    too few numbers of ranks, in one launch and on shared GPUs."""


class _Part(NamedTuple):
    """A case on one number of ranks."""

    case: Case
    row: Row
    records: Sequence[Record]
    """Of the launches behind the row."""


@once_per_run
def growths(run: Run) -> list[Growth]:
    """Return the growth of each case of a scaling study, in the order of the rows.

    Empty for other runs.

    A case needs to be timed on all its numbers of ranks, as one group, with the same size except
    for rounding.
    """
    cases = {record.case.key: record.case for record in run.records}
    if all(case.world_size is None for case in cases.values()):
        return []
    launches = keyed_records(run.records)
    rows_of_case = Counter(key for key, _ in run.keyed_rows)
    by_case: dict[tuple[Case, int], dict[int, _Part]] = {}
    for key, row in run.keyed_rows.items():
        case = cases[key[0]]
        ranks = case.world_size or run.info.get("world_size")
        if ranks and row.status == "ok" and row.time_us and rows_of_case[key[0]] == 1:
            part = _Part(case, row, launches[key])
            by_case.setdefault(_alike(case, by_case), {})[ranks] = part
    return [_growth(by_ranks) for by_ranks in by_case.values() if len(by_ranks) > 1]


@once_per_run
def all_rank_rows(run: Run) -> list[Row]:
    """Return the rows of ``collectives.csv`` for cases in which all ranks take part."""
    parts = {record.case.key for record in run.records if record.case.world_size is not None}
    return [row for key, row in run.keyed_rows.items() if key[0] not in parts]


def _alike(case: Case, known_keys: Iterable[tuple[Case, int]]) -> tuple[Case, int]:
    """Return the key that a case shares over numbers of ranks.

    Sizes that differ by rounding are equal.
    """
    fields = replace(case, world_size=None, message_bytes=0)
    for other, size in known_keys:
        if other == fields and abs(size - case.message_bytes) <= SAME_SIZE * size:
            return other, size
    return fields, case.message_bytes


def _growth(by_ranks: Mapping[int, _Part]) -> Growth:
    first, last = by_ranks[min(by_ranks)], by_ranks[max(by_ranks)]
    before_us, after_us = launch_values(first.records), launch_values(last.records)
    ratio = (last.row.time_us or 0.0) / (first.row.time_us or math.nan)
    interval = None
    paired = []
    for launch in sorted(before_us.keys() & after_us.keys()):
        if before_us[launch] and after_us[launch]:  # else below the clock's resolution
            paired.append(launch)
    if len(paired) > 1:
        sides = [[times_us[launch] for launch in paired] for times_us in (before_us, after_us)]
        ratio, interval = stats.ratio_interval(*sides)
    rows = {ranks: by_ranks[ranks].row for ranks in sorted(by_ranks)}
    law = ""
    if all(map(measures_interconnect, rows.values())):
        level = 1 - (1 - stats.DEFAULT_LEVEL) / len(rows)  # Bonferroni: each interval must hold
        law = law_of({ranks: time_interval(by_ranks[ranks].records, level) for ranks in rows})
    is_shown = interval and interval.high <= CONSTANT and interval.low >= 1 / CONSTANT
    if law == "constant" and not is_shown:
        law = "undecided"
    case = replace(last.case, world_size=None)
    return Growth(case=case, rows=rows, ratio=ratio, interval=interval, law=law)


def law_of(intervals: Mapping[int, stats.Interval | None]) -> str:
    """Return the laws of growth that agree with the intervals of all numbers of ranks.

    A law is a + b f(n) with b >= 0. It holds if some a and b fit every interval, widened by
    `TOLERANCE`.
    """
    bounds = np.array([(each.low, each.high) for each in intervals.values() if each is not None])
    if len(intervals) < FEWEST_SIZES or len(bounds) < len(intervals):
        return ""
    from scipy.optimize import linprog  # slow to import

    low, high = bounds.T * [[1 - TOLERANCE], [1 + TOLERANCE]]
    if low.max() <= high.min():
        return "constant"
    fitting = []
    for name, law in _LAWS.items():
        terms = np.array([(1.0, law(ranks)) for ranks in intervals])
        found = linprog(
            [0, 0],
            A_ub=np.concatenate([terms, -terms]),
            b_ub=np.concatenate([high, -low]),
            bounds=[(None, None), (0, None)],
        )
        if found.success:
            fitting.append(name)
    return " or ".join(fitting) or "neither"
