"""How good predictions were: every one beside its later measurement, as ``predictions.csv`` and in a few numbers."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.errors import InputError
from commbench.prediction.choosing import fit_steps, predict_all
from commbench.prediction.steps import StepPrediction
from commbench.records import SCHEMA, Record, column
from commbench.training.cases import CALIBRATE, SWEEP, TrainingCase
from commbench.training.records import TrainingRecord
from commbench.training.trained import Trained, median, speedup_of, trained
from commbench.training.workload import WorkloadFacts


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    """One line of ``predictions.csv``: a setting, its prediction from the calibration, and what was measured later."""

    schema: int = SCHEMA
    run_id: str = column("name of the run's directory", "")
    workload: str = column("as in ddp.csv, like the ten columns that follow", "")
    world_size: int | None = column("as in ddp.csv")
    batch_per_rank: int | None = column("as in ddp.csv")
    backend: str = column("as in ddp.csv", "")
    precision: str = column("as in ddp.csv", "")
    hook: str = column("as in ddp.csv", "")
    density: float | None = column("as in ddp.csv")
    hook_options: str = column("as in ddp.csv", "")
    bucket_cap_mb: str = column("as in ddp.csv", "")
    bucket_view: bool | None = column("as in ddp.csv")
    static_graph: bool | None = column("as in ddp.csv")
    accumulation: int | None = column("as in ddp.csv")
    predicted_step_ms: float | None = column("predicted from the network and the calibration alone")
    predicted_overlapped_ms: float | None = column("lower bound: communication overlaps perfectly")
    predicted_serial_ms: float | None = column("upper bound: it does not overlap at all")
    predicted_exposed_comm_ms: float | None = column("what of the predicted step waits for communication")
    predicted_speedup: float | None = column("predicted step of the default over that of the row")
    launches: int | None = column("launches behind what was measured")
    step_ms: float | None = column("measured: as in ddp.csv, of the rounds or, of what is in none, of the calibration")
    step_ms_ci_low: float | None = column("its 95 % interval over launches, low end; empty for one launch")
    step_ms_ci_high: float | None = column("and its high end")
    speedup: float | None = column("measured, paired by launch: the default's step over that of the row")
    error: float | None = column("(predicted - measured) / measured step; empty where it was fitted to the setting")
    used: str = column(
        "where step_ms is from: held_out: rounds, of a setting that predictions were not fitted to; again: rounds, of "
        "one that they were fitted to; calibrated: what they were fitted to; not_measured",
        "not_measured",
    )

    @property
    def is_fitted(self) -> bool:
        """Whether predictions were fitted to this very setting, so that it says nothing of how far they are off."""
        return self.used in {"again", "calibrated"}


PREDICTION_COLUMNS = tuple(f.name for f in dataclasses.fields(PredictionRow))
_SETTING = frozenset(PREDICTION_COLUMNS) & {f.name for f in dataclasses.fields(TrainingCase)}


def prediction_rows(
    collectives: Iterable[Record], trainings: Sequence[TrainingRecord], info: Mapping[str, Any]
) -> list[PredictionRow]:
    """Every candidate of a tuning, and whatever else it measured, in the order of the candidates.

    Args:
        collectives: of the run.
        trainings: of the run, all stages; predictions come from the calibration alone.
        info: as ``run.json`` holds it: ``facts``, ``candidates`` (keys of cases) and ``run_id`` are read.

    Returns:
        Nothing where the run is no tuning, or has not measured yet what predicting takes.
    """
    keys, facts = info.get("candidates"), info.get("facts")
    if not keys or not facts:
        return []
    candidates = [TrainingCase.from_key(key) for key in keys]
    calibration = [record for record in trainings if record.case.phase == CALIBRATE]
    try:
        model = fit_steps(WorkloadFacts.from_json(facts), candidates[0], collectives, calibration)
    except InputError:  # the network has not been timed yet
        return []
    if model is None:
        return []
    rounds, calibrated = trained(trainings, SWEEP), _as_swept(trained(trainings, CALIBRATE))
    measured = [one.case for one in rounds.values() if one.case.uses_ddp and one.is_ok]
    predicted = predict_all(model, dict.fromkeys([*candidates, *measured]))
    base, fitted = predicted[candidates[0]], {key for key, one in calibrated.items() if one.timed}
    return [
        PredictionRow(
            run_id=str(info.get("run_id", "")),
            **{name: value for name, value in dataclasses.asdict(case).items() if name in _SETTING},
            **_predicted(one, base),
            **_measured(
                one,
                candidates[0],
                {"again" if case.key in fitted else "held_out": rounds, "calibrated": calibrated},
            ),
        )
        for case, one in predicted.items()
    ]


def _as_swept(known: Mapping[str, Trained]) -> dict[str, Trained]:
    """What was trained for the calibration, by the key that it has as a setting of the sweep."""
    renamed = (dataclasses.replace(one, case=dataclasses.replace(one.case, phase=SWEEP)) for one in known.values())
    return {one.case.key: one for one in renamed}


def _predicted(one: StepPrediction, base: StepPrediction) -> dict[str, Any]:
    return {
        "predicted_step_ms": one.step_ms,
        "predicted_overlapped_ms": one.overlapped_ms,
        "predicted_serial_ms": one.serial_ms,
        "predicted_exposed_comm_ms": one.exposed_comm_ms,
        "predicted_speedup": base.step_ms / one.step_ms,
    }


def _measured(
    one: StepPrediction, baseline: TrainingCase, tables: Mapping[str, Mapping[str, Trained]]
) -> dict[str, Any]:
    """What the rounds, or else the calibration, measured of a setting; ``tables`` by what ``used`` calls them."""
    for used, known in tables.items():
        found, base = known.get(one.case.key), known.get(baseline.key)
        if found is None or not found.is_ok:
            continue
        step_ms, interval = median(list(found.steps_ms.values())), found.step_interval
        speedup = speedup_of(found, base) if base is not None else None
        return {
            "launches": len(found.timed),
            "step_ms": step_ms,
            "step_ms_ci_low": interval.low if interval else None,
            "step_ms_ci_high": interval.high if interval else None,
            "speedup": speedup.ratio if speedup else None,
            "error": one.step_ms / step_ms - 1 if used == "held_out" else None,
            "used": used,
        }
    return {}


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How predictions compare with measurements of settings that they were not fitted to; shares, absolute values."""

    settings: int
    step_error: float
    """Median error of the step."""
    worst_step_error: float
    speedup_error: float | None
    """Median error of the speedup, from which what slows a whole launch cancels out; None where no launch has both the
    default and one of the settings."""


def held_out_accuracy(rows: Iterable[PredictionRow]) -> Accuracy | None:
    """The errors of settings that were measured in rounds and not calibrated on; None where none was."""
    held_out = [row for row in rows if row.used == "held_out" and row.error is not None]
    if not held_out:
        return None
    errors = [abs(row.error or 0.0) for row in held_out]
    both = [(row.predicted_speedup, row.speedup) for row in held_out]
    speedups = [abs(expected / found - 1) for expected, found in both if expected and found]
    return Accuracy(
        settings=len(held_out),
        step_error=statistics.median(errors),
        worst_step_error=max(errors),
        speedup_error=statistics.median(speedups) if speedups else None,
    )
