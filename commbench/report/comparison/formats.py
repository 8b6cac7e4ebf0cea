"""A comparison on the terminal, as CSV and as JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from commbench.analysis.comparison.findings import (
    answer,
    beyond,
    closing,
    name_of,
    names_of,
    regressions,
)
from commbench.analysis.comparison.sides import AnyCase
from commbench.analysis.comparison.verdicts import BrokenCase, ComparedCase, ComparisonTable
from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import TrainingCase
from commbench.engine.records import column
from commbench.findings import Finding, as_text
from commbench.report.columns import Column, printed, tabulate, verdict_cell
from commbench.report.formats import microseconds
from commbench.results.tables import csv_text
from commbench.stats import Effort
from commbench.words import thousandths


def case_columns(table: ComparisonTable) -> tuple[Column[ComparedCase], ...]:
    """Return the columns of a comparison, for the terminal and the page."""
    names = names_of(table)
    return (
        Column("case", lambda case: name_of(case, names), can_wrap=True),
        Column("A", "time_a_us", text_of=microseconds, is_number=True),
        Column("B", "time_b_us", text_of=microseconds, is_number=True),
        Column("B / A [CI]", "estimate", text_of=thousandths),
        Column("verdict", lambda case: verdict_cell(case.comparison.verdict)),
        Column("detectable", "comparison.detectable", text_of=_slowdown, is_number=True),
        Column("more", lambda case: _launches(case.comparison.further), is_number=True),
    )


def _slowdown(share: float) -> str:
    if not math.isfinite(share):
        return "none"
    return f"+{100 * share:.1f} %"


def _launches(effort: Effort | None) -> str:
    """Return the number of launches of each run that would settle a case: ``4-12``, ``16+``, or why
    none would.
    """
    if effort is None:
        return ""
    if effort.forecast != "settles":
        return effort.forecast
    if effort.high is None:
        return f"{effort.low}+"
    if effort.low == effort.high:
        return str(effort.low)
    return f"{effort.low}-{effort.high}"


def render_comparison(table: ComparisonTable, threshold: float | None = None) -> RenderableType:
    """Render a comparison for `rich.console.Console.print`: answer, unlike conditions, a line for
    each case, hints.

    Args:
        table: the comparison.
        threshold: the share that sets the exit code; cases that are slower by more are named last.
    """
    lines = [as_text(answer(table))]
    lines += [f"A: {name}" for name in table.names_a]
    lines.append(f"B: {table.name_b}")
    if table.is_forced:
        lines.append(str(Finding("compare_conditions")))
    lines += [str(difference.finding) for difference in table.differences]
    parts: list[RenderableType] = [Text("\n".join(lines)), Text("")]
    if table.cases:
        parts += [printed(tabulate(table.cases, case_columns(table))), Text("")]
    parts += [Text(str(finding)) for finding in closing(table)]
    if threshold is not None:
        parts.append(Text(as_text(beyond(table, threshold))))
    return Group(*parts)


# ------------------------------------------------------------------------------------- CSV and JSON

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One line of a comparison's CSV; None is an empty cell."""

    schema: int = SCHEMA
    kind: str = column("collective or training", "")
    case: str = column("what was measured", "")
    group: str = column("as in collectives.csv", "")
    backend: str = column("as in collectives.csv", "")
    operation: str = column("as in collectives.csv", "")
    pattern: str = column("as in collectives.csv", "")
    world_size: int | None = column("as in ddp.csv")
    dtype: str | None = column("as in collectives.csv")
    redop: str | None = column("as in collectives.csv")
    root: int | None = column("as in collectives.csv")
    in_place: bool | None = column("as in collectives.csv")
    message_bytes: int | None = column("as in collectives.csv")
    sync: str = column("as in collectives.csv", "")
    loop: str = column("as in collectives.csv", "")
    buffers: str = column("as in collectives.csv", "")
    workload: str = column("as in ddp.csv", "")
    precision: str = column("as in ddp.csv", "")
    hook: str = column("as in ddp.csv", "")
    density: float | None = column("as in ddp.csv")
    hook_options: str = column("as in ddp.csv", "")
    bucket_cap_mb: str = column("as in ddp.csv", "")
    bucket_view: bool | None = column("as in ddp.csv")
    static_graph: bool | None = column("as in ddp.csv")
    unused_parameters: bool | None = column("as in ddp.csv")
    broadcast_buffers: bool | None = column("as in ddp.csv")
    batched_grad_copy: bool | None = column("as in ddp.csv")
    compile: str = column("as in ddp.csv", "")
    accumulation: int | None = column("as in ddp.csv")
    batch_per_rank: int | None = column("as in ddp.csv")
    env: str = column("as in collectives.csv", "")
    verdict: str = column(
        "slower, faster, same or inconclusive; otherwise its status in A and B", ""
    )
    regression: bool = column(
        "slower with the interval wholly beyond the threshold, or lost", default=False
    )
    ratio: float | None = column("time in B over time in A")
    ratio_ci_low: float | None = column("its interval at ci_level, low end")
    ratio_ci_high: float | None = column("and its high end")
    ci_level: float | None = column(
        "level of the interval that decided, wider where many cases are judged"
    )
    detectable: float | None = column("slowdown that 4 of 5 comparisons would detect, as a share")
    p_value: float | None = column(
        "of the test that both are equal, over launches, or over runs with several baselines"
    )
    time_us_a: float | None = column(
        "median over launches in A; with several baselines the median over baselines"
    )
    time_us_b: float | None = column("median over launches in B; for training the step time")
    baselines: int | None = column("runs behind A")
    launches_a: int | None = column("launches behind A, of all baselines")
    launches_b: int | None = column("launches behind B")
    further: str = column(
        "for an inconclusive case: settles (more launches decide), near (the margin) or noisy", ""
    )
    further_launches_low: int | None = column("further launches that each run needs for a verdict")
    further_launches_high: int | None = column("upper end of that range; empty if unbounded")
    forced: bool = column("conditions differ that should be equal", default=False)


COMPARISON_COLUMNS = tuple(f.name for f in fields(ComparisonRow))
_CASE_COLUMNS = {f.name for case_class in (Case, TrainingCase) for f in fields(case_class)} & set(
    COMPARISON_COLUMNS
)


def comparison_rows(table: ComparisonTable, threshold: float) -> list[ComparisonRow]:
    """Return one row for each case, in table order, then for the cases that only one side has."""
    names = names_of(table)
    lost = [
        ComparisonRow(
            **_identity(case, names),
            verdict=f"{case.status_a} in A, {case.status_b} in B",
            regression=case.is_regression,
            forced=table.is_forced,
        )
        for case in table.broken
    ]
    return [_row(case, names, table, threshold) for case in table.cases] + lost


def _identity(case: ComparedCase | BrokenCase, names: Mapping[AnyCase, str]) -> dict[str, Any]:
    """Return the columns that identify a case."""
    fields = {name: getattr(case.case, name) for name in _CASE_COLUMNS if hasattr(case.case, name)}
    if isinstance(case.case, TrainingCase):
        return {**fields, "kind": "training", "case": names[case.case]}
    size = case.case.message_bytes or None  # operations without data
    return {
        **fields,
        "message_bytes": size,
        "kind": "collective",
        "case": names[case.case],
        "group": case.group,
    }


def _row(
    case: ComparedCase, names: Mapping[AnyCase, str], table: ComparisonTable, threshold: float
) -> ComparisonRow:
    comparison, effort = case.comparison, case.comparison.further
    low, high = comparison.bounds
    further: dict[str, Any] = {}
    if effort:
        further["further"] = effort.forecast
        if effort.forecast == "settles":
            further |= {"further_launches_low": effort.low, "further_launches_high": effort.high}
    return ComparisonRow(
        **_identity(case, names),
        verdict=str(comparison.verdict),
        regression=case.is_beyond(threshold),
        ratio=comparison.ratio,
        ratio_ci_low=low,
        ratio_ci_high=high,
        ci_level=comparison.interval.level if comparison.interval else None,
        detectable=comparison.detectable,
        p_value=comparison.p_value,
        time_us_a=case.time_a_us,
        time_us_b=case.time_b_us,
        baselines=case.baselines,
        launches_a=comparison.launches_a,
        launches_b=comparison.launches_b,
        forced=table.is_forced,
        **further,
    )


def comparison_csv(table: ComparisonTable, threshold: float) -> str:
    """Return one line for each case, with the columns of `ComparisonRow`."""
    return csv_text(comparison_rows(table, threshold), COMPARISON_COLUMNS)


def comparison_json(table: ComparisonTable, threshold: float) -> str:
    """Return the comparison as one JSON object, with the text above and below the table."""
    facts = {
        "schema": SCHEMA,
        "a": list(table.names_a),
        "b": table.name_b,
        "margin": table.margin,
        "threshold": threshold,
        "forced": table.is_forced,
        "complete": table.is_complete,
        "summary": as_text(answer(table)),
        "counts": {str(verdict): count for verdict, count in table.counts.items()},
        "regressions": [name for names in regressions(table, threshold) for name in names],
        "differences": [asdict(difference) for difference in table.differences],
        "cases": [_plain(asdict(row)) for row in comparison_rows(table, threshold)],
        "only_in_a": list(map(str, table.only_in_a)),
        "only_in_b": list(map(str, table.only_in_b)),
        "too_few_launches": table.has_too_few_launches,
    }
    return json.dumps(facts, indent=1) + "\n"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Replace infinity and NaN, which JSON lacks, by null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
