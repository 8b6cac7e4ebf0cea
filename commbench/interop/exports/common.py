"""Shared by all exports: labels of runs and cases, and packages that only one export needs."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row
from commbench.errors import InputError
from commbench.hooks.registry import hook_words
from commbench.results.info import RunInfo

Labels = Mapping[str, str]

#: Labels that name a collective case, whatever was measured; a case that differs in more says so in ``variant``.
CASE_LABELS = ("backend", "operation", "pattern", "group", "ranks", "dtype", "message_bytes", "variant")
#: Labels that name a training configuration.
TRAINING_LABELS = (
    *("workload", "backend", "ranks", "batch_per_rank", "hook", "bucket_cap_mb", "precision", "accumulation"),
    "variant",
)


def texts(labels: Mapping[str, object]) -> dict[str, str]:
    """Labels as text, empty where one does not apply."""
    return {name: "" if value is None else str(value) for name, value in labels.items()}


def case_labels(rows: Sequence[Row]) -> list[Labels]:
    """The labels `CASE_LABELS` of each row.

    How ranks started together and the timed loop are named only where cases differ in nothing else: both may change
    from run to run by themselves, and a series should not end for that.
    """
    plain = [_case_labels(row) for row in rows]
    seen = Counter(tuple(labels.values()) for labels in plain)
    return [
        labels if seen[tuple(labels.values())] == 1 else _case_labels(row, row.sync, row.loop)
        for row, labels in zip(rows, plain, strict=True)
    ]


def _case_labels(row: Row, *more: str) -> Labels:
    words = [row.redop] if row.redop and row.redop != "sum" else []
    if row.in_place is not None and row.in_place != OPERATIONS[row.operation].default_in_place:
        words.append("in place" if row.in_place else "out of place")
    words += [f"root {row.root}"] if row.root else []
    words += [f"{row.buffers} buffers"] if row.buffers not in {"", "hot"} else []
    words += [word for word in (row.cadence.replace("isolated", ""), row.algorithm_requested, *more) if word]
    values = (
        *(row.backend, row.operation, row.pattern, row.group if makes_groups(row.pattern) else ""),
        *(row.group_size, row.dtype, row.message_bytes, ", ".join(words)),
    )
    return texts(dict(zip(CASE_LABELS, values, strict=True)))


def training_labels(row: TrainingRow) -> Labels:
    """The labels `TRAINING_LABELS` of a row."""
    hook = hook_words(row.hook, row.density, row.hook_options)
    words = (["bucket views"] if row.bucket_view else []) + (["static graph"] if row.static_graph else [])
    values = (
        *(row.workload, row.backend, row.world_size, row.batch_per_rank, hook, row.bucket_cap_mb),
        *(row.precision, row.accumulation, ", ".join(words)),
    )
    return texts(dict(zip(TRAINING_LABELS, values, strict=True)))


def began_s(info: RunInfo) -> float | None:
    """When a run began, in seconds of Unix time; None where ``run.json`` does not say."""
    return _seconds(info.get("started"))


def dated_s(info: RunInfo) -> float | None:
    """When a run began, else when another tool's output was imported, by which a reader finds it; likewise."""
    return _seconds(info.get("started") or info.get("imported_at"))


def _seconds(text: str | None) -> float | None:
    """A moment in ISO 8601; None where it is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError, OSError):  # also a year that the system's clock cannot have
        return None


def needed(module: str, *, package: str, style: str) -> Any:  # noqa: ANN401 - a module that need not be installed
    """Import a module of an optional package.

    Args:
        module: its full name.
        package: what pip calls the package.
        style: the value of ``--format`` that needs it.

    Raises:
        InputError: the package is not there.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--format {style} needs {package}, which this Python lacks (no module {error.name}); install it: "
            f"pip install {package}"
        ) from error
