"""The losses of a person's own training while it was tuned: ``losses.csv``."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from commbench.errors import InputError
from commbench.results.files import LOSSES, refusing

_COLUMNS = ("launch", "step", "loss")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of one optimiser step on rank 0, as given to ``backward()``; the sum over accumulated passes."""

    launch: int
    step: int
    loss: float


def losses_csv(losses: Iterable[Loss]) -> str:
    """Return the table of losses."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    table.writerows((loss.launch, loss.step, f"{loss.loss:.9g}") for loss in losses)
    return text.getvalue()


def read_losses(path: Path) -> list[Loss]:
    """Return the losses in a run directory; none without the file.

    Raises:
        InputError: the file holds something else.
    """
    file = path / LOSSES
    if not os.path.lexists(file):
        return []
    with refusing(file, InputError), file.open(encoding="utf-8", newline="") as stream:
        try:
            rows = list(csv.DictReader(stream))
            return [Loss(launch=int(row["launch"]), step=int(row["step"]), loss=float(row["loss"])) for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is not a table of losses ({error}); remove it.") from error
