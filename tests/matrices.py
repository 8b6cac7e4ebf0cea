"""Simulated matrices of pairs with slow parts and seeded noise."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from builders import MIB, make_case, make_info, make_record

from commbench.collectives.cases import Case
from commbench.engine.records import Pairs, Record

INTER_US, INTRA_US = 100.0, 30.0

Slowness = Callable[[int, int], float]
"""How many times as long a pair takes, by the numbers of its hosts (or of its ranks) from 0."""


class Pair(NamedTuple):
    """The fields of `Pairs` of one pair."""

    source: int
    target: int
    time_us: float
    time_us_p95: float
    repetitions: int
    wrong: int | None


def pairs_of(record: Record) -> list[Pair]:
    """Return the pairs of a record one by one."""
    return [Pair(*values) for values in zip(*vars(record.pairs).values(), strict=True)]


def joined(pairs: Iterable[Pair]) -> Pairs:
    """Return pairs as a record holds them."""
    return Pairs(**dict(zip(Pair._fields, zip(*pairs, strict=True), strict=True)))


def make_hosts(hosts: int, ranks_per_host: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the ``run.json`` of a run on host1, host2, ... with ranks on each."""
    ranks = [
        {"rank": rank, "host": f"host{rank // ranks_per_host + 1}"}
        for rank in range(hosts * ranks_per_host)
    ]
    return make_info(
        ranks=ranks, world_size=len(ranks), nodes=hosts, ranks_per_node=ranks_per_host, **changes
    )


def make_matrix(
    hosts: int,
    ranks_per_host: int = 1,
    *,
    launches: int = 6,
    noise: float = 0.03,
    host_slowness: Slowness = lambda _a, _b: 1.0,
    rank_slowness: Slowness = lambda _a, _b: 1.0,
    symmetric: bool = False,
    seed: int = 0,
    case: Case | None = None,
    **changes: Any,
) -> list[Record]:
    """Return one record per launch of a matrix with noise (standard deviation of the logarithm)."""
    case = case or make_case("bandwidth", pattern="matrix", message_bytes=MIB)
    random = np.random.default_rng(seed)
    ranks = hosts * ranks_per_host
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    records = []
    for launch in range(launches):
        noisy = np.exp(random.normal(0, noise, (ranks, ranks)))
        if symmetric:
            noisy = np.triu(noisy) + np.triu(noisy).T
        times = []
        for a, b in pairs:
            one, other = a // ranks_per_host, b // ranks_per_host
            typical = (INTRA_US if one == other else INTER_US) * noisy[a, b]
            times.append(float(typical * host_slowness(one, other) * rank_slowness(a, b)))
        lines = [
            Pair(a, b, time, 1.1 * time, 30, 0) for (a, b), time in zip(pairs, times, strict=True)
        ]
        fields = {"pairs": joined(lines), "times_us": times, **changes}
        records.append(make_record(case, launch=launch, **fields))
    return records


def without(records: list[Record], *pairs: tuple[int, int], **changes: Any) -> list[Record]:
    """Return the records as if no repetition of these pairs had started on time."""
    kept = [[pair for pair in pairs_of(record) if pair[:2] not in pairs] for record in records]
    return [
        replace(record, pairs=joined(timed), **changes)
        for record, timed in zip(records, kept, strict=True)
    ]


def touching(unit: int, factor: float) -> Slowness:
    """Return the rule that all pairs with one rank are slow."""
    return lambda a, b: factor if unit in {a, b} else 1.0


def sending(unit: int, factor: float) -> Slowness:
    """Return the rule that all messages from one rank are slow."""
    return lambda a, b: factor if a == unit != b else 1.0


def receiving(unit: int, factor: float) -> Slowness:
    """Return the rule that all messages to one rank are slow."""
    return lambda a, b: factor if b == unit != a else 1.0


def crossing(first: int, factor: float) -> Slowness:
    """Return the rule that pairs between the ``first`` hosts and the others are slow."""
    return lambda a, b: factor if (a < first) != (b < first) else 1.0
