"""Exports of runs: metrics for Prometheus, tables, trials, a history for change points, tuner rules
for NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.analysis.expectations import Answer
from commbench.errors import InputError
from commbench.interop.exports.history import write_history
from commbench.interop.exports.nccl_tuner import write_nccl_tuner
from commbench.interop.exports.openmetrics import write_openmetrics
from commbench.interop.exports.parquet import write_parquet
from commbench.interop.exports.trackers import write_mlflow, write_tensorboard
from commbench.results import Run

__all__ = ["EXPORTS", "Export"]


@dataclass(frozen=True, kw_only=True)
class Export:
    """A form that runs are exported to."""

    write: Callable[[Sequence[Run], Path | None, Sequence[Answer]], Path | str]
    """Writes the runs to a path, or to the default of the form; returns the destination."""
    takes_several_runs: bool = False
    takes_expectations: bool = False

    def check(self, style: str, runs: Sequence[Path], expect: Sequence[str]) -> None:
        """Check that the form takes so many runs, and expectations if any are given.

        Raises:
            InputError: it does not.
        """
        if len(runs) > 1 and not self.takes_several_runs:
            raise InputError(
                f"--format {style} takes one run, and {len(runs)} were given; name one of them."
            )
        if expect and not self.takes_expectations:
            raise InputError(
                f"--expect is of --format openmetrics; leave it out of --format {style}."
            )


def _of_one(write: Callable[[Run, Path | None], Path | str]) -> Export:
    return Export(write=lambda runs, out, _: write(runs[0], out))


#: The export of each ``--format``.
EXPORTS: Mapping[str, Export] = {
    "openmetrics": Export(
        write=lambda runs, out, answers: write_openmetrics(runs[0], out, answers),
        takes_expectations=True,
    ),
    "parquet": _of_one(write_parquet),
    "tensorboard": _of_one(write_tensorboard),
    "mlflow": _of_one(write_mlflow),
    "nccl-tuner": _of_one(write_nccl_tuner),
    "history": Export(write=lambda runs, out, _: write_history(runs, out), takes_several_runs=True),
}
