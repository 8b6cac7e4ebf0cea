"""Stragglers in a matrix of pairs: hosts, ranks and links, from coarse to fine.

Slow uplinks are reported once.

A straggling host is slow with all others, a typical host is fast with every other typical host. So
a host's score is the lower quartile over its partners, not the median. With one slow host among
four, half of all links are slow, yet each typical host keeps two fast links. Sending and receiving
are scored separately, and the worse score counts, so that hosts that are slow in one direction are
found as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.stragglers.judging import (
    ANY,
    FEWEST,
    RELEVANT,
    Family,
    Judgement,
    Search,
    Straggler,
    judge,
    ratio_ends,
)
from commbench.findings import Finding, Value
from commbench.results.pairs import Matrix
from commbench.stats import Floats

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

#: Quantile over a unit's partners that is its score: with a quarter of them it must be fast.
GOOD_SHARE = 0.25
#: Share of the slow links that must run between the parts.
MOST = 0.9
#: Up to this many hosts of a part are named.
SHOWN = 4
#: The two ends of one link, or its two directions.
_TWO = 2


@dataclass(frozen=True, kw_only=True)
class Links:
    """Log times between units, (launches, links), and the units that each link joins."""

    source: Integers
    target: Integers
    values: Floats

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, mask: Booleans) -> Links:
        """Return the chosen links."""
        return Links(
            source=self.source[mask], target=self.target[mask], values=self.values[:, mask]
        )

    def without(self, units: Collection[int]) -> Links:
        """Return the links between all other units."""
        return self[~np.isin(self.source, list(units)) & ~np.isin(self.target, list(units))]

    def gathered(self, set_of_unit: Integers) -> Links:
        """Return the links between sets of units, each the median of its links."""
        sets = int(set_of_unit.max()) + 1
        code = set_of_unit[self.source] * sets + set_of_unit[self.target]
        codes, number = np.unique(code, return_inverse=True)
        values = grouped_quantile(self.values, number, len(codes), 0.5)
        return Links(source=codes // sets, target=codes % sets, values=values)

    def scores(self, units: int) -> tuple[Floats, Floats]:
        """Return each unit's scores as sender and receiver, (launches, units): the lower quartile
        over partners.
        """
        return (
            grouped_quantile(self.values, self.source, units, GOOD_SHARE),
            grouped_quantile(self.values, self.target, units, GOOD_SHARE),
        )

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether both directions of each pair have the same times, because they were measured as
        one.
        """
        forth = np.lexsort((self.target, self.source))
        back = np.lexsort((self.source, self.target))
        return len(self) > 0 and all(
            np.array_equal(one[..., forth], other[..., back], equal_nan=True)
            for one, other in (
                (self.source, self.target),
                (self.target, self.source),
                (self.values, self.values),
            )
        )


def grouped_quantile(values: Floats, group: Integers, groups: int, share: float) -> Floats:
    """Return the quantile of each group of columns in each launch, (launches, groups).

    It is an observed value, the lower of two candidates; NaN if a group has no values.
    """
    quantiles = np.full((len(values), groups), np.nan)
    for line, result in zip(values, quantiles, strict=True):
        is_valid = np.isfinite(line)
        valid_values, member = line[is_valid], group[is_valid]
        counts = np.bincount(member, minlength=groups)
        ordered = valid_values[np.lexsort((valid_values, member))]
        first = np.cumsum(counts) - counts
        position = first + np.maximum(np.ceil(share * counts).astype(np.int64) - 1, 0)
        result[counts > 0] = ordered[position[counts > 0]]
    return quantiles


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
    rank_names = [f"rank {rank}" for rank in range(len(host))]
    if len(names) > 1:
        rank_names = [f"rank {rank} on {name}" for rank, name in enumerate(matrix.hosts)]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(np.where(matrix.is_sound & (matrix.times_us > 0), matrix.times_us, np.nan))
    links = Links(source=matrix.source, target=matrix.target, values=values)
    between, within = links[matrix.is_inter], links[~matrix.is_inter]
    between_hosts = between.gathered(host)
    ranks_of_host = np.bincount(host)
    hosts_with_pairs = int((ranks_of_host > 1).sum())
    most_ranks = int(ranks_of_host.max(initial=0))

    weights = {
        "hosts": 55 * (len(names) >= FEWEST),
        "ranks": 2 * (len(names) > 1 and hosts_with_pairs > 0 and len(host) >= FEWEST),
        "links": 7 * (len(names) >= FEWEST),
        "hosts within": 8 * (hosts_with_pairs >= FEWEST),
        "ranks within": 2 * (most_ranks >= FEWEST),
        "links within": 2 * (most_ranks >= FEWEST),
    }
    total = sum(weights.values())
    alphas = {level: alpha * weight / total for level, weight in weights.items() if weight}
    families = []
    ways: dict[int, str] = {}
    if "hosts" in alphas:
        family, ways = _scored("host", names, between_hosts, matrix.name, alphas["hosts"])
        families.append(family)
    if "ranks" in alphas:
        others = between.without(np.flatnonzero(np.isin(host, list(ways))).tolist())
        family, _ = _scored("rank", rank_names, others, matrix.name, alphas["ranks"])
        families.append(family)
    if "links" in alphas:
        senders = [unit for unit, way in ways.items() if way != "slow_receives"]
        receivers = [unit for unit, way in ways.items() if way != "slow_sends"]
        is_explained = np.isin(between_hosts.source, senders)
        is_explained |= np.isin(between_hosts.target, receivers)
        others = between_hosts[~is_explained]
        family, others = _single(names, others, matrix.name, alphas["links"])
        families.append(
            merge_uplink(family, others.source, others.target, names, leave_out=set(ways))
        )
    slow_hosts: list[int] = []
    if "hosts within" in alphas:
        own = grouped_quantile(within.values, host[within.source], len(names), 0.5)
        family = _judged("host", names, own, matrix.name, alphas["hosts within"])
        slow_hosts = family.judgement.slow
        pairs = [[(names[unit], names[unit])] for unit in slow_hosts]
        families.append(family.with_slow(["slow_within"] * len(pairs), pairs))
    if "ranks within" in alphas:
        is_small = np.isin(host, np.flatnonzero(ranks_of_host < FEWEST))
        left_out = is_small | np.isin(host, slow_hosts)
        within = within.without(np.flatnonzero(left_out).tolist())
        family, ways = _scored("rank", rank_names, within, matrix.name, alphas["ranks within"])
        families.append(family)
        others = within.without(ways)
        families.append(_single(rank_names, others, matrix.name, alphas["links within"])[0])
    return Search(families=families, remarks=_remarks(names, len(host), between_hosts))


def _judged(kind: str, names: Sequence[str], values: Floats, measured: str, alpha: float) -> Family:
    judgement = judge(values, alpha=alpha, is_minority=kind != "link")
    return Family(kind=kind, measured=measured, names=names, judgement=judgement, level=alpha)


def _scored(
    kind: str, names: Sequence[str], links: Links, measured: str, alpha: float
) -> tuple[Family, dict[int, str]]:
    """Judge units by their links; return the family and the code of each slow unit's direction."""
    sends, receives = links.scores(len(names))
    family = _judged(kind, names, np.fmax(sends, receives), measured, alpha)
    ways: dict[int, str] = {}
    ends = []
    for unit in family.judgement.slow:
        ways[unit] = _way(unit, sends, receives, family.judgement)
        own_ends = []
        if ways[unit] != "slow_receives":
            own_ends.append((names[unit], ANY))
        if ways[unit] != "slow_sends":
            own_ends.append((ANY, names[unit]))
        ends.append(own_ends)
    return family.with_slow(list(ways.values()), ends), ways


def _way(unit: int, sends: Floats, receives: Floats, judgement: Judgement) -> str:
    """Return whether a slow unit is slow as sender, receiver or both, as a code: both if the better
    direction is half as slow.
    """
    is_typical = np.isfinite(judgement.effects)
    is_typical[judgement.slow] = False
    send, receive = (
        float(np.median(scores[:, unit] - np.median(scores[:, is_typical], axis=1)))
        for scores in (sends, receives)
    )
    if min(send, receive) > max(send, receive) / 2:
        return "slow_both"
    if send > receive:
        return "slow_sends"
    return "slow_receives"


def _single(
    names: Sequence[str], links: Links, measured: str, alpha: float
) -> tuple[Family, Links]:
    """Judge links one by one; return the family and the judged links.

    Symmetric links count once.
    """
    arrow = "->"
    if links.is_symmetric:
        arrow = "-"
        links = links[links.source < links.target]
    ends = []
    for source, target in zip(links.source.tolist(), links.target.tolist(), strict=True):
        ends.append((names[source], names[target]))
    link_names = [f"{source} {arrow} {target}" for source, target in ends]
    family = _judged("link", link_names, links.values, measured, alpha)
    slow_ends = [[ends[link]] for link in family.judgement.slow]
    if arrow == "-":
        slow_ends = [[forth, forth[::-1]] for (forth,) in slow_ends]
    return family.with_slow(["slow_link"] * len(slow_ends), slow_ends), links


def merge_uplink(
    family: Family,
    source: Integers,
    target: Integers,
    names: Sequence[str],
    *,
    leave_out: Collection[int],
) -> Family:
    """Return the family with one straggler in place of the slow links between parts of the hosts.

    A part is a set of hosts that reach each other over links that are not slow, directly or via
    others. If there are several parts of two hosts or more, and all links between two parts are
    slow, then the racks' uplinks or the switch between them is slow.

    Args:
        family: of links, judged.
        source: host at which each link of the family begins.
        target: host at which it ends.
        names: of all hosts.
        leave_out: slow hosts, whose links are not in the family.
    """
    slow = family.judgement.slow
    if not slow:
        return family
    from scipy.sparse.csgraph import connected_components

    linked = np.zeros((len(names), len(names)), dtype=bool)
    linked[source, target] = linked[target, source] = True
    linked[source[slow], target[slow]] = linked[target[slow], source[slow]] = False
    _, part_of_host = connected_components(linked)
    parts: dict[int, list[str]] = {}
    for host, name in enumerate(names):
        if host not in leave_out:
            parts.setdefault(int(part_of_host[host]), []).append(name)
    is_between = part_of_host[source[slow]] != part_of_host[target[slow]]
    if min(len(parts), *map(len, parts.values())) < _TWO or is_between.mean() < MOST:
        return family
    merged = [family.stragglers[place] for place in np.flatnonzero(is_between).tolist()]
    others = [family.stragglers[place] for place in np.flatnonzero(~is_between).tolist()]
    in_launches = np.median(family.judgement.launches[:, np.array(slow)[is_between]], axis=1)
    numbers: dict[str, Value] = {"measured": family.measured, "links": len(merged)}
    uplink = Straggler(
        kind="uplink",
        name=f"links between {' and '.join(map(_listed, parts.values()))}",
        code="slow_uplink",
        measured=family.measured,
        factor=math.exp(float(np.median(in_launches))),
        ci=ratio_ends(in_launches),
        evidence=Finding("slow_uplink_evidence", numbers=numbers),
        links=[link for straggler in merged for link in straggler.links],
    )
    return replace(family, stragglers=[uplink, *others])


def _listed(names: Sequence[str]) -> str:
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])}, ... ({len(names)} hosts)"


def _remarks(names: Sequence[str], ranks: int, links: Links) -> list[Finding]:
    """Return the question that so few hosts or ranks leave open: which of two is slow."""
    if len(names) != _TWO:
        return [Finding("slow_two_ranks")] if ranks == _TWO else []
    if len(links) == _TWO and not links.is_symmetric:  # else one could not be timed
        difference = links.values[:, 0] - links.values[:, 1]
        difference = difference[np.isfinite(difference)]
        signs = set(np.sign(difference).tolist())
        if len(signs) == 1 and abs(np.median(difference)) >= math.log(RELEVANT):
            factor = math.exp(abs(np.median(difference)))
            first, second = names
            if signs == {-1.0}:
                first, second = second, first
            return [Finding("slow_way_back", f"{first} to {second}", {"factor": factor})]
    return [Finding("slow_two_hosts")]
