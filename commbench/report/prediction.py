"""Predictions as tables: one of collectives, one of training steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from rich.console import RenderableType

from commbench.analysis.prediction.forecast import AnyForecast, CollectiveForecast, StepForecast
from commbench.analysis.prediction.law import ForecastNetwork
from commbench.findings import Finding
from commbench.report.columns import Column, Ends, Table, ends, number, tabulate
from commbench.results.tables import rows_by
from commbench.units import format_size, percent

#: Above this median error, a prediction is too uncertain for a decision.
_USELESS = 0.5
_WITHIN_HOST = (
    "Measurements within one host do not show a network's start-up time: across hosts every"
    " predicted time is a lower bound."
)
_NO_LEVEL = "The intervals are no 95 % intervals: the error was measured over other runs."
_USELESS_ERROR = "Some are too uncertain to use: measure nearer to them."


def render_predictions(
    network: ForecastNetwork,
    runs: Sequence[str],
    collectives: Sequence[CollectiveForecast],
    steps: Sequence[StepForecast],
) -> Iterator[RenderableType]:
    """Yield the tables, with what they were predicted from, and the reasons where nothing is
    predicted.

    Args:
        network: as measured.
        runs: names of the runs.
        collectives: their forecasts.
        steps: the forecasts of training steps.
    """
    curves = [curve for of_family in network.curves.values() for curve in of_family]
    ranks = ", ".join(map(str, sorted({curve.place.world_size for curve in curves})))
    links = ", ".join(dict.fromkeys(str(curve.link) for curve in curves))
    source = Finding("predicted_from", " and ".join(runs), {"ranks": ranks, "links": links})
    yield str(source)
    if any(curve.link.is_within_host for curve in curves):
        yield _WITHIN_HOST
    for cores in sorted({curve.link.shared_cores or 0 for curve in curves} - {0}):
        yield str(Finding("shared_cores", numbers={"cores": cores}))
    yield from _tables("Collectives", collectives, _COLLECTIVES)
    trainings = " and ".join(dict.fromkeys(map(_training, steps)))
    yield from _tables(f"Training steps of {trainings}", steps, _STEPS)
    for reason in unpredicted([*collectives, *steps]):
        yield f"- {reason}"


def unpredicted(rows: Iterable[AnyForecast]) -> Iterator[Finding]:
    """Yield what is not predicted, once for each reason.

    Rows that differ only in ranks, size or hook have one.
    """
    missing = [row for row in rows if row.reason]
    for reason, group in rows_by(missing, lambda row: str(row.reason)).items():
        subjects = ", ".join(sorted({row.subject for row in group}))
        ranks = ", ".join(map(str, sorted({row.world_size for row in group})))
        yield Finding("not_predicted", subjects, {"ranks": ranks, "reason": reason})


def _tables(
    name: str, rows: Sequence[AnyForecast], columns: Sequence[Column[Any]]
) -> Iterator[Table]:
    """Yield a table under the errors of such predictions; nothing without a prediction."""
    predicted = [row for row in rows if row.status == "ok"]
    if not predicted:
        return
    words = [name]
    if rows[0].ranks_per_node > 1:
        words.append(f"{rows[0].ranks_per_node} ranks a host")
    errors: dict[str, float] = {}
    for row in rows:
        error = row.held_out_error or 0.0
        errors[row.held_out_over] = max(error, errors.get(row.held_out_over, 0.0))
    for over in filter(None, errors):
        words.append(f"off by {percent(errors[over])} {over}")
    notes = []
    if any(row.level is None for row in predicted):
        notes.append(_NO_LEVEL)
    if max(errors.values()) > _USELESS:
        notes.append(_USELESS_ERROR)
    yield tabulate(predicted, columns, title="; ".join(words), notes=notes)


def _ends_ms(row: CollectiveForecast) -> Ends:
    if row.time_us_low is None or row.time_us_high is None:
        return None, None
    return row.time_us_low / 1e3, row.time_us_high / 1e3


def _busbw(row: CollectiveForecast) -> float | None:
    """Return the bus bandwidth; None if the time is too uncertain."""
    if (row.held_out_error or 0.0) > _USELESS:
        return None
    return row.busbw_GBps


def _training(row: StepForecast) -> str:
    words = [row.workload, row.backend, f"batch {row.batch_per_rank} a rank"]
    if row.precision != "fp32":
        words.append(row.precision)
    return ", ".join(words)


_LINK: Column[Any] = Column("link", lambda row: row.rate or "as measured")
_RANKS: Column[Any] = number("ranks", "world_size", text_of=str)
_COLLECTIVES: Sequence[Column[Any]] = (
    Column("collective", "subject"),
    Column("dtype", "dtype"),
    _LINK,
    number("size", "message_bytes", text_of=format_size),
    _RANKS,
    number("predicted", "time_us", scale=1e-3, unit="ms"),
    ends(_ends_ms, heading="interval", unit="ms"),
    number("busbw", _busbw, unit="GB/s"),
)
_STEPS: Sequence[Column[Any]] = (
    Column("training", _training, should_vary=True),
    Column("trained on", "trained_on", should_vary=True),
    Column("hook", "hook"),
    _LINK,
    _RANKS,
    number("predicted", "step_ms", unit="ms"),
    ends(attrgetter("step_ms_low", "step_ms_high"), heading="interval", unit="ms"),
    number("efficiency", "scaling_efficiency", unit="%", scale=100),
    number("exposed", "exposed_comm_ms", unit="ms"),
    number("local", "local_step_ms", unit="ms"),
    number("buckets", "bucket_cap_mb", text_of=str, unit="MiB"),
)
