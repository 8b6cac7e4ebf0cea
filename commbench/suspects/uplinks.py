"""Slow links that are all links between two parts of the hosts are named once: as what joins the parts."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from commbench import stats
from commbench.suspects.findings import Family, Suspect
from commbench.suspects.judging import Floats

Integers = NDArray[np.int64]

#: The share of the slow links that must run between the parts.
MOST = 0.9
#: So many hosts of a part are written out.
SHOWN = 4


def merge_uplink(
    family: Family, source: Integers, target: Integers, names: Sequence[str], *, leave_out: Collection[int]
) -> Family:
    """The family with one suspect in place of its slow links if these are just what joins parts of the hosts.

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
    by_link = dict(zip(slow, family.suspects, strict=True))
    merged = [by_link.pop(link) for link in between]
    in_launches = np.median(family.judgement.launches[:, between], axis=1)
    return replace(family, suspects=[_uplink(merged, in_launches, parts, names), *by_link.values()])


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
    merged: Sequence[Suspect], in_launches: Floats, parts: Sequence[Sequence[int]], names: Sequence[str]
) -> Suspect:
    """What joins the parts: as slow as the median of its links."""
    interval = stats.launch_interval(np.exp(in_launches))
    return Suspect(
        kind="uplink",
        name=f"links between {' and '.join(_listed([names[host] for host in part]) for part in parts)}",
        does=" take {} as long as the typical link",
        measured=merged[0].measured,
        factor=math.exp(float(np.median(in_launches))),
        ci=(interval.low, interval.high) if interval else None,
        steadiness=f"all {len(merged)} are slow",
        links=[link for suspect in merged for link in suspect.links],
    )


def _listed(names: Sequence[str]) -> str:
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])}, ... ({len(names)} hosts)"
