"""The measures of a run in base units: each is declared once, all exports are written from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, get_args

from commbench.analysis.expectations import Answer, Outcome
from commbench.analysis.soak import Soak, soak_results
from commbench.analysis.soak.rows import KINDS
from commbench.analysis.stragglers import straggler_findings
from commbench.ddp.plan.cases import setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.flags import split_flags
from commbench.engine.records import Row, Status
from commbench.interop.exports.common import (
    CASE_LABELS,
    RUN_LABELS,
    TRAINING_LABELS,
    Labels,
    labelled_rows,
    run_facts,
    texts,
    unix_s,
)
from commbench.results import Run
from commbench.results.info import is_complete
from commbench.results.tables import rows_by

US, MS, PERCENT, MB, GB = 1e-6, 1e-3, 1e-2, 1e6, 1e9
BACKEND_LABELS = ("backend", "library", "transport")
WINNER_LABELS = ("workload", "ranks")
EVENT_LABELS = ("kind", "scope", "ranks", "host")


@dataclass(frozen=True)
class Measure:
    """A measure of a run: a gauge of a monitoring system."""

    name: str
    """Ends with the base unit."""
    help: str
    labels: tuple[str, ...] = ()
    """Names of the labels, in output order; each sample has all of them."""
    column: str = ""
    """The column of a row that holds it; empty for a measure that is not of a row."""
    factor: float = 1.0
    """From the column's unit to the base unit."""
    has_interval: bool = False
    """Whether the ends of an interval are measures, too:
    ``commbench_collective_ci_low_seconds``."""


def _all_measures() -> dict[str, Measure]:
    """Return all measures by name, in output order."""
    measures = {}
    for measure in _MEASURES:
        measures[measure.name] = measure
        if not measure.has_interval:
            continue
        stem, _, unit = measure.name.rpartition("_")
        for end in ("low", "high"):
            name = f"{stem}_ci_{end}_{unit}"
            about = f"{end.capitalize()} end of the interval of {measure.name}."
            column = f"{measure.column}_ci_{end}"
            measures[name] = replace(measure, name=name, help=about, column=column)
    return measures


_MEASURES = (
    Measure("commbench_run_info", "The run that these metrics are from; always 1.", RUN_LABELS),
    Measure("commbench_run_start_timestamp_seconds", "When the run began, in Unix time."),
    Measure("commbench_run_complete", "1 if every planned case was measured, else 0."),
    Measure("commbench_cases", "Cases of the run by status.", ("kind", "status")),
    Measure("commbench_flagged_cases", "Cases of the run by flag.", ("kind", "flag")),
    Measure(
        "commbench_backend_info",
        "Library and transport of the operations; always 1.",
        BACKEND_LABELS,
    ),
    Measure(
        "commbench_collective_seconds",
        "Time of one operation: median over launches of the slowest rank's median, with its 95 %"
        " interval.",
        CASE_LABELS,
        "time_us",
        US,
        has_interval=True,
    ),
    Measure(
        "commbench_collective_p95_seconds",
        "95th percentile of repetitions, median over launches.",
        CASE_LABELS,
        "time_us_p95",
        US,
    ),
    Measure(
        "commbench_collective_bus_bytes_per_second",
        "Bus bandwidth as nccl-tests defines it.",
        CASE_LABELS,
        "busbw_GBps",
        GB,
    ),
    Measure("commbench_collective_ok", "1 if the case has a sound time, else 0.", CASE_LABELS),
    Measure("commbench_slow_compared", "Hosts, ranks, links and groups compared with their peers."),
    Measure(
        "commbench_slow_factor_ratio",
        "Time of a straggler over that of its typical peer, at the worst; only for stragglers.",
        ("kind", "name"),
    ),
    Measure(
        "commbench_training_step_seconds",
        "Optimiser step: median over launches of the slowest rank's median, with its 95 %"
        " interval.",
        TRAINING_LABELS,
        "step_ms",
        MS,
        has_interval=True,
    ),
    Measure(
        "commbench_training_local_step_seconds",
        "The step without DDP, same launches.",
        TRAINING_LABELS,
        "local_step_ms",
        MS,
    ),
    Measure(
        "commbench_training_exposed_communication_seconds",
        "Time that a step waits for communication.",
        TRAINING_LABELS,
        "exposed_comm_ms",
        MS,
    ),
    Measure(
        "commbench_training_sent_bytes",
        "Bytes that a rank sends in a step, counted by the hook.",
        TRAINING_LABELS,
        "sent_MB_per_step",
        MB,
    ),
    Measure(
        "commbench_training_speedup_ratio",
        "Time per sample of DDP's default over that of this configuration, with its 95 % interval.",
        TRAINING_LABELS,
        "speedup",
        has_interval=True,
    ),
    Measure(
        "commbench_training_ok",
        "1 if the configuration has a sound time, else 0.",
        TRAINING_LABELS,
    ),
    Measure(
        "commbench_recommendation_info",
        "The setting that the run recommends; always 1.",
        (*WINNER_LABELS, "verdict", "setting"),
    ),
    Measure(
        "commbench_recommendation_speedup_ratio",
        "Speedup of the best setting over DDP's default, in confirmation launches.",
        WINNER_LABELS,
        "speedup",
        has_interval=True,
    ),
    Measure("commbench_soak_seconds", "Time from the first visit of a soak to the last."),
    Measure("commbench_soak_events", "Spikes and failed launches of a soak.", ("kind",)),
    Measure(
        "commbench_soak_longest_event_seconds",
        "Duration of the longest event with these labels; no sample without an event.",
        EVENT_LABELS,
    ),
    Measure(
        "commbench_soak_drift_ratio",
        "Change of a case's time from the first launch of a soak to the last, as a share.",
        ("case",),
        "change_percent",
        PERCENT,
        has_interval=True,
    ),
    Measure(
        "commbench_expectation",
        "1 for the outcome of the expectation, as commbench check finds it, and 0 for each other"
        " outcome.",
        ("expectation", "outcome"),
    ),
)

#: All measures by name, in output order.
MEASURES = _all_measures()
#: Columns of ``collectives.csv`` and ``ddp.csv`` that are measures.
ROW_COLUMNS = [
    measure.column
    for measure in MEASURES.values()
    if measure.column and measure.labels in {CASE_LABELS, TRAINING_LABELS}
]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A value of a measure."""

    name: str
    """The name of the `Measure`."""
    labels: Labels
    value: float


def sample(name: str, value: float = 1.0, /, **labels: object) -> Sample:
    """Return a sample; the value of a measure that only carries labels is 1."""
    return Sample(name=name, labels=texts(labels), value=value)


def samples_of(run: Run, answers: Iterable[Answer] = ()) -> list[Sample]:
    """Return the samples of a run, and of its answers to expectations."""
    samples = [*_of_run(run), *_of_stragglers(run), *_of_recommendation(run), *_of_answers(answers)]
    samples += _of_counts("collective", run.rows)
    samples += _of_counts("training", run.training_rows)
    for labels, row in labelled_rows(run):
        kind = "collective" if isinstance(row, Row) else "training"
        samples += _of_columns(vars(row), labels)
        samples.append(sample(f"commbench_{kind}_ok", float(row.status == "ok"), **labels))
    soak = soak_results(run)
    if soak:
        samples += _of_soak(soak)
    return samples


def _of_columns(columns: Mapping[str, Any], labels: Labels) -> Iterator[Sample]:
    """Yield the finite values of a row, for the measures that are columns and have its labels."""
    for measure in MEASURES.values():
        if measure.column and measure.labels == tuple(labels):
            value = columns.get(measure.column)
            if value is not None and math.isfinite(value):
                yield sample(measure.name, value * measure.factor, **labels)


def _largest(samples: Iterable[Sample]) -> list[Sample]:
    """Return the largest of the samples that have the same name and labels."""
    largest: dict[tuple[str, ...], Sample] = {}
    for each in samples:
        series = (each.name, *each.labels.values())
        if series not in largest or each.value > largest[series].value:
            largest[series] = each
    return list(largest.values())


def _of_run(run: Run) -> Iterator[Sample]:
    yield sample("commbench_run_info", **run_facts(run))
    began_s = unix_s(run.info.get("started"))
    if began_s is not None:
        yield sample("commbench_run_start_timestamp_seconds", began_s)
    yield sample("commbench_run_complete", float(is_complete(run.info)))
    sound_rows = [row for row in run.rows if row.status == "ok"]
    for values in rows_by(sound_rows, attrgetter(*BACKEND_LABELS)):
        labels = dict(zip(BACKEND_LABELS, values, strict=True))
        yield sample("commbench_backend_info", **labels)


def _of_counts(kind: str, rows: Sequence[Row] | Sequence[TrainingRow]) -> Iterator[Sample]:
    """Yield the number of rows of each status, and of each flag that occurs.

    A status without rows has the sample 0, so that an alert can tell "none" from "unknown".
    """
    if not rows:
        return
    statuses = Counter(row.status for row in rows)
    for status in get_args(Status):
        yield sample("commbench_cases", statuses[status], kind=kind, status=status)
    flags = Counter(flag for row in rows for flag in split_flags(row.flags))
    for flag, count in sorted(flags.items()):
        yield sample("commbench_flagged_cases", count, kind=kind, flag=flag)


def _of_stragglers(run: Run) -> list[Sample]:
    """Return the number of compared units, and each straggler once, at its worst."""
    findings = straggler_findings(run)
    if not findings.comparisons:
        return []
    factors = []
    for each in findings.stragglers:
        factor = each.factor.value
        factors.append(
            sample("commbench_slow_factor_ratio", factor, kind=each.kind, name=each.name)
        )
    return [sample("commbench_slow_compared", findings.comparisons), *_largest(factors)]


def _of_recommendation(run: Run) -> Iterator[Sample]:
    """Yield what the run recommends; nothing before the first look of a tuning."""
    found = run.decision
    if found is None:
        return
    labels = texts({"workload": found.workload, "ranks": found.world_size})
    setting = setting_name(found.best)
    yield sample("commbench_recommendation_info", **labels, verdict=found.verdict, setting=setting)
    low, high = found.speedup_ci or (None, None)
    speedup = {"speedup": found.speedup, "speedup_ci_low": low, "speedup_ci_high": high}
    yield from _of_columns(speedup, labels)


def _of_soak(soak: Soak) -> list[Sample]:
    """Return the number of events of each kind, 0 too, and the longest with each set of labels."""
    samples = [sample("commbench_soak_seconds", soak.seconds)]
    counts = Counter(event.kind for event in soak.events)
    for kind in KINDS:
        samples.append(sample("commbench_soak_events", counts[kind], kind=kind))
    events = []
    for event in soak.events:
        labels = {name: getattr(event, name) for name in EVENT_LABELS}
        duration_s = event.duration_s or 0.0
        events.append(sample("commbench_soak_longest_event_seconds", duration_s, **labels))
    samples += _largest(events)
    for drift in soak.drifts:
        samples += _of_columns(vars(drift), {"case": drift.case})
    return samples


def _of_answers(answers: Iterable[Answer]) -> Iterator[Sample]:
    """Yield each outcome of each expectation, so that no series ends when the outcome changes.

    An expectation that is given twice counts once.
    """
    outcomes = {answer.expectation.text: answer.outcome for answer in answers}
    for text, found in outcomes.items():
        for outcome in Outcome:
            is_found = float(outcome is found)
            yield sample("commbench_expectation", is_found, expectation=text, outcome=outcome)
