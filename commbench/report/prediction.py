"""Predictions as tables; rows without prediction are grouped by reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from commbench.analysis.prediction.forecast import AnyForecast, CollectiveForecast, StepForecast
from commbench.analysis.prediction.law import KEPT_ERROR, ForecastNetwork
from commbench.report.columns import Column, number, plain_table, printed, tabulate
from commbench.report.formats import percent, short, time_with_interval
from commbench.results.tables import rows_by
from commbench.units import counted, format_size, three_digits


def unpredicted(rows: Iterable[AnyForecast]) -> list[str]:
    """Return each reason once, with a count.

    Reasons that differ only in ranks, sizes, operation or hook are merged.
    """
    groups = rows_by(rows, lambda row: row.reason.key(row.subject) if row.reason else None)
    return [_sentence(group) for key, group in groups.items() if key]


def _sentence(rows: list[AnyForecast]) -> str:
    first = str(rows[0].reason)
    others = [row for row in rows if str(row.reason) != first]
    if not others:
        return first
    subjects = ", ".join(sorted({row.subject for row in others}))
    ranks = sorted({row.world_size for row in others})
    span = f"{ranks[0]} ranks" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]} ranks"
    return f"{first} The same applies to {counted(len(others), 'more row')}: {subjects}, on {span}."


_AS_MEASURED = "as measured"
#: Above this median error, a prediction is too uncertain for a decision.
_USELESS = 0.5
_WITHIN_HOST = (
    "Measurements within one host do not show a network's start-up time: across hosts every"
    " predicted time is a lower bound."
)
_NO_LEVEL = "[interval], not [95 %]: the error was measured over other runs."


def render_basis(network: ForecastNetwork, runs: Sequence[str]) -> list[RenderableType]:
    """Return the runs behind the predictions, and the error on held-out measurements."""
    title = f"PREDICTED, not measured, from {' and '.join(runs)}"
    links = [curve.link for curves in network.curves.values() for curve in curves]
    lines = []
    for family, curves in network.curves.items():
        ranks = sorted({curve.world_size for curve in curves})
        errors = [curve.curve.held_out_error for curve in curves]
        of_sizes = max((error for error in errors if error is not None), default=None)
        of_law = network.own_errors.get(family.backend)
        lines.append(
            (
                str(family),
                ", ".join(map(str, ranks)),
                ", ".join(dict.fromkeys(str(curve.link) for curve in curves)),
                percent(of_sizes, unknown="unknown"),
                percent(of_law, unknown="unknown"),
            )
        )
    headings = ("predicted from", "ranks", "link", "error of sizes", "a doubling")
    table = printed(plain_table(headings, lines, words=1))
    for column in table.columns:
        column.no_wrap = False
    note = (
        "Errors: medians over what was held out of these runs, also for each doubling of ranks or"
        f" rate. Forecasts count the latter as {percent(KEPT_ERROR)} or more, what it is over the"
        " runs that commbench keeps."
    )
    parts: list[RenderableType] = [Text(title, style="bold"), table, Text(note)]
    if any(link.is_within_host for link in links):
        parts.append(Text(_WITHIN_HOST))
    for cores in sorted({link.shared_cores for link in links if link.shared_cores}):
        note = f"The emulated hosts shared {cores} cores: hosts with their own can be faster."
        parts.append(Text(note))
    return parts


def render_collectives(rows: Sequence[CollectiveForecast]) -> list[RenderableType]:
    """Return a table for each operation and rate: time with its interval and busbw, over message
    sizes and ranks.
    """
    parts: list[RenderableType] = []
    for (operation, backend, dtype, rate), members in itertools.groupby(rows, _table_of):
        group = list(members)
        if not _any_ok(group):
            continue
        error = max(row.held_out_error or 0.0 for row in group)
        columns: list[Column[CollectiveForecast]] = [
            Column("size", lambda row: format_size(row.message_bytes)),
            Column("ranks", "world_size", is_number=True),
            Column(f"predicted time {_level(group)}", _time, is_number=True),
            Column("error", lambda row: _percent(row.held_out_error), is_number=True),
        ]
        if error <= _USELESS:
            columns.append(number("busbw GB/s", "busbw_GBps", text_of=short))
        ordered = sorted(group, key=lambda row: (row.message_bytes, row.world_size))
        table = printed(tabulate(ordered, tuple(columns), should_keep_empty=True))
        title = _title([f"{backend} {operation}", dtype], rate, group[0].ranks_per_node)
        parts += [title, table, *_notes(group)]
    return [*parts, *_reasons(rows)]


def render_steps(rows: Sequence[StepForecast]) -> list[RenderableType]:
    """Return a table for each workload and rate: each hook's step at its best bucket size, over
    numbers of ranks.
    """
    parts: list[RenderableType] = []
    for (*_, rate), group in rows_by(rows, lambda row: (*_workload(row), row.rate)).items():
        if not _any_ok(group):
            continue
        lines = []
        for row in sorted(group, key=lambda row: row.world_size):
            if row.step_ms is not None:
                lines.append((row.hook, str(row.world_size), *_step_cells(row)))
        predicted = {row.hook for row in group if row.status == "ok"}
        for hook in dict.fromkeys(row.hook for row in group if row.hook not in predicted):
            lines.append((hook, "all", "not predicted", "", "", "", ""))
        interval = f"predicted ms {_level(group)}"
        headings = ("hook", "ranks", interval, "error", "efficiency", "exposed ms", "MiB")
        table = printed(plain_table(headings, lines, words=1))
        title = _title([_name_of(group[0], rows)], rate, group[0].ranks_per_node)
        parts += [title, table]
        if group[0].local_step_ms:
            local = three_digits(group[0].local_step_ms)
            parts.append(Text(f"Without DDP a step takes {local} ms, as measured."))
        parts += _notes(group)
    return [*parts, *_reasons(rows)]


def _name_of(row: StepForecast, rows: Iterable[StepForecast]) -> str:
    """Return the workload, with the properties that distinguish it from the others."""
    words = [row.backend, f"batch {row.batch_per_rank} a rank"]
    if row.precision != "fp32":
        words.append(row.precision)
    trained = {other.trained_on for other in rows if _workload(other)[:4] == _workload(row)[:4]}
    if len(trained) > 1:
        words.append(f"trained on {row.trained_on}")
    return f"{row.workload} ({', '.join(words)})"


def _step_cells(row: StepForecast) -> tuple[str, ...]:
    time = _digits(row.step_ms)
    if row.step_ms_low is not None:
        time += f" [{_digits(row.step_ms_low)}, {_digits(row.step_ms_high)}]"
    efficiency = percent(row.scaling_efficiency, unknown="")
    error = _percent(row.held_out_error)
    return time, error, efficiency, _digits(row.exposed_comm_ms), row.bucket_cap_mb


def _percent(error: float | None) -> str:
    return percent(error, unknown="")


def _level(rows: Sequence[AnyForecast]) -> str:
    """Return the heading of intervals: 95 % only if all errors are of these runs."""
    has_level = all(row.level is not None for row in rows if row.status == "ok")
    return "[95 %]" if has_level else "[interval]"


def _notes(rows: Sequence[AnyForecast]) -> list[RenderableType]:
    """Return notes on intervals, and a warning if errors are too large for decisions."""
    notes: list[RenderableType] = []
    if _level(rows) == "[interval]":
        notes.append(Text(_NO_LEVEL))
    error = max(row.held_out_error or 0.0 for row in rows)
    if error > _USELESS:
        warning = f"Too uncertain to use: such predictions were off by {percent(error)}"
        notes.append(Text(f"{warning}; measure nearer to this.", style="bold"))
    return notes


def _time(row: CollectiveForecast) -> str:
    """Return ``1.23 ms [1.10, 1.40]`` in one unit, ``-`` without a prediction."""
    if row.time_us is None:
        return "-"
    low_us, high_us = row.time_us_low or 0.0, row.time_us_high or 0.0
    return time_with_interval(row.time_us, low_us, high_us, should_bound=False)


def _digits(value: float | None) -> str:
    if value is None:
        return ""
    return three_digits(value) if value >= 1 else f"{value:.2f}"


def _title(names: Sequence[str], rate: str, ranks_per_node: int) -> Text:
    hosts = f", {ranks_per_node} ranks a host" if ranks_per_node > 1 else ""
    return Text(f"\n{', '.join(names)}, links {rate or _AS_MEASURED}{hosts}", style="bold")


def _any_ok(rows: Iterable[AnyForecast]) -> bool:
    return any(row.status == "ok" for row in rows)


def _reasons(rows: Iterable[AnyForecast]) -> list[RenderableType]:
    """Return the reasons for missing predictions, each once."""
    return [Text(f"- {reason}") for reason in unpredicted(rows)]


def _table_of(row: CollectiveForecast) -> tuple[str, ...]:
    return row.operation, row.backend, row.dtype, row.rate


def _workload(row: StepForecast) -> tuple[str, str, int, str, str]:
    """Return the columns that tell trainings apart."""
    return row.workload, row.backend, row.batch_per_rank, row.precision, row.trained_on
