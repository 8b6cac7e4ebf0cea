"""Overhead of a framework over a library: the same operation timed through both, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commbench.collectives.backends import BACKENDS
from commbench.engine.records import Row, column

#: By backend that calls a library through a framework: the backend that calls the same library
#: directly.
PATHS = {backend.name: backend.direct for backend in BACKENDS.values() if backend.direct}
#: Columns in which two rows must agree to differ by the framework only.
ALIKE = (
    *(
        "operation",
        "pattern",
        "group",
        "world_size",
        "group_size",
        "ranks_per_gpu",
        "dtype",
        "redop",
        "root",
    ),
    *("in_place", "message_bytes", "cadence", "buffers", "algorithm_requested", "env"),
)


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """One case by both paths."""

    backend: str = column("of the path through the framework")
    operation: str = column("what was timed")
    pattern: str = column("who talks to whom")
    message_bytes: int | None = column("nccl-tests' size: the larger buffer")
    ranks_per_gpu: int | None = column("most ranks on one GPU")
    direct_us: float = column("time by the library's own call")
    through_us: float = column("time through the framework")
    added_us: float = column("what the framework adds")
    added_us_ci_low: float | None = column(
        "from the 95 % intervals of both times: where the addition is least"
    )
    added_us_ci_high: float | None = column("and where it is greatest")

    @property
    def share(self) -> float:
        """The added time as a share of the library's own time."""
        return self.added_us / self.direct_us


def overheads(rows: Iterable[Row]) -> list[Overhead]:
    """Return every case that was timed both ways, in the order of the rows."""
    timed = [row for row in rows if row.status == "ok" and row.time_us]
    by_case = {(row.backend, _case_of(row)): row for row in timed}
    pairs = (
        (by_case.get((PATHS[row.backend], _case_of(row))), row)
        for row in timed
        if row.backend in PATHS
    )
    return [_between(direct, through) for direct, through in pairs if direct is not None]


def _case_of(row: Row) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in ALIKE)


def _between(direct: Row, through: Row) -> Overhead:
    """Return the difference with a conservative interval: each time may be anywhere in its own
    interval.
    """
    return Overhead(
        backend=through.backend,
        operation=through.operation,
        pattern=through.pattern,
        message_bytes=through.message_bytes,
        ranks_per_gpu=through.ranks_per_gpu,
        direct_us=direct.time_us or 0.0,
        through_us=through.time_us or 0.0,
        added_us=(through.time_us or 0.0) - (direct.time_us or 0.0),
        added_us_ci_low=_difference(through.time_us_ci_low, direct.time_us_ci_high),
        added_us_ci_high=_difference(through.time_us_ci_high, direct.time_us_ci_low),
    )


def _difference(minuend: float | None, subtrahend: float | None) -> float | None:
    return None if minuend is None or subtrahend is None else minuend - subtrahend
