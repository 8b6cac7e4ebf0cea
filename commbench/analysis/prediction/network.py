"""The network as measured: a curve for each operation, backend, data type, pattern and number of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from commbench.analysis.prediction.curves import Curve, fit_curve
from commbench.collectives.algorithms import AUTO
from commbench.collectives.cases import Case
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.results.summary import latest, launch_medians
from commbench.schema import JsonMapping, JsonObject, read_as

MODEL_SCHEMA = 1
#: A line goes through any two sizes, so that it would have no error to report.
LEAST_SIZES = 3
#: Every way of cutting the sizes is tried, so that their number tells in its cube; a decade needs no more than a few.
MOST_SIZES = 48
#: Collectives of one process group that are under way at the same time; Gloo's has two threads, NCCL's one stream.
SERVERS = {"gloo": 2}


class Network(Protocol):
    """What the prediction of a training step asks of a network: one backend, one number of ranks."""

    @property
    def world_size(self) -> int:
        """Ranks that take part."""

    @property
    def servers(self) -> int:
        """How many of a process group's collectives are under way at the same time: 2 for Gloo, 1 for NCCL."""

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """How long one operation alone takes, in microseconds; ``message_bytes`` as in ``collectives.csv``.

        Raises:
            InputError: nothing is known about that operation.
        """


@dataclass(frozen=True, kw_only=True, order=True)
class CurveKey:
    """What a curve holds for."""

    operation: str
    backend: str
    dtype: str
    pattern: str
    world_size: int

    def __str__(self) -> str:
        """Name it for people."""
        pattern = "" if self.pattern == "flat" else f", pattern {self.pattern}"
        return f"{self.backend} {self.operation} of {self.dtype} on {self.world_size} ranks{pattern}"


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork:
    """The curves of one backend, pattern and number of ranks: a `Network`."""

    backend: str
    world_size: int
    pattern: str
    curves: Mapping[tuple[str, str], Curve]
    """By operation and data type."""

    @property
    def servers(self) -> int:
        """How many of a process group's collectives are under way at the same time."""
        return SERVERS.get(self.backend, 1)

    def curve(self, operation: str, dtype: str) -> Curve:
        """The curve that holds for an operation and a data type.

        What only moves data takes as long for any type, so that another one's curve serves, that with the most sizes. A
        reduction computes, and in half precision far slower than its bytes suggest: there is no substitute.

        Raises:
            InputError: there is none; the sentence names the command that measures it.
        """
        if (operation, dtype) in self.curves:
            return self.curves[operation, dtype]
        others = [curve for (name, _), curve in sorted(self.curves.items()) if name == operation]
        if others and operation in OPERATIONS and not OPERATIONS[operation].reduces:
            return max(others, key=lambda curve: len(curve.sizes))
        pattern = "" if self.pattern == "flat" else f" --pattern {self.pattern}"
        raise InputError(
            f"Nothing is known of {self.backend} {operation} of {dtype} on {self.world_size} ranks; measure it: "
            f"commbench run --backend {self.backend} --collective {operation} --dtype {dtype}{pattern} "
            f"-n {self.world_size}."
        )

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """How long one operation alone takes, in microseconds; ``message_bytes`` as in ``collectives.csv``.

        Raises:
            InputError: as `curve`.
        """
        return self.curve(operation, dtype).time_us(message_bytes)


@dataclass(frozen=True, kw_only=True)
class NetworkModel:
    """All curves of a run."""

    curves: Mapping[CurveKey, Curve]
    variants: Mapping[CurveKey, str] = field(default_factory=dict)
    """In what a curve's measurements differ from the way DDP communicates, where they do: ``out of place``, ..."""

    @property
    def held_out_error(self) -> float | None:
        """The median over curves of their error at sizes left out; None where no curve knows one."""
        errors = [curve.held_out_error for curve in self.curves.values() if curve.held_out_error is not None]
        return float(np.median(errors)) if errors else None

    @property
    def worst_residual(self) -> float | None:
        """The largest of all curves' |fitted - measured| / measured; None without curves."""
        return max((abs(residual) for curve in self.curves.values() for residual in curve.residuals), default=None)

    @classmethod
    def fit(cls, records: Iterable[Record]) -> NetworkModel:
        """Fit every curve that has enough sizes, 3.

        Where several variants of one curve were measured, the one nearest to how DDP communicates counts: reductions as
        sums and in place, buffers in cache, one operation at a time, else as the defaults of `commbench run` are.
        Matrices, whose times are of pairs, and pipelined operations, whose times hide their start, do not count, nor do
        operations that move no data.
        """
        found: dict[CurveKey, dict[_Variant, _Table]] = {}
        for record in latest(records).values():
            if (medians := launch_medians([record])) and _counts(record.case):
                variants = found.setdefault(_key(record), {})
                table = variants.setdefault(_Variant.of(record.case), {})
                table.setdefault(record.case.message_bytes, {})[record.launch] = medians[0]
        curves: dict[CurveKey, Curve] = {}
        notes: dict[CurveKey, str] = {}
        for key in sorted(found):
            fitted = {variant: table for variant, table in found[key].items() if _sizes(table) >= LEAST_SIZES}
            if fitted:
                variant = min(fitted)
                curves[key] = _fit_table(fitted[variant])
                notes |= {key: str(variant)} if str(variant) else {}
        return cls(curves=curves, variants=notes)

    def at(self, backend: str, world_size: int, pattern: str = "flat") -> MeasuredNetwork:
        """The network of one backend and number of ranks, as a training step sees it.

        Raises:
            InputError: nothing was measured there.
        """
        curves = {
            (key.operation, key.dtype): curve
            for key, curve in self.curves.items()
            if (key.backend, key.world_size, key.pattern) == (backend, world_size, pattern)
        }
        if not curves:
            known = sorted({f"{key.backend} on {key.world_size} ranks ({key.pattern})" for key in self.curves})
            raise InputError(
                f"No curve was measured of {backend} on {world_size} ranks ({pattern}); there "
                f"{'is ' + ', '.join(known) if known else 'are no curves, which need 3 sizes'}. "
                f"Measure it: commbench run --backend {backend} -n {world_size}."
            )
        return MeasuredNetwork(backend=backend, world_size=world_size, pattern=pattern, curves=curves)

    def to_json(self) -> JsonObject:
        """Return plain lists, numbers and texts."""
        return {
            "schema": MODEL_SCHEMA,
            "held_out_error": self.held_out_error,
            "worst_residual": self.worst_residual,
            "curves": [
                dataclasses.asdict(key) | {"variant": self.variants.get(key, "")} | curve.to_json()
                for key, curve in self.curves.items()
            ],
        }

    @classmethod
    def from_json(cls, data: JsonMapping) -> NetworkModel:
        """Return what `to_json` wrote.

        Raises:
            InputError: it is no model, or a newer version's.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("curves"), list):
            raise InputError("This is no model of commbench (it has no list of curves); fit the run anew.")
        if data.get("schema") != MODEL_SCHEMA:
            raise InputError(
                f"This model has schema {data.get('schema')!r} and this commbench knows {MODEL_SCHEMA}; "
                "fit the run anew."
            )
        curves: dict[CurveKey, Curve] = {}
        variants: dict[CurveKey, str] = {}
        for entry in data["curves"]:
            try:
                key = read_as(CurveKey, entry)
            except InputError as error:
                raise InputError(f"This is no model of commbench (a curve {error}); fit the run anew.") from error
            curves[key] = Curve.from_json(entry)
            variants |= {key: str(entry["variant"])} if entry.get("variant") else {}
        return cls(curves=curves, variants=variants)


_Table = dict[int, dict[int, float]]
"""Median time by message size and launch."""


@dataclass(frozen=True, kw_only=True, order=True)
class _Variant:
    """How far a case is from the way DDP communicates; the lowest is nearest, what weighs most first."""

    redop: str
    in_place: str
    buffers: str
    root: str
    sync: str
    loop: str
    algorithm: str
    part: int
    """Ranks of a scaling study; of point-to-point operations, which are of two, 0 for the ends of the whole run."""

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
            part=case.world_size or 0,
        )

    def __str__(self) -> str:
        return ", ".join(word for word in dataclasses.astuple(self)[:-1] if word)


def _unless(value: object, usual: set[Any], words: str) -> str:
    return "" if value in usual else words


def _counts(case: Case) -> bool:
    moves = case.dtype is not None and OPERATIONS[case.operation].moves_data
    return moves and case.pattern != "matrix" and case.mode == "isolated"


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


def _thinned(sizes: list[int]) -> list[int]:
    """At most `MOST_SIZES` of them with the ends, evenly spread."""
    if len(sizes) <= MOST_SIZES:
        return sizes
    return [sizes[round(place)] for place in np.linspace(0, len(sizes) - 1, MOST_SIZES).tolist()]


def _fit_table(table: _Table) -> Curve:
    launches = sorted({launch for times in table.values() for launch in times})
    sizes = _thinned(sorted(table))
    times: Sequence[Sequence[float | None]] = [[table[size].get(launch) for launch in launches] for size in sizes]
    return fit_curve(sizes, times)
