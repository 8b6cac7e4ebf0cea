"""The tables of training on a page: settings, and predictions beside measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commbench.ddp.plan.records import TrainingRow
from commbench.report.columns import (
    Cell,
    Column,
    Table,
    about,
    ends,
    flag_column,
    interval,
    make_table,
    number,
    outcome,
    verdict_cell,
)
from commbench.report.page.collectives import energy_column
from commbench.report.training import (
    baseline_sentences,
    hook_label,
    prediction_title,
    trained_together,
    training_title,
    without_ddp,
)
from commbench.results import DDP, PREDICTIONS, Run
from commbench.tuner.predictions import PredictionRow, predictions

#: `default` is 1 MiB, then 25: it comes before all numbers.
_DEFAULT_PLACE = 0.0


def training_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each workload, number of ranks and batch of each run."""
    tables = []
    for run in runs:
        for rows in trained_together(run.training_rows):
            of_run = f"{run.name}: " if len(runs) > 1 else ""
            named = [(run.name, row) for row in rows]
            notes = [*baseline_sentences(run), *without_ddp(rows)]
            title = f"{of_run}{training_title(rows)}"
            columns = [*_COLUMNS, energy_column([run]), flag_column()]
            tables.append(make_table(title, named, columns, notes=notes, rest_in=DDP))
    return tables


def _bucket_column(about: str) -> Column[Any]:
    """Return the column of bucket sizes, which are sorted by their first number."""

    def cell(row: TrainingRow | PredictionRow) -> Cell:
        first = row.bucket_cap_mb.partition("+")[0]
        return Cell(row.bucket_cap_mb, value=_DEFAULT_PLACE if first == "default" else float(first) if first else None)

    return Column("buckets", cell, unit="MiB", about=about, is_number=True)


_COLUMNS: list[Column[TrainingRow]] = [
    Column("hook", hook_label, about="DDP communication hook, as it is typed"),
    _bucket_column(about(TrainingRow, "bucket_cap_mb")),
    number("count", "bucket_count", TrainingRow),
    outcome("step", "step_ms", TrainingRow, unit="ms"),
    interval("step_ms", TrainingRow, unit="ms"),
    number("speedup", "speedup", TrainingRow),
    interval("speedup", TrainingRow),
    Column("verdict", lambda row: verdict_cell(row.verdict), about=about(TrainingRow, "verdict")),
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


def _overlap(row: PredictionRow) -> tuple[float | None, ...]:
    return row.predicted_overlapped_ms, row.predicted_serial_ms, row.predicted_step_ms


def _error(row: PredictionRow) -> str:
    """The error of a prediction; none if it was fitted to this setting."""
    if row.is_fitted:
        return "fitted"
    return "" if row.error is None else f"{100 * row.error:+.1f}".replace("-", "\N{MINUS SIGN}")


_PREDICTED: list[Column[PredictionRow]] = [
    Column("hook", hook_label, about="as in ddp.csv"),
    _bucket_column(""),
    number("predicted step", "predicted_step_ms", PredictionRow, unit="ms"),
    ends(
        _overlap,
        heading="full to no overlap",
        unit="ms",
        about="with perfect overlap of communication and computation, and with none",
    ),
    number("measured step", "step_ms", PredictionRow, unit="ms"),
    interval("step_ms", PredictionRow, unit="ms"),
    Column(
        "error",
        unit="%",
        about="predicted less measured, over measured; fitted: the prediction rests on this measurement",
        value_of=lambda row: Cell(_error(row), value=row.error),
        is_number=True,
    ),
    number("predicted speedup", "predicted_speedup", PredictionRow),
    number("measured speedup", "speedup", PredictionRow),
    number("launches", "launches", PredictionRow),
]
