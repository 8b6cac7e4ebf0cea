"""Stragglers in ordinary cases: ranks that arrive last or take longest in several operations, and
slow groups.

A rank may take longest in one operation because of its position in the library's algorithm, such as
the last leaf of a tree. So only operations count in which all ranks do the same, and a rank must be
slow in two or more of them. Concurrent groups do the same among the same number of ranks, so one
operation is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from commbench.analysis.stragglers.judging import FEWEST, Family, make_family
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import ranks_of
from commbench.engine.records import Record
from commbench.engine.visits import launch_value
from commbench.results.info import RunInfo
from commbench.results.pairs import hosts_of
from commbench.results.summary import records_by_case
from commbench.stats import Floats

#: A rank must be slow in at least this many different operations.
FEWEST_OPERATIONS = 2

Level = Callable[[float], Family]


def rank_levels(records: Iterable[Record], info: RunInfo) -> list[Level]:
    """Return the comparisons of ranks in ordinary cases.

    Each takes the probability of a false alarm. A rank is judged by the operation in which it
    deviates least.

    Empty if ranks cannot be compared: fewer than three ranks, oversubscribed cores, or fewer than
    two operations.
    """
    records = [record for record in records if _is_plain(record)]
    levels: list[Level] = []
    for backend in dict.fromkeys(record.case.backend for record in records):
        of_backend = [record for record in records if record.case.backend == backend]
        names = _rank_names(hosts_of(info, of_backend[0].group_size))
        for code, of_rank in (("slow_late", _arrivals), ("slow_operations", _times)):
            tables = _by_operation(of_backend, of_rank)
            if len(tables) >= FEWEST_OPERATIONS:
                levels.append(_level("rank", code, backend, names, tables))
    return levels


def _level(
    kind: str, code: str, measured: str, names: Sequence[str], tables: Mapping[str, Floats]
) -> Level:
    """Return the comparison of units by their tables, (launches, units), of each operation."""
    values = np.min(list(tables.values()), axis=0)
    measured = f"{measured} {', '.join(tables)}"
    return partial(make_family, values, kind=kind, code=code, measured=measured, names=names)


def _rank_names(hosts: Sequence[str]) -> list[str]:
    if len(set(hosts)) == 1:
        return [f"rank {rank}" for rank in range(len(hosts))]
    return [f"rank {rank} on {host}" for rank, host in enumerate(hosts)]


def _is_plain(record: Record) -> bool:
    """Return whether a record can compare ranks."""
    return (
        record.status == "ok"
        and record.case.pattern == "flat"
        and record.case.world_size is None
        and OPERATIONS[record.case.operation].compares_ranks
        and len(record.rank_median_us) >= FEWEST
        and "oversubscribed" not in record.flags
    )


def _arrivals(record: Record) -> Floats | None:
    """Return each rank's late arrival relative to the operation's time, as log(1 + x).

    None without a common clock.
    """
    if len(record.rank_arrival_us) != len(record.rank_median_us):
        return None
    return np.log1p(np.asarray(record.rank_arrival_us) / launch_value(record))


def _times(record: Record) -> Floats | None:
    """Return each rank's own time, as a logarithm."""
    times = np.asarray(record.rank_median_us)
    return np.log(times) if (times > 0).all() else None


def _by_operation(
    records: Sequence[Record], of_rank: Callable[[Record], Floats | None]
) -> dict[str, Floats]:
    """Return each operation's table: the median over cases of each rank's deviation from the median
    rank.

    Tables are (launches, ranks). Only launches with all cases of all operations count.
    """
    by_case = {
        key: {r.launch: r for r in of_case} for key, of_case in records_by_case(records).items()
    }
    if not by_case:
        return {}
    launches = sorted(set.intersection(*(set(of_case) for of_case in by_case.values())))
    tables: dict[str, list[Floats]] = {}
    for of_case in by_case.values():
        values = [of_rank(of_case[launch]) for launch in launches]
        valid = [value for value in values if value is not None]
        if launches and len(valid) == len(values) and len({len(value) for value in valid}) == 1:
            table = np.array(valid)
            centred = table - np.median(table, axis=1, keepdims=True)
            tables.setdefault(of_case[launches[0]].case.operation, []).append(centred)
    return {operation: np.median(tables, axis=0) for operation, tables in tables.items()}


# ------------------------------------------------------------------------------------------- groups


def group_levels(records: Iterable[Record], info: RunInfo) -> list[Level]:
    """Return the comparisons of concurrent groups; each takes the probability of a false alarm.

    Each set of groups is compared separately: those of a pair operation differ from those of other
    numbers of ranks.
    """
    levels: list[Level] = []
    by_groups: dict[tuple[str, str, tuple[str, ...]], list[Record]] = {}
    for record in records:
        if (
            record.status == "ok"
            and len(record.groups) >= FEWEST
            and "oversubscribed" not in record.flags
        ):
            groups = tuple(group.group for group in record.groups)
            key = record.case.backend, record.case.pattern, groups
            by_groups.setdefault(key, []).append(record)
    for (backend, pattern, groups), of_groups in by_groups.items():
        tables = _by_operation(of_groups, partial(_group_times, names=groups))
        if tables:
            names = [_group_name(group, info) for group in groups]
            levels.append(_level("group", "slow_operations", f"{backend} {pattern}", names, tables))
    return levels


def _group_times(record: Record, *, names: Sequence[str]) -> Floats | None:
    """Return each group's time in the launch, as a logarithm; None if groups or their sizes
    differ.
    """
    groups = [group for group in record.groups if len(group.times_us)]
    if [group.group for group in groups] != list(names):
        return None
    if len({group.group_size for group in groups}) != 1:
        return None
    return np.log([launch_value(replace(record, times_us=group.times_us)) for group in groups])


def _group_name(group: str, info: RunInfo) -> str:
    """Return the group's ranks, with their host if they share one."""
    ranks = ranks_of(group)
    hosts = hosts_of(info, max(ranks) + 1)
    on = {hosts[rank] for rank in ranks}
    return f"ranks {group}{f' on {on.pop()}' if len(on) == 1 and '' not in on else ''}"
