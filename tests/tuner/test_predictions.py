"""Tests of predictions.csv: rows, errors and the printed table."""

import dataclasses
import io
from typing import Any

import pytest
from drawings import recommendation_of
from rich.console import Console
from tuning_world import World, default_play, default_world, play

from commbench.ddp.plan.cases import SWEEP
from commbench.report.training import render_predictions, tuning_cost
from commbench.results.record_types import AnyRecord, collective_records, training_records
from commbench.results.tables import csv_text
from commbench.tuner.predictions import (
    PREDICTION_COLUMNS,
    PredictionRow,
    held_out_accuracy,
    prediction_rows,
)


def rows_of(world: World, records: list[AnyRecord]) -> list[PredictionRow]:
    """Return the rows of a run of these records."""
    info = {"run_id": "r", **world.plan.info}
    return prediction_rows(collective_records(records), training_records(records), info)


def printed(rows: list[PredictionRow]) -> str:
    """Return the printed table."""
    console = Console(file=io.StringIO(), width=120)
    for part in render_predictions(rows):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_candidate_has_a_row_with_its_measurement() -> None:
    """Mark unmeasured settings, and those that predictions were fitted to."""
    world, records = default_world(), default_play().records
    rows = {(row.hook, row.bucket_cap_mb): row for row in rows_of(world, records)}
    assert 36 == len(rows)
    hooks = ("none", "fp16", "topk")
    swept = {
        (r.case.hook, r.case.bucket_cap_mb): []
        for r in training_records(records)
        if r.case.phase == SWEEP
    }
    held_out, again, calibrated = (
        {name for name, row in rows.items() if row.used == used}
        for used in ("held_out", "again", "calibrated")
    )
    fitted = {(hook, "default") for hook in hooks}
    assert set(swept) - {("local", "default")} == held_out | again
    assert fitted == again | calibrated == {name for name, row in rows.items() if row.is_fitted}
    assert ("none", "default") in again
    assert calibrated
    for row in rows.values():
        assert row.predicted_overlapped_ms is not None
        assert row.predicted_step_ms is not None
        assert row.predicted_overlapped_ms <= row.predicted_step_ms
        assert (row.step_ms is None) == (row.used == "not_measured")
        assert (row.error is None) == (row.used != "held_out")
        if row.error is not None:
            assert row.step_ms is not None
            assert row.predicted_step_ms / row.step_ms - 1 == pytest.approx(row.error)
    default = rows["none", "default"]
    assert (1.0, 1.0) == (default.predicted_speedup, default.speedup)
    assert 6 == default.launches


def test_predictions_rest_on_the_calibration_alone() -> None:
    """Keep predictions unchanged by later rounds."""
    world, records = default_world(), default_play().records
    slower = [
        dataclasses.replace(r, step_ms=[3 * ms for ms in r.step_ms])
        if not hasattr(r, "times_us") and r.case.phase == SWEEP  # type: ignore[union-attr]
        else r
        for r in records
    ]
    for before, after in zip(rows_of(world, records), rows_of(world, slower), strict=True):
        assert before.predicted_step_ms == after.predicted_step_ms


def test_errors_come_from_held_out_settings_only() -> None:
    """Return median absolute errors of held-out steps and speedups."""

    def row(
        used: str, error: float | None, predicted: float, measured: float | None, **more: str
    ) -> PredictionRow:
        return PredictionRow(
            used=used, error=error, predicted_speedup=predicted, speedup=measured, **more
        )

    rows = [
        row("calibrated", 0.9, 1.0, 2.0),
        row("held_out", -0.1, 1.1, 1.0),
        row("held_out", 0.3, 1.0, 1.25),
        row("held_out", 0.2, 1.2, 1.2),
        row("again", 0.9, 1.0, 1.0, hook="none", bucket_cap_mb="default"),
        row("not_measured", None, 1.0, None),
    ]
    accuracy = held_out_accuracy(rows)
    assert accuracy is not None
    assert (3, 0.2, 0.3) == (accuracy.settings, accuracy.step_error, accuracy.worst_step_error)
    assert 0.1 == pytest.approx(accuracy.speedup_error)
    assert held_out_accuracy(rows[:1]) is None


@pytest.mark.parametrize("lacks", ["network", "calibration", "candidates"])
def test_there_are_no_rows_before_there_is_a_prediction(lacks: str) -> None:
    """Write no rows before network and calibration, or for other runs."""
    world = default_world()
    records = play(world, stages=2).records
    collectives, trainings, info = (
        collective_records(records),
        training_records(records),
        dict(world.plan.info),
    )
    assert 36 == len(prediction_rows(collectives, trainings, info))
    kept: dict[str, Any] = {
        "network": ((), trainings, info),
        "calibration": (collectives, (), info),
        "candidates": (collectives, trainings, {}),
    }
    assert [] == prediction_rows(*kept[lacks])


def test_the_cost_is_stated() -> None:
    """Return the number of steps, the time, and that of the network."""
    recommendation = dataclasses.replace(recommendation_of({}), measured_steps=5)
    launches = [
        {"stage": stage, "seconds": seconds}
        for stage, seconds in (("network", 4.0), ("confirm", 5.0))
    ]
    cost = tuning_cost(recommendation, launches)
    assert ("tuning_cost_in", 5, 9.0, 4.0) == (cost.code, *cost.numbers.values())
    assert "tuning_cost" == tuning_cost(recommendation).code


def test_the_file_has_the_columns_in_order() -> None:
    """Write empty cells for unmeasured settings."""
    world = default_world()
    text = csv_text(rows_of(world, play(world, stages=2).records), PREDICTION_COLUMNS)
    header, first, *others = text.splitlines()
    assert ",".join(PREDICTION_COLUMNS) == header
    assert first.startswith("2,r,mlp,2,8,gloo,fp32,none,,,default,")
    assert 35 == len(others)
    assert any(line.endswith(",,,,,,not_measured") for line in others)
