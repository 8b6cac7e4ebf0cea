"""A run in MLflow: a parent run with its conditions, and below it one for every curve and training configuration."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commbench.errors import InputError
from commbench.exports.labels import dated_s
from commbench.exports.optional import needed
from commbench.exports.trials import Trial, trials_of
from commbench.store import Run

EXPERIMENT = "commbench"
#: By which an exported run is known again.
TAG = "commbench.known_by"
#: MLflow takes so many metrics at once.
BATCH = 1000


def write_mlflow(run: Run, out: Path | None = None) -> str:
    """Log a run to the experiment ``commbench`` and return the address of the store.

    Args:
        run: what to tell of.
        out: an SQLite file, made if need be; by default what ``MLFLOW_TRACKING_URI`` names, else MLflow's own choice.

    Raises:
        InputError: MLflow is not installed, has this run already, or cannot use the store.
    """
    mlflow = needed("mlflow", package="mlflow", style="mlflow")
    address = f"sqlite:///{out.absolute()}" if out else str(mlflow.get_tracking_uri())
    try:
        _log(run, mlflow.MlflowClient(tracking_uri=address))
    except mlflow.exceptions.MlflowException as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"MLflow cannot log to {address} ({said}); give --out FILE.db, or a server in MLFLOW_TRACKING_URI."
        ) from error
    return address


def _log(run: Run, client: Any) -> None:  # noqa: ANN401 - MLflow's client
    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    name, began = str(run.info.get("run_id") or run.path.name), dated_s(run.info) or time.time()
    known_by = re.sub(r"[^\w.-]", "_", f"{name}_{began:.0f}")  # free of what MLflow's search would have quoted
    if client.search_runs([number], f"tags.`{TAG}` = '{known_by}'", max_results=1):
        raise InputError(f"MLflow has {name} in the experiment {EXPERIMENT} already; delete it there to log it anew.")
    began_ms = int(1000 * began)

    def create(title: str, tags: Mapping[str, str]) -> str:
        return str(client.create_run(number, start_time=began_ms, run_name=title, tags=dict(tags)).info.run_id)

    parent = create(name, {**_conditions(run.info), TAG: known_by})
    for trial in trials_of(run):
        child = create(trial.name, {**trial.notes, "mlflow.parentRunId": parent})
        _log_trial(trial, child, began_ms, client)
        client.set_terminated(child)
    client.set_terminated(parent)


def _conditions(info: Mapping[str, Any]) -> dict[str, str]:
    """What a reader wants to know of a run beside its numbers."""
    environment = info.get("environment") or {}
    hosts = environment.get("hosts") or []
    stated = {
        **{name: info.get(name) for name in ("suite", "status", "launcher", "world_size", "nodes", "git_commit")},
        "command": shlex.join(map(str, info.get("argv") or [])),
        "hosts": ", ".join(str(host.get("hostname")) for host in hosts),
        **(environment.get("versions") or {}),
        "emulated": "yes" if environment.get("emulated") else "no",
    }
    return {f"commbench.{name}": str(value) for name, value in stated.items() if value not in {None, ""}}


def _log_trial(trial: Trial, run_id: str, began_ms: int, client: Any) -> None:  # noqa: ANN401 - MLflow's client
    entities = needed("mlflow.entities", package="mlflow", style="mlflow")
    settings = [entities.Param(name, value) for name, value in trial.settings.items()]
    points = [entities.Metric(point.metric, point.value, began_ms, point.step) for point in trial.points]
    client.log_batch(run_id, params=settings)
    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=points[start : start + BATCH])
