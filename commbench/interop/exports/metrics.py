"""A run as metrics in base units."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from commbench.analysis.expectations import Answer
from commbench.analysis.runs import soak_results, straggler_findings
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.flags import split_flags
from commbench.engine.records import Row, Status
from commbench.interop.exports.acceptance import ACCEPTANCE, samples_of_answers
from commbench.interop.exports.common import (
    CASE_LABELS,
    TRAINING_LABELS,
    Labels,
    began_s,
    case_labels,
    training_labels,
)
from commbench.interop.exports.samples import Metric, Sample, sample
from commbench.interop.exports.soak import SOAK, samples_of_soak
from commbench.results import Run
from commbench.results.info import is_complete
from commbench.results.recommendation import Recommendation
from commbench.results.tables import rows_by

STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column of a table that becomes a metric in base units."""

    column: str
    unit: float
    """Factor from the column's unit to the base unit."""
    help: str


_US, _MS, _MB, _GB = 1e-6, 1e-3, 1e6, 1e9

#: Metrics of a row of ``collectives.csv``.
COLLECTIVE = {
    "commbench_collective_seconds": _Column(
        column="time_us",
        unit=_US,
        help="Time of one operation: median over launches of the slowest rank's median.",
    ),
    "commbench_collective_ci_low_seconds": _Column(
        column="time_us_ci_low",
        unit=_US,
        help="Low end of the 95 % interval of commbench_collective_seconds.",
    ),
    "commbench_collective_ci_high_seconds": _Column(
        column="time_us_ci_high",
        unit=_US,
        help="High end of the 95 % interval of commbench_collective_seconds.",
    ),
    "commbench_collective_p95_seconds": _Column(
        column="time_us_p95", unit=_US, help="95th percentile of repetitions, median over launches."
    ),
    "commbench_collective_bus_bytes_per_second": _Column(
        column="busbw_GBps", unit=_GB, help="Bus bandwidth as nccl-tests defines it."
    ),
}

#: Metrics of a row of ``ddp.csv``.
TRAINING = {
    "commbench_training_step_seconds": _Column(
        column="step_ms",
        unit=_MS,
        help="Optimiser step: median over launches of the slowest rank's median.",
    ),
    "commbench_training_step_ci_low_seconds": _Column(
        column="step_ms_ci_low",
        unit=_MS,
        help="Low end of the 95 % interval of commbench_training_step_seconds.",
    ),
    "commbench_training_step_ci_high_seconds": _Column(
        column="step_ms_ci_high",
        unit=_MS,
        help="High end of the 95 % interval of commbench_training_step_seconds.",
    ),
    "commbench_training_local_step_seconds": _Column(
        column="local_step_ms", unit=_MS, help="The step without DDP, same launches."
    ),
    "commbench_training_exposed_communication_seconds": _Column(
        column="exposed_comm_ms", unit=_MS, help="Time that a step waits for communication."
    ),
    "commbench_training_sent_bytes": _Column(
        column="sent_MB_per_step",
        unit=_MB,
        help="Bytes that a rank sends in a step, counted by the hook.",
    ),
    "commbench_training_speedup_ratio": _Column(
        column="speedup",
        unit=1.0,
        help="Time per sample of DDP's default over that of this configuration.",
    ),
    "commbench_training_speedup_ci_low_ratio": _Column(
        column="speedup_ci_low",
        unit=1.0,
        help="Low end of the 95 % interval of commbench_training_speedup_ratio.",
    ),
    "commbench_training_speedup_ci_high_ratio": _Column(
        column="speedup_ci_high",
        unit=1.0,
        help="High end of the 95 % interval of commbench_training_speedup_ratio.",
    ),
}

_RUN_INFO = (
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
_WINNER = ("workload", "ranks")
#: All metrics, in output order.
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="commbench_run_info",
            help="The run that these metrics are from; always 1.",
            labels=_RUN_INFO,
        ),
        Metric(
            name="commbench_run_start_timestamp_seconds", help="When the run began, in Unix time."
        ),
        Metric(name="commbench_run_complete", help="1 if every planned case was measured, else 0."),
        Metric(
            name="commbench_cases", help="Cases of the run by status.", labels=("kind", "status")
        ),
        Metric(
            name="commbench_flagged_cases",
            help="Cases of the run by flag.",
            labels=("kind", "flag"),
        ),
        Metric(
            name="commbench_backend_info",
            help="Library and transport of the operations; always 1.",
            labels=("backend", "library", "transport"),
        ),
        *(
            Metric(name=name, help=column.help, labels=CASE_LABELS)
            for name, column in COLLECTIVE.items()
        ),
        Metric(
            name="commbench_collective_ok",
            help="1 if the case has a sound time, else 0.",
            labels=CASE_LABELS,
        ),
        Metric(
            name="commbench_slow_compared",
            help="Hosts, ranks, links and groups compared with their peers.",
        ),
        Metric(
            name="commbench_slow_factor_ratio",
            help=(
                "Time of a straggler over that of its typical peer, at the worst; only for"
                " stragglers."
            ),
            labels=("kind", "name"),
        ),
        *(
            Metric(name=name, help=column.help, labels=TRAINING_LABELS)
            for name, column in TRAINING.items()
        ),
        Metric(
            name="commbench_training_ok",
            help="1 if the configuration has a sound time, else 0.",
            labels=TRAINING_LABELS,
        ),
        Metric(
            name="commbench_recommendation_info",
            help="The setting that the run recommends; always 1.",
            labels=(*_WINNER, "verdict", "setting"),
        ),
        Metric(
            name="commbench_recommendation_speedup_ratio",
            help="Speedup of the best setting over DDP's default, in fresh launches.",
            labels=_WINNER,
        ),
        Metric(
            name="commbench_recommendation_speedup_ci_low_ratio",
            help="Low end of the interval of commbench_recommendation_speedup_ratio.",
            labels=_WINNER,
        ),
        Metric(
            name="commbench_recommendation_speedup_ci_high_ratio",
            help="High end of the interval of commbench_recommendation_speedup_ratio.",
            labels=_WINNER,
        ),
        *SOAK,
        *ACCEPTANCE,
    )
}


def metrics_of(run: Run, answers: Iterable[Answer] = ()) -> list[Sample]:
    """Return all samples of a run, and of its answers to expectations, in the order of
    `METRICS`.
    """
    samples = [
        *_of_run(run),
        *_of_collectives(run.rows),
        *_of_training(run.training_rows),
        *_of_stragglers(run),
    ]
    if run.decision:
        samples += _of_recommendation(run.decision)
    samples += [*samples_of_soak(soak_results(run)), *samples_of_answers(answers)]
    order = {name: position for position, name in enumerate(METRICS)}
    return sorted(samples, key=lambda each: order[each.name])


def _of_run(run: Run) -> Iterable[Sample]:
    info = run.info
    environment = info.get("environment") or {}
    entries: dict[str, Any] = {
        **info,
        "run": info.get("run_id", ""),
        "version": (environment.get("versions") or {}).get("commbench", ""),
        "emulated": "yes" if environment.get("emulated") else "no",
    }
    yield sample("commbench_run_info", {name: entries.get(name, "") for name in _RUN_INFO})
    if (began := began_s(info)) is not None:
        yield sample("commbench_run_start_timestamp_seconds", value=began)
    yield sample("commbench_run_complete", value=float(is_complete(info)))
    for row in dict.fromkeys(
        (row.backend, row.library, row.transport) for row in run.rows if row.status == "ok"
    ):
        yield sample(
            "commbench_backend_info",
            dict(zip(("backend", "library", "transport"), row, strict=True)),
        )
    yield from _counts("collective", run.rows)
    yield from _counts("training", run.training_rows)


def _counts(kind: str, rows: Sequence[Row] | Sequence[TrainingRow]) -> Iterable[Sample]:
    """Yield the number of rows of each status, and of each flag that occurs.

    A status without rows has the sample 0, so that an alert can tell "none" from "unknown".
    """
    if not rows:
        return
    statuses = Counter(row.status for row in rows)
    for status in STATUSES:
        yield sample("commbench_cases", {"kind": kind, "status": status}, statuses[status])
    flags = Counter(flag.name for row in rows for flag in split_flags(row.flags))
    for flag, count in sorted(flags.items()):
        yield sample("commbench_flagged_cases", {"kind": kind, "flag": flag}, count)


def _of_collectives(rows: Sequence[Row]) -> Iterable[Sample]:
    for row, labels in zip(rows, case_labels(rows), strict=True):
        yield from _of_columns(COLLECTIVE, row, labels)
        yield sample("commbench_collective_ok", labels, float(row.status == "ok"))


def _of_training(rows: Sequence[TrainingRow]) -> Iterable[Sample]:
    for row in rows:
        labels = training_labels(row)
        yield from _of_columns(TRAINING, row, labels)
        yield sample("commbench_training_ok", labels, float(row.status == "ok"))


def _of_stragglers(run: Run) -> Iterable[Sample]:
    findings = straggler_findings(run)
    if not findings.comparisons:
        return
    yield sample("commbench_slow_compared", value=findings.comparisons)
    by_name = rows_by(findings.stragglers, lambda straggler: (straggler.kind, straggler.name))
    for (kind, name), members in sorted(by_name.items()):
        worst = max(straggler.factor for straggler in members)
        yield sample("commbench_slow_factor_ratio", {"kind": kind, "name": name}, worst)


def _of_recommendation(recommendation: Recommendation) -> Iterable[Sample]:
    labels = {"workload": recommendation.workload, "ranks": recommendation.world_size}
    name = "commbench_recommendation_speedup"
    setting = {"verdict": recommendation.verdict, "setting": recommendation.best.name}
    yield sample("commbench_recommendation_info", {**labels, **setting})
    if recommendation.speedup is not None:
        yield sample(f"{name}_ratio", labels, recommendation.speedup)
    for end, bound in zip(("low", "high"), recommendation.speedup_ci or (), strict=False):
        yield sample(f"{name}_ci_{end}_ratio", labels, bound)


def _of_columns(metrics: Mapping[str, _Column], row: object, labels: Labels) -> Iterable[Sample]:
    for name, column in metrics.items():
        value = getattr(row, column.column)
        if value is not None and math.isfinite(value):
            yield Sample(name=name, labels=labels, value=value * column.unit)
