"""Predictions as tables: one of collectives, one of training steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from commbench.analysis.prediction.forecast import AnyForecast, CollectiveForecast, StepForecast
from commbench.analysis.prediction.law import ForecastNetwork
from commbench.findings import Finding
from commbench.report.columns import plain_table
from commbench.report.formats import percent, short
from commbench.results.tables import rows_by
from commbench.units import format_size

#: Above this median error, a prediction is too uncertain for a decision.
_USELESS = 0.5
_WITHIN_HOST = (
    "Measurements within one host do not show a network's start-up time: across hosts every"
    " predicted time is a lower bound."
)
_NO_LEVEL = "[interval], not [95 %]: the error was measured over other runs."
_USELESS_ERROR = "Some are too uncertain to use: measure nearer to them."


def render_predictions(
    network: ForecastNetwork,
    runs: Sequence[str],
    collectives: Sequence[CollectiveForecast],
    steps: Sequence[StepForecast],
) -> list[RenderableType]:
    """Return the tables, with what they were predicted from, and the reasons where nothing is
    predicted.

    Args:
        network: as measured.
        runs: names of the runs.
        collectives: their forecasts.
        steps: the forecasts of training steps.
    """
    curves = [curve for of_family in network.curves.values() for curve in of_family]
    ranks = ", ".join(map(str, sorted({curve.world_size for curve in curves})))
    links = ", ".join(dict.fromkeys(str(curve.link) for curve in curves))
    source = Finding("predicted_from", " and ".join(runs), {"ranks": ranks, "links": links})
    parts: list[RenderableType] = [Text(str(source), style="bold")]
    if any(curve.link.is_within_host for curve in curves):
        parts.append(Text(_WITHIN_HOST))
    for cores in sorted({curve.link.shared_cores or 0 for curve in curves} - {0}):
        parts.append(Text(str(Finding("shared_cores", numbers={"cores": cores}))))
    of_collectives = ("collective", "link", "size", "ranks", "predicted ms LEVEL", "busbw GB/s")
    lines = [_collective_line(row) for row in collectives if row.status == "ok"]
    parts += _table("Collectives", of_collectives, lines, collectives)
    of_steps = (
        "training",
        "hook",
        "link",
        "ranks",
        "predicted ms LEVEL",
        "efficiency",
        "exposed ms",
    )
    lines = [_step_line(row, steps) for row in steps if row.status == "ok"]
    parts += _table("Training steps", (*of_steps, "local ms", "MiB"), lines, steps)
    for reason in unpredicted([*collectives, *steps]):
        parts.append(Text(f"- {reason}"))
    return parts


def unpredicted(rows: Iterable[AnyForecast]) -> list[Finding]:
    """Return what is not predicted, once for each reason.

    Reasons that differ only in ranks, sizes, operation or hook are one.
    """
    groups = rows_by(rows, lambda row: row.reason.key(row.subject) if row.reason else None)
    findings = []
    for key, group in groups.items():
        if key is not None:
            subjects = ", ".join(sorted({row.subject for row in group}))
            ranks = ", ".join(map(str, sorted({row.world_size for row in group})))
            numbers = {"ranks": ranks, "reason": str(group[0].reason)}
            findings.append(Finding("not_predicted", subjects, numbers))
    return findings


def _table(
    name: str,
    headings: Sequence[str],
    lines: Sequence[Sequence[str]],
    rows: Sequence[AnyForecast],
) -> list[RenderableType]:
    """Return a table under the errors of such predictions; nothing without a prediction."""
    if not lines:
        return []
    level = "[95 %]"
    if any(row.status == "ok" and row.level is None for row in rows):
        level = "[interval]"
    if len({line[0] for line in lines}) == 1:
        name += f" of {lines[0][0]}"
        headings = headings[1:]
        lines = [line[1:] for line in lines]
    words = [name]
    if rows[0].ranks_per_node > 1:
        words.append(f"{rows[0].ranks_per_node} ranks a host")
    errors: dict[str, float] = {}
    for row in rows:
        error = row.held_out_error or 0.0
        errors[row.held_out_over] = max(error, errors.get(row.held_out_over, 0.0))
    for over in filter(None, errors):
        words.append(f"off by {percent(errors[over])} {over}")
    headings = [each.replace("LEVEL", level) for each in headings]
    place = headings.index("link")
    table = plain_table(headings, lines, title="; ".join(words), words=place + 1)
    parts: list[RenderableType] = [table]
    if level == "[interval]":
        parts.append(Text(_NO_LEVEL))
    if max(errors.values()) > _USELESS:
        parts.append(Text(_USELESS_ERROR, style="bold"))
    return parts


def _collective_line(row: CollectiveForecast) -> tuple[str, ...]:
    time_ms, low_ms, high_ms = (
        None if time_us is None else time_us / 1000
        for time_us in (row.time_us, row.time_us_low, row.time_us_high)
    )
    busbw = short(row.busbw_GBps)
    if (row.held_out_error or 0.0) > _USELESS:
        busbw = ""
    return (
        f"{row.subject}, {row.dtype}",
        row.rate or "as measured",
        format_size(row.message_bytes),
        str(row.world_size),
        _with_interval(time_ms, low_ms, high_ms),
        busbw,
    )


def _step_line(row: StepForecast, rows: Iterable[StepForecast]) -> tuple[str, ...]:
    words = [row.workload, row.backend, f"batch {row.batch_per_rank} a rank"]
    if row.precision != "fp32":
        words.append(row.precision)
    if len({other.trained_on for other in rows}) > 1:
        words.append(f"trained on {row.trained_on}")
    return (
        ", ".join(words),
        row.hook,
        row.rate or "as measured",
        str(row.world_size),
        _with_interval(row.step_ms, row.step_ms_low, row.step_ms_high),
        percent(row.scaling_efficiency),
        short(row.exposed_comm_ms),
        short(row.local_step_ms),
        row.bucket_cap_mb,
    )


def _with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Return ``1.23 [1.1, 1.4]``."""
    if low is None:
        return short(value)
    return f"{short(value)} [{short(low)}, {short(high)}]"
