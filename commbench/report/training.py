"""Tables of training settings, their warnings, the recommendation and its search, for a terminal or
a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from commbench.analysis.watched import watched_lines
from commbench.ddp.plan.cases import TrainingCase, changed_switches, setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.findings import Finding, Value
from commbench.hooks.registry import hook_words
from commbench.report.columns import (
    Cell,
    Column,
    FittedTable,
    TableSpec,
    about,
    declared,
    energy_column,
    flag_column,
    interval,
    number,
    outcome,
    tabulate,
    tone_of,
    verdict_cell,
)
from commbench.report.findings import training_warnings
from commbench.report.formats import launches_of, microseconds, short, with_interval
from commbench.report.table import legend, marks_of, reasons, without_shared_flags
from commbench.results import DDP, Run
from commbench.results.info import Launch, is_live, is_watched
from commbench.results.recommendation import Recommendation
from commbench.results.tables import rows_by
from commbench.results.verdict import paragraph, snippets
from commbench.units import counted


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
            FittedTable(table=tabulate(ordered_rows, TRAINING.on_terminal), file=TRAINING.file),
        ]
        parts += [Text(str(finding)) for finding in [*own_setting(run), *without_ddp(group)]]
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


def own_setting(run: Run) -> list[Finding]:
    """Return the script's own setting, the baseline of a live tuning; nothing for other runs."""
    if not is_live(run.info) or is_watched(run.info):
        return []
    baseline = TrainingCase.from_key(run.info["baseline"])
    return [Finding("own_setting", setting_name(baseline))]


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


def _speedup(row: TrainingRow) -> str:
    return with_interval(row.speedup, row.speedup_ci_low, row.speedup_ci_high, 2)


def _bucket_columns(row_class: type[Any], **options: Any) -> list[Column[Any]]:  # noqa: ANN401 - as in `Column`
    """Return the columns of bucket sizes, which a page sorts by their first number."""

    def cell(row: TrainingRow) -> Cell:
        first = row.bucket_cap_mb.partition("+")[0]
        value = None
        if first == "default":
            value = _DEFAULT_PLACE
        elif first:
            value = float(first)
        return Cell(row.bucket_cap_mb, value=value)

    return [
        number("buckets", cell, row_class, unit="MiB", shown="page", **options),
        Column("buckets\nMiB", "bucket_cap_mb", shown="terminal"),
    ]


#: The sort value of `default`, which is 1 MiB, then 25: it comes before all numbers.
_DEFAULT_PLACE = 0.0
_four_digits, _two_decimals = "{:.4g}".format, "{:.2f}".format


def _brief(name: str, drop_order: int, heading: str = "", **options: Any) -> list[Column[Any]]:  # noqa: ANN401 - as in `Column`
    """Return a column of training that a narrow terminal leaves out."""
    text = {"terminal_text": short, "terminal_heading": heading} | options
    return declared(TrainingRow, name, drop_order=drop_order, **text)


TRAINING: TableSpec[TrainingRow] = TableSpec(
    file=DDP,
    columns=(
        Column("hook", hook_label, about="DDP communication hook, as it is typed"),
        *_bucket_columns(TrainingRow, about=about(TrainingRow, "bucket_cap_mb")),
        *_brief("bucket_count", 4, "no."),
        outcome("step_ms", TrainingRow),
        interval("step_ms", TrainingRow),
        Column(
            "step\nms [95 % CI]",
            lambda row: Cell(_step(row), tone=tone_of(row.status)),
            shown="terminal",
        ),
        *declared(TrainingRow, "speedup", shown="page"),
        interval("speedup", TrainingRow),
        Column("speedup\n[95 % CI]", _speedup, shown="terminal"),
        Column(
            "verdict", lambda row: verdict_cell(row.verdict), about=about(TrainingRow, "verdict")
        ),
        number("efficiency", "scaling_efficiency", TrainingRow, unit="%", scale=100, shown="page"),
        *_brief("exposed_comm_ms", 1, "exposed\nms"),
        *_brief("sent_MB_per_step", 2, "sent\nMB"),
        *_brief("loss_equal_steps", 3, "loss,\nsteps", terminal_text=_four_digits),
        *_brief("loss_equal_time", 5, "loss,\ntime", terminal_text=_four_digits),
        *_brief("metric", 6, terminal_text=_four_digits),
        *_brief("time_to_target_s", 7, "to target\ns"),
        *declared(TrainingRow, "peak_memory_MB energy_J", shown="page"),
        energy_column(),
        flag_column(),
        Column("", lambda row: Cell(marks_of(row), tone="warning"), shown="terminal"),
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


def without_ddp(rows: Sequence[TrainingRow]) -> list[Finding]:
    """Return the step without DDP, compared with the default and the fastest setting."""
    compared = []
    for row in rows:
        if row.local_step_ms is not None and row.scaling_efficiency is not None:
            compared.append(row)
    if not compared:
        return []
    first, best = compared[0], max(compared, key=lambda row: row.samples_per_s or 0.0)
    numbers: dict[str, Value] = {
        "alone": microseconds(1e3 * (first.local_step_ms or 0.0)),
        "efficiency": first.scaling_efficiency or 0.0,
        "best": setting_name(best),
        "best_efficiency": best.scaling_efficiency or 0.0,
    }
    code = "without_ddp"
    if best is not first:
        code = "without_ddp_best"
    return [Finding(code, setting_name(first), numbers)]


def tuning_cost(recommendation: Recommendation, launches: Iterable[Launch] = ()) -> Finding:
    """Return the number of measured steps and the total time.

    Args:
        recommendation: of a tuning.
        launches: as ``run.json`` lists them.
    """
    total = sum(launch.get("seconds", 0.0) for launch in launches)
    code = "tuning_cost"
    if total:
        code = "tuning_cost_in"
    numbers: dict[str, Value] = {"steps": recommendation.measured_steps, "seconds": total}
    return Finding(code, numbers=numbers)
