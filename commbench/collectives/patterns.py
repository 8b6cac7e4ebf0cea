"""Communication patterns: the groups into which a pattern divides the ranks of a launch, by
host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from commbench.errors import InputError, unknown_choice
from commbench.findings import UnsupportedError
from commbench.units import counted

Group = tuple[int, ...]
"""Ranks of the launch, ascending: the first is number 0 within the group."""
Pair = tuple[int, int]

#: The notation and the meaning of each pattern; the groups of one pattern run at the same time.
PATTERNS = {
    "flat": "all ranks together",
    "node": "the ranks of each host, all hosts at once",
    "cross": "one rank of every host: as many groups (rails) as a host has ranks",
    "split:K": "groups of K neighbouring ranks, as in tensor parallelism",
    "stride:K": "K groups of every K-th rank, as data parallelism over tensor-parallel groups of K",
    "ranks:LIST": "the listed ranks alone, as in ranks:0-3+6; the others wait",
    "pairs:intra": "disjoint pairs of ranks on one host",
    "pairs:inter": "disjoint pairs of ranks on two hosts",
    "ring": "every rank sends to the next, the last to the first; point to point only",
    "bisection": "every rank of the first half with its partner in the second, all pairs at once",
    "fan-in": "all other ranks send to one; point to point only",
    "fan-out": "one rank sends to all others; point to point only",
    "hierarchical": (
        "all_reduce as reduce_scatter in each host, all_reduce across hosts, all_gather in each"
        " host"
    ),
    "matrix": "every ordered pair of ranks, in rounds of disjoint pairs; point to point only",
}
_NUMBERED = re.compile(
    r"(?P<form>split|stride):(?P<count>[1-9]\d{0,5})"
    r"|ranks:(?P<list>\d{1,6}(?:-\d{1,6})?(?:\+\d{1,6}(?:-\d{1,6})?)*)"
)
#: Patterns in which all ranks are one group.
_WHOLE = frozenset({"flat", "ring", "fan-in", "fan-out", "hierarchical", "matrix"})


def _parse(pattern: str) -> tuple[str, int, Group]:
    """Return the form of a pattern, with the number or the ranks that it states.

    Forms are ``split``, ``stride`` and ``ranks``; any other pattern is a form of its own.
    """
    match = _NUMBERED.fullmatch(pattern)
    if match is None:
        return pattern, 0, ()
    if match["form"]:
        return match["form"], int(match["count"]), ()
    listed = []
    for part in match["list"].split("+"):
        listed += ranks_of(part)
    return "ranks", 0, tuple(listed)


def check_pattern(pattern: str, world_size: int | None = None) -> None:
    """Check that a pattern exists and divides ``world_size`` ranks evenly.

    Raises:
        InputError: the pattern is unknown (the message lists all), or the number of ranks does not
            fit.
    """
    form, count, listed = _parse(pattern)
    if form == "ranks":
        _check_listed(pattern, listed, world_size)
    elif not count and (pattern not in PATTERNS or pattern.endswith((":K", ":LIST"))):
        raise unknown_choice(
            "pattern", pattern, PATTERNS, ", where K is a number of ranks and LIST lists ranks"
        )
    if count and world_size is not None and world_size % count:
        raise InputError(
            f"Pattern {pattern} needs a multiple of {count} ranks and this run has"
            f" {world_size}; choose another K or another number of ranks."
        )


def _check_listed(pattern: str, listed: Group, world_size: int | None) -> None:
    """Raise `InputError` unless two ranks or more are listed, each once in ascending order, and all
    exist.
    """
    if len(listed) < 2 or list(listed) != sorted(set(listed)):  # one rank does not communicate
        raise InputError(
            f"Pattern {pattern} must list two ranks or more in ascending order, as in ranks:0-3+6."
        )
    if world_size is not None and listed[-1] >= world_size:
        raise InputError(
            f"Pattern {pattern} lists rank {listed[-1]} and this run has ranks 0 to"
            f" {world_size - 1}; list fewer."
        )


def makes_groups(pattern: str) -> bool:
    """Return whether a pattern divides the ranks into groups, each of which is reported."""
    return pattern not in _WHOLE


def shares_of(pattern: str, world_size: int) -> int:
    """Return the number of shares of a divided message: the group size if the pattern fixes it,
    else the world size.

    The group sizes of ``node`` and ``cross`` depend on the hosts. Sizes that differ after rounding
    up for all ranks still differ after rounding up for a group.
    """
    form, count, listed = _parse(pattern)
    if form == "split":
        return count
    if form == "stride":
        return max(1, world_size // count)
    if form == "ranks":
        return len(listed)
    if form == "bisection" or form.startswith("pairs:"):
        return min(2, world_size)
    return world_size


def pattern_order(pattern: str) -> tuple[int, int, str]:
    """Return a sort key: the order of `PATTERNS`, then the number of a pattern, unknown patterns
    last.
    """
    name, _, count = pattern.partition(":")
    forms = list(PATTERNS)
    place = next(
        (forms.index(form) for form in (pattern, f"{name}:K", f"{name}:LIST") if form in forms),
        len(forms),
    )
    return place, int(count) if count.isdecimal() else 0, pattern


def groups_of(pattern: str, hosts: Sequence[str]) -> tuple[Group, ...]:
    """Return the groups of a pattern with two or more ranks, ordered by their first rank.

    A pattern that makes no groups (see `makes_groups`) has one group of all ranks.

    Args:
        pattern: one that `check_pattern` accepts.
        hosts: the host of each rank, by rank.

    Raises:
        UnsupportedError: the placement of the ranks on hosts yields no such group.
    """
    form, count, listed = _parse(pattern)
    if not makes_groups(pattern):
        return (tuple(range(len(hosts))),)
    if form == "ranks":
        return (listed,)
    divided = _divide(form, count, hosts)
    groups = tuple(sorted(tuple(sorted(group)) for group in divided if len(group) > 1))
    if not groups:
        ranks_there, hosts_there = counted(len(hosts), "rank"), counted(len(set(hosts)), "host")
        placement = f"{ranks_there} on {hosts_there}"
        raise UnsupportedError("no_group", pattern=pattern, placement=placement)
    return groups


def _divide(form: str, count: int, hosts: Sequence[str]) -> list[Group]:
    """Return the groups of a form that makes groups, among them groups of one rank."""
    ranks = tuple(range(len(hosts)))
    by_host = [
        tuple(rank for rank in ranks if hosts[rank] == host) for host in dict.fromkeys(hosts)
    ]
    if form == "split":
        return [ranks[i : i + count] for i in range(0, len(ranks), count)]
    if form == "stride":
        return [ranks[i::count] for i in range(count)]
    if form == "node":
        return by_host
    groups = []
    if form == "cross":  # the i-th rank of each host that has so many
        for i in range(max(map(len, by_host))):
            groups.append(tuple(host[i] for host in by_host if i < len(host)))
    elif form == "pairs:intra":
        for host in by_host:
            groups += [host[i : i + 2] for i in range(0, len(host), 2)]
    elif form == "pairs:inter":
        for first, second in zip(by_host[::2], by_host[1::2], strict=False):
            groups += zip(first, second, strict=False)
    else:
        ordered = [rank for of_host in by_host for rank in of_host]
        half = len(ordered) // 2
        groups += zip(ordered[:half], ordered[len(ordered) - half :], strict=True)
    return groups


def rounds_of(size: int) -> list[list[Pair]]:
    """Return all pairs of ``size`` ranks, each once, in rounds of disjoint pairs.

    There are size - 1 rounds, or size rounds if size is odd. The schedule is the circle method of
    round-robin
    tournaments (Kirkman 1847): one place is fixed, all others rotate by one place per round. If
    size is odd, a virtual rank is added and its partner is idle. Every second round reverses its
    pairs.
    """
    even = size + size % 2
    circle = list(range(1, even))
    rounds = []
    for step in range(even - 1):
        line = [0, *circle[step:], *circle[:step]]
        pairs = zip(line[: even // 2], reversed(line[even // 2 :]), strict=True)
        real = [(first, second) for first, second in pairs if max(first, second) < size]
        if step % 2:
            real = [(second, first) for first, second in real]
        rounds.append(real)
    return rounds


def rank_list(ranks: Sequence[int]) -> str:
    """Return ranks as text: ``0-3``, or ``0,3`` if they are not consecutive."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, dict.fromkeys(ranks)))


def ranks_of(text: str) -> list[int]:
    """Return the ranks of a text made by `rank_list`."""
    first, dash, last = text.partition("-")
    if dash:
        return list(range(int(first), int(last) + 1))
    return [int(rank) for rank in text.split(",") if rank]
