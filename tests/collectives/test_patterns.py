"""Tests of the groups that patterns form from ranks on hosts."""

import re
from collections.abc import Sequence

import pytest
from fields import fields_of
from hypothesis import assume, given
from hypothesis import strategies as st

from commbench.collectives.cases import Sweep
from commbench.collectives.patterns import (
    PATTERNS,
    check_pattern,
    groups_of,
    makes_groups,
    pattern_order,
    rank_list,
    ranks_of,
    shares_of,
)
from commbench.errors import InputError
from commbench.findings import UnsupportedError

#: Patterns without a number, and those with one, for any number of ranks.
GROUPED = ("node", "cross", "pairs:intra", "pairs:inter", "bisection")
HOSTS = st.lists(st.sampled_from("ABCD"), min_size=1, max_size=24)


def groups_or_none(pattern: str, hosts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of a pattern, or an empty list if it has none."""
    try:
        return groups_of(pattern, hosts)
    except UnsupportedError:
        return ()


@pytest.mark.parametrize(
    ("pattern", "hosts", "expected"),
    [
        ("flat", "AABB", "0123"),
        ("matrix", "AB", "01"),
        ("node", "AABB", "01 23"),
        ("node", "ABAB", "02 13"),
        ("node", "ABBC", "12"),
        ("cross", "AABB", "02 13"),
        ("cross", "AAABBC", "035 14"),
        ("cross", "ABBA", "01 23"),
        ("split:2", "AABB", "01 23"),
        ("split:4", "AAAAAAAA", "0123 4567"),
        ("stride:2", "AAAAAA", "024 135"),
        ("stride:4", "AAAAAAAA", "04 15 26 37"),
        ("pairs:intra", "AAABBB", "01 34"),
        ("pairs:inter", "AABBCC", "02 13"),
        ("ranks:0-2+4", "AABBC", "0124"),
        ("ranks:1+3", "AABB", "13"),
        ("bisection", "AABB", "02 13"),
        ("bisection", "ABCDE", "03 14"),
        ("bisection", "ABABABAB", "01 23 45 67"),
    ],
)
def test_patterns_make_the_groups_they_say(pattern, hosts, expected):
    """Group ranks by host and number; a digit is a rank."""
    groups = groups_of(pattern, hosts)
    assert expected == " ".join("".join(map(str, group)) for group in groups)


@pytest.mark.parametrize(
    ("pattern", "hosts", "placed"),
    [
        ("node", "AB", "2 ranks on 2 hosts"),
        ("cross", "AA", "2 ranks on 1 host"),
        ("pairs:inter", "A", "1 rank on 1 host"),
        ("split:1", "AAA", "3 ranks on 1 host"),
    ],
)
def test_hosts_that_make_no_group_are_refused(pattern, hosts, placed):
    """Refuse hosts without groups, and list where the ranks are."""
    with pytest.raises(
        UnsupportedError,
        match=f"^pattern {pattern} makes no group of two ranks or more of {placed}$",
    ):
        groups_of(pattern, hosts)


@given(pattern=st.sampled_from(GROUPED), hosts=HOSTS)
def test_groups_are_disjoint_ascending_and_in_order(pattern, hosts):
    """Put each rank in at most one group of at least two, in ascending order."""
    groups = groups_or_none(pattern, hosts)
    ranks = [rank for group in groups for rank in group]
    assert len(ranks) == len(set(ranks)) <= len(hosts)
    assert all(len(group) > 1 and list(group) == sorted(group) for group in groups)
    assert list(groups) == sorted(groups)


@given(
    count=st.integers(1, 12), groups=st.integers(1, 12), kind=st.sampled_from(["split", "stride"])
)
def test_counted_groups_cover_all_ranks_evenly(count, groups, kind):
    """Use every rank: a split has K ranks per group, a stride K groups."""
    world_size = count * groups
    pattern = f"{kind}:{count}"
    check_pattern(pattern, world_size)
    made = groups_or_none(pattern, ["A"] * world_size)
    assume(made)
    assert list(range(world_size)) == sorted(rank for group in made for rank in group)
    assert {shares_of(pattern, world_size)} == {len(group) for group in made}
    assert (count if kind == "stride" else groups) == len(made)


def test_the_unknown_is_refused():
    """Refuse an unknown pattern with the choices, and a number that does not divide the ranks."""
    for pattern in ("star", "split", "split:0", "stride:x", "pairs"):
        with pytest.raises(InputError, match=r"^Unknown pattern .*; choose from flat, node, .*\.$"):
            check_pattern(pattern)
    with pytest.raises(InputError, match="needs a multiple of 3 ranks and this run has 4"):
        check_pattern("split:3", 4)
    for pattern in ("ranks:LIST", "ranks:", "ranks:1,2", "ranks:1+", "ranks:a"):
        with pytest.raises(
            InputError,
            match=rf"^Unknown pattern '{re.escape(pattern)}'.*; choose from .*LIST lists ranks",
        ):
            check_pattern(pattern)
    for pattern in ("ranks:1", "ranks:2+1", "ranks:1+1", "ranks:3-1"):
        with pytest.raises(InputError, match="must list two ranks or more in ascending order"):
            check_pattern(pattern)
    with pytest.raises(InputError, match="lists rank 4 and this run has ranks 0 to 3"):
        check_pattern("ranks:0+4", 4)


def test_every_pattern_is_grouped_or_whole():
    """Return groups for patterns that form them, and all ranks for the others."""
    whole = [pattern for pattern in PATTERNS if not makes_groups(pattern)]
    assert ["flat", "ring", "fan-in", "fan-out", "hierarchical", "matrix"] == whole
    assert {((0, 1, 2),)} == {groups_of(pattern, "AAB") for pattern in whole}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ranks:0+2-3", 12),
        ("flat", 32),
        ("node", 32),
        ("split:2", 8),
        ("stride:2", 16),
        ("bisection", 8),
    ],
)
def test_cases_are_rounded_to_the_group_size(pattern, expected):
    """Round 8 B to a float per rank of a fixed group size, else of all ranks."""
    sweep = Sweep(operations=["all_gather"], sizes=[8], backends=["mpi"], patterns=[pattern])
    assert [expected] == fields_of(sweep.cases(8), "message_bytes")


def test_patterns_have_an_order():
    """Sort patterns as listed, then by number."""
    shuffled = [
        "ranks:0+2",
        "matrix",
        "split:16",
        "pairs:inter",
        "split:4",
        "unheard-of",
        "node",
        "flat",
        "stride:2",
    ]
    expected = [
        "flat",
        "node",
        "split:4",
        "split:16",
        "stride:2",
        "ranks:0+2",
        "pairs:inter",
        "matrix",
        "unheard-of",
    ]
    assert expected == sorted(shuffled, key=pattern_order)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([0, 1, 2, 3], "0-3"), ([0, 3], "0,3"), ([0, 1], "0-1"), ([2], "2"), ([0, 0], "0")],
)
def test_ranks_are_named_briefly(ranks, expected):
    """Abbreviate consecutive ranks by their ends, and read them back."""
    assert expected == rank_list(ranks)
    assert sorted(set(ranks)) == ranks_of(expected)
