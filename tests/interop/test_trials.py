"""Tests of runs as trials with settings and metrics, and of their export to TensorBoard, MLflow
and Weights & Biases.
"""

import dataclasses
import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import STEADY, make_case, make_launches, make_record
from fields import fields_of
from pages import make_run
from training_builders import make_training_case, make_training_launches, make_training_record

from commbench.errors import InputError
from commbench.interop.exports.trackers import (
    trials_of,
    write_mlflow,
    write_tensorboard,
    write_wandb,
)
from commbench.results import Run

#: Values by trial, metric and step.
Curves = dict[str, dict[str, dict[int, float]]]


def make_both() -> Run:
    """Return a run with a curve of two sizes, a hung one, and two configurations with losses."""
    larger, smaller = (make_launches(STEADY, make_case(message_bytes=n)) for n in (1024, 8))
    hung = make_record(make_case("broadcast"), status="hung", reason="rank 1")
    plain, sparse = (
        make_training_launches([ms] * 6, make_training_case(hook), losses=[3.0, 2.0, 1.5])
        for hook, ms in (("none", 20.0), ("topk:0.01", 10.0))
    )
    return make_run([*larger, *smaller, hung], [*plain, *sparse])


def curves_of(run: Run) -> Curves:
    """Return the points of each trial by metric and step."""
    curves = {}
    for trial in trials_of(run):
        metrics = curves.setdefault(trial.name, {})
        for metric, value, step in trial.points:
            metrics.setdefault(metric, {})[step] = pytest.approx(value)
    return curves


def test_a_curve_is_a_trial_whose_steps_are_sizes():
    """Order a curve's times by message size, and name it by its constant fields."""
    run = make_both()
    curve, hung, *_ = trials_of(run)
    assert "mpi all_reduce flat 2 ranks float32" == curve.name
    times = {row.message_bytes: row.time_us for row in run.rows if row.status == "ok"}
    found = curves_of(run)[curve.name]["all_reduce/time_us"]
    assert (times, [8, 1024]) == (found, list(found))
    settings = {"backend": "mpi", "operation": "all_reduce", "pattern": "flat", "ranks": "2"}
    assert {**settings, "dtype": "float32"} == curve.settings
    assert ("hung", []) == (hung.notes["status"], hung.points)


def test_a_configuration_is_a_trial_with_its_losses():
    """Return the columns of ddp.csv at step 0, and the loss of every step."""
    run = make_both()
    row = next(row for row in run.training_rows if row.hook == "topk")
    trial = next(trial for trial in trials_of(run) if trial.settings.get("hook") == "topk:0.01")
    found = curves_of(run)[trial.name]
    assert {0: row.step_ms} == found["training/step_ms"]
    assert {0: 3.0, 1: 2.0, 2: 1.5} == found["training/loss"]
    assert "default" == trial.settings["bucket_cap_mb"]


def test_losses_are_medians_over_launches_that_made_the_step():
    """Return the median loss over the launches of a step, without confirmations."""
    case = make_training_case()
    losses = [[3.0, 2.0], [3.2, 2.4, 1.0], [3.1, 2.2, 1.2]]
    records = [
        make_training_record(case, launch=number, losses=each) for number, each in enumerate(losses)
    ]
    fresh = make_training_record(make_training_case(phase="confirm"), losses=[9.0] * 5)
    (found,) = curves_of(make_run([], [*records, fresh])).values()
    assert {0: 3.1, 1: 2.2, 2: 1.1} == found["training/loss"]


# -------------------------------------------------------------------------------------- TensorBoard


def test_tensorboard_reads_curves_and_hyperparameters(tmp_path):
    """Read points and settings back with TensorBoard's readers."""
    loading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    from tensorboard.plugins.hparams import plugin_data_pb2

    run = make_both()
    found = {}
    for folder in write_tensorboard(run, tmp_path / "logs").iterdir():
        events = loading.EventAccumulator(str(folder)).Reload()
        metrics = found.setdefault(folder.name, {})
        for tag in events.Tags()["scalars"]:
            metrics[tag] = {event.step: event.value for event in events.Scalars(tag)}
        content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        chosen = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
        settings = {name: value.string_value for name, value in chosen.items()}
        assert settings in fields_of(trials_of(run), "settings")
    assert curves_of(run) == found


def test_tensorboard_files_are_replaced_and_others_kept(tmp_path):
    """Replace each trial's file on a second export, and keep foreign files."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    run = make_both()
    folder = write_tensorboard(run, tmp_path)
    others = folder / trials_of(run)[0].name / "events.out.tfevents.1.other"
    others.write_bytes(b"")
    write_tensorboard(run, tmp_path)
    assert len(trials_of(run)) == len(list(folder.glob("*/*.commbench")))
    assert others.exists()


# ------------------------------------------------------------------------------------------- MLflow


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """Return MLflow, with its working files in a temporary directory."""
    module = pytest.importorskip("mlflow", reason="needs mlflow")
    pytest.importorskip("sqlalchemy", reason="needs MLflow's own store, which mlflow-skinny lacks")
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("mlflow"))
    yield module
    os.chdir(before)


@pytest.fixture(scope="module")
def store(mlflow, tmp_path_factory):
    """Return a store with one run logged once, because creating its tables takes seconds."""
    assert mlflow is not None
    path = tmp_path_factory.mktemp("store") / "runs.db"
    assert f"sqlite:///{path}" == write_mlflow(make_both(), path)
    return path


@pytest.mark.filterwarnings("ignore")  # warnings of MLflow's dependencies
@pytest.mark.slow
def test_mlflow_has_a_parent_and_a_child_for_every_trial(mlflow, store):
    """Read back the parent's conditions, and the children's settings and curves."""
    run = make_both()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store}")
    number = client.get_experiment_by_name("commbench").experiment_id
    logged = client.search_runs([number], max_results=100)
    (parent,) = [each for each in logged if "mlflow.parentRunId" not in each.data.tags]
    assert "mine" == parent.info.run_name
    assert "commbench run" == parent.data.tags["commbench.command"]
    children = {each.info.run_name: each for each in logged if each is not parent}
    found = {}
    for name, child in children.items():
        assert parent.info.run_id == child.data.tags["mlflow.parentRunId"]
        assert child.data.params in fields_of(trials_of(run), "settings")
        metrics = found.setdefault(name, {})
        for metric in child.data.metrics:
            history = client.get_metric_history(child.info.run_id, metric)
            metrics[metric] = {point.step: point.value for point in history}
    assert curves_of(run) == found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # as above
def test_mlflow_takes_a_run_once(mlflow, store, tmp_path):
    """Refuse a run logged before; log another run of the same name, and an imported one."""
    copy = shutil.copy(store, tmp_path / "runs.db")
    run = make_run([])
    with pytest.raises(InputError, match="already"):
        write_mlflow(run, copy)
    date = "2026-11-22T00:00:00+00:00"
    write_mlflow(dataclasses.replace(run, info={**run.info, "started": date}), copy)
    info = {**run.info, "imported_at": "2026-11-23T00:00:00+00:00"}
    del info["started"]
    imported = dataclasses.replace(run, info=info)
    address = write_mlflow(imported, copy)
    with pytest.raises(InputError, match="already"):
        write_mlflow(imported, copy)
    client = mlflow.MlflowClient(tracking_uri=address)
    latest, *_ = client.search_runs([client.get_experiment_by_name("commbench").experiment_id])
    assert 1795392000000 == latest.info.start_time


# ----------------------------------------------------------------------------------------- W&B


def read_wandb(path: Path) -> Iterator[Any]:
    """Yield the records of a small offline run: a header of 7 bytes, then each behind its
    length.
    """
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="needs wandb")
    data = path.read_bytes()
    start = 7
    while start < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, start)
        assert 1 == kind  # whole: no record lies on the border of two blocks
        start += 7 + length
        yield internal.Record.FromString(data[start - length : start])


def values_of(items: Any) -> dict[str, Any]:
    """Return the values of a record of W&B by name."""
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")  # warnings of W&B's dependencies
def test_wandb_gets_an_offline_run_for_every_trial(tmp_path, monkeypatch):
    """Read back settings, curves and losses; a second export replaces the first."""
    pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_MODE", "online")  # what a person has set sends nothing, either
    run = make_both()
    write_wandb(run, tmp_path)
    folder = write_wandb(run, tmp_path)
    assert tmp_path / "wandb" == folder
    found = {}
    configs = {}
    for file in folder.glob("offline-run-*/*.wandb"):
        for record in read_wandb(file):
            if record.HasField("run"):
                name = record.run.display_name
                assert ("commbench", "mine") == (record.run.project, record.run.run_group)
                configs[name] = values_of(record.run.config.update)
                metrics = found.setdefault(name, {})
            elif record.HasField("history"):
                for metric, value in values_of(record.history.item).items():
                    if metric.startswith("_"):  # W&B's own
                        continue
                    metrics.setdefault(metric, {})[record.history.step.num] = value
    assert len(found) == len(list(folder.glob("offline-run-*")))
    for trial in trials_of(run):
        assert {**trial.settings, **trial.notes}.items() <= configs[trial.name].items()
        assert "commbench run" == configs[trial.name]["commbench.command"]
    assert curves_of(run) == found
