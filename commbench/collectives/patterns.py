"""Who talks to whom: the groups of ranks that a pattern makes of a launch, from the hosts that its ranks are on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from commbench.errors import InputError, UnsupportedError

Group = tuple[int, ...]
"""Ranks of the launch, ascending: the first is number 0 within the group."""
Pair = tuple[int, int]

#: How each pattern is written, and what it means; the groups of one pattern run at the same time.
PATTERNS = {
    "flat": "all ranks together",
    "node": "the ranks of each host, all hosts at once",
    "cross": "one rank of every host: as many groups (rails) as a host has ranks",
    "split:K": "groups of K neighbouring ranks, as in tensor parallelism",
    "stride:K": "K groups of every K-th rank, as data parallelism over tensor-parallel groups of K",
    "pairs:intra": "disjoint pairs of ranks on one host",
    "pairs:inter": "disjoint pairs of ranks on two hosts",
    "ring": "every rank sends to the next, the last to the first; point to point only",
    "bisection": "every rank of the first half with its partner in the second, all pairs at once",
    "fan-in": "all other ranks send to one; point to point only",
    "fan-out": "one rank sends to all others; point to point only",
    "hierarchical": "all_reduce as reduce_scatter in each host, all_reduce across hosts, all_gather in each host",
    "matrix": "every ordered pair of ranks, in rounds of disjoint pairs; point to point only",
}
_COUNTED = re.compile(r"(split|stride):([1-9][0-9]{0,5})")
#: Patterns in which all ranks are one group.
_WHOLE = frozenset({"flat", "ring", "fan-in", "fan-out", "hierarchical", "matrix"})


def check_pattern(pattern: str, world_size: int | None = None) -> None:
    """Refuse what is no pattern, or one that does not divide ``world_size`` ranks evenly.

    Raises:
        InputError: it is not; the sentence lists the patterns.
    """
    counted = _COUNTED.fullmatch(pattern)
    if not counted and (pattern not in PATTERNS or pattern.endswith(":K")):
        raise InputError(
            f"Unknown pattern {pattern!r}; choose from {', '.join(PATTERNS)}, where K is a number of ranks."
        )
    if counted and world_size is not None and world_size % int(counted[2]):
        raise InputError(
            f"Pattern {pattern} needs a multiple of {counted[2]} ranks and this run has {world_size}; "
            "choose another K or another number of ranks."
        )


def makes_groups(pattern: str) -> bool:
    """Whether a pattern divides the ranks into groups, which then are reported each."""
    return pattern not in _WHOLE


def shares_of(pattern: str, world_size: int) -> int:
    """Into how many shares a divided message is cut: the ranks of a group where the pattern fixes it, else all ranks.

    How many ranks the groups of ``node`` and ``cross`` have is known on the hosts only. Sizes rounded up for all ranks
    stay different when they are rounded up again for a group.
    """
    counted = _COUNTED.fullmatch(pattern)
    if counted:
        return int(counted[2]) if counted[1] == "split" else max(1, world_size // int(counted[2]))
    return min(2, world_size) if pattern == "bisection" or pattern.startswith("pairs:") else world_size


def pattern_order(pattern: str) -> tuple[int, int, str]:
    """What sorts patterns as `PATTERNS` lists them, those with a number by it, unknown ones last."""
    name, _, count = pattern.partition(":")
    known = list(PATTERNS)
    place = next((known.index(form) for form in (pattern, f"{name}:K") if form in known), len(known))
    return place, int(count) if count.isdecimal() else 0, pattern


def groups_of(pattern: str, hosts: Sequence[str]) -> tuple[Group, ...]:
    """The groups of a pattern, each with two ranks at least, ordered by their first rank.

    Patterns that make no groups hold all ranks (see `makes_groups`).

    Args:
        pattern: one that `check_pattern` accepts.
        hosts: the host of each rank, by rank.

    Raises:
        UnsupportedError: the ranks lie on the hosts so that there is no such group.
    """
    ranks = tuple(range(len(hosts)))
    if not makes_groups(pattern):
        return (ranks,)
    counted = _COUNTED.fullmatch(pattern)
    if counted:
        count = int(counted[2])
        made = [ranks[i : i + count] for i in range(0, len(ranks), count)]
        found = made if counted[1] == "split" else [ranks[i::count] for i in range(count)]
    elif pattern == "node":
        found = _by_host(hosts)
    elif pattern == "cross":
        found = _rails(_by_host(hosts))
    elif pattern == "pairs:intra":
        found = [here[i : i + 2] for here in _by_host(hosts) for i in range(0, len(here) - 1, 2)]
    elif pattern == "pairs:inter":
        by_host = _by_host(hosts)
        neighbours = zip(by_host[::2], by_host[1::2], strict=False)
        found = [pair for one, other in neighbours for pair in zip(one, other, strict=False)]
    else:
        ordered = [rank for here in _by_host(hosts) for rank in here]
        half = len(ordered) // 2
        found = list(zip(ordered[:half], ordered[len(ordered) - half :], strict=True))
    groups = tuple(sorted(tuple(sorted(group)) for group in found if len(group) > 1))
    if not groups:
        raise UnsupportedError(f"pattern {pattern} makes no group of two ranks or more of {_placement(hosts)}")
    return groups


def rounds_of(size: int) -> list[list[Pair]]:
    """All pairs of ``size`` ranks, each once, in rounds of disjoint pairs: size - 1 of them, size where that is odd.

    The circle method of round-robin tournaments (Kirkman 1847): one rank stands still, the others move around by one
    place a round; with an odd number the one who stands still is absent, and its partner idle. Pairs take turns in
    being named in either order.
    """
    even = size + size % 2
    circle = list(range(1, even))
    rounds = []
    for step in range(even - 1):
        line = [0, *circle[step:], *circle[:step]]
        pairs = zip(line[: even // 2], reversed(line[even // 2 :]), strict=True)
        met = [(one, other) for one, other in pairs if max(one, other) < size]
        rounds.append([(other, one) for one, other in met] if step % 2 else met)
    return rounds


def rank_list(ranks: Sequence[int]) -> str:
    """Ranks as text: ``0-3``, or ``0,3`` where they are not consecutive."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, dict.fromkeys(ranks)))


def ranks_of(text: str) -> list[int]:
    """The ranks that `rank_list` has named."""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(rank) for rank in text.split(",") if rank]


def _by_host(hosts: Sequence[str]) -> list[Group]:
    """The ranks of each host, hosts in the order in which they first appear."""
    return [tuple(rank for rank, host in enumerate(hosts) if host == name) for name in dict.fromkeys(hosts)]


def _rails(by_host: Sequence[Group]) -> list[Group]:
    """The i-th ranks of all hosts that have so many."""
    return [tuple(here[i] for here in by_host if i < len(here)) for i in range(max(map(len, by_host)))]


def _placement(hosts: Sequence[str]) -> str:
    """``4 ranks on 2 hosts``."""
    count = len(set(hosts))
    return f"{len(hosts)} rank{'s' * (len(hosts) != 1)} on {count} host{'s' * (count != 1)}"
