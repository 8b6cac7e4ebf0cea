"""The tables of training on a page: settings, and predictions beside measurements."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.network import CurveKey
from commbench.analysis.runs import network_model
from commbench.ddp.plan.records import TrainingRow
from commbench.report.columns import (
    VERDICT_TONES,
    Column,
    Named,
    Table,
    flag_column,
    interval,
    make_table,
    number,
    tone_of,
    words,
)
from commbench.report.formats import between, digits
from commbench.report.page.collectives import energy_column
from commbench.report.training import hook_label, prediction_title, trained_together, training_title, without_ddp
from commbench.results import DDP, MODEL, PREDICTIONS, Run
from commbench.stats import Interval
from commbench.tuner.predictions import PredictionRow, predictions
from commbench.units import format_size

_HOOK = Column[TrainingRow](heading="hook", about="DDP communication hook, as it is typed", text=hook_label)
#: `default` is 1 MiB, then 25: it comes before all numbers.
_DEFAULT_PLACE = 0.0


def training_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each workload, number of ranks and batch of each run."""
    tables = []
    for run in runs:
        for rows in trained_together(run.training_rows):
            of_run = f"{run.name}: " if len(runs) > 1 else ""
            named = [(run.name, row) for row in rows]
            notes = without_ddp(rows)
            title = f"{of_run}{training_title(rows)}"
            columns = [*_COLUMNS, energy_column([run]), flag_column()]
            tables.append(make_table(title, named, columns, notes=notes, rest_in=DDP))
    return tables


def _cap(row: TrainingRow | PredictionRow) -> float | None:
    """The first number of a bucket size, as sort key."""
    first = row.bucket_cap_mb.partition("+")[0]
    return _DEFAULT_PLACE if first == "default" else float(first) if first else None


def _step(row: TrainingRow) -> str:
    return row.status if row.status != "ok" else digits(row.step_ms) or "no time"


_COLUMNS: list[Column[TrainingRow]] = [
    _HOOK,
    Column(
        heading="buckets",
        unit="MiB",
        about=TrainingRow.__dataclass_fields__["bucket_cap_mb"].metadata["about"],
        text=lambda row: row.bucket_cap_mb,
        value=_cap,
    ),
    number("count", "bucket_count", TrainingRow),
    Column(
        heading="step",
        unit="ms",
        about=TrainingRow.__dataclass_fields__["step_ms"].metadata["about"],
        text=_step,
        value=lambda row: row.step_ms,
        tone=lambda row: tone_of(row.status),
    ),
    interval("step_ms", TrainingRow, unit="ms"),
    number("speedup", "speedup", TrainingRow),
    interval("speedup", TrainingRow),
    words("verdict", "verdict", TrainingRow, tone=lambda row: VERDICT_TONES.get(row.verdict, "")),
    number("efficiency", "scaling_efficiency", TrainingRow, unit="%", scale=100),
    number("exposed", "exposed_comm_ms", TrainingRow, unit="ms"),
    number("sent", "sent_MB_per_step", TrainingRow, unit="MB"),
    number("loss, equal steps", "loss_equal_steps", TrainingRow),
    number("loss, equal time", "loss_equal_time", TrainingRow),
    number("metric", "metric", TrainingRow),
    number("to target", "time_to_target_s", TrainingRow, unit="s"),
    number("memory", "peak_memory_MB", TrainingRow, unit="MB"),
    number("energy", "energy_J", TrainingRow, unit="J"),
]


# --------------------------------------------------------------------------------------------------- predictions


def prediction_tables(runs: Sequence[Run]) -> list[Table]:
    """Predicted and measured steps of a tuning, the fastest prediction first."""
    tables = []
    for run in runs:
        ranked = sorted(predictions(run), key=lambda row: row.predicted_step_ms or 0.0)
        if ranked:
            title = f"{run.name}: {prediction_title(ranked)}" if len(runs) > 1 else prediction_title(ranked)
            named = [(run.name, row) for row in ranked]
            tables.append(make_table(title, named, _PREDICTED, rest_in=PREDICTIONS))
    return tables


def _overlap(row: PredictionRow) -> str:
    return between(row.predicted_overlapped_ms, row.predicted_serial_ms, row.predicted_step_ms)


def _error(row: PredictionRow) -> str:
    """The error of a prediction; none if it was fitted to this setting."""
    if row.is_fitted:
        return "fitted"
    return "" if row.error is None else f"{100 * row.error:+.1f}".replace("-", "\N{MINUS SIGN}")


_PREDICTED: list[Column[PredictionRow]] = [
    Column(heading="hook", about="as in ddp.csv", text=hook_label),
    Column(heading="buckets", unit="MiB", text=lambda row: row.bucket_cap_mb, value=_cap),
    number("predicted step", "predicted_step_ms", PredictionRow, unit="ms"),
    Column(
        heading="full to no overlap",
        unit="ms",
        about="with perfect overlap of communication and computation, and with none",
        text=_overlap,
        value=lambda row: row.predicted_overlapped_ms,
    ),
    number("measured step", "step_ms", PredictionRow, unit="ms"),
    interval("step_ms", PredictionRow, unit="ms"),
    Column(
        heading="error",
        unit="%",
        about="predicted less measured, over measured; fitted: the prediction rests on this measurement",
        text=_error,
        value=lambda row: row.error,
    ),
    number("predicted speedup", "predicted_speedup", PredictionRow),
    number("measured speedup", "speedup", PredictionRow),
    number("launches", "launches", PredictionRow),
]


# ---------------------------------------------------------------------------------------------------- the model


Piece = tuple[CurveKey, Curve, int]
"""One segment of a curve of the network model, and its number."""


def model_tables(runs: Sequence[Run]) -> list[Table]:
    """Fitted start-up times and rates, a line for each segment of a curve."""
    pieces: list[Named[Piece]] = [
        (run.name, (key, curve, place))
        for run in runs
        for key, curve in network_model(run).curves.items()
        for place in range(len(curve.segments))
    ]
    return [make_table(_MODEL_TITLE, pieces, _MODEL, rest_in=MODEL)] if pieces else []


_MODEL_TITLE = "The network as fitted: time = start-up + size / rate, from one size to another"


def _rate(beta_us_per_byte: float) -> float | None:
    return 1e-3 / beta_us_per_byte if beta_us_per_byte else None


def _ends(piece: Piece, parameter: int) -> Interval | None:
    return piece[1].parameter_intervals[piece[2]][parameter]


def _start_ends(piece: Piece) -> tuple[float | None, float | None]:
    """The interval of the start-up time; none if the fit holds it at 0."""
    ends = _ends(piece, 0)
    return (ends.low, ends.high) if ends and (ends.low, ends.high) != (0, 0) else (None, None)


def _rate_ends(piece: Piece) -> tuple[float | None, float | None]:
    ends = _ends(piece, 1)
    return (_rate(ends.high), _rate(ends.low)) if ends else (None, None)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _residual(piece: Piece) -> float:
    """The residual at the sizes of the segment."""
    _, curve, place = piece
    segment, known = curve.segments[place], zip(curve.sizes, curve.residuals, strict=True)
    return 100 * max(abs(residual) for size, residual in known if segment.from_bytes <= size <= segment.to_bytes)


def _held_out(piece: Piece) -> float | None:
    """The value of the curve, on its first line only."""
    return _percent(piece[1].held_out_error) if piece[2] == 0 else None


_MODEL: list[Column[Piece]] = [
    Column(heading="operation", text=lambda piece: piece[0].operation),
    Column(heading="pattern", text=lambda piece: piece[0].pattern, if_varied=True),
    Column(heading="backend", text=lambda piece: piece[0].backend),
    Column(heading="dtype", text=lambda piece: piece[0].dtype, if_varied=True),
    Column(heading="ranks", text=lambda piece: str(piece[0].world_size), value=lambda piece: piece[0].world_size),
    Column(
        heading="from",
        text=lambda piece: format_size(piece[1].segments[piece[2]].from_bytes),
        value=lambda piece: piece[1].segments[piece[2]].from_bytes,
    ),
    Column(
        heading="to",
        text=lambda piece: format_size(piece[1].segments[piece[2]].to_bytes),
        value=lambda piece: piece[1].segments[piece[2]].to_bytes,
    ),
    Column(
        heading="start-up",
        unit="us",
        text=lambda piece: digits(piece[1].segments[piece[2]].alpha_us) or "0",
        value=lambda piece: piece[1].segments[piece[2]].alpha_us,
    ),
    Column(
        heading="95 % CI",
        unit="us",
        about="of the start-up; empty where it is held at 0",
        text=lambda piece: between(*_start_ends(piece)),
        value=lambda piece: _start_ends(piece)[0],
    ),
    Column(
        heading="rate",
        unit="GB/s",
        about="algorithm bandwidth without the start-up; bus bandwidth is that times the operation's factor",
        text=lambda piece: digits(_rate(piece[1].segments[piece[2]].beta_us_per_byte)),
        value=lambda piece: _rate(piece[1].segments[piece[2]].beta_us_per_byte),
    ),
    Column(
        heading="95 % CI",
        unit="GB/s",
        about="of the rate",
        text=lambda piece: between(*_rate_ends(piece)),
        value=lambda piece: _rate_ends(piece)[0],
    ),
    Column(
        heading="worst residual",
        unit="%",
        about="largest deviation from the measured times",
        text=lambda piece: digits(_residual(piece), 2),
        value=_residual,
    ),
    Column(
        heading="held-out error",
        unit="%",
        about="median error at sizes that were left out of the fit, of all segments together",
        text=lambda piece: digits(_held_out(piece), 2),
        value=_held_out,
    ),
]
