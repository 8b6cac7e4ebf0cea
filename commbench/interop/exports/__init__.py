"""Exports of runs: metrics for Prometheus, tables, trials, tuner rules for NCCL."""

from collections.abc import Callable, Mapping
from pathlib import Path

from commbench.interop.exports.nccl_tuner import write_nccl_tuner
from commbench.interop.exports.openmetrics import write_openmetrics
from commbench.interop.exports.parquet import write_parquet
from commbench.interop.exports.trackers import write_mlflow, write_tensorboard, write_wandb
from commbench.results import Run

__all__ = ["EXPORTS", "write_openmetrics"]

#: What writes each ``--format`` to a path, or to the default of the form; it returns the
#: destination.
EXPORTS: Mapping[str, Callable[[Run, Path | None], Path | str]] = {
    "openmetrics": write_openmetrics,
    "parquet": write_parquet,
    "tensorboard": write_tensorboard,
    "mlflow": write_mlflow,
    "wandb": write_wandb,
    "nccl-tuner": write_nccl_tuner,
}
