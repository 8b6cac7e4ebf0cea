"""Exports of runs: metrics for Prometheus, tables, trials, tuner rules for NCCL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.analysis.expectations import Answer
from commbench.errors import InputError
from commbench.interop.exports.nccl_tuner import write_nccl_tuner
from commbench.interop.exports.openmetrics import write_openmetrics
from commbench.interop.exports.parquet import write_parquet
from commbench.interop.exports.trackers import write_mlflow, write_tensorboard
from commbench.results import Run

__all__ = ["EXPORTS", "Export"]


@dataclass(frozen=True, kw_only=True)
class Export:
    """A form that a run is exported to."""

    write: Callable[[Run, Path | None, Sequence[Answer]], Path | str]
    """Writes the run to a path, or to the default of the form; returns the destination."""
    takes_expectations: bool = False

    def check(self, style: str, expect: Sequence[str]) -> None:
        """Check that the form takes expectations if any are given.

        Raises:
            InputError: it does not.
        """
        if expect and not self.takes_expectations:
            raise InputError(
                f"--expect is of --format openmetrics; leave it out of --format {style}."
            )


def _without_expectations(write: Callable[[Run, Path | None], Path | str]) -> Export:
    return Export(write=lambda run, out, _: write(run, out))


#: The export of each ``--format``.
EXPORTS: Mapping[str, Export] = {
    "openmetrics": Export(write=write_openmetrics, takes_expectations=True),
    "parquet": _without_expectations(write_parquet),
    "tensorboard": _without_expectations(write_tensorboard),
    "mlflow": _without_expectations(write_mlflow),
    "nccl-tuner": _without_expectations(write_nccl_tuner),
}
