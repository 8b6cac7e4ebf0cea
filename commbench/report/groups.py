"""Groups of one pattern: their names, the slowest group, and their combined bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from commbench.collectives.patterns import makes_groups, ranks_of
from commbench.engine.flags import has_flag
from commbench.engine.records import Row
from commbench.findings import Finding, Value
from commbench.results.tables import rows_by
from commbench.units import format_size
from commbench.words import Estimate

#: With more groups than this, show the slowest, the median and the fastest.
MOST_SHOWN = 8
#: A group on more hosts than this is named without them.
MOST_HOSTS = 3
#: A group of non-adjacent ranks with at most this many ranks is named in full.
MOST_RANKS = 4
#: Groups are compared where these fields agree.
_CASE = ("message_bytes", "dtype", "redop", "in_place", "root", "env")


def groups_in(rows: Iterable[Row]) -> list[str]:
    """Return the groups of the rows of one pattern, in row order.

    Empty if all ranks are in one group.
    """
    return list(dict.fromkeys(row.group for row in rows if row.group and makes_groups(row.pattern)))


def name_groups(rows: Sequence[Row]) -> str:
    """Return the groups of a pattern, e.g. ``: 2 groups 0-1, 2-3``; empty without groups."""
    groups = groups_in(rows)
    if len(groups) > MOST_SHOWN:
        return f": {len(groups)} groups"
    names = ", ".join(brief(group) for group in groups)
    return f": {'groups' if len(groups) > 1 else 'group'} {names}" if groups else ""


def brief(group: str) -> str:
    """Return a group as text; of many non-adjacent ranks, only the first two and the last."""
    ranks = group.split(",")
    return group if len(ranks) <= MOST_RANKS else f"{ranks[0]},{ranks[1]},..,{ranks[-1]}"


def middle(rows: Iterable[Row]) -> Row:
    """Return the row of the group with the median time.

    Of an even number, the faster of the middle two.
    """
    ordered = sorted(rows, key=lambda row: row.time_us or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def group_findings(columns: Mapping[str, Sequence[Row]], hosts: Mapping[int, str]) -> list[Finding]:
    """Return for each column the group that is most often slowest beyond noise, by how much, and
    the bus bandwidth of all groups together at the largest size.

    Args:
        columns: rows of several groups, by name of the column; groups of one case are compared.
        hosts: the host of each rank; empty if unknown.
    """
    findings = []
    for name, rows in columns.items():
        timed = [row for row in rows if row.time_us]
        by_case = rows_by(timed, attrgetter(*_CASE))
        compared = [of_case for of_case in by_case.values() if len(of_case) > 1]
        if compared:
            findings.append(_slowest(name, compared, hosts))
            findings += _together(name, max(compared, key=lambda rows: rows[0].message_bytes or 0))
    return findings


def _slowest(name: str, cases: Sequence[Sequence[Row]], hosts: Mapping[int, str]) -> Finding:
    slow_groups = []
    for of_case in cases:
        median_us = middle(of_case).time_us or 1.0
        for row in of_case:
            if has_flag(row.flags, "slowest_group"):
                slow_groups.append(((row.time_us or 0.0) / median_us, row))
    if not slow_groups:
        return Finding("groups_even", name)
    often = Counter(row.group for _, row in slow_groups)
    ratio, worst = max(slow_groups, key=lambda pair: (often[pair[1].group], pair[0]))
    numbers: dict[str, Value] = {
        "group": f"{brief(worst.group)}{_on(worst.group, hosts)}",
        "ratio": ratio,
        "often": often[worst.group],
        "cases": len(cases),
    }
    if not worst.message_bytes:
        return Finding("groups_slowest", name, numbers)
    numbers["at"] = format_size(worst.message_bytes)
    if len({of_case[0].dtype for of_case in cases}) > 1:
        numbers["at"] = f"{numbers['at']} {worst.dtype}"
    code = "groups_slowest_at"
    if len(cases) > 1:
        code = "groups_slowest_often"
    return Finding(code, name, numbers)


def _together(name: str, groups: Sequence[Row]) -> list[Finding]:
    """Return the bus bandwidth of all groups of a case together; nothing if one has none."""
    rates = [row.busbw_GBps for row in groups if row.busbw_GBps is not None]
    if len(rates) < len(groups):
        return []
    numbers: dict[str, Value] = {
        "rate": Estimate(sum(rates)),
        "groups": len(groups),
        "size": groups[0].message_bytes or 0,
    }
    return [Finding("groups_together", name, numbers)]


def _on(group: str, hosts: Mapping[int, str]) -> str:
    """Return e.g. `` on host1``; empty if hosts are unknown or many."""
    names = list(dict.fromkeys(hosts[rank] for rank in ranks_of(group) if rank in hosts))
    return f" on {', '.join(names)}" if 0 < len(names) <= MOST_HOSTS else ""
