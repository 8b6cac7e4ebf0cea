"""Tables of training settings, their warnings, the recommendation and its search, for a terminal or a log."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from commbench.ddp.plan.records import TrainingRow
from commbench.engine.flags import has_flag
from commbench.hooks.registry import hook_words
from commbench.report.table import UNBOUNDED, failures, legend, marks_of, warnings_for
from commbench.results import PREDICTIONS, Run
from commbench.results.info import Launch
from commbench.results.recommendation import Recommendation, paragraph
from commbench.stats import family_hint
from commbench.tuner.predictions import Accuracy, PredictionRow, held_out_accuracy
from commbench.units import counted, format_duration, format_time, three_digits

_STYLES = {"faster": "green", "slower": "red", "inconclusive": "yellow"}


def render_training(run: Run, *, by_speed: bool = False) -> list[RenderableType]:
    """Return the tables and warnings of a run's training.

    One table for each number of ranks and batch, in the order of ``ddp.csv`` or, ``by_speed``, the fastest first. A
    table narrows to the console: the least informative columns are left out first, and named.
    """
    rows = run.training_rows
    if not rows:
        return [Text("Nothing has been trained yet.")]
    parts: list[RenderableType] = []
    for group in trained_together(rows):
        shown = sorted(group, key=lambda row: -(row.samples_per_s or 0.0)) if by_speed else group
        parts += [Text(f"\n{training_title(group)}", style="bold"), ConfigurationTable(shown)]
        parts += [*map(Text, without_ddp(group)), *_reasons(shown)]
    parts += legend(rows)
    return parts + [Text(f"! {warning}") for warning in training_warnings(run)]


def trained_together(rows: Sequence[TrainingRow]) -> list[list[TrainingRow]]:
    """The rows of each table: one workload, number of ranks and batch."""
    groups = itertools.groupby(rows, key=lambda row: (row.workload, row.world_size, row.batch_per_rank))
    return [list(members) for _, members in groups]


def training_warnings(run: Run) -> list[str]:
    """The warnings about a run's training, each once."""
    rows = run.training_rows
    if run.info.get("candidates"):  # a tuning plans its launches, so only failures matter
        return failures([row for row in rows if row.status != "ok"], len(rows))
    flagged = [row for row in rows if not has_flag(row.flags, "same_layout")]  # its stand-in has the same flags
    return [*warnings_for(flagged, run.info), *_undecidable(flagged)]


def render_recommendation(recommendation: Recommendation) -> list[RenderableType]:
    """Return the paragraph and the snippet."""
    snippet = Text(recommendation.snippet.rstrip())
    return [Text(f"\n{paragraph(recommendation)}\n"), Padding(snippet, (0, 0, 0, 4))]


# ------------------------------------------------------------------------------------------------------ the table


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column: its heading, its text for a row with a time, and its priority."""

    heading: str
    cell: Callable[[TrainingRow], str | Text]
    justify: Literal["left", "right"] = "right"
    gives_way: int = 0
    """The order in which columns are left out if space is short, the largest first; 0: never."""
    always: bool = False
    """Whether rows without a time show it too."""


class ConfigurationTable:
    """Settings as lines, in as many columns as fit the console."""

    def __init__(self, rows: Sequence[TrainingRow]) -> None:
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and the columns that did not fit."""
        columns = [column for column in _COLUMNS if any(str(_cell(column, row)) for row in self.rows)]
        left_out: list[str] = []
        unlimited = options.update(width=10_000)
        while console.measure(table := self._table(columns), options=unlimited).maximum > options.max_width:
            column = max(columns, key=lambda column: column.gives_way)
            if not column.gives_way:
                break
            columns.remove(column)
            left_out.append(column.heading.replace("\n", " ").strip())
        yield table
        if left_out:
            yield Text(f"No space for {', '.join(left_out)}: see ddp.csv.", style="dim")

    def _table(self, columns: Sequence[_Column]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        for column in columns:
            table.add_column(column.heading, justify=column.justify, no_wrap=True)
        for row in self.rows:
            table.add_row(*(_cell(column, row) for column in columns))
        return table


def _cell(column: _Column, row: TrainingRow) -> str | Text:
    return column.cell(row) if column.always or (row.status == "ok" and row.step_ms is not None) else ""


def hook_label(row: TrainingRow | PredictionRow) -> str:
    """The hook as typed, and other settings that differ from the defaults, without buckets."""
    words = [hook_words(row.hook, row.density, row.hook_options)]
    words += [] if row.precision == "fp32" else [row.precision]
    words += [f"x{row.accumulation}"] if (row.accumulation or 1) > 1 else []
    words += ["views"] if row.bucket_view else []
    words += ["static"] if row.static_graph else []
    return " ".join(words)


def _step(row: TrainingRow) -> Text:
    """The step with its interval, or one word that says why there is none."""
    if row.status != "ok":
        return Text(row.status, style="red")
    if row.step_ms is None:
        return Text("no time")
    decimals = next((n for n, least in enumerate((100, 10, 1)) if row.step_ms >= least), 3)
    return Text(_with_interval(row.step_ms, row.step_ms_ci_low, row.step_ms_ci_high, decimals))


def _speedup(row: TrainingRow) -> str:
    return "" if row.speedup is None else _with_interval(row.speedup, row.speedup_ci_low, row.speedup_ci_high, 2)


def _with_interval(value: float, low: float | None, high: float | None, decimals: int) -> str:
    """``1.31 [1.28, 1.34]``; ``wide`` for an interval over many orders of magnitude."""
    text = f"{value:.{decimals}f}"
    if low is None or high is None:
        return text
    return f"{text} [wide]" if high > UNBOUNDED * value else f"{text} [{low:.{decimals}f}, {high:.{decimals}f}]"


def _short(value: float | None) -> str:
    """Three digits, without an exponent for large numbers."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _time(value_ms: float | None) -> str:
    return "" if value_ms is None else format_time(value_ms / 1e3)


_COLUMNS = (
    _Column(heading="\nhook", cell=hook_label, justify="left", always=True),
    _Column(heading="buckets\nMiB", cell=lambda row: row.bucket_cap_mb, justify="left", always=True),
    _Column(heading="\nno.", cell=lambda row: str(row.bucket_count or ""), gives_way=4),
    _Column(heading="step\nms [95 % CI]", cell=_step, justify="left", always=True),
    _Column(heading="speedup\n[95 % CI]", cell=_speedup, justify="left"),
    _Column(heading="\nverdict", cell=lambda row: Text(row.verdict, _STYLES.get(row.verdict, "")), justify="left"),
    _Column(heading="exposed\nms", cell=lambda row: _short(row.exposed_comm_ms), gives_way=1),
    _Column(heading="sent\nMB", cell=lambda row: _short(row.sent_MB_per_step), gives_way=2),
    _Column(heading="loss,\nsteps", cell=lambda row: _loss(row.loss_equal_steps), gives_way=3),
    _Column(heading="loss,\ntime", cell=lambda row: _loss(row.loss_equal_time), gives_way=5),
    _Column(heading="\nmetric", cell=lambda row: _loss(row.metric), gives_way=6),
    _Column(heading="to target\ns", cell=lambda row: _short(row.time_to_target_s), gives_way=7),
    _Column(heading="\n", cell=lambda row: Text(marks_of(row), "yellow"), justify="left"),
)


# ----------------------------------------------------------------------------------------------------- around it


def training_title(rows: Sequence[TrainingRow]) -> str:
    """The title of rows that were trained together: workload, hosts, ranks and launches."""
    first = rows[0]
    hosts = f" on {counted(first.nodes, 'host')}" if first.nodes else ""
    parts = [first.backend, f"{counted(first.world_size or 0, 'rank')}{hosts}", f"batch {first.batch_per_rank} a rank"]
    dense = next((row.dense_MB_per_step for row in rows if row.dense_MB_per_step), None)
    parts += [f"dense all-reduce {_short(dense)} MB a step"] if dense else []
    launches = sorted({row.launches for row in rows if row.launches})
    if launches:
        several = f"{launches[0]} to " if len(launches) > 1 else ""
        parts.append(several + counted(launches[-1], "launch"))
    metrics = sorted({row.metric_name for row in rows if row.metric_name})
    return f"{first.workload} ({', '.join(parts)})" + (f"; metric {', '.join(metrics)}" if metrics else "")


def without_ddp(rows: Sequence[TrainingRow]) -> list[str]:
    """A sentence on the step without DDP, compared with the default and the fastest setting."""
    known = [row for row in rows if row.local_step_ms is not None and row.scaling_efficiency is not None]
    if not known:
        return []
    first, best = known[0], max(known, key=lambda row: row.samples_per_s or 0.0)
    text = f"Without DDP a step takes {_time(first.local_step_ms)}; scaling efficiency is {_percent(first)} for "
    text += f"{named_setting(first)}"
    return [text + (f" and {_percent(best)} for {named_setting(best)}." if best is not first else ".")]


def _undecidable(rows: Sequence[TrainingRow]) -> list[str]:
    """Whether every verdict must be inconclusive: too few launches for a family of this size."""
    judged = [row for row in rows if row.verdict]
    launches = max((row.launches or 0 for row in judged), default=0)
    if not judged or not family_hint(len(judged), launches, launches):
        return []
    warning = (
        f"{counted(launches, 'launch')} cannot show one of {counted(len(judged), 'configuration')} to be faster or "
        "slower, whatever the difference: go by the fresh launches of the recommendation, or add launches"
    )
    return [warning]


def _percent(row: TrainingRow) -> str:
    return f"{100 * (row.scaling_efficiency or 0.0):.0f} %"


def named_setting(row: TrainingRow) -> str:
    """A setting in a few words: its hook and its buckets."""
    return f"{hook_label(row)} with {row.bucket_cap_mb}{' MiB' if row.bucket_cap_mb != 'default' else ''} buckets"


def _reasons(rows: Sequence[TrainingRow]) -> list[RenderableType]:
    """The reasons for settings without a result."""
    return [
        Padding(Text(f"{named_setting(row)}: {row.status}: {row.reason}", style="dim"), (0, 0, 0, 2))
        for row in rows
        if row.status != "ok" and row.reason
    ]


#: Most settings shown that were only predicted; the file has all.
MOST_UNMEASURED = 3
_HEADINGS = (
    "step, ms\npredicted",
    "overlap:\n[full, none]",
    "\nmeasured",
    "\nerror",
    "speedup\npredicted",
    "\nmeasured",
    "\nno.",
)


def render_predictions(rows: Sequence[PredictionRow]) -> list[RenderableType]:
    """Measured settings and the most promising others, the fastest prediction first; empty without rows."""
    if not rows:
        return []
    ranked = sorted(rows, key=lambda row: row.predicted_step_ms or 0.0)
    unmeasured = [row for row in ranked if row.used == "not_measured"]
    hidden = {id(row) for row in unmeasured[MOST_UNMEASURED:]}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("\nhook", no_wrap=True)
    table.add_column("buckets\nMiB", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in ranked:
        if id(row) not in hidden:
            table.add_row(*_cells(row))
    meanings = "no.: launches behind what was measured"
    if any(row.is_fitted for row in rows):
        meanings = f"*: predictions were fitted to this setting; {meanings}"
    parts: list[RenderableType] = [Text(prediction_title(rows), style="bold"), table]
    parts.append(Text(meanings, style="dim"))
    if hidden:
        text = f"{counted(len(hidden), 'more setting')} not measured, slower by prediction"
        parts.append(Text(f"{text}: see {PREDICTIONS}.", style="dim"))
    return parts


def render_cost(recommendation: Recommendation, launches: Iterable[Launch] = ()) -> Text:
    """Return the number of steps made, as a share of a full sweep, and the total time, network included.

    Args:
        recommendation: of a tuning.
        launches: as ``run.json`` lists them.
    """
    measured, full = recommendation.measured_steps, recommendation.exhaustive_steps
    share = f", {100 * measured / full:.0f} % of the {full} that a full sweep of these settings takes" if full else ""
    launches = list(launches)
    total = sum(launch.get("seconds", 0.0) for launch in launches)
    network = sum(launch.get("seconds", 0.0) for launch in launches if launch.get("stage") == "network")
    time = f", in {format_duration(total)}, {format_duration(network)} of it for the network" if total else ""
    return Text(f"Measured {counted(measured, 'step')}{share}{time}.")


def prediction_title(rows: Iterable[PredictionRow]) -> str:
    """The basis of the predictions, and their error."""
    return f"Predicted from the calibration{_said(held_out_accuracy(rows))}"


def _said(accuracy: Accuracy | None) -> str:
    if accuracy is None:
        return ""
    speedup = "" if accuracy.speedup_error is None else f", speedup ±{100 * accuracy.speedup_error:.1f} %"
    return (
        f" (step ±{100 * accuracy.step_error:.1f} %{speedup}: median error at "
        f"{counted(accuracy.settings, 'held-out setting')})"
    )


def _cells(row: PredictionRow) -> tuple[str, ...]:
    bounds = f"[{_number(row.predicted_overlapped_ms)}, {_number(row.predicted_serial_ms)}]"
    error = "*" if row.is_fitted else "" if row.error is None else f"{100 * row.error:+.1f} %"
    return (
        hook_label(row),
        row.bucket_cap_mb,
        _number(row.predicted_step_ms),
        bounds,
        _number(row.step_ms),
        error,
        _ratio(row.predicted_speedup),
        _ratio(row.speedup),
        str(row.launches or ""),
    )


def _number(value: float | None) -> str:
    return "" if value is None else three_digits(value)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
