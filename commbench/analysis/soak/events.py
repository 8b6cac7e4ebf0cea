"""Spikes of the system or of one rank, and failed launches, in a soak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

import numpy as np

from commbench.analysis.soak.rows import EventRow
from commbench.collectives.patterns import rank_list, ranks_of
from commbench.engine.records import Interruption, Point, Record
from commbench.findings import Finding
from commbench.results.info import Launch, RunInfo, host_by_rank
from commbench.results.summary import run_columns
from commbench.units import utc_text

Points = Sequence[tuple[Record, Point]]

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
    lasted_s: float
    ranks: Sequence[int]
    """Ranks that caused it; empty if none stands out."""
    participants: int
    """Number of ranks among which these are."""
    record: Record
    is_stall: bool = False

    @property
    def ended_s(self) -> float:
        return self.begun_s + self.lasted_s


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


def find_events(points: Points, info: RunInfo) -> list[EventRow]:
    """Return spikes and failed launches, in the order of time.

    Args:
        points: with their records, in the order of time.
        info: contents of ``run.json``.
    """
    groups: list[list[_Part]] = []
    for part in sorted(_parts(points, info), key=attrgetter("begun_s")):
        if not groups or part.begun_s > max(each.ended_s for each in groups[-1]) + TOGETHER_S:
            groups.append([])
        groups[-1].append(part)
    begun_s = points[0][1].at_s
    rows = [_spike(group, info, begun_s) for group in groups]
    rows += _failures([point for _, point in points], info)
    return sorted(rows, key=attrgetter("elapsed_s"))


def _parts(points: Points, info: RunInfo) -> Iterator[_Part]:
    """Yield the interruptions that are spikes, and the stalls."""
    longest_s: dict[str, list[float]] = {}
    for record, point in points:
        if point.longest:
            longest_s.setdefault(record.case.key, []).append(point.longest[0].lasted_s)
    visits = sum(map(len, longest_s.values()))
    limits_s = {case: spike_limit_s(of_case, visits) for case, of_case in longest_s.items()}
    for record, point in points:
        participants = ranks_of(record.group)
        for each in point.longest:
            if each.lasted_s > limits_s[record.case.key]:
                yield _Part(
                    begun_s=each.at_s,
                    lasted_s=each.lasted_s,
                    ranks=[participants[place] for place in late_places(each)],
                    participants=len(participants),
                    record=record,
                )
        for stall in point.stalls:
            yield _Part(
                begun_s=stall.at_s,
                lasted_s=stall.lasted_s,
                ranks=[stall.rank],
                participants=info.get("world_size") or 0,
                record=record,
                is_stall=True,
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


def _spike(parts: Sequence[_Part], info: RunInfo, soak_begun_s: float) -> EventRow:
    """Return the event that parts are of: stalls name its ranks, else its longest interruption
    does.
    """
    begun_s, ended_s = parts[0].begun_s, max(part.ended_s for part in parts)
    longest = max(parts, key=attrgetter("lasted_s"))
    least_s = CAUSE_SHARE * (ended_s - begun_s)
    causes = [part for part in parts if part.is_stall and part.lasted_s >= least_s] or [longest]
    ranks = {rank for part in causes for rank in part.ranks}
    if 2 * len(ranks) > max(2, longest.participants):
        ranks.clear()
    hosts = host_by_rank(info)
    names = {hosts.get(rank, "") for rank in ranks}
    host = names.pop() if len(names) == 1 else ""
    scope = "ranks"
    if len(ranks) < 2:  # a single rank
        scope = "rank" if ranks else "system"
    elif host and ranks == {rank for rank, name in hosts.items() if name == host}:
        scope = "host"
    return EventRow(
        **run_columns(info),
        kind="spike",
        scope=scope,
        time=utc_text(begun_s),
        elapsed_s=round(begun_s - soak_begun_s, 3),
        duration_s=round(ended_s - begun_s, 3),
        ranks=rank_list(sorted(ranks)) if ranks else "",
        host=host,
        launch=longest.record.launch,
        case=str(longest.record.case),
        reason=str(Finding(_EVIDENCE[causes[0].is_stall, bool(ranks)])),
    )


def _failures(points: Sequence[Point], info: RunInfo) -> list[EventRow]:
    """Return the launches that failed or hung.

    Starts that failed until the next result belong to the first one.
    """
    rows: dict[str, EventRow] = {}
    for entry in info.get("launches", ()):
        if entry.get("status") in {"failed", "hung"}:
            row = _failure(entry, points, info)
            rows.setdefault(row.time, row)
    return list(rows.values())


def _failure(entry: Launch, points: Sequence[Point], info: RunInfo) -> EventRow:
    started_s = datetime.fromisoformat(str(entry.get("started"))).timestamp()
    ended_s = started_s + entry.get("seconds", 0.0)
    before = [point.at_s + point.lasted_s for point in points if point.at_s < ended_s]
    last_s = max(before, default=started_s)
    next_s = min((point.at_s for point in points if point.at_s >= ended_s), default=ended_s)
    failed_rank = entry.get("failed_rank") or {}
    rank, host = failed_rank.get("rank"), failed_rank.get("host") or ""
    scope = "system"
    if rank is not None:
        scope = "rank"
    elif host:
        scope = "host"
    return EventRow(
        **run_columns(info),
        kind=entry.get("status", ""),
        scope=scope,
        time=utc_text(last_s),
        elapsed_s=round(last_s - points[0].at_s, 3),
        duration_s=round(next_s - last_s, 3),
        ranks="" if rank is None else str(rank),
        host=host,
        launch=entry.get("launch"),
        case=failed_rank.get("case") or "",
        reason=entry.get("reason", ""),
    )
