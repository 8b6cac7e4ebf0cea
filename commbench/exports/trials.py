"""A run as experiment trackers know things: trials with settings, and metrics over steps."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from commbench.exports.labels import Labels, case_labels, training_labels
from commbench.store import Run
from commbench.training.cases import SWEEP
from commbench.training.records import TrainingRecord, TrainingRow

COLLECTIVE_METRICS = ("time_us", "time_us_ci_low", "time_us_ci_high", "algbw_GBps", "busbw_GBps")
TRAINING_METRICS = (
    *("step_ms", "step_ms_ci_low", "step_ms_ci_high", "exposed_comm_ms", "compress_ms", "sent_MB_per_step"),
    *("speedup", "speedup_ci_low", "speedup_ci_high", "samples_per_s", "scaling_efficiency"),
    *("loss_equal_steps", "loss_equal_time", "metric"),
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of one metric."""

    metric: str
    """In the words of the CSV files, below the operation's name or ``training``."""
    value: float
    step: int
    """Of a collective the message in bytes, of a loss the optimiser step, else 0."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was measured under one setting: a curve of a collective over message sizes, or a training configuration."""

    name: str
    settings: Labels
    """What was chosen; what does not apply is left out."""
    notes: Labels
    """``status`` and ``flags``, over all its rows."""
    points: Sequence[Point]


def trials_of(run: Run) -> list[Trial]:
    """The curves of a run, then its training configurations; those without any time, too."""
    return [*_curves(run), *(_configuration(row, run.training_records) for row in run.training_rows)]


def _curves(run: Run) -> Iterable[Trial]:
    rows = run.rows
    lines = [
        ({name: value for name, value in labels.items() if name != "message_bytes"}, row)
        for row, labels in zip(rows, case_labels(rows), strict=True)
    ]
    lines.sort(key=lambda line: tuple(line[0].values()))
    for settings, members in itertools.groupby(lines, key=lambda line: line[0]):
        curve = [row for _, row in members]
        points = [
            Point(metric=f"{row.operation}/{name}", value=value, step=row.message_bytes or 0)
            for row in sorted(curve, key=lambda row: row.message_bytes or 0)
            for name in COLLECTIVE_METRICS
            if (value := getattr(row, name)) is not None
        ]
        yield _trial(settings, [(row.status, row.flags) for row in curve], points)


def _configuration(row: TrainingRow, records: Iterable[TrainingRecord]) -> Trial:
    points = [
        Point(metric=f"training/{name}", value=value, step=0)
        for name in TRAINING_METRICS
        if (value := getattr(row, name)) is not None
    ]
    labels = training_labels(row)
    losses = [record.losses for record in records if record.case.phase == SWEEP and _is_of(record, row)]
    for step in range(max(map(len, losses), default=0)):
        value = statistics.median(launch[step] for launch in losses if step < len(launch))
        points.append(Point(metric="training/loss", value=value, step=step))
    return _trial(labels, [(row.status, row.flags)], points)


def _is_of(record: TrainingRecord, row: TrainingRow) -> bool:
    names = (
        *("workload", "world_size", "batch_per_rank", "backend", "precision", "hook", "density", "hook_options"),
        *("bucket_cap_mb", "bucket_view", "static_graph", "accumulation"),
    )
    return all(getattr(record.case, name) == getattr(row, name) for name in names)


def _trial(labels: Labels, outcomes: Sequence[tuple[str, str]], points: Sequence[Point]) -> Trial:
    settings = {name: value for name, value in labels.items() if value}
    flags = sorted({flag for _, flags in outcomes for flag in flags.split(";") if flag})
    return Trial(
        name=_name(settings),
        settings=settings,
        notes={"status": ";".join(dict.fromkeys(status for status, _ in outcomes)), "flags": ";".join(flags)},
        points=points,
    )


def _name(settings: Mapping[str, str]) -> str:
    """The settings in a line that is unique among trials."""
    forms = {"ranks": "{} ranks", "batch_per_rank": "batch {}", "bucket_cap_mb": "buckets {}", "accumulation": "x{}"}
    return " ".join(forms.get(name, "{}").format(value) for name, value in settings.items())
