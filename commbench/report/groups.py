"""Groups of one pattern: the slowest group, and their combined bandwidth."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from commbench.collectives.patterns import ranks_of
from commbench.engine.flags import split_flags
from commbench.engine.records import Row
from commbench.findings import Finding
from commbench.results.tables import rows_by
from commbench.units import format_size
from commbench.words import Estimate

#: A group on more hosts than this is named without them.
MOST_HOSTS = 3
#: A group of non-adjacent ranks with at most this many ranks is named in full.
MOST_RANKS = 4
#: Groups are compared where these fields agree.
_CASE = ("message_bytes", "dtype", "redop", "in_place", "root", "env")


def brief(group: str) -> str:
    """Return a group as text; of many non-adjacent ranks, only the first two and the last."""
    ranks = group.split(",")
    return group if len(ranks) <= MOST_RANKS else f"{ranks[0]},{ranks[1]},..,{ranks[-1]}"


def group_findings(
    columns: Mapping[str, Sequence[Row]], hosts: Mapping[int, str]
) -> Iterator[Finding]:
    """Yield for each column the group that is most often slowest beyond noise, by how much, and
    the bus bandwidth of all groups together at the largest size.

    Args:
        columns: rows of several groups, by name of the column; groups of one case are compared.
        hosts: the host of each rank; empty if unknown.
    """
    for name, rows in columns.items():
        timed = [row for row in rows if row.time_us]
        by_case = rows_by(timed, attrgetter(*_CASE))
        compared = [of_case for of_case in by_case.values() if len(of_case) > 1]
        if compared:
            yield _slowest(name, compared, hosts)
            largest = max(compared, key=lambda rows: rows[0].message_bytes or 0)
            rates = [row.busbw_GBps for row in largest if row.busbw_GBps is not None]
            if len(rates) == len(largest):
                rate, size = Estimate(sum(rates)), largest[0].message_bytes or 0
                yield Finding(
                    "groups_together", name, {"rate": rate, "groups": len(rates), "size": size}
                )


def _slowest(name: str, cases: Sequence[Sequence[Row]], hosts: Mapping[int, str]) -> Finding:
    slow_groups = []
    for of_case in cases:
        median_us = statistics.median_low(row.time_us or 0.0 for row in of_case)
        for row in of_case:
            if "slowest_group" in split_flags(row.flags):
                slow_groups.append(((row.time_us or 0.0) / median_us, row))
    if not slow_groups:
        return Finding("groups_even", name)
    often = Counter(row.group for _, row in slow_groups)
    ratio, worst = max(slow_groups, key=lambda pair: (often[pair[1].group], pair[0]))
    group = brief(worst.group)
    names = list(dict.fromkeys(hosts[rank] for rank in ranks_of(worst.group) if rank in hosts))
    if 0 < len(names) <= MOST_HOSTS:
        group = f"{group} on {', '.join(names)}"
    at = f"{format_size(worst.message_bytes or 0)} {worst.dtype or ''}".rstrip()
    counts = {"often": often[worst.group], "cases": len(cases)}
    return Finding("groups_slowest", name, {"group": group, "ratio": ratio, "at": at, **counts})
