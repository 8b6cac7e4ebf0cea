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
    Findings,
    Judgement,
    Straggler,
    Words,
    make_family,
)
from commbench.results.pairs import Matrix
from commbench.stats import Floats

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

#: Quantile over a unit's partners that is its score: with a quarter of them it must be fast.
GOOD_SHARE = 0.25
#: Each level's share of the allowed false alarms, by method name. Chosen so that four hosts and six
#: launches suffice to name a straggler on each level, and one host even if another was slower in
#: one launch.
_PARTS = {"_hosts": 55, "_hosts_within": 8, "_links": 7}
_OTHER_PART = 2
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
    return Straggler(
        kind="uplink",
        name=(
            "links between"
            f" {' and '.join(_listed([names[host] for host in part]) for part in parts)}"
        ),
        does=" take {} as long as the typical link",
        measured=merged[0].measured,
        factor=math.exp(float(np.median(in_launches))),
        ci=(interval.low, interval.high) if interval else None,
        steadiness=f"all {len(merged)} are slow",
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


def judge_matrix(matrix: Matrix, alpha: float) -> Findings:
    """Name the slow hosts, ranks and links of a matrix.

    Args:
        matrix: wrong data are left out; without known hosts all ranks count as on one host.
        alpha: probability of any false alarm.
    """
    return _Search(matrix, alpha).findings()


class _Search:
    """Levels of one matrix.

    Times between hosts and within hosts differ in kind and are judged separately.
    """

    def __init__(self, matrix: Matrix, alpha: float) -> None:
        self.matrix = matrix
        self.alpha = alpha
        self.names, self.host = numbered_hosts(matrix.hosts)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(
                np.where(matrix.is_sound & (matrix.times_us > 0), matrix.times_us, np.nan)
            )
        links = Links(source=matrix.source, target=matrix.target, values=values)
        self.inter, self.intra = links[matrix.is_inter], links[~matrix.is_inter]
        self.per_host = np.bincount(self.host)
        self.ways: dict[int, str] = {}
        """By slow host: ``sends``, ``receives`` or ``both``."""
        self.slow_within: set[int] = set()
        """Hosts whose own pairs are slow."""

    def findings(self) -> Findings:
        """Return all levels that these hosts and ranks allow, each with its share of the false
        alarms.
        """
        levels = self._levels()
        parts = [_PARTS.get(level.__name__, _OTHER_PART) for level in levels]
        families = [
            level(self.alpha * part / sum(parts)) for level, part in zip(levels, parts, strict=True)
        ]
        return Findings(families=families, remarks=self._remarks())

    def _levels(self) -> list[Callable[[float], Family]]:
        hosts, ranks = len(self.names), len(self.host)
        hosts_with_pairs = int((self.per_host > 1).sum())
        has_three_ranks = bool((self.per_host >= FEWEST).any())
        levels: list[tuple[bool, Callable[[float], Family]]] = [
            (hosts >= FEWEST, self._hosts),
            (hosts > 1 and hosts_with_pairs > 0 and ranks >= FEWEST, self._ranks),
            (hosts >= FEWEST, self._links),
            (hosts_with_pairs >= FEWEST, self._hosts_within),
            (has_three_ranks, self._ranks_within),
            (has_three_ranks, self._links_within),
        ]
        return [level for is_judgeable, level in levels if is_judgeable]

    # -------------------------------------------------------------------------------- between hosts

    def _hosts(self, alpha: float) -> Family:
        family, self.ways = self._scored(
            self.inter.gathered(self.host), "host", self.names.__getitem__, alpha
        )
        return family

    def _ranks(self, alpha: float) -> Family:
        """Judge ranks against the ranks of all hosts that are not slow as a whole."""
        slow = np.isin(self.host, list(self.ways))
        links = self.inter[~slow[self.inter.source] & ~slow[self.inter.target]]
        return self._scored(links, "rank", self._rank_name, alpha)[0]

    def _links(self, alpha: float) -> Family:
        """Judge links between hosts that no slow host explains."""
        links = self.inter.gathered(self.host)
        explained = np.isin(
            links.source, [host for host, way in self.ways.items() if way != "receives"]
        )
        explained |= np.isin(
            links.target, [host for host, way in self.ways.items() if way != "sends"]
        )
        judged_links, family = self._single(links[~explained], self.names.__getitem__, alpha)
        return merge_uplink(
            family, judged_links.source, judged_links.target, self.names, leave_out=set(self.ways)
        )

    # --------------------------------------------------------------------------------- within hosts

    def _hosts_within(self, alpha: float) -> Family:
        """Judge hosts by the median pair of their own ranks."""
        values = grouped_quantile(
            self.intra.values, self.host[self.intra.source], len(self.names), 0.5
        )

        def say(host: int, _: Judgement) -> Words:
            name = self.names[host]
            return Words(
                name=name,
                does=": pairs of its own ranks take {} as long as the others'",
                links=[(name, name)],
            )

        family = make_family("host", self.matrix.name, values, say, alpha)
        self.slow_within = set(family.judgement.slow)
        return family

    def _ranks_within(self, alpha: float) -> Family:
        """Judge ranks by their pairs on the same host.

        With three ranks a slow one can be identified.
        """
        host = self.host[self.intra.source]
        self.intra = self.intra[
            (self.per_host[host] >= FEWEST) & ~np.isin(host, list(self.slow_within))
        ]
        family, ways = self._scored(self.intra, "rank", self._rank_name, alpha)
        slow = np.isin(np.arange(len(self.host)), list(ways))
        self.intra = self.intra[~slow[self.intra.source] & ~slow[self.intra.target]]
        return family

    def _links_within(self, alpha: float) -> Family:
        """Judge pairs of ranks on one host that neither the host nor a rank explains."""
        return self._single(self.intra, self._rank_name, alpha)[1]

    # ----------------------------------------------------------------------------------- both kinds

    def _rank_name(self, rank: int) -> str:
        return f"rank {rank}{f' on {self.names[self.host[rank]]}' if len(self.names) > 1 else ''}"

    def _scored(
        self, links: Links, kind: str, name: Callable[[int], str], alpha: float
    ) -> tuple[Family, dict[int, str]]:
        """Judge units by their links.

        Return the family and each slow unit's direction: sends, receives or both.
        """
        sends, receives = links.scores(len(self.names) if kind == "host" else len(self.host))

        def way(unit: int, judgement: Judgement) -> str:
            return "both" if links.is_symmetric else _way(unit, sends, receives, judgement)

        def say(unit: int, judgement: Judgement) -> Words:
            direction, label = way(unit, judgement), name(unit)
            touched = {
                "sends": [(label, ANY)],
                "receives": [(ANY, label)],
                "both": [(label, ANY), (ANY, label)],
            }
            return Words(name=label, does=_DOES[direction], links=touched[direction])

        family = make_family(kind, self.matrix.name, np.fmax(sends, receives), say, alpha)
        return family, {unit: way(unit, family.judgement) for unit in family.judgement.slow}

    def _single(
        self, links: Links, name: Callable[[int], str], alpha: float
    ) -> tuple[Links, Family]:
        """Judge links one by one; return the judged links and the family.

        Symmetric links count once.
        """
        symmetric = links.is_symmetric
        judged_links = links[links.source < links.target] if symmetric else links

        def say(link: int, _: Judgement) -> Words:
            ends = name(int(judged_links.source[link])), name(int(judged_links.target[link]))
            return Words(
                name=f" {'-' if symmetric else '->'} ".join(ends),
                does=" takes {} as long as the typical link",
                links=[ends, ends[::-1]] if symmetric else [ends],
            )

        return judged_links, make_family(
            "link", self.matrix.name, judged_links.values, say, alpha, is_minority=False
        )

    def _remarks(self) -> list[str]:
        """Return one sentence for each question that so few hosts or ranks leave open."""
        hosts, ranks = len(self.names), len(self.host)
        if hosts == 2:  # noqa: PLR2004 - the two ends of one link
            return [
                (
                    f"{self._two_hosts()}with two hosts it cannot be told which of the two is slow;"
                    " add a third"
                )
            ]
        if ranks == 2:  # noqa: PLR2004 - as above
            return ["with two ranks it cannot be told which of the two is slow; add a third"]
        return []

    def _two_hosts(self) -> str:
        """Return whether one direction between two hosts is slower than the other, in words."""
        links = self.inter.gathered(self.host)
        if links.is_symmetric or len(links) != 2:  # noqa: PLR2004 - there and back, unless one could not be timed
            return ""
        difference = links.values[:, 0] - links.values[:, 1]
        difference = difference[np.isfinite(difference)]
        if not len(difference):
            return ""
        middle = float(np.median(difference))
        steady = bool((np.sign(difference) == np.sign(middle)).all())
        if not steady or abs(middle) < math.log(RELEVANT):
            return ""
        first, second = self.names if middle > 0 else reversed(self.names)
        return f"{first} to {second} takes {math.exp(abs(middle)):.2g} times as long as back, but "


_DOES = {
    "both": ": its links take {} as long as the others'",
    "sends": ": sending takes it {} as long as the others",
    "receives": ": receiving takes it {} as long as the others",
}


def _way(unit: int, sends: Floats, receives: Floats, judgement: Judgement) -> str:
    """Return whether a slow unit is slow as sender, receiver or both: both if the better direction
    is half as slow.
    """
    is_valid = np.isfinite(judgement.effects)
    is_valid[list(judgement.slow)] = False
    send, receive = (
        float(np.median(scores[:, unit] - np.median(scores[:, is_valid], axis=1)))
        for scores in (sends, receives)
    )
    if min(send, receive) > max(send, receive) / 2:
        return "both"
    return "sends" if send > receive else "receives"


def numbered_hosts(hosts: Sequence[str]) -> tuple[list[str], Integers]:
    """Return the hosts' names in the order of their first rank, and each rank's host number."""
    names = list(dict.fromkeys(hosts))
    number = {name: index for index, name in enumerate(names)}
    return names, np.array([number[host] for host in hosts], dtype=np.int64)
