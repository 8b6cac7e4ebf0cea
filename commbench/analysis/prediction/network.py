"""The measured network: a curve for each operation, backend, data type, pattern and number of
ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from commbench.analysis.prediction.curves import Curve, fit_curve
from commbench.analysis.prediction.fits import LEAST_SIZES
from commbench.collectives.algorithms import AUTO
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Record
from commbench.results import Run, once_per_run
from commbench.results.info import network_records
from commbench.results.summary import latest, launch_values
from commbench.schema import JsonObject
from commbench.stats import median
from commbench.units import counted

MODEL_SCHEMA = 2


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
        ranks = counted(self.world_size, "rank")
        return f"{self.backend} {self.operation} of {self.dtype} on {ranks}{pattern}"


@dataclass(frozen=True, kw_only=True)
class NetworkModel:
    """All curves of a run."""

    curves: Mapping[CurveKey, Curve]
    variants: Mapping[CurveKey, str] = field(default_factory=dict)
    """How a curve's measurements differ from DDP's communication, e.g.

    ``out of place``, if they do.
    """

    @property
    def held_out_error(self) -> float:
        """The median over curves, of which there is one at least, of their error at held-out
        sizes.
        """
        return median([curve.held_out_error for curve in self.curves.values()])

    @property
    def worst_residual(self) -> float:
        """The largest |fitted - measured| / measured over all curves."""
        return max(abs(each) for curve in self.curves.values() for each in curve.residuals)

    @classmethod
    def fit(cls, records: Iterable[Record]) -> NetworkModel:
        """Fit every curve with 3 sizes or more.

        If a curve was measured in several variants, the variant nearest to DDP's communication is
        fitted: sum, in place, buffers in cache, isolated calls, and otherwise the defaults of
        `commbench run`. Four kinds of cases are left out: matrices (times of pairs), pipelined
        operations (their start-up is hidden), operations that move no data, and times below the
        clock's resolution.
        """
        # median time by message size and launch
        tables: dict[tuple[CurveKey, _Variant], dict[int, dict[int, float]]] = {}
        for record in latest(records).values():
            case, time_us = record.case, launch_values([record]).get(record.launch, 0.0)
            moves_data = case.dtype is not None and OPERATIONS[case.operation].moves_data
            is_alone = case.pattern != MATRIX and case.mode == "isolated"
            if time_us > 0 and moves_data and is_alone:
                key = CurveKey(
                    operation=case.operation,
                    backend=case.backend,
                    dtype=str(case.dtype),
                    pattern=case.pattern,
                    world_size=record.group_size or case.world_size or 0,
                )
                table = tables.setdefault((key, _variant(case)), {})
                table.setdefault(case.message_bytes, {})[record.launch] = time_us
        curves = {}
        notes = {}
        for key, variant in sorted(tables):  # the nearest variant first
            table = tables[key, variant]
            if key not in curves and len(table) >= LEAST_SIZES:
                curves[key] = fit_curve(table)
                if note := ", ".join(filter(None, variant[0])):
                    notes[key] = note
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


_Variant = tuple[tuple[str, ...], int]
"""In words the differences of a case from DDP's communication, the most important first, and its
ranks in a scaling study (0: all). Smaller is nearer."""


def _variant(case: Case) -> _Variant:
    usual_place = OPERATIONS[case.operation].default_in_place
    place = "in place" if case.in_place else "out of place"
    settings = (
        (case.redop, (None, "sum"), f"reduction {case.redop}"),
        (case.in_place, (None, usual_place), place),
        (case.buffers, ("hot",), f"{case.buffers} buffers"),
        (case.root, (None, 0), f"root {case.root}"),
        (case.sync, ("auto",), f"synchronised by {case.sync}"),
        (case.loop, ("auto",), f"{case.loop} loop"),
        (case.algorithm, (AUTO,), f"by {case.algorithm}"),
        (case.env, ("",), f"under {case.env}"),
    )
    words = tuple("" if value in usual else unusual for value, usual, unusual in settings)
    return words, case.world_size or 0


@once_per_run
def network_model(run: Run) -> NetworkModel:
    """Return the contents of ``model.json``, fitted to the records.

    Without curves if too few sizes were measured.

    Ranks that share a GPU are left out, because their times do not measure a network.
    """
    return NetworkModel.fit(network_records(run.records, run.info))
