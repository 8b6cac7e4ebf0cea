"""The losses of a person's own training while it was tuned: ``losses.csv``."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from commbench.errors import InputError, LaunchError
from commbench.results.files import LOSSES, refusing
from commbench.system.files import decode


class Loss(NamedTuple):
    """The loss of one optimiser step on rank 0, as given to ``backward()``.

    The sum over accumulated passes.
    """

    launch: int
    step: int
    loss: float


def append_losses(path: Path, losses: Iterable[Loss]) -> None:
    """Append losses to the table in a run directory.

    Raises:
        LaunchError: it could not be written.
    """
    file = path / LOSSES
    with refusing(file, LaunchError), file.open("a", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        if not stream.tell():
            table.writerow(Loss._fields)
        table.writerows((loss.launch, loss.step, f"{loss.loss:.9g}") for loss in losses)


def read_losses(path: Path) -> list[Loss]:
    """Return the losses in a run directory, without a last line that a crash tore.

    Empty without the file.

    Raises:
        InputError: the file holds something else.
    """
    file = path / LOSSES
    if not os.path.lexists(file):
        return []
    with refusing(file, InputError):
        lines = decode(file.read_bytes()).splitlines(keepends=True)
    try:
        rows = csv.DictReader(line for line in lines if line.endswith("\n"))
        return [Loss(int(row["launch"]), int(row["step"]), float(row["loss"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not a table of losses ({error}); remove it.") from error
