"""Exports to the experiment trackers MLflow and TensorBoard: trials with settings, and metrics over
steps.
"""

from __future__ import annotations

import itertools
import re
import shlex
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.ddp.plan.cases import SWEEP, SWITCHES
from commbench.ddp.plan.records import TrainingRecord, TrainingRow
from commbench.engine.flags import join_flags, split_flags
from commbench.errors import InputError
from commbench.interop.exports.common import (
    Labels,
    case_labels,
    dated_s,
    import_optional,
    training_labels,
)
from commbench.results import Run
from commbench.results.files import refusing
from commbench.results.info import RunInfo

COLLECTIVE_METRICS = ("time_us", "time_us_ci_low", "time_us_ci_high", "algbw_GBps", "busbw_GBps")
TRAINING_METRICS = (
    *(
        "step_ms",
        "step_ms_ci_low",
        "step_ms_ci_high",
        "exposed_comm_ms",
        "compress_ms",
        "sent_MB_per_step",
    ),
    *("speedup", "speedup_ci_low", "speedup_ci_high", "samples_per_s", "scaling_efficiency"),
    *("loss_equal_steps", "loss_equal_time", "metric"),
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of one metric."""

    metric: str
    """The CSV column, after the operation's name or ``training`` and a slash."""
    value: float
    step: int
    """For a collective the message size in bytes, for a loss the optimiser step, else 0."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The metrics of one setting: a collective over message sizes, or a training configuration."""

    name: str
    settings: Labels
    """The labels that apply."""
    notes: Labels
    """``status`` and ``flags`` of all rows of the trial."""
    points: Sequence[Point]


def trials_of(run: Run) -> list[Trial]:
    """Return the collectives of a run, then its training configurations, including trials without a
    time.
    """
    return [
        *_curves(run),
        *(_configuration(row, run.training_records) for row in run.training_rows),
    ]


def _curves(run: Run) -> Iterable[Trial]:
    rows = run.rows
    lines = [
        ({name: value for name, value in labels.items() if name != "message_bytes"}, row)
        for row, labels in zip(rows, case_labels(rows), strict=True)
    ]
    lines.sort(key=lambda line: tuple(line[0].values()))
    for settings, members in itertools.groupby(lines, key=lambda line: line[0]):
        curve = [row for _, row in members]
        points = [
            Point(metric=f"{row.operation}/{name}", value=value, step=row.message_bytes or 0)
            for row in sorted(curve, key=lambda row: row.message_bytes or 0)
            for name in COLLECTIVE_METRICS
            if (value := getattr(row, name)) is not None
        ]
        yield _trial(settings, [(row.status, row.flags) for row in curve], points)


def _configuration(row: TrainingRow, records: Iterable[TrainingRecord]) -> Trial:
    points = [
        Point(metric=f"training/{name}", value=value, step=0)
        for name in TRAINING_METRICS
        if (value := getattr(row, name)) is not None
    ]
    labels = training_labels(row)
    losses = [
        record.losses for record in records if record.case.phase == SWEEP and _is_of(record, row)
    ]
    for step in range(max(map(len, losses), default=0)):
        value = statistics.median(launch[step] for launch in losses if step < len(launch))
        points.append(Point(metric="training/loss", value=value, step=step))
    return _trial(labels, [(row.status, row.flags)], points)


def _is_of(record: TrainingRecord, row: TrainingRow) -> bool:
    names = (
        *(
            "workload",
            "world_size",
            "batch_per_rank",
            "backend",
            "precision",
            "hook",
            "density",
            "hook_options",
        ),
        *("bucket_cap_mb", *(switch.name for switch in SWITCHES), "compile", "accumulation", "env"),
    )
    return all(getattr(record.case, name) == getattr(row, name) for name in names)


def _trial(labels: Labels, outcomes: Sequence[tuple[str, str]], points: Sequence[Point]) -> Trial:
    settings = {name: value for name, value in labels.items() if value}
    flags = join_flags(flag.name for _, cell in outcomes for flag in split_flags(cell))
    return Trial(
        name=_name(settings),
        settings=settings,
        notes={"status": ";".join(dict.fromkeys(status for status, _ in outcomes)), "flags": flags},
        points=points,
    )


def _name(settings: Mapping[str, str]) -> str:
    """Return the settings in one line, unique among trials."""
    forms = {
        "ranks": "{} ranks",
        "batch_per_rank": "batch {}",
        "bucket_cap_mb": "buckets {}",
        "accumulation": "x{}",
    }
    return " ".join(forms.get(name, "{}").format(value) for name, value in settings.items())


EXPERIMENT = "commbench"
#: Tag that identifies an exported run.
TAG = "commbench.known_by"
#: Most metrics that MLflow accepts in one call.
BATCH = 1000


def write_mlflow(run: Run, out: Path | None = None) -> str:
    """Log a run to the experiment ``commbench`` and return the address of the store.

    Args:
        run: the run to export.
        out: an SQLite file, created if missing; by default the store of ``MLFLOW_TRACKING_URI``,
            else MLflow's own.

    Raises:
        InputError: MLflow is not installed, already holds this run, or cannot use the store.
    """
    mlflow = import_optional("mlflow", package="mlflow", style="mlflow")
    address = f"sqlite:///{out.absolute()}" if out else str(mlflow.get_tracking_uri())
    try:
        _log(run, mlflow.MlflowClient(tracking_uri=address))
    except mlflow.exceptions.MlflowException as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"MLflow cannot log to {address} ({message}); give --out FILE.db, or a server in"
            " MLFLOW_TRACKING_URI."
        ) from error
    return address


def _log(run: Run, client: Any) -> None:  # noqa: ANN401 - MLflow's client
    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    name, began = str(run.info.get("run_id") or run.path.name), dated_s(run.info) or time.time()
    known_by = re.sub(
        r"[^\w.-]", "_", f"{name}_{began:.0f}"
    )  # no character that MLflow's search requires to be quoted
    if client.search_runs([number], f"tags.`{TAG}` = '{known_by}'", max_results=1):
        raise InputError(
            f"MLflow already has {name} in the experiment {EXPERIMENT}; delete it there to log it"
            " again."
        )
    began_ms = int(1000 * began)

    def create(title: str, tags: Mapping[str, str]) -> str:
        return str(
            client.create_run(
                number, start_time=began_ms, run_name=title, tags=dict(tags)
            ).info.run_id
        )

    parent = create(name, {**_conditions(run.info), TAG: known_by})
    for trial in trials_of(run):
        child = create(trial.name, {**trial.notes, "mlflow.parentRunId": parent})
        _log_trial(trial, child, began_ms, client)
        client.set_terminated(child)
    client.set_terminated(parent)


def _conditions(info: RunInfo) -> dict[str, str]:
    """Return the tags of a run: suite, status, command, hosts and versions."""
    environment = info.get("environment") or {}
    hosts = environment.get("hosts") or []
    conditions = {
        **{
            name: info.get(name)
            for name in ("suite", "status", "launcher", "world_size", "nodes", "git_commit")
        },
        "command": shlex.join(map(str, info.get("argv") or [])),
        "hosts": ", ".join(str(host.get("hostname")) for host in hosts),
        **(environment.get("versions") or {}),
        "emulated": "yes" if environment.get("emulated") else "no",
    }
    return {
        f"commbench.{name}": str(value)
        for name, value in conditions.items()
        if value not in {None, ""}
    }


def _log_trial(trial: Trial, run_id: str, began_ms: int, client: Any) -> None:  # noqa: ANN401 - MLflow's client
    entities = import_optional("mlflow.entities", package="mlflow", style="mlflow")
    settings = [entities.Param(name, value) for name, value in trial.settings.items()]
    points = [
        entities.Metric(point.metric, point.value, began_ms, point.step) for point in trial.points
    ]
    client.log_batch(run_id, params=settings)
    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=points[start : start + BATCH])


FOLDER = "tensorboard"
#: Suffix of commbench's event files: a later export replaces only these files.
SUFFIX = ".commbench"


def write_tensorboard(run: Run, out: Path | None = None) -> Path:
    """Write a log directory for ``tensorboard --logdir`` and return it.

    An earlier export there is replaced.

    The step of a collective is its message size, that of a loss the optimiser step. Settings are
    hyperparameters: the tab HPARAMS sorts them by any metric.

    Args:
        run: the run to export.
        out: the directory; by default ``tensorboard`` in the run's directory.

    Raises:
        InputError: tensorboard is not installed, or the directory cannot be written.
    """
    _tensorboard("summary.writer.event_file_writer")
    folder = out or run.path / FOLDER
    wall_time = dated_s(run.info) or 0.0
    with refusing(folder, InputError):
        for old in folder.glob(f"*/events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        for trial in trials_of(run):
            _write_trial(trial, folder / _file_name(trial.name), wall_time)
    return folder


def _tensorboard(module: str) -> Any:  # noqa: ANN401 - a module of TensorBoard
    return import_optional(f"tensorboard.{module}", package="tensorboard", style="tensorboard")


def _write_trial(trial: Trial, folder: Path, wall_time: float) -> None:
    writers = import_optional(
        "tensorboard.summary.writer.event_file_writer", package="tensorboard", style="tensorboard"
    )
    events = _tensorboard("compat.proto.event_pb2")
    summaries = _tensorboard("compat.proto.summary_pb2")
    hyperparameters = import_optional(
        "tensorboard.plugins.hparams.summary_v2", package="tensorboard", style="tensorboard"
    )
    hparams_summary = hyperparameters.hparams_pb(
        dict(trial.settings), trial_id=trial.name, start_time_secs=wall_time
    )
    writer = writers.EventFileWriter(str(folder), filename_suffix=SUFFIX)

    def write(summary: Any, step: int) -> None:  # noqa: ANN401 - TensorBoard's
        writer.add_event(events.Event(wall_time=wall_time, step=step, summary=summary))

    write(hparams_summary, 0)
    for point in trial.points:
        value = summaries.Summary.Value(tag=point.metric, simple_value=point.value)
        write(summaries.Summary(value=[value]), point.step)
    writer.close()


def _file_name(name: str) -> str:
    """Return a trial's name as the name of a directory."""
    return re.sub(r"[^\w .,:=+-]", "_", name)
