"""What exports share: the labels of a row, the facts and the date of a run, optional packages."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups
from commbench.ddp.plan.cases import switch_words
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row
from commbench.errors import InputError
from commbench.hooks.registry import hook_words
from commbench.results import Run
from commbench.results.info import RunInfo

Labels = dict[str, str]

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
    "workload",
    "backend",
    "ranks",
    "batch_per_rank",
    "hook",
    "bucket_cap_mb",
    "precision",
    "accumulation",
    "variant",
)
#: Labels of a run.
RUN_LABELS = (
    "run",
    "suite",
    "status",
    "launcher",
    "world_size",
    "nodes",
    "version",
    "git_commit",
    "emulated",
)


def texts(values: Mapping[str, object]) -> Labels:
    """Return values as text; empty if a value does not apply."""
    return {name: "" if value is None else str(value) for name, value in values.items()}


def labelled_rows(run: Run) -> Iterator[tuple[Labels, Row | TrainingRow]]:
    """Yield the rows of ``collectives.csv`` and ``ddp.csv`` with their labels."""
    yield from zip(case_labels(run.rows), run.rows, strict=True)
    for row in run.training_rows:
        yield training_labels(row), row


def case_labels(rows: Sequence[Row]) -> list[Labels]:
    """Return the labels `CASE_LABELS` of each row.

    ``variant`` states the synchronisation and the timed loop only if cases differ in nothing else.
    Both can change from run to run by default, and that must not end a time series.
    """
    all_labels = []
    for row in rows:
        group = row.group if makes_groups(row.pattern) else ""
        values = {"ranks": row.group_size, "group": group, "variant": _variant(row)}
        all_labels.append(_labels(CASE_LABELS, row, values))
    counts = Counter(tuple(labels.values()) for labels in all_labels)
    for row, labels in zip(rows, all_labels, strict=True):
        if counts[tuple(labels.values())] > 1:
            labels["variant"] = joined(labels["variant"], row.sync, row.loop)
    return all_labels


def _labels(names: Sequence[str], row: Row | TrainingRow, values: Mapping[str, object]) -> Labels:
    """Return labels as text: values, else the columns of their names."""
    return texts({name: values.get(name, getattr(row, name, None)) for name in names})


def _variant(row: Row) -> str:
    """Return what no other label states and what is not the default."""
    words = []
    if row.redop != "sum":
        words.append(row.redop)
    if row.in_place is not None and row.in_place != OPERATIONS[row.operation].default_in_place:
        words.append("in place" if row.in_place else "out of place")
    if row.root:
        words.append(f"root {row.root}")
    if row.buffers and row.buffers != "hot":
        words.append(f"{row.buffers} buffers")
    if row.cadence != "isolated":
        words.append(row.cadence)
    return joined(*words, row.algorithm_requested, row.env)


def joined(*words: str | None) -> str:
    """Return the words that are not empty, separated by commas."""
    return ", ".join(filter(None, words))


def training_labels(row: TrainingRow) -> Labels:
    """Return the labels `TRAINING_LABELS` of a row."""
    values = {
        "ranks": row.world_size,
        "hook": hook_words(row.hook, row.density, row.hook_options),
        "variant": joined(*switch_words(row), row.env),
    }
    return _labels(TRAINING_LABELS, row, values)


def run_facts(run: Run) -> Labels:
    """Return the labels `RUN_LABELS`: what identifies a run and where it was measured."""
    environment = run.info.get("environment") or {}
    versions = environment.get("versions") or {}
    facts: dict[str, object] = {name: run.info.get(name) for name in RUN_LABELS}
    facts["run"] = run.info.get("run_id") or run.path.name
    facts["version"] = versions.get("commbench")
    facts["emulated"] = "yes" if environment.get("emulated") else "no"
    return texts(facts)


def dated_s(info: RunInfo) -> float | None:
    """Return when a run began, else when it was imported, in seconds of Unix time.

    None if neither is stated.
    """
    return unix_s(info.get("started") or info.get("imported_at"))


def unix_s(text: str | None) -> float | None:
    """Return the Unix time of a text in ISO 8601; None if the text is not a time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # also a year that the system's clock cannot have
        return None


def import_optional(module: str) -> Any:
    """Import a module of an optional package, which is named as the module is, and return it.

    Raises:
        InputError: the package is not installed.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"This --format needs {package}, which this Python lacks (no module {error.name});"
            f" install it: pip install {package}"
        ) from error
