"""Runs in the forms of other tools: metrics, data frames, trials of experiment trackers, rules for NCCL."""

from collections.abc import Callable, Mapping
from pathlib import Path

from commbench.interop.exports.metrics import write_openmetrics
from commbench.interop.exports.nccl_tuner import write_nccl_tuner
from commbench.interop.exports.parquet import write_parquet
from commbench.interop.exports.trackers import write_mlflow, write_tensorboard
from commbench.results import Run

__all__ = ["EXPORTS"]

#: For each ``--format`` what writes a run to ``--out``, or to a place of its own, and returns where that is.
EXPORTS: Mapping[str, Callable[[Run, Path | None], Path | str]] = {
    "openmetrics": write_openmetrics,
    "parquet": write_parquet,
    "tensorboard": write_tensorboard,
    "mlflow": write_mlflow,
    "nccl-tuner": write_nccl_tuner,
}
