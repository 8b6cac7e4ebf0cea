"""Shared by the exports: labels of cases, start times of runs, and imports of optional packages."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups
from commbench.ddp.plan.cases import switch_words
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row
from commbench.errors import InputError
from commbench.hooks.registry import hook_words
from commbench.results.info import RunInfo

Labels = Mapping[str, str]

#: Labels of a collective case; ``variant`` holds every other difference from the defaults.
CASE_LABELS = (
    "backend",
    "operation",
    "pattern",
    "group",
    "ranks",
    "dtype",
    "message_bytes",
    "variant",
)
#: Labels of a training configuration.
TRAINING_LABELS = (
    *(
        "workload",
        "backend",
        "ranks",
        "batch_per_rank",
        "hook",
        "bucket_cap_mb",
        "precision",
        "accumulation",
    ),
    "variant",
)


def texts(labels: Mapping[str, object]) -> dict[str, str]:
    """Return labels as text; empty if a label does not apply."""
    return {name: "" if value is None else str(value) for name, value in labels.items()}


def case_labels(rows: Sequence[Row]) -> list[Labels]:
    """Return the labels `CASE_LABELS` of each row.

    ``variant`` states the synchronisation and the timed loop only if cases differ in nothing else.
    Both can change from run to run by default, and that must not end a time series.
    """
    plain = [_case_labels(row) for row in rows]
    counts = Counter(tuple(labels.values()) for labels in plain)
    return [
        labels if counts[tuple(labels.values())] == 1 else _case_labels(row, row.sync, row.loop)
        for row, labels in zip(rows, plain, strict=True)
    ]


def _case_labels(row: Row, *more: str) -> Labels:
    words = [row.redop] if row.redop and row.redop != "sum" else []
    if row.in_place is not None and row.in_place != OPERATIONS[row.operation].default_in_place:
        words.append("in place" if row.in_place else "out of place")
    words += [f"root {row.root}"] if row.root else []
    words += [f"{row.buffers} buffers"] if row.buffers not in {"", "hot"} else []
    words += [
        word
        for word in (row.cadence.replace("isolated", ""), row.algorithm_requested, row.env, *more)
        if word
    ]
    values = (
        *(row.backend, row.operation, row.pattern, row.group if makes_groups(row.pattern) else ""),
        *(row.group_size, row.dtype, row.message_bytes, ", ".join(words)),
    )
    return texts(dict(zip(CASE_LABELS, values, strict=True)))


def training_labels(row: TrainingRow) -> Labels:
    """Return the labels `TRAINING_LABELS` of a row."""
    hook = hook_words(row.hook, row.density, row.hook_options)
    words = switch_words(row) + ([row.env] if row.env else [])
    values = (
        *(row.workload, row.backend, row.world_size, row.batch_per_rank, hook, row.bucket_cap_mb),
        *(row.precision, row.accumulation, ", ".join(words)),
    )
    return texts(dict(zip(TRAINING_LABELS, values, strict=True)))


def began_s(info: RunInfo) -> float | None:
    """Return when a run began, in seconds of Unix time; None if ``run.json`` does not state it."""
    return _seconds(info.get("started"))


def dated_s(info: RunInfo) -> float | None:
    """Return when a run began, else when it was imported, in seconds of Unix time.

    None if neither is stated.
    """
    return _seconds(info.get("started") or info.get("imported_at"))


def _seconds(text: str | None) -> float | None:
    """Return the Unix time of a text in ISO 8601; None if the text is not a time."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError, OSError):  # also a year that the system's clock cannot have
        return None


def import_optional(module: str, *, package: str, style: str) -> Any:  # noqa: ANN401 - a module that need not be installed
    """Import a module of an optional package and return it.

    Args:
        module: its full name.
        package: the package's name for pip.
        style: the value of ``--format`` that needs it.

    Raises:
        InputError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--format {style} needs {package}, which this Python lacks (no module {error.name});"
            f" install it: pip install {package}"
        ) from error
