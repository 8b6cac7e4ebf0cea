"""The first answer of a run, which ends `bench`, `train` and `tune`: what a newcomer needs, on one
screen.

Times by size and library, the settings that were compared again, at most two warnings, and a
verdict of at most four lines. `commbench report` shows the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from commbench.analysis.scaling import all_rank_rows
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.ddp.plan.cases import setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row
from commbench.findings import Finding, as_text
from commbench.report.collectives import columns_of
from commbench.report.columns import (
    Cell,
    Table,
    plain_table,
    toned,
)
from commbench.report.findings import (
    FEWEST_LAUNCHES,
    grave_warnings,
    half_widths_of,
    machine_states,
    setting,
)
from commbench.report.formats import (
    digits,
    launches_of,
    microseconds,
    ranks_on_hosts,
    with_interval,
)
from commbench.results import Run
from commbench.results.recommendation import (
    Recommendation,
    confirmation_extent,
    effect_of,
    setting_of,
)
from commbench.results.tables import rows_by
from commbench.results.verdict import verdict_lines
from commbench.stats import median
from commbench.units import format_size, three_digits

#: The most settings of a sweep that the first answer shows.
MOST_SETTINGS = 5
#: The most warnings of the first answer.
MOST_WARNINGS = 2


class Series(NamedTuple):
    """A column of times: the rows of an operation over one library, by size."""

    operation: str
    name: str
    rows: Sequence[Row]


def answer_times(run: Run, width: int) -> Iterator[RenderableType]:
    """Yield the times of a run's collectives by size and library, with the best bandwidth of each
    and one line on precision; nothing without any.

    Args:
        run: what was measured.
        width: columns of the console; times that do not fit follow in another table.
    """
    rows = [row for row in all_rank_rows(run) if row.pattern != MATRIX]
    if not rows:
        return
    types = ", ".join(sorted({row.dtype for row in rows if row.dtype}))
    ranks = ranks_on_hosts(rows[0].world_size, rows[0].nodes)
    launches = launches_of(rows)
    how = f"{types}, slowest rank, median over {launches}"
    yield Text(f"\nTime of one operation on {ranks} ({how})", style="bold")
    beside: list[Series] = []
    by_operation = rows_by(rows, attrgetter("operation"))
    for operation in sorted(by_operation, key=list(OPERATIONS).index):
        columns = columns_of(by_operation[operation], attrgetter("message_bytes"))
        for name, of_column in columns.items():
            series = Series(operation, name, of_column)
            if beside and _table([*beside, series]).width > width:
                yield _table(beside)
                beside = []
            beside.append(series)
    yield _table(beside)
    yield as_text(_precision(rows))


def _table(columns: Sequence[Series]) -> Table:
    headings = ["size"]
    shown = ""
    for series in columns:
        heading = ""
        if series.operation != shown:
            heading = shown = series.operation
            if OPERATIONS[shown].is_round_trip:
                heading += ", one way"
        headings.append(f"{heading}\n{series.name}")
    sizes = {row.message_bytes for series in columns for row in series.rows}
    lines = []
    for size in sorted(sizes, key=lambda size: size or 0):
        line = [Cell("-" if size is None else format_size(size))]
        for series in columns:
            line.append(_time([row for row in series.rows if row.message_bytes == size]))
        lines.append(line)
    best = [Cell("best busbw")]
    for series in columns:
        rates = [row.busbw_GBps for row in series.rows if row.busbw_GBps is not None]
        best.append(Cell(f"{three_digits(max(rates))} GB/s", tone="strong") if rates else Cell(""))
    if any(cell.text for cell in best[1:]):
        lines.append(best)
    return plain_table(headings, lines, words=0)


def _time(rows: Sequence[Row]) -> Cell:
    if not rows:
        return Cell("")
    if rows[0].status != "ok":
        return toned(rows[0].status)
    return Cell(microseconds(rows[0].time_us))


def _precision(rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield the typical half-width of each library's intervals, and whether data were verified."""
    half_widths = []
    for backend, of_backend in rows_by(rows, attrgetter("backend")).items():
        repeated = [row for row in of_backend if (row.launches or 0) >= FEWEST_LAUNCHES]
        widths = half_widths_of(repeated)
        if widths:
            half_widths.append(f"{backend} ±{100 * median(widths):.2g} %")
    if half_widths:
        yield Finding("answer_precision", numbers={"half_widths": tuple(half_widths)})
    timed = [row for row in rows if row.status == "ok"]
    if timed and all(row.wrong == 0 for row in timed):
        yield Finding("answer_verified")


def answer_settings(run: Run) -> Iterator[RenderableType]:
    """Yield the settings that confirmation launches compared, with the share of the step that
    waits.

    Of a run without confirmation launches the fastest settings of its sweep; nothing without
    training.
    """
    rows = [row for row in run.training_rows if row.step_ms is not None]
    advice = run.decision
    if not rows:
        return
    if advice is None or not advice.is_compared or not advice.has_baseline:
        yield _sweep(rows)
        return
    heading = f"speedup [{100 * advice.level:.4g} % interval]"
    lines = [(advice.baseline_name, digits(advice.baseline.step_ms), "1")]
    for choice in advice.alternatives:
        name = advice.named(choice)
        effect = effect_of(choice, advice.baseline)
        if effect != "none":
            name = f"{name} ({effect})"
        low, high = choice.speedup_ci or (None, None)
        speedup = with_interval(choice.speedup, low, high, 2)
        lines.append((name, digits(choice.step_ms), speedup))
    extent = confirmation_extent(advice.launches, advice.blocks, is_live=advice.live)
    title = f"{advice.workload}, {advice.backend}, {extent}"
    yield _table_of_settings(title, heading, lines, _exposed(run, advice))


def _table_of_settings(
    title: str, heading: str, lines: Sequence[Sequence[str]], remarks: Iterable[Finding] = ()
) -> Table:
    """Return the table of settings: name, step and speedup."""
    headings = ["", "ms a step", heading]
    notes = list(map(str, remarks))
    return plain_table(headings, lines, title=f"DDP step: {title}", words=1, notes=notes)


def _sweep(rows: Sequence[TrainingRow]) -> Table:
    """Return the first setting, as a rule the baseline, and the fastest others."""
    first, *others = rows
    fastest = sorted(others, key=lambda row: -(row.samples_per_s or 0.0))
    shown = [first, *fastest[: MOST_SETTINGS - 1]]
    lines = []
    for row in shown:
        speedup = with_interval(row.speedup, row.speedup_ci_low, row.speedup_ci_high, 2)
        lines.append((setting_name(row), digits(row.step_ms), speedup))
    extent = launches_of(rows)
    title = f"{first.workload}, {first.backend}, {extent}"
    return _table_of_settings(title, "speedup [95 % interval]", lines)


def _exposed(run: Run, advice: Recommendation) -> Iterator[Finding]:
    """Yield how long a step of the baseline waits for gradients."""
    for row in run.training_rows:
        is_baseline = setting_of(row) == setting_of(advice.baseline)
        if is_baseline and row.exposed_comm_ms is not None and row.step_ms:
            share = row.exposed_comm_ms / row.step_ms
            baseline = advice.baseline_name
            yield Finding("answer_exposed", numbers={"share": share, "baseline": baseline})
            return


def answer_warnings(run: Run) -> list[Finding]:
    """Return the gravest warnings, at most `MOST_WARNINGS`: two states of the machine first."""
    return [*machine_states(run), *grave_warnings(run)][:MOST_WARNINGS]


def answer_verdict(run: Run) -> list[str]:
    """Return the verdict on a run's training, or why there is none yet; empty without training."""
    if run.decision is None:
        return list(map(str, setting(run)))
    return verdict_lines(run.decision)
