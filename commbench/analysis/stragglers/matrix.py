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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from commbench import stats
from commbench.analysis.stragglers.judging import (
    ANY,
    FEWEST,
    RELEVANT,
    Family,
    Judgement,
    Search,
    Straggler,
    make_family,
)
from commbench.findings import Finding
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
    slow = list(family.judgement.slow)
    if not slow:
        return family
    linked = np.zeros((len(names), len(names)), dtype=bool)
    linked[source, target] = True
    linked[source[slow], target[slow]] = False
    one_way = np.zeros_like(linked)
    one_way[source[slow], target[slow]] = True
    parts = _parts((linked | linked.T) & ~(one_way | one_way.T), leave_out)
    part_of_host = np.full(len(names), -1)
    for number, part in enumerate(parts):
        part_of_host[part] = number
    between = [link for link in slow if part_of_host[source[link]] != part_of_host[target[link]]]
    if len(parts) < 2 or min(map(len, parts)) < 2 or len(between) < MOST * len(slow):  # noqa: PLR2004 - two of two
        return family
    by_link = dict(zip(slow, family.stragglers, strict=True))
    merged = [by_link.pop(link) for link in between]
    in_launches = np.median(family.judgement.launches[:, between], axis=1)
    return replace(
        family, stragglers=[_uplink(merged, in_launches, parts, names), *by_link.values()]
    )


def _parts(linked: NDArray[np.bool_], leave_out: Collection[int]) -> list[list[int]]:
    """Return the sets of hosts that reach each other over ``linked``, (hosts, hosts)."""
    parts, unseen = [], set(range(len(linked))) - set(leave_out)
    while unseen:
        reached, more = np.zeros(len(linked), dtype=bool), np.array([min(unseen)])
        while len(more):
            reached[more] = True
            more = np.flatnonzero(linked[more].any(axis=0) & ~reached)
        part = sorted(unseen & set(np.flatnonzero(reached).tolist()))
        parts.append(part)
        unseen -= set(part)
    return parts


def _uplink(
    merged: Sequence[Straggler],
    in_launches: Floats,
    parts: Sequence[Sequence[int]],
    names: Sequence[str],
) -> Straggler:
    """Return the straggler for the links between the parts: as slow as the median of its links."""
    interval = stats.launch_interval(np.exp(in_launches))
    ends = [_listed([names[host] for host in part]) for part in parts]
    measured = merged[0].measured
    return Straggler(
        kind="uplink",
        name=f"links between {' and '.join(ends)}",
        code="slow_uplink",
        measured=measured,
        factor=math.exp(float(np.median(in_launches))),
        ci=(interval.low, interval.high) if interval else None,
        evidence=Finding(
            "slow_uplink_evidence", numbers={"measured": measured, "links": len(merged)}
        ),
        links=[link for straggler in merged for link in straggler.links],
    )


def _listed(names: Sequence[str]) -> str:
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])}, ... ({len(names)} hosts)"


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

    def gathered(self, set_of_unit: Integers) -> Links:
        """Return the links between sets of units, each the median of its links."""
        code = set_of_unit[self.source] * (int(set_of_unit.max()) + 1) + set_of_unit[self.target]
        codes, number = np.unique(code, return_inverse=True)
        values = grouped_quantile(self.values, number, len(codes), 0.5)
        return Links(
            source=codes // (int(set_of_unit.max()) + 1),
            target=codes % (int(set_of_unit.max()) + 1),
            values=values,
        )

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
        if not len(self):
            return False
        units = int(max(self.source.max(), self.target.max())) + 1
        forth, back = self.source * units + self.target, self.target * units + self.source
        order, reverse_order = np.argsort(forth), np.argsort(back)
        has_same_pairs = np.array_equal(forth[order], back[reverse_order])
        return has_same_pairs and bool(
            np.array_equal(self.values[:, order], self.values[:, reverse_order], equal_nan=True)
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


def judge_matrix(matrix: Matrix, alpha: float) -> Search:
    """Name the slow hosts, ranks and links of a matrix.

    Args:
        matrix: wrong data are left out; without known hosts all ranks count as on one host.
        alpha: probability of any false alarm.
    """
    return _Levels(matrix, alpha).search()


class _Levels:
    """Levels of one matrix.

    Times between hosts and within hosts differ in kind and are judged separately.
    """

    def __init__(self, matrix: Matrix, alpha: float) -> None:
        self.matrix = matrix
        self.alpha = alpha
        self.names, self.host = numbered_hosts(matrix.hosts)
        self.rank_names = [f"rank {rank}" for rank in range(len(self.host))]
        if len(self.names) > 1:
            self.rank_names = [f"rank {rank} on {host}" for rank, host in enumerate(matrix.hosts)]
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(
                np.where(matrix.is_sound & (matrix.times_us > 0), matrix.times_us, np.nan)
            )
        links = Links(source=matrix.source, target=matrix.target, values=values)
        self.inter, self.intra = links[matrix.is_inter], links[~matrix.is_inter]
        self.per_host = np.bincount(self.host)
        self.ways: dict[int, str] = {}
        """By slow host: the code of its direction."""
        self.slow_within: set[int] = set()
        """Hosts whose own pairs are slow."""

    def search(self) -> Search:
        """Return all levels that these hosts and ranks allow, each with its share of the false
        alarms.

        The shares are such that four hosts and six launches suffice to name a straggler on each
        level, and one host even if another was slower in one launch.
        """
        hosts = len(self.names)
        hosts_with_pairs = int((self.per_host > 1).sum())
        levels: list[tuple[Callable[[float], Family], int]] = []
        if hosts >= FEWEST:
            levels.append((self._hosts, 55))
        if hosts > 1 and hosts_with_pairs > 0 and len(self.host) >= FEWEST:
            levels.append((self._ranks, 2))
        if hosts >= FEWEST:
            levels.append((self._links, 7))
        if hosts_with_pairs >= FEWEST:
            levels.append((self._hosts_within, 8))
        if self.per_host.max(initial=0) >= FEWEST:
            levels += [(self._ranks_within, 2), (self._links_within, 2)]
        total = sum(weight for _, weight in levels)
        families = [level(self.alpha * weight / total) for level, weight in levels]
        return Search(families=families, remarks=self._remarks())

    # -------------------------------------------------------------------------------- between hosts

    def _hosts(self, alpha: float) -> Family:
        links = self.inter.gathered(self.host)
        family, self.ways = self._scored("host", self.names, links, alpha)
        return family

    def _ranks(self, alpha: float) -> Family:
        """Judge ranks against the ranks of all hosts that are not slow as a whole."""
        slow = np.isin(self.host, list(self.ways))
        links = self.inter[~slow[self.inter.source] & ~slow[self.inter.target]]
        return self._scored("rank", self.rank_names, links, alpha)[0]

    def _links(self, alpha: float) -> Family:
        """Judge links between hosts that no slow host explains."""
        links = self.inter.gathered(self.host)
        senders = [host for host, way in self.ways.items() if way != "slow_receives"]
        receivers = [host for host, way in self.ways.items() if way != "slow_sends"]
        explained = np.isin(links.source, senders) | np.isin(links.target, receivers)
        judged_links, family = self._single(self.names, links[~explained], alpha)
        return merge_uplink(
            family, judged_links.source, judged_links.target, self.names, leave_out=set(self.ways)
        )

    # --------------------------------------------------------------------------------- within hosts

    def _hosts_within(self, alpha: float) -> Family:
        """Judge hosts by the median pair of their own ranks."""
        host = self.host[self.intra.source]
        values = grouped_quantile(self.intra.values, host, len(self.names), 0.5)
        family = make_family(
            values,
            alpha,
            kind="host",
            code="slow_within",
            measured=self.matrix.name,
            names=self.names,
        )
        self.slow_within = set(family.judgement.slow)
        stragglers = [replace(slow, links=[(slow.name, slow.name)]) for slow in family.stragglers]
        return replace(family, stragglers=stragglers)

    def _ranks_within(self, alpha: float) -> Family:
        """Judge ranks by their pairs on the same host.

        With three ranks a slow one can be identified.
        """
        host = self.host[self.intra.source]
        self.intra = self.intra[
            (self.per_host[host] >= FEWEST) & ~np.isin(host, list(self.slow_within))
        ]
        family, ways = self._scored("rank", self.rank_names, self.intra, alpha)
        slow = np.isin(np.arange(len(self.host)), list(ways))
        self.intra = self.intra[~slow[self.intra.source] & ~slow[self.intra.target]]
        return family

    def _links_within(self, alpha: float) -> Family:
        """Judge pairs of ranks on one host that neither the host nor a rank explains."""
        return self._single(self.rank_names, self.intra, alpha)[1]

    # ----------------------------------------------------------------------------------- both kinds

    def _scored(
        self, kind: str, names: Sequence[str], links: Links, alpha: float
    ) -> tuple[Family, dict[int, str]]:
        """Judge units by their links; return the family and the code of each slow unit's
        direction.
        """
        sends, receives = links.scores(len(names))
        family = make_family(
            np.fmax(sends, receives),
            alpha,
            kind=kind,
            code="slow_both",
            measured=self.matrix.name,
            names=names,
        )
        ways: dict[int, str] = {}
        stragglers = []
        for unit, straggler in zip(family.judgement.slow, family.stragglers, strict=True):
            code = straggler.code
            if not links.is_symmetric:
                code = _way(unit, sends, receives, family.judgement)
            ways[unit] = code
            slow_links = []
            if code != "slow_receives":
                slow_links.append((straggler.name, ANY))
            if code != "slow_sends":
                slow_links.append((ANY, straggler.name))
            stragglers.append(replace(straggler, code=code, links=slow_links))
        return replace(family, stragglers=stragglers), ways

    def _single(self, names: Sequence[str], links: Links, alpha: float) -> tuple[Links, Family]:
        """Judge links one by one; return the judged links and the family.

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
        family = make_family(
            links.values,
            alpha,
            kind="link",
            code="slow_link",
            measured=self.matrix.name,
            names=link_names,
            is_minority=False,
        )
        stragglers = []
        for link, straggler in zip(family.judgement.slow, family.stragglers, strict=True):
            slow_links = [ends[link]]
            if arrow == "-":
                slow_links.append(ends[link][::-1])
            stragglers.append(replace(straggler, links=slow_links))
        return links, replace(family, stragglers=stragglers)

    def _remarks(self) -> list[Finding]:
        """Return the question that so few hosts or ranks leave open."""
        if len(self.names) == 2:  # noqa: PLR2004 - the two ends of one link
            return [self._two_hosts()]
        if len(self.host) == 2:  # noqa: PLR2004 - as above
            return [Finding("slow_two_ranks")]
        return []

    def _two_hosts(self) -> Finding:
        """Return whether one direction between two hosts is slower than the other."""
        unknown = Finding("slow_two_hosts")
        links = self.inter.gathered(self.host)
        if links.is_symmetric or len(links) != 2:  # noqa: PLR2004 - there and back, unless one could not be timed
            return unknown
        difference = links.values[:, 0] - links.values[:, 1]
        difference = difference[np.isfinite(difference)]
        if not len(difference):
            return unknown
        middle = float(np.median(difference))
        steady = bool((np.sign(difference) == np.sign(middle)).all())
        if not steady or abs(middle) < math.log(RELEVANT):
            return unknown
        first, second = self.names
        if middle < 0:
            first, second = second, first
        return Finding("slow_way_back", f"{first} to {second}", {"factor": math.exp(abs(middle))})


def _way(unit: int, sends: Floats, receives: Floats, judgement: Judgement) -> str:
    """Return whether a slow unit is slow as sender, receiver or both, as a code: both if the better
    direction is half as slow.
    """
    is_valid = np.isfinite(judgement.effects)
    is_valid[list(judgement.slow)] = False
    send, receive = (
        float(np.median(scores[:, unit] - np.median(scores[:, is_valid], axis=1)))
        for scores in (sends, receives)
    )
    if min(send, receive) > max(send, receive) / 2:
        return "slow_both"
    if send > receive:
        return "slow_sends"
    return "slow_receives"


def numbered_hosts(hosts: Sequence[str]) -> tuple[list[str], Integers]:
    """Return the hosts' names in the order of their first rank, and each rank's host number."""
    names = list(dict.fromkeys(hosts))
    number = {name: index for index, name in enumerate(names)}
    return names, np.array([number[host] for host in hosts], dtype=np.int64)
