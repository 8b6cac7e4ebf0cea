"""Soaks with planted spikes, stalls and drift in plain noise."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from builders import make_case, make_info, make_record

from commbench.engine.records import Interruption, Point, Record, Stall

#: When a soak begins: 2026-11-25 04:00:00 UTC.
BEGUN_S = 1_795_579_200.0
#: Length of a launch and of its start-up, in seconds.
LAUNCH_S, STARTUP_S = 60.0, 3.0
#: Repetitions of a visit.
REPETITIONS = 10_000
HOSTS = ["n0", "n0", "n1", "n1"]

Place = tuple[int, int]
"""A launch and a visit in it."""


def soak_info(hosts: Sequence[str] = HOSTS, **changes: Any) -> dict[str, Any]:
    """Return ``run.json`` of a soak on these hosts, one entry a rank."""
    ranks = [{"rank": rank, "host": host} for rank, host in enumerate(hosts)]
    return make_info(ranks=ranks, world_size=len(hosts), launches=[], **changes)


def at_s(launch: int, visit: int, visits: int = 12) -> float:
    """Return when a visit begins."""
    return BEGUN_S + launch * (LAUNCH_S + STARTUP_S) + visit * LAUNCH_S / visits


def soak_records(
    seed: int = 0,
    *,
    launches: int = 20,
    visits: int = 12,
    change: float = 0.0,
    planted: Mapping[Place, Interruption] | None = None,
    stalls: Mapping[Place, Sequence[Stall]] | None = None,
    tail: float = 0.01,
    **case: Any,
) -> list[Record]:
    """Return one record a launch of an all-reduce of 10 us.

    Args:
        seed: of all noise: 2 % between launches, 1 % between visits, a longest repetition out of
            lognormal ones.
        launches: their number.
        visits: of each launch.
        change: of the time from the first launch to the last, as a share.
        planted: interruptions by the launch and visit in which they are.
        stalls: stalls of ranks by the launch and visit that report them.
        tail: share of visits with an interruption of 1 to 4 ms, as an operating system makes.
        case: fields of the case.
    """
    draw = np.random.default_rng(seed)
    records = []
    for launch in range(launches):
        typical_us = (
            10.0
            * np.exp(0.02 * draw.standard_normal())
            * (1 + change * launch / max(1, launches - 1))
        )
        points, times_us = [], []
        for visit in range(visits):
            median_us = float(typical_us * np.exp(0.01 * draw.standard_normal()))
            longest_s = 1e-6 * median_us * np.exp(0.3 * draw.standard_normal(REPETITIONS)).max()
            if draw.random() < tail:
                longest_s = draw.uniform(1e-3, 4e-3)
            begun_s = at_s(launch, visit, visits)
            longest = [even(begun_s, longest_s)]
            if planted and (launch, visit) in planted:
                longest.insert(0, planted[launch, visit])
            points.append(
                Point(
                    at_s=begun_s,
                    lasted_s=LAUNCH_S / visits,
                    repetitions=REPETITIONS,
                    late=0,
                    median_us=median_us,
                    slowest=1,
                    slowest_share=0.5,
                    longest=longest,
                    stalls=(stalls or {}).get((launch, visit), ()),
                )
            )
            times_us += [median_us] * 3
        record = make_record(make_case(**case), launch=launch, group="0-3", group_size=4)
        records.append(
            replace(record, times_us=times_us, visit_lengths=[3] * visits, points=points)
        )
    return records


def even(begun_s: float, lasted_s: float, ranks: int = 4) -> Interruption:
    """Return an interruption in which all ranks start at once and wait together."""
    return Interruption(
        at_s=begun_s,
        lasted_s=float(lasted_s),
        rank_s=[float(lasted_s)] * ranks,
        arrival_s=[0.0] * ranks,
    )


def waiting_for(
    late: Sequence[int], begun_s: float, lasted_s: float, ranks: int = 4
) -> Interruption:
    """Return an interruption in which all ranks wait for those that start late."""
    arrival_s = [lasted_s if rank in late else 0.0 for rank in range(ranks)]
    return Interruption(
        at_s=begun_s,
        lasted_s=lasted_s,
        rank_s=[lasted_s - arrived_s for arrived_s in arrival_s],
        arrival_s=arrival_s,
    )
