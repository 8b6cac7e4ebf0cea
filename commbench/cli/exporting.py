"""The command that hands a run on to another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commbench.errors import InputError
from commbench.exports import EXPORTS
from commbench.parameters import listed
from commbench.store import load_run
from commbench.terminal import make_console


def export(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    style: Annotated[str, typer.Option("--format", metavar="FORM", help=f"One of {listed(EXPORTS)}.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="Where to: openmetrics a file NAME.prom, parquet and tensorboard a directory, each by default in RUN; "
            "mlflow an SQLite file, by default what MLFLOW_TRACKING_URI says; nccl-tuner a file, by default in RUN.",
        ),
    ] = None,
) -> int:
    """Write a run for Prometheus, data frames, TensorBoard, MLflow or NCCL; needs neither torch nor MPI."""
    if style not in EXPORTS:
        raise InputError(f"Unknown format {style!r}; choose from {listed(EXPORTS)}.")
    make_console().print(f"Written: {EXPORTS[style](load_run(path), out)}", markup=False, soft_wrap=True)
    return 0
