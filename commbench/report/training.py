"""Tables of training settings, their warnings, the recommendation and its search, for a terminal or
a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from commbench.analysis.watched import watched_lines
from commbench.ddp.plan.cases import TrainingCase, changed_switches, setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.hooks.registry import hook_words
from commbench.report.columns import (
    Cell,
    Column,
    FittedTable,
    number,
    tabulate,
    tone_of,
    verdict_cell,
)
from commbench.report.findings import training_warnings
from commbench.report.formats import launches_of, microseconds, percent, short, with_interval
from commbench.report.table import legend, marks_of, reasons, without_shared_flags
from commbench.results import DDP, Run
from commbench.results.info import Launch, is_live, is_watched
from commbench.results.recommendation import Recommendation
from commbench.results.tables import rows_by
from commbench.results.verdict import paragraph, snippets
from commbench.units import counted, format_duration


def render_training(run: Run, *, by_speed: bool = False) -> list[RenderableType]:
    """Return the tables and warnings of a run's training.

    One table for each number of ranks and batch, in the order of ``ddp.csv`` or, ``by_speed``, the
    fastest first. A
    table narrows to the console: the least informative columns are left out first, and named.
    """
    rows = run.training_rows
    if not rows:
        return [Text("Nothing has been trained yet.")]
    rows = without_shared_flags(rows)
    parts: list[RenderableType] = []
    for group in trained_together(rows):
        ordered_rows = (
            sorted(group, key=lambda row: -(row.samples_per_s or 0.0)) if by_speed else group
        )
        parts += [
            Text(f"\n{training_title(group)}", style="bold"),
            FittedTable(table=tabulate(ordered_rows, _COLUMNS), file=DDP),
        ]
        parts += map(Text, [*baseline_sentences(run), *without_ddp(group)])
        parts += reasons((setting_name(row), row) for row in ordered_rows)
    parts += legend(rows)
    if is_watched(run.info):
        parts += map(Text, ["", *watched_lines(run.training_records[-1], run.info)])
    return parts + [Text(f"! {warning.in_full}") for warning in training_warnings(run)]


def trained_together(rows: Sequence[TrainingRow]) -> list[list[TrainingRow]]:
    """Return the rows of each table: one workload, number of ranks, batch and environment."""
    return list(
        rows_by(rows, attrgetter("workload", "world_size", "batch_per_rank", "env")).values()
    )


def baseline_sentences(run: Run) -> list[str]:
    """Return a sentence on the script's own setting, the baseline of a live tuning.

    No sentence for other runs.
    """
    if not is_live(run.info) or is_watched(run.info):
        return []
    baseline = TrainingCase.from_key(run.info["baseline"])
    name = setting_name(baseline)
    of_screening = (
        "Times and speedups are of the screening; what is recommended rests on fresh blocks."
    )
    return [f"The script's own setting is {name}. {of_screening}"]


def render_recommendation(recommendation: Recommendation) -> list[RenderableType]:
    """Return the recommendation's paragraph and the lines to paste."""
    parts: list[RenderableType] = [Text(f"\n{paragraph(recommendation)}\n")]
    for title, snippet in snippets(recommendation):
        parts.append(Text(f"{title}:"))
        parts.append(Padding(Text(snippet.rstrip()), (0, 0, 0, 4)))
    return parts


# ---------------------------------------------------------------------------------------- the table


def hook_label(row: TrainingRow) -> str:
    """Return the hook as typed, and other settings that differ from the defaults, without
    buckets.
    """
    words = [hook_words(row.hook, row.density, row.hook_options)]
    if row.precision != "fp32":
        words.append(row.precision)
    if (row.accumulation or 1) > 1:
        words.append(f"x{row.accumulation}")
    words += [switch.label for switch in changed_switches(row)]
    if row.compile:
        words.append(row.compile)
    return " ".join(words)


def _step(row: TrainingRow) -> str:
    """Return the step with its interval, or the status of a row without a time."""
    if row.status != "ok" or row.step_ms is None:
        return "no time" if row.status == "ok" else row.status
    places = next((n for n, least in enumerate((100, 10, 1)) if row.step_ms >= least), 3)
    return with_interval(row.step_ms, row.step_ms_ci_low, row.step_ms_ci_high, places)


def _if_timed(column: Column[TrainingRow]) -> Column[TrainingRow]:
    """Return the column with empty cells for rows without a time."""

    def cell(row: TrainingRow) -> Cell | None:
        return column.cell(row) if row.status == "ok" and row.step_ms is not None else None

    return replace(column, value_of=cell)


_COLUMNS: tuple[Column[TrainingRow], ...] = (
    Column("\nhook", hook_label),
    Column("buckets\nMiB", "bucket_cap_mb"),
    _if_timed(number("\nno.", "bucket_count", text_of=short, drop_order=4)),
    Column("step\nms [95 % CI]", lambda row: Cell(_step(row), tone=tone_of(row.status))),
    *map(
        _if_timed,
        (
            Column(
                "speedup\n[95 % CI]",
                lambda row: with_interval(row.speedup, row.speedup_ci_low, row.speedup_ci_high, 2),
            ),
            Column("\nverdict", lambda row: verdict_cell(row.verdict)),
            number("exposed\nms", "exposed_comm_ms", text_of=short, drop_order=1),
            number("sent\nMB", "sent_MB_per_step", text_of=short, drop_order=2),
            number("loss,\nsteps", "loss_equal_steps", text_of="{:.4g}".format, drop_order=3),
            number("loss,\ntime", "loss_equal_time", text_of="{:.4g}".format, drop_order=5),
            number("\nmetric", "metric", text_of="{:.4g}".format, drop_order=6),
            number("to target\ns", "time_to_target_s", text_of=short, drop_order=7),
            Column("\n", lambda row: Cell(marks_of(row), tone="warning")),
        ),
    ),
)


# ---------------------------------------------------------------------------------------- around it


def training_title(rows: Sequence[TrainingRow]) -> str:
    """Return the title of rows that were trained together: workload, hosts, ranks and launches."""
    first = rows[0]
    hosts = f" on {counted(first.nodes, 'host')}" if first.nodes else ""
    parts = [
        first.backend,
        f"{counted(first.world_size or 0, 'rank')}{hosts}",
        f"batch {first.batch_per_rank} a rank",
    ]
    parts += [first.env] if first.env else []
    dense = next((row.dense_MB_per_step for row in rows if row.dense_MB_per_step), None)
    parts += [f"dense all-reduce {short(dense)} MB a step"] if dense else []
    parts += filter(None, [launches_of(row.launches for row in rows)])
    metrics = sorted({row.metric_name for row in rows if row.metric_name})
    return f"{first.workload} ({', '.join(parts)})" + (
        f"; metric {', '.join(metrics)}" if metrics else ""
    )


def without_ddp(rows: Sequence[TrainingRow]) -> list[str]:
    """Return a sentence on the step without DDP, compared with the default and the fastest
    setting.
    """
    compared = [
        row for row in rows if row.local_step_ms is not None and row.scaling_efficiency is not None
    ]
    if not compared:
        return []
    first, best = compared[0], max(compared, key=lambda row: row.samples_per_s or 0.0)
    alone = microseconds(1e3 * (first.local_step_ms or 0.0))
    settings = [first, *([best] if best is not first else [])]
    efficiencies = " and ".join(
        f"{percent(row.scaling_efficiency)} for {setting_name(row)}" for row in settings
    )
    return [f"Without DDP a step takes {alone}; scaling efficiency is {efficiencies}."]


def render_cost(recommendation: Recommendation, launches: Iterable[Launch] = ()) -> Text:
    """Return the number of measured steps and the total time.

    Args:
        recommendation: of a tuning.
        launches: as ``run.json`` lists them.
    """
    time = ""
    total = sum(launch.get("seconds", 0.0) for launch in launches)
    if total:
        time = f", in {format_duration(total)}"
    return Text(f"Measured {counted(recommendation.measured_steps, 'step')}{time}.")
