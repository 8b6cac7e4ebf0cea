"""Exports to experiment trackers (MLflow, TensorBoard, Weights & Biases): settings and metrics."""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from commbench.ddp.plan.records import TrainingRow
from commbench.engine.flags import join_flags, split_flags
from commbench.engine.records import Row
from commbench.errors import InputError
from commbench.interop.exports.common import (
    Labels,
    dated_s,
    import_optional,
    labelled_rows,
    run_facts,
    texts,
    training_labels,
)
from commbench.interop.exports.measures import ROW_COLUMNS
from commbench.results import Run
from commbench.results.files import refusing
from commbench.words import phrase

#: Columns of both tables that become metrics: the measures, and what no monitoring system needs.
COLUMNS = (
    *ROW_COLUMNS,
    "algbw_GBps",
    "compress_ms",
    "samples_per_s",
    "scaling_efficiency",
    "loss_equal_steps",
    "loss_equal_time",
    "metric",
)
#: How a trial's name states settings that are no words by themselves.
_WORDS = {
    "ranks": "{:rank}",
    "batch_per_rank": "batch {}",
    "bucket_cap_mb": "buckets {}",
    "accumulation": "x{}",
}


class Point(NamedTuple):
    """One value of one metric."""

    metric: str
    """The CSV column, after the operation's name or ``training`` and a slash."""
    value: float
    step: int
    """For a collective the message size in bytes, for a loss the optimiser step, else 0."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The metrics of one setting: a collective over sizes, or a training configuration."""

    settings: Labels
    """The labels that apply."""
    rows: list[Row | TrainingRow] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The settings in one line, unique among trials."""
        words = [phrase(_WORDS.get(name, "{}"), text) for name, text in self.settings.items()]
        return " ".join(words)

    @property
    def notes(self) -> Labels:
        """``status`` and ``flags`` of all rows."""
        flags = [name for row in self.rows for name in split_flags(row.flags)]
        statuses = dict.fromkeys(row.status for row in self.rows)
        return {"status": ";".join(statuses), "flags": join_flags(flags)}

    def add(self, row: Row | TrainingRow) -> None:
        """Add a row and the points of its columns."""
        self.rows.append(row)
        head = getattr(row, "operation", "training")
        step = getattr(row, "message_bytes", None) or 0
        for column in COLUMNS:
            value = getattr(row, column, None)
            if value is not None:
                self.points.append(Point(f"{head}/{column}", value, step))

    def add_losses(self, launches: Sequence[Sequence[float]]) -> None:
        """Add the median loss of each step over the launches that made it."""
        for step, losses in enumerate(itertools.zip_longest(*launches)):
            loss = statistics.median(loss for loss in losses if loss is not None)
            self.points.append(Point("training/loss", loss, step))


def trials_of(run: Run) -> list[Trial]:
    """Return the collectives of a run, then its training configurations, with or without a time."""
    trials: dict[str, Trial] = {}
    for labels, row in labelled_rows(run):
        trial = _trial(labels)
        trials.setdefault(trial.name, trial).add(row)
    for trial in trials.values():
        trial.points.sort(key=attrgetter("step"))
    for case, row in run.keyed_training_rows.items():
        launches = [record.losses for record in run.training_records if record.case == case]
        trials[_trial(training_labels(row)).name].add_losses(launches)
    return list(trials.values())


def _trial(labels: Labels) -> Trial:
    settings = {name: text for name, text in labels.items() if text and name != "message_bytes"}
    return Trial(settings=settings)


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
    mlflow = import_optional("mlflow")
    address = str(mlflow.get_tracking_uri())
    if out:
        address = f"sqlite:///{out.absolute()}"
    try:
        _log(run, mlflow.MlflowClient(tracking_uri=address), mlflow.entities)
    except mlflow.exceptions.MlflowException as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"MLflow cannot log to {address} ({message}); "
            "give --out FILE.db, or a server in MLFLOW_TRACKING_URI."
        ) from error
    return address


def _log(run: Run, client: Any, entities: Any) -> None:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    tags = _tags(run)
    name = run_facts(run)["run"]
    began_s = dated_s(run.info) or time.time()
    tags[TAG] = _known_by(name, began_s)
    if client.search_runs([number], f"tags.`{TAG}` = '{tags[TAG]}'", max_results=1):
        raise InputError(
            f"MLflow already has {name} in the experiment {EXPERIMENT}; "
            "delete it there to log it again."
        )
    began_ms = int(1000 * began_s)
    parent = client.create_run(number, began_ms, tags, name).info.run_id
    for trial in trials_of(run):
        notes = {**trial.notes, "mlflow.parentRunId": parent}
        child = client.create_run(number, began_ms, notes, trial.name).info.run_id
        settings = [entities.Param(name, text) for name, text in trial.settings.items()]
        client.log_batch(child, params=settings)
        points = [
            entities.Metric(name, value, began_ms, step) for name, value, step in trial.points
        ]
        for start in range(0, len(points), BATCH):
            client.log_batch(child, metrics=points[start : start + BATCH])
        client.set_terminated(child)
    client.set_terminated(parent)


def _known_by(name: str, began_s: float) -> str:
    """Return the identity of a run, without characters that MLflow's search must quote."""
    return re.sub(r"[^\w.-]", "_", f"{name}_{began_s:.0f}")


def _tags(run: Run) -> Labels:
    """Return the tags of a run: suite, status, command, hosts and versions."""
    environment = run.info.get("environment") or {}
    hosts = [str(host.get("hostname")) for host in environment.get("hosts") or []]
    facts = run_facts(run)
    del facts["run"], facts["version"]  # the run's name, and the version of commbench below
    facts["command"] = shlex.join(map(str, run.info.get("argv") or []))
    facts["hosts"] = ", ".join(hosts)
    facts.update(texts(environment.get("versions") or {}))
    return {f"commbench.{name}": text for name, text in facts.items() if text}


FOLDER = "tensorboard"
#: Suffix of commbench's event files: a later export replaces only these files.
SUFFIX = ".commbench"


def write_tensorboard(run: Run, out: Path | None = None) -> Path:
    """Write a log directory for ``tensorboard --logdir`` and return it; replace an earlier export.

    The step of a collective is its message size, that of a loss the optimiser step. Settings are
    hyperparameters: the tab HPARAMS sorts them by any metric.

    Args:
        run: the run to export.
        out: the directory; by default ``tensorboard`` in the run's directory.

    Raises:
        InputError: tensorboard is not installed, or the directory cannot be written.
    """
    events = import_optional("tensorboard.compat.proto.event_pb2")
    hparams = import_optional("tensorboard.plugins.hparams.summary_v2")
    writers = import_optional("tensorboard.summary.writer.event_file_writer")
    folder = out or run.path / FOLDER
    began_s = dated_s(run.info) or 0.0
    with refusing(folder, InputError):
        for old in folder.glob(f"*/events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        for trial in trials_of(run):
            directory = folder / re.sub(r"[^\w .,:=+-]", "_", trial.name)
            writer = writers.EventFileWriter(str(directory), filename_suffix=SUFFIX)
            settings = hparams.hparams_pb(trial.settings, trial.name, start_time_secs=began_s)
            writer.add_event(events.Event(wall_time=began_s, summary=settings))
            for metric, value, step in trial.points:
                summary = {"value": [{"tag": metric, "simple_value": value}]}
                writer.add_event(events.Event(wall_time=began_s, step=step, summary=summary))
            writer.close()
    return folder


#: Where Weights & Biases writes below the directory that it is given.
WANDB_FOLDER = "wandb"


def write_wandb(run: Run, out: Path | None = None) -> Path:
    """Write offline runs for ``wandb sync`` and return their directory; replace an earlier export.

    A trial is a run of the project ``commbench``, in the group of its commbench run. Nothing is
    sent. The ids of the trials stay, so that a server knows those that it has.

    Args:
        run: the run to export.
        out: the directory in which ``wandb`` is made; by default the run's.

    Raises:
        InputError: wandb is not installed or cannot start, or the directory cannot be written.
    """
    wandb = import_optional("wandb")
    folder = (out or run.path) / WANDB_FOLDER
    with refusing(folder, InputError):
        folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        mode="offline",
        silent=True,
        console="off",
        disable_git=True,
        # of the process that exports, not of the ranks
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    name, tags = run_facts(run)["run"], _tags(run)
    identity = _known_by(name, dated_s(run.info) or 0.0)
    try:
        for trial in trials_of(run):
            number = hashlib.sha256(f"{identity} {trial.name}".encode()).hexdigest()[:16]
            for old in folder.glob(f"offline-run-*-{number}"):
                shutil.rmtree(old)
            logged = wandb.init(
                project=EXPERIMENT,
                group=name,
                name=trial.name,
                id=number,
                config={**trial.settings, **trial.notes, **tags},
                dir=folder.parent,
                settings=settings,
                reinit="create_new",
            )
            for step, points in itertools.groupby(trial.points, key=attrgetter("step")):
                logged.log({point.metric: point.value for point in points}, step=step)
            logged.finish()
        wandb.teardown()
    except wandb.Error as error:
        raise InputError(f"wandb cannot write to {folder} ({error}); install it again.") from error
    return folder
