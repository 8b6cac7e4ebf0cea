"""Stragglers in ordinary cases: ranks that arrive last or take longest in several operations, and
slow groups.

A rank may take longest in one operation because of its position in the library's algorithm, such as
the last leaf of a tree. So only operations count in which all ranks do the same, and a rank must be
slow in two or more of them. Concurrent groups do the same among the same number of ranks, so one
operation is enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from commbench.analysis.stragglers.judging import FEWEST, rank_names
from commbench.collectives.cases import Case
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import ranks_of
from commbench.engine.records import Record
from commbench.engine.visits import launch_value
from commbench.results.info import RunInfo, host_by_rank
from commbench.stats import Floats

#: A unit must be slow in at least this many different operations.
FEWEST_OPERATIONS = {"rank": 2, "group": 1}


class Peers(NamedTuple):
    """Units that are compared with each other by one quantity."""

    kind: str
    """``rank`` or ``group``."""
    code: str
    """What is slow, as in `Straggler`."""
    measured: str
    """The measured cases, as in `Straggler`."""
    names: tuple[str, ...]
    """Of the units."""


def tables_of_peers(records: Iterable[Record], info: RunInfo) -> list[tuple[Peers, Floats]]:
    """Return the peers in ordinary cases with their table: logarithms, (launches, units).

    A unit is judged by the operation in which it deviates least. Empty if nothing can be compared:
    fewer than three units, oversubscribed cores, or fewer operations than `FEWEST_OPERATIONS`.
    """
    found: dict[Peers, dict[Case, dict[int, Floats]]] = {}
    for record in records:
        if record.status == "ok" and "oversubscribed" not in record.flags:
            for peers, values in _values(record, info):
                of_case = found.setdefault(peers, {}).setdefault(record.case, {})
                of_case[record.launch] = values
    tables = []
    for peers in sorted(found, key=attrgetter("kind"), reverse=True):  # ranks before groups
        by_operation = _by_operation(found[peers])
        if len(by_operation) >= FEWEST_OPERATIONS[peers.kind]:
            measured = f"{peers.measured} {', '.join(by_operation)}"
            values = np.min(list(by_operation.values()), axis=0)
            tables.append((peers._replace(measured=measured), values))
    return tables


def _values(record: Record, info: RunInfo) -> Iterator[tuple[Peers, Floats]]:
    """Yield the peers of a record with the logarithm of each unit's value, NaN without one."""
    case, times_us = record.case, np.asarray(record.rank_median_us)
    hosts = host_by_rank(info)
    is_plain = case.pattern == "flat" and case.world_size is None
    if is_plain and OPERATIONS[case.operation].compares_ranks and len(times_us) >= FEWEST:
        names = rank_names([hosts.get(rank, "") for rank in range(len(times_us))])
        late = np.full(len(names), np.nan)
        if len(record.rank_arrival_us) == len(times_us):  # with a common clock
            late = np.log1p(np.asarray(record.rank_arrival_us) / launch_value(record))
        yield Peers("rank", "slow_late", case.backend, tuple(names)), late
        times = np.log(np.where(times_us > 0, times_us, np.nan))
        yield Peers("rank", "slow_operations", case.backend, tuple(names)), times
    if len(record.groups) >= FEWEST:
        names = [_group_name(group.group, info) for group in record.groups]
        times = np.full(len(names), np.nan)
        # the time of a pair operation depends on the number of ranks
        if len({group.group_size for group in record.groups}) == 1:
            for place, group in enumerate(record.groups):
                if len(group.times_us):
                    times[place] = math.log(launch_value(replace(record, times_us=group.times_us)))
        yield (
            Peers("group", "slow_operations", f"{case.backend} {case.pattern}", tuple(names)),
            times,
        )


def _group_name(group: str, info: RunInfo) -> str:
    """Return the group's ranks, with their host if they share one."""
    ranks = ranks_of(group)
    hosts = host_by_rank(info)
    on = {hosts.get(rank, "") for rank in ranks}
    if len(on) > 1 or "" in on:
        return f"ranks {group}"
    return f"ranks {group} on {on.pop()}"


def _by_operation(by_case: Mapping[Case, Mapping[int, Floats]]) -> dict[str, Floats]:
    """Return each operation's table: the median over cases of each unit's deviation from the median
    unit, (launches, units).

    Only launches with all cases of all operations count, and only cases in which all units have a
    value.
    """
    launches = sorted(set.intersection(*map(set, by_case.values())))
    tables: dict[str, list[Floats]] = {}
    for case, by_launch in by_case.items():
        table = np.array([by_launch[launch] for launch in launches])
        if launches and np.isfinite(table).all():
            centred = table - np.median(table, axis=1, keepdims=True)
            tables.setdefault(case.operation, []).append(centred)
    return {operation: np.median(of_cases, axis=0) for operation, of_cases in tables.items()}
