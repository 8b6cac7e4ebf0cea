"""Spikes of the system or of one rank, and failed launches, in a soak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from commbench.analysis.soak.points import points_of
from commbench.analysis.soak.rows import EventRow
from commbench.collectives.patterns import rank_list, ranks_of
from commbench.engine.records import Interruption, Point, Record
from commbench.findings import Finding
from commbench.results.info import Launch, RunInfo, host_by_rank
from commbench.units import utc_text

#: An interruption that is shorter, in seconds, is no spike: operating systems take a core for so
#: long.
LEAST_SPIKE_S = 0.01
#: A spike lasts so many times as long as the longest interruption of 9 in 10 visits.
SPIKE_FACTOR, USUAL_SHARE = 10.0, 0.9
#: An interruption of this length is a spike even if the tail of the others makes one conceivable.
CERTAIN_S = 1.0
#: Probability that plain noise makes any spike in a soak.
FALSE_ALARM = 0.01
#: The quartile distance of a Gumbel distribution, in scales, and the least scale: visits never
#: agree to a percent.
_GUMBEL_QUARTILES, _LEAST_SCALE = 1.5725, 0.05
#: Quartiles of few visits are uncertain: the scale is multiplied by 1 + this over the number of
#: visits.
_SMALL_SAMPLE = 6.0
#: Parts of one event are at most this far apart: stalls are known to a quarter second.
TOGETHER_S = 1.0
#: A rank causes an event if it is late for, or does not run for, this share of it.
CAUSE_SHARE = 0.5
#: Code of the evidence of a spike, by whether processes did not run and whether ranks are named.
_EVIDENCE = {
    (False, False): "evidence_late_all",
    (False, True): "evidence_late",
    (True, False): "evidence_stalled_all",
    (True, True): "evidence_stalled",
}


@dataclass(frozen=True, kw_only=True)
class _Part:
    """An interruption or a stall: a part of an event."""

    begun_s: float
    ended_s: float
    ranks: frozenset[int]
    """Ranks that caused it; empty if none stands out."""
    participants: int
    """Number of ranks among which these are."""
    record: Record
    is_stall: bool = False

    @property
    def lasted_s(self) -> float:
        return self.ended_s - self.begun_s


def spike_limit_s(longest_s: Sequence[float], visits: int) -> float:
    """Return the duration in seconds above which an interruption is a spike.

    It is the largest of `LEAST_SPIKE_S`, `SPIKE_FACTOR` times what 9 in 10 visits stay below, and,
    up to `CERTAIN_S`, what noise exceeds in one of a hundred soaks. The longest interruptions of
    visits are taken as Gumbel-distributed on a logarithmic scale, which includes tails that fall by
    a power. Location and scale come from the quartiles, so that spikes do not hide themselves.

    Args:
        longest_s: the longest interruption of each visit of a case.
        visits: visits of all cases.
    """
    logs = np.log(np.maximum(longest_s, 1e-9))
    low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
    scale = max(_LEAST_SCALE, (high - low) / _GUMBEL_QUARTILES * (1 + _SMALL_SAMPLE / len(logs)))
    noise = middle + scale * (np.log(visits / FALSE_ALARM) + np.log(np.log(2)))
    usual_s = float(np.quantile(longest_s, USUAL_SHARE, method="lower"))
    return max(
        LEAST_SPIKE_S, SPIKE_FACTOR * usual_s, min(CERTAIN_S, float(np.exp(min(noise, 0.0))))
    )


def find_events(records: Sequence[Record], info: RunInfo, begun_s: float) -> list[EventRow]:
    """Return spikes and failed launches, in the order of time."""
    rows = [*_spikes(records, info, begun_s), *_failures(records, info, begun_s)]
    return sorted(rows, key=lambda row: row.elapsed_s or 0.0)


def _spikes(records: Sequence[Record], info: RunInfo, begun_s: float) -> Iterator[EventRow]:
    parts = sorted(
        [*_long_interruptions(records), *_stalls(records, info)], key=lambda part: part.begun_s
    )
    group: list[_Part] = []
    for part in parts:
        if group and part.begun_s > max(each.ended_s for each in group) + TOGETHER_S:
            yield _spike(group, info, begun_s)
            group = []
        group.append(part)
    if group:
        yield _spike(group, info, begun_s)


def _long_interruptions(records: Sequence[Record]) -> Iterator[_Part]:
    """Return the interruptions that are spikes."""
    by_case: dict[str, list[tuple[Record, Point]]] = {}
    for record, point in points_of(records):
        if point.longest:
            by_case.setdefault(record.case.key, []).append((record, point))
    visits = sum(map(len, by_case.values()))
    for points in by_case.values():
        limit_s = spike_limit_s([point.longest[0].lasted_s for _, point in points], visits)
        for record, point in points:
            participants = ranks_of(record.group)
            for each in point.longest:
                if each.lasted_s > limit_s:
                    ranks = frozenset(participants[place] for place in late_places(each))
                    yield _Part(
                        begun_s=each.at_s,
                        ended_s=each.at_s + each.lasted_s,
                        ranks=ranks,
                        participants=len(participants),
                        record=record,
                    )


def late_places(interruption: Interruption) -> list[int]:
    """Return the places of the participating ranks for which the others waited.

    Empty if none stands out.

    That is a minority, or one of two ranks, that arrived late for half of the interruption. If all
    arrived in time, it is a minority whose own time was so long.
    """
    for seconds in (interruption.arrival_s, interruption.rank_s):
        long = [place for place, s in enumerate(seconds) if s > CAUSE_SHARE * interruption.lasted_s]
        if long:
            return long if 2 * len(long) <= len(seconds) else []
    return []


def _stalls(records: Sequence[Record], info: RunInfo) -> Iterator[_Part]:
    world_size = info.get("world_size") or 0
    for record, point in points_of(records):
        for stall in point.stalls:
            yield _Part(
                begun_s=stall.at_s,
                ended_s=stall.at_s + stall.lasted_s,
                ranks=frozenset([stall.rank]),
                participants=world_size,
                record=record,
                is_stall=True,
            )


def _spike(parts: Sequence[_Part], info: RunInfo, begun_s: float) -> EventRow:
    """Return the event that parts are of: stalls name its ranks, else its longest interruption
    does.
    """
    begun, ended = min(part.begun_s for part in parts), max(part.ended_s for part in parts)
    longest = max(parts, key=lambda part: part.lasted_s)
    causes = [
        part for part in parts if part.is_stall and part.lasted_s >= CAUSE_SHARE * (ended - begun)
    ] or [longest]
    ranks = sorted({rank for part in causes for rank in part.ranks})
    if 2 * len(ranks) > max(2, longest.participants):
        ranks = []
    hosts = host_by_rank(info)
    names = {hosts.get(rank, "") for rank in ranks}
    host = names.pop() if len(names) == 1 else ""
    return EventRow(
        run_id=str(info.get("run_id", "")),
        kind="spike",
        scope=_scope(ranks, host, hosts),
        time=utc_text(begun),
        elapsed_s=round(begun - begun_s, 3),
        duration_s=round(ended - begun, 3),
        ranks=rank_list(ranks) if ranks else "",
        host=host,
        launch=longest.record.launch,
        case=str(longest.record.case),
        reason=str(Finding(_EVIDENCE[causes[0].is_stall, bool(ranks)])),
    )


def _scope(ranks: Sequence[int], host: str, hosts: Mapping[int, str]) -> str:
    """Return ``system``, ``rank``, ``host`` if they are all of its ranks, or ``ranks``."""
    if len(ranks) < 2:  # noqa: PLR2004 - a single rank
        return "rank" if ranks else "system"
    if host and {rank for rank, name in hosts.items() if name == host} == {*ranks}:
        return "host"
    return "ranks"


def _failures(records: Sequence[Record], info: RunInfo, begun_s: float) -> list[EventRow]:
    """Return the launches that failed or hung.

    Starts that failed until the next result belong to the first one.
    """
    points = [point for _, point in points_of(records)]
    rows: list[EventRow] = []
    for entry in info.get("launches") or ():
        if entry.get("status") not in {"failed", "hung"}:
            continue
        row = _failure(entry, points, info, begun_s)
        if rows and rows[-1].time == row.time:
            continue
        rows.append(row)
    return rows


def _failure(entry: Launch, points: Sequence[Point], info: RunInfo, begun_s: float) -> EventRow:
    started_s = datetime.fromisoformat(str(entry.get("started"))).timestamp()
    ended_s = started_s + entry.get("seconds", 0.0)
    before = [point.at_s + point.lasted_s for point in points if point.at_s < ended_s]
    last_s = max(before, default=started_s)
    next_s = min((point.at_s for point in points if point.at_s >= ended_s), default=ended_s)
    failed_rank = entry.get("culprit") or {}
    rank, host = failed_rank.get("rank"), failed_rank.get("host") or ""
    scope = "system"
    if rank is not None:
        scope = "rank"
    elif host:
        scope = "host"
    return EventRow(
        run_id=str(info.get("run_id", "")),
        kind=entry.get("status", ""),
        scope=scope,
        time=utc_text(last_s),
        elapsed_s=round(last_s - begun_s, 3),
        duration_s=round(next_s - last_s, 3),
        ranks="" if rank is None else str(rank),
        host=host,
        launch=entry.get("launch"),
        case=failed_rank.get("case") or "",
        reason=entry.get("reason", ""),
    )
