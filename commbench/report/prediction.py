"""Predictions and the fitted network model as tables; one reason for all rows that are not predicted because of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commbench.analysis.prediction.breakeven import DENSEST
from commbench.analysis.prediction.curves import ASSUMED_ERROR, Curve, Segment
from commbench.analysis.prediction.forecast import AnyForecast, BreakEvenForecast, CollectiveForecast, StepForecast
from commbench.analysis.prediction.hops import FittedHop
from commbench.analysis.prediction.larger import GrowingNetwork
from commbench.analysis.prediction.network import LEAST_SIZES, CurveKey, NetworkModel
from commbench.results import MODEL
from commbench.stats import Interval
from commbench.units import counted, format_size, format_time, three_digits, time_unit


def unpredicted(rows: Iterable[AnyForecast]) -> list[str]:
    """Each reason once, with a count; reasons that differ in ranks, sizes, operation or hook only are merged."""
    alike: dict[tuple[object, ...], list[AnyForecast]] = {}
    for row in rows:
        if row.reason:
            alike.setdefault(row.reason.key(row.subject), []).append(row)
    return [_sentence(group) for group in alike.values()]


def _sentence(rows: list[AnyForecast]) -> str:
    first = str(rows[0].reason)
    others = [row for row in rows if str(row.reason) != first]
    if not others:
        return first
    subjects = ", ".join(sorted({row.subject for row in others}))
    ranks = sorted({row.world_size for row in others})
    span = f"{ranks[0]} ranks" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]} ranks"
    return f"{first} The same applies to {counted(len(others), 'more row')}: {subjects}, on {span}."


_LEFT = ("operation", "backend", "dtype")
_RIGHT = ("ranks", "from", "to", "start-up", "95 %", "GB/s", "95 %", "worst\nresidual", "held-out\nerror")


def conclude_model(model: NetworkModel) -> str:
    """One line on the error of the model; empty without curves."""
    if not model.curves:
        return ""
    held_out, worst = _share_percent(model.held_out_error), _share_percent(model.worst_residual)
    return (
        f"Fitted: {counted(len(model.curves), 'curve')}; median error at sizes left out {held_out}, lines off by "
        f"at most {worst} ({MODEL}; report --model)."
    )


def render_model(model: NetworkModel) -> RenderableType:
    """One line for each segment of every curve: start-up time alpha, rate 1 / beta, their intervals and errors."""
    if not model.curves:
        return Text(
            f"No model: fitting one needs {LEAST_SIZES} message sizes of an operation, by ranks that do not share "
            "a GPU; measure more (--sizes)."
        )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    for heading in _LEFT:
        table.add_column(heading, no_wrap=True)
    for heading in _RIGHT:
        table.add_column(heading, justify="right", no_wrap=True)
    for key, curve in model.curves.items():
        for cells in _lines(key, curve):
            table.add_row(*cells)
    title = "Fitted: time = start-up + size / rate from one size to another"
    notes = (f"{key}: measured {variant}." for key, variant in model.variants.items())
    return Group(Text(title, style="bold"), table, *(Text(note) for note in notes))


def _lines(key: CurveKey, curve: Curve) -> Iterable[tuple[str, ...]]:
    pattern = "" if key.pattern == "flat" else f" {key.pattern}"
    names = (f"{key.operation}{pattern}", key.backend, key.dtype, str(key.world_size))
    errors = (_share_percent(max(map(abs, curve.residuals))), _share_percent(curve.held_out_error))
    for number, (segment, intervals) in enumerate(zip(curve.segments, curve.parameter_intervals, strict=True)):
        first = number == 0
        yield (*(names if first else [""] * 4), *_numbers(segment, *intervals), *(errors if first else [""] * 2))


def _numbers(segment: Segment, alpha: Interval | None, beta: Interval | None) -> tuple[str, ...]:
    """The range of a segment, its start-up time and its rate, with intervals."""
    start_us = 1e6 * time_unit(segment.alpha_us / 1e6)[0]
    return (
        format_size(segment.from_bytes),
        format_size(segment.to_bytes),
        format_time(segment.alpha_us / 1e6),
        f"[{_number(alpha.low / start_us)}, {_number(alpha.high / start_us)}]" if alpha else "unknown",
        _rate(segment.beta_us_per_byte),
        f"[{_rate(beta.high)}, {_rate(beta.low)}]" if beta else "unknown",
    )


def _rate(beta_us_per_byte: float) -> str:
    return _number(1e-3 / beta_us_per_byte) if beta_us_per_byte else "-"


def _number(value: float) -> str:
    return three_digits(value) if value else "0"


def _share_percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


_AS_MEASURED = "as measured"
#: An interval that ends at more than this multiple of the prediction is only called wide.
_UNBOUNDED = 1000
#: Above this median error, a prediction can decide nothing.
_USELESS = 0.5
_WITHIN_HOST = (
    "Measurements within one host do not show a network's start-up time: across hosts every predicted time is a lower "
    "bound."
)


_ASSUMED = (
    f"No 95 % interval: with one number of ranks none could be left out, and {100 * ASSUMED_ERROR:.0f} % of error are "
    "assumed for each doubling of the ranks."
)


def render_basis(network: GrowingNetwork, runs: Sequence[str]) -> list[RenderableType]:
    """The basis of the predictions, the method, and the error of such predictions."""
    title = f"PREDICTED, not measured, from {' and '.join(runs)}"
    table = _table("predicted from", "ranks", "link", "algorithm", "start-up", "held-out error")
    for column in table.columns:
        column.no_wrap = False
    overs = list(dict.fromkeys(curve.held_out.over for curve in network.curves.values()))
    for family, curve in network.curves.items():
        ranks, mark = ", ".join(map(str, curve.world_sizes)), "*" * (1 + overs.index(curve.held_out.over))
        method = next(iter(curve.hops)) if len(curve.hops) == 1 else f"one of {len(curve.hops)}"
        error = _percent(curve.held_out.error) + Text(f" {mark}")
        table.add_row(str(family), ranks, str(curve.link), method, _hop(curve.hops), error)
    notes = [
        "All figures below are predicted, busbw, efficiency and exposed time, too. Start-up: of one message.",
        "Held-out error: the median over",
        *(f"{'*' * number} {over}{'.' if number == len(overs) else ';'}" for number, over in enumerate(overs, 1)),
    ]
    parts: list[RenderableType] = [Text(title, style="bold"), table, Text(" ".join(notes))]
    parts += [Text(f"- {family}: {reason}") for family, reason in network.unknown.items()]
    if any(curve.link.is_within_host for curve in network.curves.values()):
        parts.append(Text(_WITHIN_HOST))
    cores = {curve.link.shared_cores for curve in network.curves.values()} - {None}
    return [*parts, *(Text(_crowded(each)) for each in sorted(filter(None, cores)))]


def _hop(hops: Mapping[str, FittedHop]) -> str:
    alphas = sorted({format_time(hop.alpha_us * 1e-6) for hop in hops.values()})
    return alphas[0] if len(alphas) == 1 else f"{alphas[0]} to {alphas[-1]}"


def _crowded(cores: int) -> str:
    return (
        f"The emulated hosts shared {cores} cores; predictions assume hosts with their own cores, so they can be "
        "shorter "
        "than the measurements."
    )


def _percent(error: float | None) -> Text:
    """Format an error; bold if it makes predictions useless."""
    if error is None:
        return Text("unknown")
    return Text(f"{100 * error:.0f} %", style="bold" if _is_useless(error) else "")


def _is_useless(error: float | None) -> bool:
    return error is not None and error > _USELESS


def _warning(errors: Iterable[float | None]) -> list[RenderableType]:
    """A warning not to decide by predictions of which some were far off."""
    error = max((error for error in errors if error is not None), default=None)
    if not _is_useless(error):
        return []
    words = f"Too uncertain to use: such predictions were off by {100 * (error or 0.0):.0f} %; measure nearer to this."
    return [Text(words, style="bold")]


def render_collectives(rows: Iterable[CollectiveForecast]) -> list[RenderableType]:
    """A table for each operation and rate: time with its interval and busbw, over message sizes and ranks."""
    parts: list[RenderableType] = []
    unpredicted_rows: list[CollectiveForecast] = []
    for (operation, backend, dtype, pattern, rate), members in itertools.groupby(rows, _table_of):
        group = list(members)
        unpredicted_rows.extend(row for row in group if row.reason)
        if not _any_ok(group):
            continue
        words = [f"{backend} {operation}", dtype, *([] if pattern == "flat" else [f"pattern {pattern}"])]
        level = "[95 % interval]" if _has_level(group) else "[interval]"
        table = _table("size", "ranks", f"predicted time {level}", "busbw GB/s", "algorithm")
        table.columns[-1].justify = "left"
        useless = _is_useless(group[0].held_out_error)
        for row in sorted(group, key=lambda row: (row.message_bytes, row.world_size)):
            time = Text(_time(row) if row.time_us is not None else "-")
            busbw = "" if row.busbw_GBps is None or useless else f"{row.busbw_GBps:.3g}"
            table.add_row(format_size(row.message_bytes), str(row.world_size), time, busbw, _algorithm(row.algorithm))
        parts += [_title(words, rate, group[0].ranks_per_node), table, *_warning([group[0].held_out_error])]
        parts += [] if _has_level(group) else [Text(_ASSUMED)]
    return [*parts, *_reasons(unpredicted_rows)]


def _has_level(rows: Iterable[CollectiveForecast]) -> bool:
    """Whether intervals rest on measured errors; a lower bound has none."""
    return all(row.level is not None for row in rows if row.time_us_high is not None)


def render_steps(rows: Iterable[StepForecast]) -> list[RenderableType]:
    """A table for each workload and rate: the step of every hook at its best bucket size, over ranks."""
    parts: list[RenderableType] = []
    unpredicted_rows: list[StepForecast] = []
    rows = list(rows)
    for (*_, rate), members in itertools.groupby(rows, _workload_of):
        group = list(members)
        unpredicted_rows.extend(row for row in group if row.reason)
        if not _any_ok(group):
            continue
        level = "[95 %]" if _has_level_of_steps(group) else "[interval]"
        table = _table(
            "hook", "ranks", f"predicted ms {level}", "[overlapped, serial]", "efficiency", "exposed ms", "best MiB"
        )
        known_hooks = {row.hook for row in group if row.status == "ok"}
        for row in sorted(group, key=lambda row: row.world_size):
            if row.hook in known_hooks:
                table.add_row(row.hook, str(row.world_size), *_step_cells(row))
        for hook in dict.fromkeys(row.hook for row in group if row.hook not in known_hooks):
            table.add_row(hook, "all", "not predicted", "", "", "", "")
        local = next((row.local_step_ms for row in group if row.local_step_ms), None)
        known = [_known_of_steps(local, group[0])] if local else []
        title = _title([_name_of(group[0], rows)], rate, group[0].ranks_per_node)
        parts += [title, table, *known, *_uncertainty_notes(group)]
    return [*parts, *_reasons(unpredicted_rows)]


def _name_of(row: StepForecast | BreakEvenForecast, rows: Iterable[StepForecast | BreakEvenForecast]) -> str:
    """The workload, with what distinguishes it from the others."""
    words = [row.backend, f"batch {row.batch_per_rank} a rank", *([] if row.precision == "fp32" else [row.precision])]
    named = f"{row.workload} ({', '.join(words)}"
    alike = {other.trained_on for other in rows if _workload_of(other)[:4] == _workload_of(row)[:4]}
    return f"{named}, trained on {row.trained_on})" if len(alike) > 1 else f"{named})"


def _uncertainty_notes(group: Sequence[StepForecast] | Sequence[BreakEvenForecast]) -> list[RenderableType]:
    """State that the network's errors are assumed, or that predictions were far off."""
    is_assumed = group[0].held_out_error is not None and not _has_level_of_steps(group)
    errors = (error for row in group for error in (row.held_out_error, row.network_error))
    return [*([Text(_ASSUMED)] if is_assumed else []), *_warning(errors)]


def _has_level_of_steps(rows: Iterable[StepForecast | BreakEvenForecast]) -> bool:
    """Whether intervals rest on measured errors; a lower bound has none."""
    return all(row.level is not None for row in rows if row.status == "ok" and _has_interval(row))


def _has_interval(row: StepForecast | BreakEvenForecast) -> bool:
    return (row.step_ms_high if isinstance(row, StepForecast) else row.density_high) is not None


def _known_of_steps(local_ms: float, row: StepForecast) -> Text:
    """The basis of the step predictions, and the error of such predictions."""
    how = "as measured"
    if row.ranks_a_core > 1:
        how = f"as measured by {row.ranks_a_core:.3g} ranks a core, divided by that as all computing is"
    local = f"Without DDP a step takes {three_digits(local_ms)} ms, {how}; held-out error "
    if row.held_out_error is None:
        return Text(f"{local}unknown (no other setting was trained, so that the intervals lack the error of steps).")
    return Text(local) + _percent(row.held_out_error) + Text(f" (median over {row.held_out_over}).")


def _step_cells(row: StepForecast) -> tuple[str | Text, ...]:
    if row.step_ms is None:
        return "-", "", "", "", ""
    bounds = Text(_between(row.overlapped_ms, row.serial_ms))
    efficiency = f"{100 * (row.scaling_efficiency or 0.0):.0f} %"
    time = Text(f"{_digits(row.step_ms)} {_between(row.step_ms_low, row.step_ms_high)}")
    if row.step_ms_high is None:
        time, efficiency = Text(f">= {_digits(row.step_ms)}"), f"<= {efficiency}"
    if _is_useless(row.held_out_error) or _is_useless(row.network_error):
        return time, bounds, "", "", ""
    return time, bounds, efficiency, _digits(row.exposed_comm_ms), row.bucket_cap_mb


def render_break_evens(rows: Sequence[BreakEvenForecast]) -> list[RenderableType]:
    """The map of break-even densities: a line for each number of ranks, a column for each link rate."""
    parts: list[RenderableType] = []
    for _, members in itertools.groupby(rows, lambda row: _workload_of(row)[:-1]):
        group = list(members)
        if not _any_ok(group):
            continue
        rates = list(dict.fromkeys(row.rate for row in group))
        cells = {(row.world_size, row.rate): row for row in group}
        table = _table("ranks", *(rate or _AS_MEASURED for rate in rates), "fewer bytes below")
        for ranks in sorted({row.world_size for row in group}):
            found = (_density(cells[ranks, rate]) for rate in rates)
            table.add_row(str(ranks), *found, f"{1 / ranks:.2g}")
        title = f"\n{_name_of(group[0], rows)}: the density below which top-k is predicted to pay"
        parts += [Text(title, style="bold"), table, *_uncertainty_notes(group)]
    return [*parts, *_reasons(rows)]


def _density(row: BreakEvenForecast) -> Text:
    if row.status != "ok":
        return Text("-")
    likely, low, high = (_below(each) for each in (row.density, row.density_low, row.density_high))
    return Text(likely if low == likely == high else f"{likely} [{low}, {high}]")


def _below(density: float | None) -> str:
    if not density:
        return "never"
    return "always" if density >= DENSEST else f"{density:.2g}"


def _algorithm(names: str) -> str:
    """At most two names."""
    known = names.split(" or ")
    return names if len(known) < 3 else f"one of {len(known)}"  # noqa: PLR2004 - as above


def _time(row: CollectiveForecast) -> str:
    """``1.23 ms [1.10, 1.40]``, in one unit."""
    time_us, low, high = row.time_us or 0.0, row.time_us_low or 0.0, row.time_us_high or 0.0
    text = format_time(time_us * 1e-6)
    if row.time_us_high is None:
        return f">= {text}"
    if high > _UNBOUNDED * time_us:
        return f"{text} [wide]"
    number, unit = text.split()
    decimals, scale = len(number.partition(".")[2]), {"us": 1.0, "ms": 1e-3, "s": 1e-6}[unit]
    return f"{text} [{low * scale:.{decimals}f}, {high * scale:.{decimals}f}]"


def _between(low: float | None, high: float | None) -> str:
    return f"[{_digits(low)}, {_digits(high)}]"


def _digits(value: float | None) -> str:
    if value is None:
        return ""
    return three_digits(value) if value >= 1 else f"{value:.2f}"


def _title(words: Sequence[str], rate: str, ranks_per_node: int) -> Text:
    hosts = f", {ranks_per_node} ranks a host" if ranks_per_node > 1 else ""
    return Text(f"\n{', '.join(words)}, links {rate or _AS_MEASURED}{hosts}", style="bold")


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if number else "left", no_wrap=True)
    return table


def _any_ok(rows: Iterable[AnyForecast]) -> bool:
    return any(row.status == "ok" for row in rows)


def _reasons(rows: Iterable[AnyForecast]) -> list[RenderableType]:
    """The reasons for missing predictions, each once."""
    return [Text(f"- {reason}") for reason in unpredicted(rows)]


def _table_of(row: CollectiveForecast) -> tuple[str, ...]:
    return row.operation, row.backend, row.dtype, row.pattern, row.rate


def _workload_of(row: StepForecast | BreakEvenForecast) -> tuple[str, str, int, str, str, str]:
    return row.workload, row.backend, row.batch_per_rank, row.precision, row.trained_on, row.rate
