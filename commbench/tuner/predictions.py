"""Predictions of a tuning beside their measurements: ``predictions.csv`` and a summary."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.analysis.prediction.steps import StepPrediction
from commbench.ddp.plan.cases import CALIBRATE, CONFIRM, SWEEP, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.engine.records import SCHEMA, Record, column
from commbench.errors import InputError
from commbench.findings import Finding
from commbench.results import Run, once_per_run
from commbench.results.info import RunInfo
from commbench.results.recommendation import Choice, Recommendation, Search, setting_of
from commbench.results.tables import table_of
from commbench.results.trained import Trained, median, speedup_of, trained
from commbench.schema import JsonObject
from commbench.tuner.choice import fit_steps, predict_all

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    """One line of ``predictions.csv``: a setting, its prediction from the calibration, and what was
    measured later.
    """

    schema: int = SCHEMA
    run_id: str = column("name of the run's directory", "")
    workload: str = column("as in ddp.csv, like the fourteen columns that follow", "")
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
    unused_parameters: bool | None = column("as in ddp.csv")
    broadcast_buffers: bool | None = column("as in ddp.csv")
    batched_grad_copy: bool | None = column("as in ddp.csv")
    compile: str = column("as in ddp.csv", "")
    accumulation: int | None = column("as in ddp.csv")
    predicted_step_ms: float | None = column("predicted from the network and the calibration alone")
    predicted_overlapped_ms: float | None = column("lower bound: communication overlaps perfectly")
    predicted_serial_ms: float | None = column("upper bound: it does not overlap at all")
    predicted_exposed_comm_ms: float | None = column(
        "part of the predicted step that waits for communication"
    )
    predicted_speedup: float | None = column("predicted step of the default over that of the row")
    launches: int | None = column("launches behind what was measured")
    step_ms: float | None = column(
        "measured: as in ddp.csv, of the rounds or, of what is in none, of the calibration",
        heading="measured step",
    )
    step_ms_ci_low: float | None = column(
        "its 95 % interval over launches, low end; empty for one launch"
    )
    step_ms_ci_high: float | None = column("and its high end")
    speedup: float | None = column(
        "measured, paired by launch: the default's step over that of the row",
        heading="measured speedup",
    )
    error: float | None = column(
        "(predicted - measured) / measured step; empty where it was fitted to the setting"
    )
    used: str = column(
        "where step_ms is from: held_out: rounds, of a setting that predictions were not fitted to;"
        " again: rounds, of one that they were fitted to; calibrated: what they were fitted to;"
        " not_measured",
        "not_measured",
    )

    @property
    def is_fitted(self) -> bool:
        """Whether predictions were fitted to this setting; its error then does not count."""
        return self.predicted_step_ms is not None and self.used in {"again", "calibrated"}


PREDICTION_COLUMNS = tuple(f.name for f in dataclasses.fields(PredictionRow))
_SETTING = frozenset(PREDICTION_COLUMNS) & {f.name for f in dataclasses.fields(TrainingCase)}


def prediction_rows(
    collectives: Iterable[Record], trainings: Sequence[TrainingRecord], info: RunInfo
) -> list[PredictionRow]:
    """Return every candidate of a tuning, then its other settings, in the order of the candidates.

    Hooks of a user's file and hooks that exchange parameters are never predicted; only measured
    ones have a row.

    Args:
        collectives: of the run.
        trainings: of the run, all stages; predictions use the calibration only.
        info: contents of ``run.json``: ``facts``, ``candidates`` (keys of cases) and ``run_id``.

    Returns:
        Empty if the run is no tuning or lacks measurements for predictions.
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
    measured = [
        setting.case for setting in rounds.values() if setting.case.uses_ddp and setting.is_ok
    ]
    cases = dict.fromkeys([*candidates, *measured])
    predicted = predict_all(model, cases)
    tried = {
        case for case in cases if not case.is_predicted and {case.key} & {*rounds, *calibrated}
    }
    base, fitted = (
        predicted[candidates[0]],
        {key for key, setting in calibrated.items() if setting.timed},
    )
    return [
        PredictionRow(
            schema=info.get("schema", SCHEMA),
            run_id=str(info.get("run_id", "")),
            **{name: value for name, value in dataclasses.asdict(case).items() if name in _SETTING},
            **(_predicted(predicted[case], base) if case in predicted else {}),
            **_measured(
                case,
                predicted.get(case),
                candidates[0],
                {"again" if case.key in fitted else "held_out": rounds, "calibrated": calibrated},
            ),
        )
        for case in cases
        if case in predicted or case in tried
    ]


@once_per_run
def predictions(run: Run) -> list[PredictionRow]:
    """Return the rows of ``predictions.csv``; empty if nothing was tuned."""
    return prediction_rows(run.records, run.training_records, run.info)


def prediction_table(run: Run) -> DataFrame:
    """Return the table of ``predictions.csv``, not rounded."""
    return table_of(PredictionRow, predictions(run))


def _as_swept(calibrated: Mapping[str, Trained]) -> dict[str, Trained]:
    """Return the calibrated settings by their key in the sweep."""
    renamed = (
        dataclasses.replace(setting, case=dataclasses.replace(setting.case, phase=SWEEP))
        for setting in calibrated.values()
    )
    return {setting.case.key: setting for setting in renamed}


def _predicted(prediction: StepPrediction, base: StepPrediction) -> JsonObject:
    return {
        "predicted_step_ms": prediction.step_ms,
        "predicted_overlapped_ms": prediction.overlapped_ms,
        "predicted_serial_ms": prediction.serial_ms,
        "predicted_exposed_comm_ms": prediction.exposed_comm_ms,
        "predicted_speedup": base.step_ms / prediction.step_ms,
    }


def _measured(
    case: TrainingCase,
    prediction: StepPrediction | None,
    baseline: TrainingCase,
    tables: Mapping[str, Mapping[str, Trained]],
) -> JsonObject:
    """Return the measurement of a setting from the rounds, else the calibration.

    ``tables`` by values of ``used``.
    """
    for used, by_key in tables.items():
        setting, base = by_key.get(case.key), by_key.get(baseline.key)
        if setting is None or not setting.is_ok:
            continue
        step_ms, interval = median(list(setting.steps_ms.values())), setting.step_interval
        speedup = speedup_of(setting, base) if base is not None else None
        return {
            "launches": len(setting.timed),
            "step_ms": step_ms,
            "step_ms_ci_low": interval.low if interval else None,
            "step_ms_ci_high": interval.high if interval else None,
            "speedup": speedup.ratio if speedup else None,
            "error": (
                prediction.step_ms / step_ms - 1 if prediction and used == "held_out" else None
            ),
            "used": used,
        }
    return {}


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Errors of predictions at held-out settings; absolute, as shares."""

    settings: int
    step_error: float
    """Median error of the step."""
    worst_step_error: float
    speedup_error: float | None
    """Median error of the speedup, in which effects on a whole launch cancel; None if no launch
    has both the default and a held-out setting."""


def held_out_accuracy(rows: Iterable[PredictionRow]) -> Accuracy | None:
    """Return the errors at settings that were measured in rounds and not calibrated.

    None without any.
    """
    held_out = [row for row in rows if row.used == "held_out" and row.error is not None]
    if not held_out:
        return None
    errors = [abs(row.error or 0.0) for row in held_out]
    pairs = [(row.predicted_speedup, row.speedup) for row in held_out]
    speedups = [
        abs(expected / measured - 1) for expected, measured in pairs if expected and measured
    ]
    return Accuracy(
        settings=len(held_out),
        step_error=statistics.median(errors),
        worst_step_error=max(errors),
        speedup_error=statistics.median(speedups) if speedups else None,
    )


def with_search(
    recommendation: Recommendation,
    collectives: Iterable[Record],
    trainings: Sequence[TrainingRecord],
    info: RunInfo,
) -> Recommendation:
    """Return the recommendation with its search, and a warning if nothing could be predicted.

    Args:
        recommendation: from the run's fresh launches.
        collectives: of the run.
        trainings: of the run, all stages.
        info: contents of ``run.json``, see `prediction_rows`.

    Returns:
        The same recommendation if the run is no tuning.
    """
    collectives = list(collectives)
    rows = prediction_rows(collectives, trainings, info)
    if not rows and (warning := _unpredicted(collectives, trainings, info)):
        return dataclasses.replace(recommendation, warnings=(*recommendation.warnings, warning))
    afresh, rounds = (_measured_settings(trainings, phase) for phase in (CONFIRM, SWEEP))
    baseline = setting_of(recommendation.baseline)
    others = [row for row in rows if setting_of(_choice(row)) != baseline]
    if not others:
        return recommendation
    unmeasured = [row for row in others if setting_of(_choice(row)) not in [*afresh, *rounds]]
    accuracy = held_out_accuracy(rows)
    search = Search(
        settings=len(others),
        afresh=sum(setting_of(_choice(row)) in afresh for row in others),
        in_rounds=sum(
            setting_of(_choice(row)) in rounds and setting_of(_choice(row)) not in afresh
            for row in others
        ),
        predicted=len(unmeasured),
        speedup_error=accuracy.speedup_error if accuracy else None,
        held_out=accuracy.settings if accuracy else 0,
    )
    return dataclasses.replace(recommendation, search=search)


def _unpredicted(
    collectives: Iterable[Record], trainings: Iterable[TrainingRecord], info: RunInfo
) -> str:
    """Return why a tuning could not predict anything; empty if it could."""
    keys, facts = info.get("candidates"), info.get("facts")
    try:
        if keys and facts:
            fit_steps(
                WorkloadFacts.from_json(facts),
                TrainingCase.from_key(keys[0]),
                collectives,
                trainings,
            )
    except InputError as error:
        cause = str(error).rstrip(".")
        return str(Finding(code="limit_unpredicted", numbers={"cause": cause}))
    return ""


def _measured_settings(trainings: Iterable[TrainingRecord], phase: str) -> list[JsonObject]:
    """Return the settings that were measured in a phase."""
    return [
        setting_of(setting.case)
        for setting in trained(trainings, phase).values()
        if setting.case.uses_ddp and setting.is_ok
    ]


def _choice(row: PredictionRow) -> Choice:
    """Return the setting of a row."""
    names = {f.name for f in dataclasses.fields(TrainingCase)} & {
        f.name for f in dataclasses.fields(Choice)
    }
    return Choice(**{name: getattr(row, name) for name in names})
