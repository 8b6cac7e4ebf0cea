"""Slow ranks and groups in ordinary cases: who arrives last or takes longest in everything, launch after launch.

A rank may take longest in one operation because of its place in the library's algorithm: the last leaf of a tree, the
odd one of three. So only operations count in which all ranks have the same part, and a rank must stand out in each of
two or more of them. Groups that run at the same time do the same among as many ranks, so one operation is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from commbench.analysis.stragglers.findings import Family, Words, make_family
from commbench.analysis.stragglers.judging import Floats, Judgement
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import ranks_of
from commbench.engine.records import GroupTimes, Record
from commbench.results.info import RunInfo
from commbench.results.pairs import hosts_of
from commbench.results.summary import records_by_case

#: In so many different operations a rank must stand out.
FEWEST_OPERATIONS = 2
#: The fewest of which one can be the odd one.
FEWEST = 3

_LATE = ": with its late arrival an operation takes {} as long"
_LONG = ": its operations take {} as long as the others'"

Level = Callable[[float], Family]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What is compared within one backend: values of units in each launch and operation."""

    backend: str
    by_operation: Mapping[str, Floats]
    """Logarithms, (launches, units)."""

    @property
    def words(self) -> str:
        return f"{self.backend} {', '.join(self.by_operation)}"


def rank_levels(records: Iterable[Record], info: RunInfo) -> list[Level]:
    """What compares ranks in ordinary cases, to be called with how probable a false alarm may be.

    Empty where nothing can be told: fewer than three ranks, ranks that share cores, fewer than two kinds of operation.
    """
    records = [record for record in records if _is_plain(record)]
    levels: list[Level] = []
    for backend in dict.fromkeys(record.case.backend for record in records):
        here = [record for record in records if record.case.backend == backend]
        for of_rank, does in ((_arrivals, _LATE), (_times, _LONG)):
            measured = _Measured(backend=backend, by_operation=_by_operation(here, of_rank))
            if len(measured.by_operation) >= FEWEST_OPERATIONS:
                levels.append(partial(_judge_ranks, measured, does, hosts_of(info, here[0].group_size)))
    return levels


def _is_plain(record: Record) -> bool:
    """Whether a record says anything of its ranks."""
    return (
        record.status == "ok"
        and record.case.pattern == "flat"
        and record.case.world_size is None
        and OPERATIONS[record.case.operation].compares_ranks
        and len(record.rank_median_us) >= FEWEST
        and "oversubscribed" not in record.flags
    )


def _arrivals(record: Record) -> Floats | None:
    """What each rank's late arrival adds to the operation's time, as a logarithm; None without a common clock."""
    if len(record.rank_arrival_us) != len(record.rank_median_us):
        return None
    return np.log1p(np.asarray(record.rank_arrival_us) / np.median(record.times_us))


def _times(record: Record) -> Floats | None:
    """Each rank's own time, as a logarithm."""
    times = np.asarray(record.rank_median_us)
    return np.log(times) if (times > 0).all() else None


def _by_operation(records: Sequence[Record], of_rank: Callable[[Record], Floats | None]) -> dict[str, Floats]:
    """Per operation the median over its cases of each rank's value against the middle rank, (launches, ranks).

    Only launches that have all cases of all operations count.
    """
    by_case = {key: {r.launch: r for r in of_case} for key, of_case in records_by_case(records).items()}
    if not by_case:
        return {}
    launches = sorted(set.intersection(*(set(of_case) for of_case in by_case.values())))
    found: dict[str, list[Floats]] = {}
    for of_case in by_case.values():
        values = [of_rank(of_case[launch]) for launch in launches]
        known = [value for value in values if value is not None]
        if launches and len(known) == len(values) and len({len(value) for value in known}) == 1:
            table = np.array(known)
            centred = table - np.median(table, axis=1, keepdims=True)
            found.setdefault(of_case[launches[0]].case.operation, []).append(centred)
    return {operation: np.median(tables, axis=0) for operation, tables in found.items()}


def _judge_ranks(measured: _Measured, does: str, hosts: Sequence[str], alpha: float) -> Family:
    """Judge each rank by the operation in which it stands out least."""
    values = np.min(list(measured.by_operation.values()), axis=0)
    several = len(set(hosts)) > 1

    def say(rank: int, _: Judgement) -> Words:
        return Words(name=f"rank {rank}{f' on {hosts[rank]}' if several else ''}", does=does)

    return make_family("rank", measured.words, values, say, alpha)


# ---------------------------------------------------------------------------------------------------------- groups


def group_levels(records: Iterable[Record], info: RunInfo) -> list[Level]:
    """What compares groups that ran at the same time, to be called with how probable a false alarm may be.

    Of one pattern the groups of a pair operation and of other numbers of ranks are others: each set of them counts for
    itself.
    """
    levels: list[Level] = []
    kinds: dict[tuple[str, str, tuple[str, ...]], list[Record]] = {}
    for record in records:
        if record.status == "ok" and len(record.groups) >= FEWEST and "oversubscribed" not in record.flags:
            names = tuple(group.group for group in record.groups)
            kinds.setdefault((record.case.backend, record.case.pattern, names), []).append(record)
    for (backend, pattern, names), here in kinds.items():
        of_group = partial(_group_times, names=names)
        measured = _Measured(backend=f"{backend} {pattern}", by_operation=_by_operation(here, of_group))
        if measured.by_operation:
            levels.append(partial(_judge_groups, measured, [_group_name(name, info) for name in names]))
    return levels


def _group_times(record: Record, *, names: Sequence[str]) -> Floats | None:
    """Each group's median time, as a logarithm; None where they are not alike."""
    groups: dict[str, GroupTimes] = {group.group: group for group in record.groups if len(group.times_us)}
    if list(groups) != list(names) or len({group.group_size for group in groups.values()}) != 1:
        return None
    return np.log([float(np.median(group.times_us)) for group in groups.values()])


def _judge_groups(measured: _Measured, names: Sequence[str], alpha: float) -> Family:
    values = np.min(list(measured.by_operation.values()), axis=0)
    return make_family("group", measured.words, values, lambda group, _: Words(name=names[group], does=_LONG), alpha)


def _group_name(group: str, info: RunInfo) -> str:
    """The group's ranks, and their host where they are all on one."""
    ranks = ranks_of(group)
    hosts = hosts_of(info, max(ranks) + 1)
    on = {hosts[rank] for rank in ranks}
    return f"ranks {group}{f' on {on.pop()}' if len(on) == 1 and '' not in on else ''}"
