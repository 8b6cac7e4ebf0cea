"""Collectives as curves over message size: which rows make one series, and what stands at each of its sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.algorithms import AUTO
from commbench.cases import Case
from commbench.collectives import OPERATIONS
from commbench.prediction.links import Link, limit_of
from commbench.records import Row
from commbench.report.figures.axes import Estimate, estimate
from commbench.report.figures.words import run_names, varying
from commbench.sharing import measures_interconnect
from commbench.store import Run

#: Patterns that are no curve: a matrix is a figure of its own.
_OTHERWISE = frozenset({"matrix"})
#: What tells series apart, in the words of `Case`, and how a value is written.
_SPOKEN: Mapping[str, Callable[[Any], str]] = {
    "run": lambda value: f"{value}:",
    "in_place": lambda value: "in place" if value else "out of place",
    "root": lambda value: f"root {value}",
    "world_size": lambda value: f"{value} ranks" if value else "all ranks",
    "sync": lambda value: f"sync {value}",
    "loop": lambda value: f"{value} loop",
    "algorithm": lambda value: "own choice" if value == AUTO else f"by {value}",
}
_IDENTITY = (
    *("backend", "pattern", "dtype", "redop", "in_place", "root", "world_size"),
    *("buffers", "sync", "loop", "algorithm"),
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was measured of one case; of several groups at the same time the slowest, and what they move together."""

    size_bytes: int
    """0 for an operation without data."""
    time_us: Estimate | None
    busbw_GBps: Estimate | None  # noqa: N815 - a unit
    status: str
    reason: str
    launches: int
    limit: Link | None
    """The link that bounds the bus bandwidth; None where none is known to."""
    stated: str = ""
    """What another tool's time is; empty where commbench timed."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One series of an operation."""

    name: str
    """What tells it apart from the others of the operation."""
    readings: Sequence[Reading]
    """By ascending size."""

    @property
    def failed(self) -> list[Reading]:
        """What has no result or a wrong one, but for what the backend cannot do."""
        return [reading for reading in self.readings if reading.status not in {"ok", "unsupported"}]

    @property
    def is_unsupported(self) -> bool:
        """Whether the backend can do none of it."""
        return all(reading.status == "unsupported" for reading in self.readings)

    def points(self, what: str) -> dict[float, Estimate]:
        """Estimates by size: of ``time_us`` or ``busbw_GBps``."""
        known = {reading.size_bytes: getattr(reading, what) for reading in self.readings if reading.status == "ok"}
        return {size: point for size, point in known.items() if point is not None}


@dataclass(frozen=True, kw_only=True)
class Family:
    """All curves of one operation."""

    operation: str
    curves: Sequence[Curve]
    shared: str
    """What is the same in all of them, for people."""
    rows_sharing_gpus: int = 0
    """Rows of the operation that are in no curve, because their ranks shared a GPU."""

    @property
    def sizes(self) -> list[int]:
        """All message sizes, ascending."""
        return sorted({reading.size_bytes for curve in self.curves for reading in curve.readings})

    @property
    def links(self) -> list[Link]:
        """The links that bound any reading, the slowest first."""
        found = {r.limit for curve in self.curves for r in curve.readings if r.limit is not None}
        return sorted(found, key=lambda link: link.bound_bps or 0.0)


def families(runs: Sequence[Run]) -> list[Family]:
    """The curves of each operation of several runs, in the order of operations.

    What ranks did that share a GPU is no curve: it is not of an interconnect.
    """
    sharing: Counter[str] = Counter()
    found: dict[str, dict[tuple[str, ...], tuple[dict[str, Any], list[Reading]]]] = {}
    for run, name in zip(runs, run_names(runs), strict=True):
        stated = {record.case.key: record.stated.time for record in run.records if record.stated}
        for case, rows in _cases_of(run):
            if not all(map(measures_interconnect, rows)):
                sharing[case.operation] += len(rows)
                continue
            identity = {"run": name} | {field: getattr(case, field) for field in _IDENTITY}
            key = tuple(map(str, identity.values()))
            of_operation = found.setdefault(case.operation, {})
            reading = _reading(case, rows, run.info, stated.get(case.key, ""))
            of_operation.setdefault(key, (identity, []))[1].append(reading)
    several = len(runs) > 1
    return [
        _family(operation, list(found[operation].values()), several=several, rows_sharing_gpus=sharing[operation])
        for operation in OPERATIONS
        if operation in found
    ]


def _cases_of(run: Run) -> Iterable[tuple[Case, list[Row]]]:
    """Each case with its rows: one, or one for each group."""
    if not run.records:
        return []
    cases = {record.case.key: record.case for record in run.records}
    rows: dict[str, list[Row]] = {}
    for (key, _), row in run.keyed_rows.items():
        rows.setdefault(key, []).append(row)
    return [(cases[key], of_case) for key, of_case in rows.items() if cases[key].pattern not in _OTHERWISE]


def _family(
    operation: str,
    series: Sequence[tuple[Mapping[str, Any], list[Reading]]],
    *,
    several: bool,
    rows_sharing_gpus: int,
) -> Family:
    """The series of an operation, with what tells them apart: of several runs always whose each is."""
    identities = [identity for identity, _ in series]
    differing = [name for name in varying(identities) if name != "run"]
    names = [*(["run"] if several else []), *(differing or ["backend"])]
    shared = [name for name in ("backend", "pattern", "dtype", "redop") if name not in names]
    return Family(
        operation=operation,
        curves=[
            Curve(name=_spoken(identity, names), readings=sorted(readings, key=lambda r: r.size_bytes))
            for identity, readings in series
        ],
        shared=_spoken(identities[0], shared),
        rows_sharing_gpus=rows_sharing_gpus,
    )


def _spoken(identity: Mapping[str, Any], names: Iterable[str]) -> str:
    told = [name for name in names if identity[name] is not None or name == "world_size"]
    words = [_SPOKEN[name](identity[name]) if name in _SPOKEN else str(identity[name]) for name in told]
    return " ".join(filter(None, words))


def _reading(case: Case, rows: Sequence[Row], info: Mapping[str, Any], stated: str) -> Reading:
    broken = next((row for row in rows if row.status != "ok"), None)
    timed = [row for row in rows if row.time_us is not None]
    slowest = max(timed, key=lambda row: row.time_us or 0.0, default=None)
    of = slowest or rows[0]
    return Reading(
        size_bytes=case.message_bytes,
        time_us=estimate(of.time_us, of.time_us_ci_low, of.time_us_ci_high),
        busbw_GBps=_together([busbw_of(row) for row in rows]),
        status=broken.status if broken else "ok",
        reason=broken.reason if broken else "",
        launches=of.launches or 0,
        limit=limit_of(of, info),
        stated=stated,
    )


def busbw_of(row: Row) -> Estimate | None:
    """The bus bandwidth of a row with the interval that follows from the time's."""
    if row.busbw_GBps is None or not row.time_us:
        return None
    ends = (row.busbw_GBps * row.time_us / us if us else None for us in (row.time_us_ci_high, row.time_us_ci_low))
    return estimate(row.busbw_GBps, *ends)


def _together(rates: Sequence[Estimate | None]) -> Estimate | None:
    """What all groups move at once; an interval that surely holds theirs. None where a group has no rate."""
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    if len(known) == 1:
        return known[0]
    low, high = (sum(bounds) for bounds in zip(*(rate.bounds for rate in known), strict=True))
    return Estimate(value=sum(rate.value for rate in known), low=low, high=high)
