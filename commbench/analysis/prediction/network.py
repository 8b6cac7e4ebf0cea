"""The measured network: a curve for each operation, backend, data type, pattern and number of
ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commbench.analysis.prediction.curves import Curve, fit_curve
from commbench.collectives.algorithms import AUTO
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Record
from commbench.results.summary import latest, launch_medians
from commbench.schema import JsonObject

MODEL_SCHEMA = 2
#: A line through two sizes would have no error to report.
LEAST_SIZES = 3
#: Fitting takes cubic time in the number of sizes, and a decade needs only a few.
MOST_SIZES = 48


@dataclass(frozen=True, kw_only=True, order=True)
class CurveKey:
    """Operation, backend, data type, pattern and ranks of a curve."""

    operation: str
    backend: str
    dtype: str
    pattern: str
    world_size: int

    def __str__(self) -> str:
        pattern = "" if self.pattern == "flat" else f", pattern {self.pattern}"
        return (
            f"{self.backend} {self.operation} of {self.dtype} on {self.world_size} ranks{pattern}"
        )


@dataclass(frozen=True, kw_only=True)
class NetworkModel:
    """All curves of a run."""

    curves: Mapping[CurveKey, Curve]
    variants: Mapping[CurveKey, str] = field(default_factory=dict)
    """How a curve's measurements differ from DDP's communication, e.g.

    ``out of place``, if they do.
    """

    @property
    def held_out_error(self) -> float | None:
        """The median over curves of their error at held-out sizes; None if no curve has one."""
        errors = [
            curve.held_out_error
            for curve in self.curves.values()
            if curve.held_out_error is not None
        ]
        return float(np.median(errors)) if errors else None

    @property
    def worst_residual(self) -> float | None:
        """The largest |fitted - measured| / measured over all curves; None without curves."""
        return max(
            (abs(residual) for curve in self.curves.values() for residual in curve.residuals),
            default=None,
        )

    @classmethod
    def fit(cls, records: Iterable[Record]) -> NetworkModel:
        """Fit every curve with 3 sizes or more.

        If a curve was measured in several variants, the variant nearest to DDP's communication is
        fitted: sum, in place, buffers in cache, isolated calls, and otherwise the defaults of
        `commbench run`. Three kinds of cases are
        left out: matrices (times of pairs), pipelined operations (their start-up is hidden), and
        operations that move no data.
        """
        tables: dict[CurveKey, dict[_Variant, _Table]] = {}
        for record in latest(records).values():
            if (medians := launch_medians([record])) and _is_fittable(record.case):
                variants = tables.setdefault(_key(record), {})
                table = variants.setdefault(_Variant.of(record.case), {})
                table.setdefault(record.case.message_bytes, {})[record.launch] = medians[0]
        curves: dict[CurveKey, Curve] = {}
        notes: dict[CurveKey, str] = {}
        for key in sorted(tables):
            fitted = {
                variant: table
                for variant, table in tables[key].items()
                if _sizes(table) >= LEAST_SIZES
            }
            if fitted:
                variant = min(fitted)
                curves[key] = _fit_table(fitted[variant])
                notes |= {key: str(variant)} if str(variant) else {}
        return cls(curves=curves, variants=notes)

    def to_json(self) -> JsonObject:
        """Return lists, numbers and texts."""
        return {
            "schema": MODEL_SCHEMA,
            "held_out_error": self.held_out_error,
            "worst_residual": self.worst_residual,
            "curves": [
                dataclasses.asdict(key) | {"variant": self.variants.get(key, "")} | curve.to_json()
                for key, curve in self.curves.items()
            ],
        }


_Table = dict[int, dict[int, float]]
"""Median time by message size and launch."""


@dataclass(frozen=True, kw_only=True, order=True)
class _Variant:
    """The differences of a case from DDP's communication.

    Smaller is nearer, the most important field first.
    """

    redop: str
    in_place: str
    buffers: str
    root: str
    sync: str
    loop: str
    algorithm: str
    env: str
    part: int
    """Ranks of the case in a scaling study; 0: all."""

    @classmethod
    def of(cls, case: Case) -> _Variant:
        usual_place = case.in_place in {None, OPERATIONS[case.operation].default_in_place}
        return cls(
            redop=_unless(case.redop, {None, "sum"}, f"reduction {case.redop}"),
            in_place="" if usual_place else "in place" if case.in_place else "out of place",
            buffers=_unless(case.buffers, {"hot"}, f"{case.buffers} buffers"),
            root=_unless(case.root, {None, 0}, f"root {case.root}"),
            sync=_unless(case.sync, {"auto"}, f"synchronised by {case.sync}"),
            loop=_unless(case.loop, {"auto"}, f"{case.loop} loop"),
            algorithm=_unless(case.algorithm, {AUTO}, f"by {case.algorithm}"),
            env=_unless(case.env, {""}, f"under {case.env}"),
            part=case.world_size or 0,
        )

    def __str__(self) -> str:
        return ", ".join(word for word in dataclasses.astuple(self)[:-1] if word)


def _unless(value: object, usual: set[Any], words: str) -> str:
    return "" if value in usual else words


def _is_fittable(case: Case) -> bool:
    moves = case.dtype is not None and OPERATIONS[case.operation].moves_data
    return moves and case.pattern != MATRIX and case.mode == "isolated"


def _key(record: Record) -> CurveKey:
    case = record.case
    return CurveKey(
        operation=case.operation,
        backend=case.backend,
        dtype=str(case.dtype),
        pattern=case.pattern,
        world_size=record.group_size or case.world_size or 0,
    )


def _sizes(table: _Table) -> int:
    return sum(any(time > 0 for time in launches.values()) for launches in table.values())


def _evenly_spaced(sizes: list[int]) -> list[int]:
    """Return at most `MOST_SIZES` of the sizes, evenly spaced, with both ends."""
    if len(sizes) <= MOST_SIZES:
        return sizes
    return [sizes[round(place)] for place in np.linspace(0, len(sizes) - 1, MOST_SIZES).tolist()]


def _fit_table(table: _Table) -> Curve:
    launches = sorted({launch for times in table.values() for launch in times})
    sizes = _evenly_spaced(sorted(table))
    times: Sequence[Sequence[float | None]] = [
        [table[size].get(launch) for launch in launches] for size in sizes
    ]
    return fit_curve(sizes, times)
