"""Overhead of a framework over a library: the same operation timed through both, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from commbench.collectives.backends import BACKENDS
from commbench.engine.records import Row, column, copied

#: By backend that calls a library through a framework: the backend that calls the same library
#: directly.
PATHS = {backend.name: backend.direct for backend in BACKENDS.values() if backend.direct}
#: Columns in which two rows must agree to differ by the framework only.
ALIKE = (
    "operation",
    "pattern",
    "group",
    "world_size",
    "group_size",
    "ranks_per_gpu",
    "dtype",
    "redop",
    "root",
    "in_place",
    "message_bytes",
    "cadence",
    "buffers",
    "algorithm_requested",
    "env",
)


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """One case by both paths."""

    backend: str = column("of the path through the framework")
    operation: str = column("what was timed")
    pattern: str = column("who talks to whom")
    message_bytes: int | None = column("nccl-tests' size: the larger buffer", heading="size")
    ranks_per_gpu: int | None = column("most ranks on one GPU")
    direct_us: float = column("time by the library's own call", heading="NCCL alone")
    through_us: float = column("time through the framework", heading="through torch")
    added_us: float = column("what the framework adds")
    added_us_ci_low: float | None = column(
        "from the 95 % intervals of both times: where the addition is least"
    )
    added_us_ci_high: float | None = column("and where it is greatest")


def overheads(rows: Iterable[Row]) -> list[Overhead]:
    """Return every case that was timed both ways, in the order of the rows.

    The interval of a difference is conservative: each time may be anywhere in its own interval.
    """
    timed = [row for row in rows if row.status == "ok" and row.time_us]
    case_of = attrgetter(*ALIKE)
    by_case = {(row.backend, case_of(row)): row for row in timed}
    found = []
    for row in timed:
        direct = by_case.get((PATHS.get(row.backend, ""), case_of(row)))
        if direct is None or not direct.time_us or not row.time_us:
            continue
        columns = copied(Overhead, row)
        for end, other in (("low", "high"), ("high", "low")):
            through_us = getattr(row, f"time_us_ci_{end}")
            direct_us = getattr(direct, f"time_us_ci_{other}")
            if through_us is not None and direct_us is not None:
                columns[f"added_us_ci_{end}"] = through_us - direct_us
        overhead = Overhead(
            **columns,
            direct_us=direct.time_us,
            through_us=row.time_us,
            added_us=row.time_us - direct.time_us,
        )
        found.append(overhead)
    return found
