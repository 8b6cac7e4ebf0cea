"""Predictions as tables; rows without prediction are grouped by reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from commbench.analysis.prediction.closed_forms import FittedHop
from commbench.analysis.prediction.curves import ASSUMED_ERROR
from commbench.analysis.prediction.forecast import (
    AnyForecast,
    CollectiveForecast,
    StepForecast,
)
from commbench.analysis.prediction.larger import GrowingNetwork
from commbench.report.columns import Cell, Column, Tone, number, plain_table, printed, tabulate
from commbench.report.formats import microseconds, percent, short, time_with_interval
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
#: An interval whose end exceeds this multiple of the prediction is shown as wide.
_UNBOUNDED = 1000
#: Above this median error, a prediction is too uncertain for a decision.
_USELESS = 0.5
_WITHIN_HOST = (
    "Measurements within one host do not show a network's start-up time: across hosts every"
    " predicted time is a lower bound."
)


_ASSUMED = (
    "No 95 % interval: with one number of ranks none could be left out, and"
    f" {100 * ASSUMED_ERROR:.0f} % of error are assumed for each doubling of the ranks."
)


def render_basis(network: GrowingNetwork, runs: Sequence[str]) -> list[RenderableType]:
    """Return the runs behind the predictions, the method, and the error on held-out
    measurements.
    """
    title = f"PREDICTED, not measured, from {' and '.join(runs)}"
    overs = list(dict.fromkeys(curve.held_out.over for curve in network.curves.values()))
    lines = [
        (
            str(family),
            ", ".join(map(str, curve.world_sizes)),
            str(curve.link),
            next(iter(curve.hops)) if len(curve.hops) == 1 else f"one of {len(curve.hops)}",
            _hop(curve.hops),
            Cell(
                f"{_percent(curve.held_out.error)} {'*' * (1 + overs.index(curve.held_out.over))}",
                tone=_tone(curve.held_out.error),
            ),
        )
        for family, curve in network.curves.items()
    ]
    headings = ("predicted from", "ranks", "link", "algorithm", "start-up", "held-out error")
    table = printed(plain_table(headings, lines, words=1))
    for column in table.columns:
        column.no_wrap = False
    notes = [
        (
            "All figures below are predicted, busbw, efficiency and exposed time, too. Start-up: of"
            " one message."
        ),
        "Held-out error: the median over",
        *(
            f"{'*' * number} {over}{'.' if number == len(overs) else ';'}"
            for number, over in enumerate(overs, 1)
        ),
    ]
    parts: list[RenderableType] = [Text(title, style="bold"), table, Text(" ".join(notes))]
    parts += [Text(f"- {family}: {reason}") for family, reason in network.unknown.items()]
    if any(curve.link.is_within_host for curve in network.curves.values()):
        parts.append(Text(_WITHIN_HOST))
    cores = {curve.link.shared_cores for curve in network.curves.values()} - {None}
    return [*parts, *(Text(_crowded(shared_cores)) for shared_cores in sorted(filter(None, cores)))]


def _hop(hops: Mapping[str, FittedHop]) -> str:
    alphas = sorted({microseconds(hop.alpha_us) for hop in hops.values()})
    return alphas[0] if len(alphas) == 1 else f"{alphas[0]} to {alphas[-1]}"


def _crowded(cores: int) -> str:
    return (
        f"The emulated hosts shared {cores} cores; predictions assume hosts with their own cores,"
        " so they can be shorter than the measurements."
    )


def _percent(error: float | None) -> str:
    return percent(error, unknown="unknown")


def _tone(error: float | None) -> Tone:
    """Return the tone of an error; strong if it makes predictions useless."""
    return "strong" if _is_useless(error) else ""


def _is_useless(error: float | None) -> bool:
    return error is not None and error > _USELESS


def _warning(errors: Iterable[float | None]) -> list[RenderableType]:
    """Return a warning if the predictions' errors are too large for decisions."""
    error = max((error for error in errors if error is not None), default=None)
    if not _is_useless(error):
        return []
    text = (
        f"Too uncertain to use: such predictions were off by {percent(error)}; measure nearer to"
        " this."
    )
    return [Text(text, style="bold")]


def render_collectives(rows: Iterable[CollectiveForecast]) -> list[RenderableType]:
    """Return a table for each operation and rate: time with its interval and busbw, over message
    sizes and ranks.
    """
    parts: list[RenderableType] = []
    rows = list(rows)
    for (operation, backend, dtype, pattern, rate), members in itertools.groupby(rows, _table_of):
        group = list(members)
        if not _any_ok(group):
            continue
        names = [
            f"{backend} {operation}",
            dtype,
            *([] if pattern == "flat" else [f"pattern {pattern}"]),
        ]
        level = "[95 % interval]" if _has_level(group) else "[interval]"
        useless = _is_useless(group[0].held_out_error)
        columns: tuple[Column[CollectiveForecast], ...] = (
            Column("size", lambda row: format_size(row.message_bytes)),
            Column("ranks", "world_size", is_number=True),
            Column(f"predicted time {level}", _time, is_number=True),
            number("busbw GB/s", "busbw_GBps", text_of=_nothing if useless else short),
            Column("algorithm", lambda row: _algorithm(row.algorithm)),
        )
        ordered = sorted(group, key=lambda row: (row.message_bytes, row.world_size))
        table = printed(tabulate(ordered, columns, should_keep_empty=True))
        parts += [
            _title(names, rate, group[0].ranks_per_node),
            table,
            *_warning([group[0].held_out_error]),
        ]
        parts += [] if _has_level(group) else [Text(_ASSUMED)]
    return [*parts, *_reasons(rows)]


def _nothing(_: object) -> str:
    return ""


def _has_level(rows: Iterable[CollectiveForecast]) -> bool:
    """Return whether the intervals come from measured errors; a lower bound has no interval."""
    return all(row.level is not None for row in rows if row.time_us_high is not None)


def render_steps(rows: Iterable[StepForecast]) -> list[RenderableType]:
    """Return a table for each workload and rate: each hook's step at its best bucket size, over
    numbers of ranks.
    """
    parts: list[RenderableType] = []
    rows = list(rows)
    for (*_, rate), group in rows_by(rows, lambda row: (*workload_of(row), row.rate)).items():
        if not _any_ok(group):
            continue
        level = "[95 %]" if _has_level_of_steps(group) else "[interval]"
        headings = (
            *(
                "hook",
                "ranks",
                f"predicted ms {level}",
                "[overlapped, serial]",
                "efficiency",
                "exposed ms",
                "best MiB",
            ),
        )
        hooks = {row.hook for row in group if row.status == "ok"}
        ordered = sorted(group, key=lambda row: row.world_size)
        lines = [
            (row.hook, str(row.world_size), *_step_cells(row))
            for row in ordered
            if row.hook in hooks
        ]
        unpredicted_hooks = dict.fromkeys(row.hook for row in group if row.hook not in hooks)
        lines += [(hook, "all", "not predicted", "", "", "", "") for hook in unpredicted_hooks]
        table = printed(plain_table(headings, lines, words=1))
        local = next((row.local_step_ms for row in group if row.local_step_ms), None)
        sentences = [_known_of_steps(local, group[0])] if local else []
        title = _title([_name_of(group[0], rows)], rate, group[0].ranks_per_node)
        parts += [title, table, *sentences, *_uncertainty_notes(group)]
    return [*parts, *_reasons(rows)]


def _name_of(row: StepForecast, rows: Iterable[StepForecast]) -> str:
    """Return the workload, with the properties that distinguish it from the others."""
    words = [
        row.backend,
        f"batch {row.batch_per_rank} a rank",
        *([] if row.precision == "fp32" else [row.precision]),
    ]
    description = f"{row.workload} ({', '.join(words)}"
    same_workload = {
        other.trained_on for other in rows if workload_of(other)[:4] == workload_of(row)[:4]
    }
    return (
        f"{description}, trained on {row.trained_on})"
        if len(same_workload) > 1
        else f"{description})"
    )


def _uncertainty_notes(group: Sequence[StepForecast]) -> list[RenderableType]:
    """State that the network's errors are assumed, or that errors on held-out measurements are
    large.
    """
    is_assumed = group[0].held_out_error is not None and not _has_level_of_steps(group)
    errors = (error for row in group for error in (row.held_out_error, row.network_error))
    return [*([Text(_ASSUMED)] if is_assumed else []), *_warning(errors)]


def _has_level_of_steps(rows: Iterable[StepForecast]) -> bool:
    """Return whether the intervals come from measured errors; a lower bound has no interval."""
    return all(row.level is not None for row in rows if row.status == "ok" and _has_interval(row))


def _has_interval(row: StepForecast) -> bool:
    return row.step_ms_high is not None


def _known_of_steps(local_ms: float, row: StepForecast) -> Text:
    """Return the measured step without DDP, and the error of step predictions."""
    method = "as measured"
    if row.ranks_a_core > 1:
        method = (
            f"as measured by {row.ranks_a_core:.3g} ranks a core, divided by that as all"
            " computing is"
        )
    local = f"Without DDP a step takes {three_digits(local_ms)} ms, {method}; held-out error "
    if row.held_out_error is None:
        return Text(
            f"{local}unknown (no other setting was trained, so that the intervals lack the error of"
            " steps)."
        )
    error = Text(
        _percent(row.held_out_error), style="bold" if _is_useless(row.held_out_error) else ""
    )
    return Text(local) + error + Text(f" (median over {row.held_out_over}).")


def _step_cells(row: StepForecast) -> tuple[str, ...]:
    if row.step_ms is None:
        return "-", "", "", "", ""
    bounds = _between(row.overlapped_ms, row.serial_ms)
    efficiency = percent(row.scaling_efficiency or 0.0)
    time = f"{_digits(row.step_ms)} {_between(row.step_ms_low, row.step_ms_high)}"
    if row.step_ms_high is None:
        time, efficiency = f">= {_digits(row.step_ms)}", f"<= {efficiency}"
    if _is_useless(row.held_out_error) or _is_useless(row.network_error):
        return time, bounds, "", "", ""
    return time, bounds, efficiency, _digits(row.exposed_comm_ms), row.bucket_cap_mb


def _algorithm(names: str) -> str:
    """Return at most two names of algorithms, else their number."""
    algorithms = names.split(" or ")
    return names if len(algorithms) < 3 else f"one of {len(algorithms)}"  # noqa: PLR2004 - as above


def _time(row: CollectiveForecast) -> str:
    """Return ``1.23 ms [1.10, 1.40]`` in one unit, ``>= 1.23 ms`` for a lower bound, ``-`` without
    a prediction.
    """
    if row.time_us is None:
        return "-"
    if row.time_us_high is None:
        return f">= {microseconds(row.time_us)}"
    return time_with_interval(
        row.time_us, row.time_us_low or 0.0, row.time_us_high, most=_UNBOUNDED
    )


def _between(low: float | None, high: float | None) -> str:
    return f"[{_digits(low)}, {_digits(high)}]"


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
    return row.operation, row.backend, row.dtype, row.pattern, row.rate


def workload_of(row: StepForecast) -> tuple[str, str, int, str, str]:
    """Return the columns that tell trainings apart."""
    return row.workload, row.backend, row.batch_per_rank, row.precision, row.trained_on
