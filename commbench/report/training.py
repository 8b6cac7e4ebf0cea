"""Tables of training settings, the recommendation and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from commbench.analysis.watched import Part, RankTime, parts_of, rank_times
from commbench.ddp.plan.cases import (
    TrainingCase,
    changed_switches,
    setting_name,
)
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import about
from commbench.findings import Finding
from commbench.hooks.registry import hook_words
from commbench.report.columns import (
    ENERGY_OF,
    Column,
    Table,
    declared,
    flag_column,
    interval,
    make_table,
    make_tables,
    number,
    outcome,
    prefixes,
)
from commbench.report.formats import launches_of, microseconds, ranks_on_hosts
from commbench.results import DDP, Run
from commbench.results.info import is_live, is_watched
from commbench.results.tables import rows_by
from commbench.units import three_digits


def training_tables(runs: Sequence[Run]) -> Iterator[Table]:
    """Yield a table for each workload, number of ranks and batch of each run."""
    for run, prefix in prefixes(runs):
        by_table = rows_by(
            run.training_rows, attrgetter("workload", "world_size", "batch_per_rank", "env")
        )
        for rows in by_table.values():
            title = f"{prefix}{training_title(rows)}"
            named_rows = [(run.name, row) for row in rows]
            notes = [str(finding) for finding in [*own_setting(run), *without_ddp(rows)]]
            yield make_table(title, named_rows, _COLUMNS, notes=notes, rest_in=DDP)


def watched_tables(runs: Sequence[Run]) -> list[Table]:
    """Return the parts of a step and the ranks of watched trainings."""
    watched = [run for run in runs if is_watched(run.info) and run.training_records]
    return [
        *make_tables(
            "Parts of a step", watched, lambda run: parts_of(run.training_records[-1]), _PARTS
        ),
        *make_tables(
            "Ranks", watched, lambda run: rank_times(run.training_records[-1], run.info), _RANKS
        ),
    ]


_PARTS: list[Column[Part]] = [
    Column("part", "name"),
    number("time", "ms", unit="ms", about="mean over steps, on the rank that the others wait for"),
    number("share", "share", unit="%", scale=100, about="of the mean step"),
]
_RANKS: list[Column[RankTime]] = [
    Column("rank", "rank"),
    Column("host", "host"),
    number(
        "computing",
        "computing_ms",
        unit="ms",
        about="from an exchange of gradients to the last gradient, median",
    ),
]


def own_setting(run: Run) -> Iterator[Finding]:
    """Yield the script's own setting, the baseline of a live tuning; nothing for other runs."""
    if is_live(run.info) and not is_watched(run.info):
        baseline = TrainingCase.from_key(run.info["baseline"])
        yield Finding("own_setting", setting_name(baseline))


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


_COLUMNS: Sequence[Column[TrainingRow]] = (
    Column("hook", hook_label, about="DDP communication hook, as it is typed"),
    Column(
        "buckets",
        "bucket_cap_mb",
        about=about(TrainingRow, "bucket_cap_mb"),
        unit="MiB",
        is_number=True,
    ),
    *declared(TrainingRow, "bucket_count", drop_order=4),
    outcome("step_ms", TrainingRow),
    interval("step_ms", TrainingRow),
    *declared(TrainingRow, "speedup"),
    interval("speedup", TrainingRow),
    *declared(TrainingRow, "verdict"),
    *declared(TrainingRow, "scaling_efficiency", unit="%", scale=100, drop_order=8),
    *declared(TrainingRow, "exposed_comm_ms", drop_order=1),
    *declared(TrainingRow, "sent_MB_per_step", drop_order=2),
    *declared(TrainingRow, "loss_equal_steps", drop_order=3),
    *declared(TrainingRow, "loss_equal_time", drop_order=5),
    *declared(TrainingRow, "metric", drop_order=6),
    *declared(TrainingRow, "time_to_target_s", drop_order=7),
    *declared(TrainingRow, "peak_memory_MB energy_J", drop_order=9),
    ENERGY_OF,
    flag_column(),
)


# ---------------------------------------------------------------------------------------- around it


def training_title(rows: Sequence[TrainingRow]) -> str:
    """Return the title of rows that were trained together: workload, hosts, ranks and launches."""
    first = rows[0]
    ranks = ranks_on_hosts(first.world_size, first.nodes)
    parts = [first.backend, ranks, f"batch {first.batch_per_rank} a rank", first.env]
    dense = [row.dense_MB_per_step for row in rows if row.dense_MB_per_step]
    if dense:
        parts.append(f"dense all-reduce {three_digits(dense[0])} MB a step")
    parts.append(launches_of(rows))
    title = f"{first.workload} ({', '.join(filter(None, parts))})"
    metrics = sorted({row.metric_name for row in rows if row.metric_name})
    return "; metric ".join([title, *metrics])


def without_ddp(rows: Sequence[TrainingRow]) -> Iterator[Finding]:
    """Yield the step without DDP, compared with the default and the fastest setting."""
    compared = []
    for row in rows:
        if row.local_step_ms is not None and row.scaling_efficiency is not None:
            compared.append(row)
    if not compared:
        return
    first, best = compared[0], max(compared, key=lambda row: row.samples_per_s or 0.0)
    code = "without_ddp"
    if best is not first:
        code = "without_ddp_best"
    words = {
        "alone": microseconds(1e3 * (first.local_step_ms or 0.0)),
        "best": setting_name(best),
    }
    shares = {
        "efficiency": first.scaling_efficiency or 0.0,
        "best_efficiency": best.scaling_efficiency or 0.0,
    }
    yield Finding(code, setting_name(first), {**words, **shares})


def tuning_cost(run: Run) -> Iterator[Finding]:
    """Yield the number of measured steps and the total time of a tuning; nothing of others."""
    if run.recommendation and run.info.get("candidates"):
        seconds = sum(launch.get("seconds", 0.0) for launch in run.info.get("launches", ()))
        numbers = {"steps": run.recommendation.measured_steps, "seconds": seconds}
        yield Finding("tuning_cost", numbers=numbers)
