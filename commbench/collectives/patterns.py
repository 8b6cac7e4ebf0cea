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
_COUNTED = re.compile(r"(split|stride):([1-9][0-9]{0,5})")
_LISTED = re.compile(r"ranks:(\d{1,6}(?:-\d{1,6})?(?:\+\d{1,6}(?:-\d{1,6})?)*)")
#: Patterns in which all ranks are one group.
_WHOLE = frozenset({"flat", "ring", "fan-in", "fan-out", "hierarchical", "matrix"})


def check_pattern(pattern: str, world_size: int | None = None) -> None:
    """Check that a pattern exists and divides ``world_size`` ranks evenly.

    Raises:
        InputError: the pattern is unknown (the message lists all), or the number of ranks does not
            fit.
    """
    counted_form, listed = _COUNTED.fullmatch(pattern), listed_ranks(pattern)
    if listed is not None:
        _check_listed(pattern, listed, world_size)
    elif not counted_form and (pattern not in PATTERNS or pattern.endswith((":K", ":LIST"))):
        raise unknown_choice(
            "pattern", pattern, PATTERNS, ", where K is a number of ranks and LIST lists ranks"
        )
    if counted_form and world_size is not None and world_size % int(counted_form[2]):
        raise InputError(
            f"Pattern {pattern} needs a multiple of {counted_form[2]} ranks and this run has"
            f" {world_size}; choose another K or another number of ranks."
        )


def _check_listed(pattern: str, listed: Group, world_size: int | None) -> None:
    """Raise `InputError` unless two ranks or more are listed, each once in ascending order, and all
    exist.
    """
    if len(listed) < 2 or list(listed) != sorted(set(listed)):  # noqa: PLR2004 - one rank does not communicate
        raise InputError(
            f"Pattern {pattern} must list two ranks or more in ascending order, as in ranks:0-3+6."
        )
    if world_size is not None and listed[-1] >= world_size:
        raise InputError(
            f"Pattern {pattern} lists rank {listed[-1]} and this run has ranks 0 to"
            f" {world_size - 1}; list fewer."
        )


def listed_ranks(pattern: str) -> Group | None:
    """Return the ranks of a pattern ``ranks:LIST``; None for another pattern."""
    match = _LISTED.fullmatch(pattern)
    return tuple(rank for part in match[1].split("+") for rank in ranks_of(part)) if match else None


def makes_groups(pattern: str) -> bool:
    """Return whether a pattern divides the ranks into groups, each of which is reported."""
    return pattern not in _WHOLE


def shares_of(pattern: str, world_size: int) -> int:
    """Return the number of shares of a divided message: the group size if the pattern fixes it,
    else the world size.

    The group sizes of ``node`` and ``cross`` depend on the hosts. Sizes that differ after rounding
    up for all ranks still differ after rounding up for a group.
    """
    counted_form = _COUNTED.fullmatch(pattern)
    if counted_form:
        return (
            int(counted_form[2])
            if counted_form[1] == "split"
            else max(1, world_size // int(counted_form[2]))
        )
    if listed := listed_ranks(pattern):
        return len(listed)
    return (
        min(2, world_size) if pattern == "bisection" or pattern.startswith("pairs:") else world_size
    )


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
    ranks = tuple(range(len(hosts)))
    if not makes_groups(pattern):
        return (ranks,)
    if listed := listed_ranks(pattern):
        return (listed,)
    counted_form = _COUNTED.fullmatch(pattern)
    if counted_form:
        count = int(counted_form[2])
        neighbours = [ranks[i : i + count] for i in range(0, len(ranks), count)]
        divided = (
            neighbours if counted_form[1] == "split" else [ranks[i::count] for i in range(count)]
        )
    elif pattern == "node":
        divided = _by_host(hosts)
    elif pattern == "cross":
        divided = _rails(_by_host(hosts))
    elif pattern == "pairs:intra":
        divided = [host[i : i + 2] for host in _by_host(hosts) for i in range(0, len(host) - 1, 2)]
    elif pattern == "pairs:inter":
        by_host = _by_host(hosts)
        host_pairs = zip(by_host[::2], by_host[1::2], strict=False)
        divided = [
            pair for first, second in host_pairs for pair in zip(first, second, strict=False)
        ]
    else:
        ordered = [rank for host in _by_host(hosts) for rank in host]
        half = len(ordered) // 2
        divided = list(zip(ordered[:half], ordered[len(ordered) - half :], strict=True))
    groups = tuple(sorted(tuple(sorted(group)) for group in divided if len(group) > 1))
    if not groups:
        ranks_there, hosts_there = counted(len(hosts), "rank"), counted(len(set(hosts)), "host")
        placement = f"{ranks_there} on {hosts_there}"
        raise UnsupportedError("no_group", pattern=pattern, placement=placement)
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
        rounds.append([(second, first) for first, second in real] if step % 2 else real)
    return rounds


def rank_list(ranks: Sequence[int]) -> str:
    """Return ranks as text: ``0-3``, or ``0,3`` if they are not consecutive."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, dict.fromkeys(ranks)))


def ranks_of(text: str) -> list[int]:
    """Return the ranks of a text made by `rank_list`."""
    first, dash, last = text.partition("-")
    return (
        list(range(int(first), int(last) + 1))
        if dash
        else [int(rank) for rank in text.split(",") if rank]
    )


def _by_host(hosts: Sequence[str]) -> list[Group]:
    """Return the ranks of each host, hosts in order of first appearance."""
    return [
        tuple(rank for rank, host in enumerate(hosts) if host == name)
        for name in dict.fromkeys(hosts)
    ]


def _rails(by_host: Sequence[Group]) -> list[Group]:
    """Return for each i the i-th ranks of all hosts with more than i ranks."""
    return [
        tuple(host_ranks[i] for host_ranks in by_host if i < len(host_ranks))
        for i in range(max(map(len, by_host)))
    ]
