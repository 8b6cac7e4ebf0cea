"""A run as event files of TensorBoard: a run for every curve and every training configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from commbench.errors import InputError
from commbench.exports.labels import dated_s
from commbench.exports.optional import needed
from commbench.exports.trials import Trial, trials_of
from commbench.store import Run
from commbench.store.files import refusing

FOLDER = "tensorboard"
#: Ends the names of our event files, so that a later export replaces them and nothing else.
SUFFIX = ".commbench"


def write_tensorboard(run: Run, out: Path | None = None) -> Path:
    """Write a log directory for ``tensorboard --logdir`` and return it; what was exported there before is replaced.

    Steps are message sizes of collectives and optimiser steps of losses. Settings are hyperparameters, which the tab
    HPARAMS sorts by any metric.

    Args:
        run: what to tell of.
        out: the directory; by default ``tensorboard`` in the run's own.

    Raises:
        InputError: tensorboard is not installed, or the directory cannot be written.
    """
    needed("tensorboard.summary.writer.event_file_writer", package="tensorboard", style="tensorboard")
    folder = out or run.path / FOLDER
    wall_time = dated_s(run.info) or 0.0
    with refusing(folder, InputError):
        for old in folder.glob(f"*/events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        for trial in trials_of(run):
            _write_trial(trial, folder / _file_name(trial.name), wall_time)
    return folder


def _write_trial(trial: Trial, folder: Path, wall_time: float) -> None:
    writers = needed("tensorboard.summary.writer.event_file_writer", package="tensorboard", style="tensorboard")
    events = needed("tensorboard.compat.proto.event_pb2", package="tensorboard", style="tensorboard")
    summaries = needed("tensorboard.compat.proto.summary_pb2", package="tensorboard", style="tensorboard")
    hyperparameters = needed("tensorboard.plugins.hparams.summary_v2", package="tensorboard", style="tensorboard")
    chosen = hyperparameters.hparams_pb(dict(trial.settings), trial_id=trial.name, start_time_secs=wall_time)
    writer = writers.EventFileWriter(str(folder), filename_suffix=SUFFIX)

    def write(summary: Any, step: int) -> None:  # noqa: ANN401 - TensorBoard's
        writer.add_event(events.Event(wall_time=wall_time, step=step, summary=summary))

    write(chosen, 0)
    for point in trial.points:
        value = summaries.Summary.Value(tag=point.metric, simple_value=point.value)
        write(summaries.Summary(value=[value]), point.step)
    writer.close()


def _file_name(name: str) -> str:
    """A trial's name as that of a directory."""
    return re.sub(r"[^\w .,:=+-]", "_", name)
