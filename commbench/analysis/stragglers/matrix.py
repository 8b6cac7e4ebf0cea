"""Stragglers in a matrix of pairs: hosts, ranks and links, from coarse to fine.

Slow uplinks are reported once.

A straggling host is slow with all others, a typical host is fast with every other typical host. So
a host's score is the lower quartile over its partners, not the median. With one slow host among
four, half of all links are slow, yet each typical host keeps two fast links. Sending and receiving
are scored separately, and the worse score counts, so that hosts that are slow in one direction are
found as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from commbench import stats
from commbench.analysis.stragglers.judging import (
    FEWEST,
    RELEVANT,
    Family,
    Search,
    Straggler,
    factor_of,
    judged_family,
    rank_names,
)
from commbench.findings import Finding
from commbench.results.pairs import Matrix
from commbench.stats import Floats

if TYPE_CHECKING:
    from pandas import DataFrame

Integers = NDArray[np.int64]
Units = Mapping[str, Sequence[int]]
"""The ranks of each host, or of each rank itself, by name."""

#: Quantile over a unit's partners that is its score: with a quarter of them it must be fast.
GOOD_SHARE = 0.25
#: Share of the slow links that must run between the parts.
MOST = 0.9
#: Up to this many hosts of a part are named.
SHOWN = 4
#: The two ends of one link, or its two directions.
_TWO = 2


def _log_links(matrix: Matrix) -> DataFrame:
    """Return the logarithms of times as a table of links.

    It has a line for each pair, by source and target, and a column for each launch; NaN for wrong
    data and where there is no time.
    """
    import pandas as pd

    valid_us = np.where(matrix.is_sound & (matrix.times_us > 0), matrix.times_us, np.nan)
    return pd.DataFrame(np.log(valid_us).T, index=[matrix.source, matrix.target])


def _ends_of(links: DataFrame) -> tuple[Integers, Integers]:
    """Return the source and the target of each link."""
    source, target = map(links.index.get_level_values, (0, 1))
    return source.to_numpy(), target.to_numpy()


def _gathered(links: DataFrame, set_of_unit: Integers) -> DataFrame:
    """Return the links between sets of units, each the median of its links."""
    source, target = _ends_of(links)
    sets = [set_of_unit[source], set_of_unit[target]]
    return links.groupby(sets).quantile(0.5, interpolation="lower")


def _without(
    links: DataFrame, senders: Sequence[int], receivers: Sequence[int] | None = None
) -> DataFrame:
    """Return the links from and to other units; by default, ``receivers`` are the senders."""
    if receivers is None:
        receivers = senders
    source, target = _ends_of(links)
    return links[~np.isin(source, senders) & ~np.isin(target, receivers)]


def _is_symmetric(links: DataFrame) -> bool:
    """Return whether both directions of each pair have the same times, because they were measured
    as one.
    """
    return len(links) > 0 and links.equals(links.swaplevel().sort_index())


def numbered_hosts(hosts: Sequence[str]) -> tuple[list[str], Integers]:
    """Return the hosts' names in the order of their first rank, and each rank's host number."""
    names = list(dict.fromkeys(hosts))
    return names, np.array([names.index(host) for host in hosts], dtype=np.int64)


def judge_matrix(matrix: Matrix, alpha: float) -> Search:
    """Name the slow hosts, ranks and links of a matrix.

    Times between hosts and within hosts differ in kind and are judged separately. Each level that
    the hosts and ranks allow has its share of the false alarms. The shares are such that four hosts
    and six launches suffice to name a straggler on each level, and one host even if another was
    slower in one launch.

    Args:
        matrix: wrong data are left out; without known hosts all ranks count as on one host.
        alpha: probability of any false alarm.
    """
    names, host = numbered_hosts(matrix.hosts)
    hosts = {name: np.flatnonzero(host == number).tolist() for number, name in enumerate(names)}
    ranks = {name: [rank] for rank, name in enumerate(rank_names(matrix.hosts))}
    links = _log_links(matrix)
    between, within = links[matrix.is_inter], links[~matrix.is_inter]
    between_hosts = _gathered(between, host)
    ranks_of_host = np.bincount(host)
    hosts_with_pairs = int((ranks_of_host > 1).sum())
    place = np.zeros_like(host)
    for members in hosts.values():
        place[members] = range(len(members))

    has_hosts = len(names) >= FEWEST
    has_ranks_apart = len(names) > 1 and hosts_with_pairs > 0 and len(host) >= FEWEST
    has_pairs = hosts_with_pairs >= FEWEST
    has_ranks_within = int(ranks_of_host.max(initial=0)) >= FEWEST
    weights = 62 * has_hosts + 2 * has_ranks_apart + 8 * has_pairs + 4 * has_ranks_within
    share = alpha / max(1, weights)
    families = []
    ways: dict[int, str] = {}
    if has_hosts:
        family, ways = _scored("host", hosts, between_hosts, matrix.name, 55 * share)
        families.append(family)
    if has_ranks_apart:
        others = _without(between, np.flatnonzero(np.isin(host, list(ways))).tolist())
        family, _ = _scored("rank", ranks, others, matrix.name, 2 * share, place=place)
        families.append(family)
    if has_hosts:
        senders = [unit for unit, way in ways.items() if way != "slow_receives"]
        receivers = [unit for unit, way in ways.items() if way != "slow_sends"]
        others = _without(between_hosts, senders, receivers)
        family, others = _single(hosts, others, matrix.name, 7 * share, is_minority=False)
        families.append(_merge_uplink(family, others, names, leave_out=list(ways)))
    slow_hosts = []
    if has_pairs:
        own = _gathered(within, host).droplevel(1).reindex(range(len(names)))
        family = judged_family("host", names, own.to_numpy().T, matrix.name, 8 * share)
        slow_hosts = family.judgement.slow
        pairs = [[(hosts[names[unit]], hosts[names[unit]])] for unit in slow_hosts]
        families.append(family.with_slow(["slow_within"] * len(pairs), pairs))
    if has_ranks_within:
        left_out = [*slow_hosts, *np.flatnonzero(ranks_of_host < FEWEST)]
        within = _without(within, np.flatnonzero(np.isin(host, left_out)).tolist())
        family, ways = _scored("rank", ranks, within, matrix.name, 2 * share, place=place)
        families.append(family)
        others = _without(within, list(ways))
        # more than half of the links join two sockets, which is no fault
        families.append(_single(ranks, others, matrix.name, 2 * share, is_minority=True)[0])
    return Search(families=families, remarks=_remarks(names, len(host), between_hosts, alpha))


def _scored(
    kind: str,
    units: Units,
    links: DataFrame,
    measured: str,
    alpha: float,
    *,
    place: Integers | None = None,
) -> tuple[Family, dict[int, str]]:
    """Judge units by their links; return the family and the code of each slow unit's direction.

    A unit's scores as sender and as receiver are the lower quartile over its partners. A slow unit
    is slow in both directions if it is at least half as slow in the better one.

    ``place``: of each rank within its host; see `_beside_places`.
    """
    scores = []
    for end in (0, 1):
        by_unit = links.groupby(level=end).quantile(GOOD_SHARE, interpolation="lower")
        scores.append(by_unit.reindex(range(len(units))).to_numpy().T)
    values = np.fmax(*scores)
    if place is not None:
        values = _beside_places(values, place)
    family = judged_family(kind, list(units), values, measured, alpha)
    is_typical = np.isfinite(family.judgement.effects)
    is_typical[family.judgement.slow] = False
    members = list(units.values())
    everyone: Sequence[int] = list(itertools.chain(*members))
    ways = {}
    ends = []
    for unit in family.judgement.slow:
        sends, receives = (members[unit], everyone), (everyone, members[unit])
        send, receive = (
            np.median(each[:, unit] - np.median(each[:, is_typical], axis=1)) for each in scores
        )
        ways[unit], own_ends = "slow_receives", [receives]
        if min(send, receive) > max(send, receive) / 2:
            ways[unit], own_ends = "slow_both", [sends, receives]
        elif send > receive:
            ways[unit], own_ends = "slow_sends", [sends]
        ends.append(own_ends)
    return family.with_slow(list(ways.values()), ends), ways


def _beside_places(values: Floats, place: Integers) -> Floats:
    """Return the scores of ranks, (launches, ranks), less what a place within hosts adds to them.

    The ranks far from a host's network adapter take longer on each host, which is no fault. A place
    on one host only has no other to compare with.
    """
    levels: dict[int, Floats] = {}
    for number in set(place.tolist()):
        own = (place == number) & np.isfinite(values).all(axis=0)
        if own.sum() >= _TWO:
            levels[number] = np.quantile(values[:, own], 0.5, axis=1, method="lower")
    relative = values.copy()
    for number, level in levels.items():
        fastest = np.min(list(levels.values()), axis=0)
        relative[:, place == number] -= (level - fastest)[:, None]
    return relative


def _single(
    units: Units, links: DataFrame, measured: str, alpha: float, *, is_minority: bool
) -> tuple[Family, DataFrame]:
    """Judge links one by one; return the family and the judged links.

    Symmetric links count once. ``is_minority``: as of `judge`.
    """
    arrow, is_symmetric = "->", _is_symmetric(links)
    if is_symmetric:
        arrow = "-"
        source, target = _ends_of(links)
        links = links[source < target]
    names, members = list(units), list(units.values())
    link_names = [f"{names[source]} {arrow} {names[target]}" for source, target in links.index]
    times = links.to_numpy().T
    family = judged_family("link", link_names, times, measured, alpha, is_minority=is_minority)
    slow_ends = []
    for link in family.judgement.slow:
        source, target = links.index[link]
        ends = [(members[source], members[target])]
        if is_symmetric:
            ends.append((members[target], members[source]))
        slow_ends.append(ends)
    return family.with_slow(["slow_link"] * len(slow_ends), slow_ends), links


def _merge_uplink(
    family: Family, links: DataFrame, names: Sequence[str], *, leave_out: Sequence[int]
) -> Family:
    """Return the family with one straggler in place of the slow links between parts of the hosts.

    A part is a set of hosts that reach each other over links that are not slow, directly or via
    others. If there are several parts of two hosts or more, and all links between two parts are
    slow, then the racks' uplinks or the switch between them is slow.

    Args:
        family: the links, judged.
        links: between hosts, as in the family.
        names: of all hosts.
        leave_out: slow hosts, whose links are not in the family.
    """
    slow = family.judgement.slow
    if not slow:
        return family
    from scipy.sparse.csgraph import connected_components

    source, target = _ends_of(links)
    linked = np.zeros((len(names), len(names)), dtype=bool)
    linked[source, target] = True
    source, target = source[slow], target[slow]
    linked[source, target] = linked[target, source] = False
    _, part_of_host = connected_components(linked)
    parts: dict[int, list[str]] = {}
    for host, name in enumerate(names):
        if host not in leave_out:
            parts.setdefault(int(part_of_host[host]), []).append(name)
    is_between = part_of_host[source] != part_of_host[target]
    if min(len(parts), *map(len, parts.values())) < _TWO or is_between.mean() < MOST:
        return family
    merged = list(itertools.compress(family.stragglers, is_between))
    others = list(itertools.compress(family.stragglers, ~is_between))
    in_launches = np.median(family.judgement.launches[:, np.array(slow)[is_between]], axis=1)
    uplink = Straggler(
        kind="uplink",
        name=f"links between {' and '.join(map(_listed, parts.values()))}",
        code="slow_uplink",
        measured=family.measured,
        factor=factor_of(in_launches),
        evidence=Finding(
            "slow_uplink_evidence", numbers={"measured": family.measured, "links": len(merged)}
        ),
        links=[link for straggler in merged for link in straggler.links],
    )
    return replace(family, stragglers=[uplink, *others])


def _listed(names: Sequence[str]) -> str:
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])}, ... ({len(names)} hosts)"


def _remarks(names: Sequence[str], ranks: int, links: DataFrame, alpha: float) -> list[Finding]:
    """Return the question that so few hosts or ranks leave open: which of two is slow.

    ``alpha``: the probability that two equal directions are called different.
    """
    if len(names) != _TWO:
        return [Finding("slow_two_ranks")] if ranks == _TWO else []
    if len(links) == _TWO and not _is_symmetric(links):  # else one could not be timed
        difference = (links.iloc[0] - links.iloc[1]).dropna().to_numpy()
        interval = stats.launch_interval(np.exp(difference), 1 - alpha)  # None of one launch
        if interval is None or interval.low <= 1 <= interval.high:
            return [Finding("slow_two_hosts")]
        slower = stats.median(difference)
        if abs(slower) >= math.log(RELEVANT):
            first, second = names if slower > 0 else reversed(names)
            numbers = {"factor": math.exp(abs(slower))}
            return [Finding("slow_way_back", f"{first} to {second}", numbers)]
    return [Finding("slow_two_hosts")]
