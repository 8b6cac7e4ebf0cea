"""Slow hosts, ranks and links in a matrix of pairs, from coarse to fine; slow uplinks are named once.

A slow host is slow with everyone, a healthy one is fast with every other healthy one. So a host's score is not its
typical link but the lower quartile over its partners: with one slow host among four, half of all links are slow, and
yet each healthy host keeps two good ones. Sending and receiving are scored apart, and the worse of the two counts, so
that what is slow in one direction only is found too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from commbench import stats
from commbench.analysis.stragglers.findings import ANY, Family, Findings, Straggler, Words, make_family
from commbench.analysis.stragglers.judging import RELEVANT, Floats, Judgement
from commbench.results.pairs import Matrix
from commbench.units import format_size

#: The share of the slow links that must run between the parts.
MOST = 0.9
#: So many hosts of a part are written out.
SHOWN = 4


def merge_uplink(
    family: Family, source: Integers, target: Integers, names: Sequence[str], *, leave_out: Collection[int]
) -> Family:
    """The family with one straggler in place of its slow links if these are just what joins parts of the hosts.

    Parts are hosts that reach each other over links that are not slow, directly or by others. Where there are several
    of two hosts or more, every link between two of them is slow: the racks' uplinks or the switch between them are.

    Args:
        family: of links, judged.
        source: host at which each link of the family begins.
        target: host at which it ends.
        names: of all hosts.
        leave_out: slow hosts, whose links are no part of the family.
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
    place = np.full(len(names), -1)
    for number, part in enumerate(parts):
        place[part] = number
    between = [link for link in slow if place[source[link]] != place[target[link]]]
    if len(parts) < 2 or min(map(len, parts)) < 2 or len(between) < MOST * len(slow):  # noqa: PLR2004 - two of two
        return family
    by_link = dict(zip(slow, family.stragglers, strict=True))
    merged = [by_link.pop(link) for link in between]
    in_launches = np.median(family.judgement.launches[:, between], axis=1)
    return replace(family, stragglers=[_uplink(merged, in_launches, parts, names), *by_link.values()])


def _parts(linked: NDArray[np.bool_], leave_out: Collection[int]) -> list[list[int]]:
    """Hosts that reach each other over ``linked``, (hosts, hosts)."""
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
    merged: Sequence[Straggler], in_launches: Floats, parts: Sequence[Sequence[int]], names: Sequence[str]
) -> Straggler:
    """What joins the parts: as slow as the median of its links."""
    interval = stats.launch_interval(np.exp(in_launches))
    return Straggler(
        kind="uplink",
        name=f"links between {' and '.join(_listed([names[host] for host in part]) for part in parts)}",
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


Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

#: Which partner of a unit stands for it: a quarter of them must be fast with it.
GOOD_SHARE = 0.25
#: The parts of the levels in the false alarms that may be, by their methods' names: chosen so that four hosts and six
#: launches suffice to name something on each level, and one host also where in one launch another one was slower.
_PARTS = {"_hosts": 55, "_hosts_within": 8, "_links": 7}
_OTHER_PART = 2
#: The fewest units of which one can be the odd one.
FEWEST = 3


@dataclass(frozen=True, kw_only=True)
class Links:
    """Times between units as logarithms, (launches, links), and which units each link joins."""

    source: Integers
    target: Integers
    values: Floats

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, chosen: Booleans) -> Links:
        """Some of the links."""
        return Links(source=self.source[chosen], target=self.target[chosen], values=self.values[:, chosen])

    def gathered(self, place: Integers) -> Links:
        """The links between the places of the units, each the median of those it consists of."""
        code = place[self.source] * (int(place.max()) + 1) + place[self.target]
        codes, number = np.unique(code, return_inverse=True)
        values = grouped_quantile(self.values, number, len(codes), 0.5)
        return Links(source=codes // (int(place.max()) + 1), target=codes % (int(place.max()) + 1), values=values)

    def scores(self, units: int) -> tuple[Floats, Floats]:
        """How well each unit sends and receives, (launches, units): the lower quartile over its partners."""
        return (
            grouped_quantile(self.values, self.source, units, GOOD_SHARE),
            grouped_quantile(self.values, self.target, units, GOOD_SHARE),
        )

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether both directions of each pair have the same times, because they were measured as one."""
        if not len(self):
            return False
        units = int(max(self.source.max(), self.target.max())) + 1
        forth, back = self.source * units + self.target, self.target * units + self.source
        one, other = np.argsort(forth), np.argsort(back)
        same = np.array_equal(forth[one], back[other])
        return same and bool(np.array_equal(self.values[:, one], self.values[:, other], equal_nan=True))


def grouped_quantile(values: Floats, group: Integers, groups: int, share: float) -> Floats:
    """The quantile of each group of columns in each launch, (launches, groups): a value that occurs, the lower of two.

    NaN where a group has no values.
    """
    quantiles = np.full((len(values), groups), np.nan)
    for line, result in zip(values, quantiles, strict=True):
        known = np.isfinite(line)
        chosen, member = line[known], group[known]
        counts = np.bincount(member, minlength=groups)
        ordered = chosen[np.lexsort((chosen, member))]
        first = np.cumsum(counts) - counts
        place = first + np.maximum(np.ceil(share * counts).astype(np.int64) - 1, 0)
        result[counts > 0] = ordered[place[counts > 0]]
    return quantiles


def judge_matrix(matrix: Matrix, alpha: float) -> Findings:
    """Name the slow hosts, ranks and links of a matrix.

    Args:
        matrix: wrong data is left out; without known hosts all ranks count as on one.
        alpha: how probable it may be that anything at all is named where all are alike.
    """
    return _Search(matrix, alpha).findings()


class _Search:
    """The levels of one matrix. Between hosts and within them are searched apart: their times are of two kinds."""

    def __init__(self, matrix: Matrix, alpha: float) -> None:
        self.matrix = matrix
        self.alpha = alpha
        self.names, self.host = places(matrix.hosts)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(np.where(matrix.is_sound & (matrix.times_us > 0), matrix.times_us, np.nan))
        links = Links(source=matrix.source, target=matrix.target, values=values)
        self.inter, self.intra = links[matrix.is_inter], links[~matrix.is_inter]
        self.per_host = np.bincount(self.host)
        self.measured = f"{matrix.case.backend} {matrix.case.operation} {format_size(matrix.case.message_bytes)}"
        self.ways: dict[int, str] = {}
        """In which way each slow host is slow."""
        self.slow_within: set[int] = set()
        """Hosts whose own pairs are slow."""

    def findings(self) -> Findings:
        """All levels that these hosts and ranks allow, each with its share of the false alarms that may be."""
        levels = self._levels()
        parts = [_PARTS.get(level.__name__, _OTHER_PART) for level in levels]
        families = [level(self.alpha * part / sum(parts)) for level, part in zip(levels, parts, strict=True)]
        return Findings(families=families, remarks=self._remarks())

    def _levels(self) -> list[Callable[[float], Family]]:
        hosts, ranks = len(self.names), len(self.host)
        several = int((self.per_host > 1).sum())
        many = bool((self.per_host >= FEWEST).any())
        wanted: list[tuple[bool, Callable[[float], Family]]] = [
            (hosts >= FEWEST, self._hosts),
            (hosts > 1 and several > 0 and ranks >= FEWEST, self._ranks),
            (hosts >= FEWEST, self._links),
            (several >= FEWEST, self._hosts_within),
            (many, self._ranks_within),
            (many, self._links_within),
        ]
        return [level for is_wanted, level in wanted if is_wanted]

    # ------------------------------------------------------------------------------------------- between hosts

    def _hosts(self, alpha: float) -> Family:
        family, self.ways = self._scored(self.inter.gathered(self.host), "host", self.names.__getitem__, alpha)
        return family

    def _ranks(self, alpha: float) -> Family:
        """Ranks against the ranks of all hosts that are not slow as a whole."""
        slow = np.isin(self.host, list(self.ways))
        links = self.inter[~slow[self.inter.source] & ~slow[self.inter.target]]
        return self._scored(links, "rank", self._rank_name, alpha)[0]

    def _links(self, alpha: float) -> Family:
        """Links between hosts that no slow host explains."""
        links = self.inter.gathered(self.host)
        explained = np.isin(links.source, [host for host, way in self.ways.items() if way != "receives"])
        explained |= np.isin(links.target, [host for host, way in self.ways.items() if way != "sends"])
        judged, family = self._single(links[~explained], self.names.__getitem__, alpha)
        return merge_uplink(family, judged.source, judged.target, self.names, leave_out=set(self.ways))

    # -------------------------------------------------------------------------------------------- within hosts

    def _hosts_within(self, alpha: float) -> Family:
        """Hosts by the typical pair of their own ranks."""
        values = grouped_quantile(self.intra.values, self.host[self.intra.source], len(self.names), 0.5)

        def say(host: int, _: Judgement) -> Words:
            name = self.names[host]
            return Words(
                name=name, does=": pairs of its own ranks take {} as long as the others'", links=[(name, name)]
            )

        family = make_family("host", self.measured, values, say, alpha)
        self.slow_within = set(family.judgement.slow)
        return family

    def _ranks_within(self, alpha: float) -> Family:
        """Ranks by their pairs on the same host, where a third rank allows to tell whose it is."""
        host = self.host[self.intra.source]
        self.intra = self.intra[(self.per_host[host] >= FEWEST) & ~np.isin(host, list(self.slow_within))]
        family, ways = self._scored(self.intra, "rank", self._rank_name, alpha)
        slow = np.isin(np.arange(len(self.host)), list(ways))
        self.intra = self.intra[~slow[self.intra.source] & ~slow[self.intra.target]]
        return family

    def _links_within(self, alpha: float) -> Family:
        """Pairs of ranks on one host that neither the host nor a rank explains."""
        return self._single(self.intra, self._rank_name, alpha)[1]

    # --------------------------------------------------------------------------------------------- both kinds

    def _rank_name(self, rank: int) -> str:
        return f"rank {rank}{f' on {self.names[self.host[rank]]}' if len(self.names) > 1 else ''}"

    def _scored(
        self, links: Links, kind: str, name: Callable[[int], str], alpha: float
    ) -> tuple[Family, dict[int, str]]:
        """Judge units by their links; also in which way each slow one is slow."""
        sends, receives = links.scores(len(self.names) if kind == "host" else len(self.host))

        def way(unit: int, judgement: Judgement) -> str:
            return "both" if links.is_symmetric else _way(unit, sends, receives, judgement)

        def say(unit: int, judgement: Judgement) -> Words:
            how, own = way(unit, judgement), name(unit)
            touched = {"sends": [(own, ANY)], "receives": [(ANY, own)], "both": [(own, ANY), (ANY, own)]}
            return Words(name=own, does=_DOES[how], links=touched[how])

        family = make_family(kind, self.measured, np.fmax(sends, receives), say, alpha)
        return family, {unit: way(unit, family.judgement) for unit in family.judgement.slow}

    def _single(self, links: Links, name: Callable[[int], str], alpha: float) -> tuple[Links, Family]:
        """Judge links one by one, and return which; both directions of those that were measured as one count once."""
        symmetric = links.is_symmetric
        judged = links[links.source < links.target] if symmetric else links

        def say(link: int, _: Judgement) -> Words:
            ends = name(int(judged.source[link])), name(int(judged.target[link]))
            return Words(
                name=f" {'-' if symmetric else '->'} ".join(ends),
                does=" takes {} as long as the typical link",
                links=[ends, ends[::-1]] if symmetric else [ends],
            )

        return judged, make_family("link", self.measured, judged.values, say, alpha, minority=False)

    def _remarks(self) -> list[str]:
        """What cannot be told of so few."""
        hosts, ranks = len(self.names), len(self.host)
        if hosts == 2:  # noqa: PLR2004 - the two ends of one link
            return [f"{self._two_hosts()}with two hosts it cannot be told which of the two is slow; add a third"]
        if ranks == 2:  # noqa: PLR2004 - as above
            return ["with two ranks it cannot be told which of the two is slow; add a third"]
        return []

    def _two_hosts(self) -> str:
        """Whether one direction between two hosts is slower than the other."""
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
    """Whether a slow unit is slow as a sender, as a receiver, or both: so if the better way is half as slow."""
    alike = np.isfinite(judgement.effects)
    alike[list(judgement.slow)] = False
    send, receive = (
        float(np.median(scores[:, unit] - np.median(scores[:, alike], axis=1))) for scores in (sends, receives)
    )
    if min(send, receive) > max(send, receive) / 2:
        return "both"
    return "sends" if send > receive else "receives"


def places(hosts: Sequence[str]) -> tuple[list[str], Integers]:
    """The names of the hosts in the order of their first rank, and the number of each rank's."""
    names = list(dict.fromkeys(hosts))
    number = {name: place for place, name in enumerate(names)}
    return names, np.array([number[host] for host in hosts], dtype=np.int64)
