"""A comparison on the terminal, as a page, as CSV and as JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Group, RenderableType

from commbench.analysis.comparison.findings import (
    answer,
    beyond,
    closing,
    regressions,
)
from commbench.analysis.comparison.verdicts import BrokenCase, ComparedCase, ComparisonTable
from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import TrainingCase
from commbench.findings import Finding, as_text
from commbench.report.columns import Cell, Column, Tone, tabulate
from commbench.report.formats import microseconds
from commbench.report.page.parts import Entry, Page, Section
from commbench.report.page.writing import render
from commbench.results.files import json_text
from commbench.results.tables import Columns, rows_csv
from commbench.words import thousandths

_MORE = "further launches of each run that would settle it"


def case_columns(table: ComparisonTable) -> tuple[Column[ComparedCase], ...]:
    """Return the columns of a comparison, for the terminal and the page."""
    return (
        Column("case", table.name_of, can_wrap=True),
        Column("A", "time_a_us", text_of=microseconds, is_number=True),
        Column("B", "time_b_us", text_of=microseconds, is_number=True),
        Column("B / A [CI]", "comparison.estimate", text_of=thousandths),
        Column("verdict", "comparison.verdict"),
        Column("detectable", "comparison.detectable", text_of=_slowdown, is_number=True),
        Column("more", _launches, is_number=True, about=_MORE),
    )


def _slowdown(share: float) -> str:
    if not math.isfinite(share):
        return "none"
    return f"+{100 * share:.1f} %"


def _launches(case: ComparedCase) -> str:
    """Return the number of launches of each run that would settle a case: ``4-12``, ``16+``, or why
    none would.
    """
    effort = case.comparison.further
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
    parts: list[RenderableType] = [as_text(answer(table))]
    parts += [f"A: {name}" for name in table.names_a]
    parts += [f"B: {table.name_b}", *_conditions(table), ""]
    if table.cases:
        parts += [tabulate(table.cases, case_columns(table)), ""]
    parts += map(str, closing(table))
    if threshold is not None:
        parts.append(as_text(beyond(table, threshold)))
    return Group(*parts)


def _conditions(table: ComparisonTable) -> list[str]:
    """Return what differs beside the times."""
    sentences = [str(difference.finding) for difference in table.differences]
    if table.is_forced:
        sentences.insert(0, str(Finding("compare_conditions")))
    return sentences


# ----------------------------------------------------------------------------------------- the page

#: The smallest ratio that the ends of a drawn interval stand for.
_LEAST_END = 1.1


def comparison_page(table: ComparisonTable, threshold: float) -> str:
    """Return the comparison as a self-contained HTML page.

    Args:
        table: the comparison.
        threshold: share beyond which a slower case is a regression.
    """
    ratios = [case.comparison.ratio for case in table.cases if case.comparison.ratio > 0]
    reach = 1.2 * max(abs(math.log(ratio)) for ratio in [_LEAST_END, *ratios])

    def drawn(case: ComparedCase) -> Cell:
        interval = case.comparison.interval
        if interval is None:
            return Cell("")
        drawn_ratios = (interval.low, case.comparison.ratio, interval.high)
        margin = (1 - table.margin, 1 + table.margin)
        return Cell("", drawn=[_place(ratio, reach) for ratio in (*drawn_ratios, *margin)])

    columns = list(case_columns(table))
    about = (
        f"ratio and interval from less to more time in B, up to {math.exp(reach):.2f};"
        f" shaded is the margin of {100 * table.margin:g} %"
    )
    columns.insert(
        4, Column("less \N{LEFTWARDS ARROW} B \N{RIGHTWARDS ARROW} more", drawn, about=about)
    )
    first, *others = answer(table)
    details = [as_text(others), as_text(beyond(table, threshold))]
    tone: Tone = "bad" if any(regressions(table, threshold)) else ""
    entries = [Entry("B relative to A", [str(first)], details, tone=tone, is_lead=True)]
    entries += [Entry("A", [name]) for name in table.names_a]
    entries.append(Entry("B", [table.name_b]))
    cases = Section("cases", "Cases", [str(finding) for finding in closing(table)])
    if table.cases:
        cases.tables = [tabulate(table.cases, columns, title="B over A")]
    conditions = Section("conditions", "Conditions", _conditions(table))
    names = [Path(name).name or name for name in (table.name_b, *table.names_a)]
    page = Page(
        title=f"{names[0]} compared with {' and '.join(names[1:])}",
        subtitle="",
        findings=entries,
        facts={},
        sections=[section for section in (cases, conditions) if section.has_content],
        time="median over launches of the slowest rank's median, of training the median step",
        intervals=(
            "brackets are the intervals that decided, wider than 95 % intervals where many cases"
            " are judged"
        ),
    )
    return render(page)


def _place(ratio: float, reach: float) -> float:
    """Return the position of a ratio in a drawing of 200 units, clipped at its ends."""
    share = math.log(ratio) / reach if ratio > 0 else -1.0
    return round(100 * (1 + min(1.0, max(-1.0, share))), 1)


# ------------------------------------------------------------------------------------- CSV and JSON

SCHEMA = 1


def _as_in(file: str, names: str) -> dict[str, str]:
    """Return columns that mean the same as in a file of a run."""
    return dict.fromkeys(names.split(), f"as in {file}")


#: The columns of a comparison's CSV, with the meaning of each.
COMPARISON_COLUMNS: Mapping[str, str] = {
    "schema": "schema number",
    "kind": "collective or training",
    "case": "what was measured",
    **_as_in("collectives.csv", "group backend operation pattern"),
    **_as_in("ddp.csv", "world_size"),
    **_as_in("collectives.csv", "dtype redop root in_place message_bytes sync loop buffers"),
    **_as_in("ddp.csv", "workload precision hook density hook_options bucket_cap_mb bucket_view"),
    **_as_in("ddp.csv", "static_graph unused_parameters broadcast_buffers batched_grad_copy"),
    **_as_in("ddp.csv", "compile accumulation batch_per_rank"),
    **_as_in("collectives.csv", "env"),
    "verdict": "slower, faster, same or inconclusive; otherwise its status in A and B",
    "regression": "slower with the interval wholly beyond the threshold, or lost",
    "ratio": "time in B over time in A",
    "ratio_ci_low": "its interval at ci_level, low end",
    "ratio_ci_high": "and its high end",
    "ci_level": "level of the interval that decided, wider where many cases are judged",
    "detectable": "slowdown that 4 of 5 comparisons would detect, as a share",
    "p_value": (
        "of the test that both are equal, over launches, or over runs with several baselines"
    ),
    "time_us_a": "median over launches in A; with several baselines the median over baselines",
    "time_us_b": "median over launches in B; for training the step time",
    "baselines": "runs behind A",
    "launches_a": "launches behind A, of all baselines",
    "launches_b": "launches behind B",
    "further": (
        "for an inconclusive case: settles (more launches decide), near (the margin) or noisy"
    ),
    "further_launches_low": "further launches that each run needs for a verdict",
    "further_launches_high": "upper end of that range; empty if unbounded",
    "forced": "conditions differ that should be equal",
}
_CASE_FIELDS = {each.name for kind in (Case, TrainingCase) for each in fields(kind)}
#: Columns with texts, which are empty where they do not apply; others are None.
_TEXTS = (
    "group backend operation pattern sync loop buffers workload precision hook hook_options"
    " bucket_cap_mb compile env further"
)


def comparison_rows(table: ComparisonTable, threshold: float) -> list[Columns]:
    """Return one row for each case, in table order, then for the cases that only one side has."""
    rows = []
    cases: list[ComparedCase | BrokenCase] = [*table.cases, *table.broken]
    for case in cases:
        row: Columns = {
            **dict.fromkeys(COMPARISON_COLUMNS),
            **dict.fromkeys(_TEXTS.split(), ""),
        }
        for name in _CASE_FIELDS & row.keys():
            row[name] = getattr(case.case, name, row[name])
        row["message_bytes"] = row["message_bytes"] or None  # operations without data
        kind = "training" if isinstance(case.case, TrainingCase) else "collective"
        row |= {"schema": SCHEMA, "kind": kind, "case": table.names[case.case], "group": case.group}
        row["forced"] = table.is_forced
        if isinstance(case, BrokenCase):
            row["verdict"] = f"{case.status_a} in A, {case.status_b} in B"
            row["regression"] = case.is_regression
        else:
            row |= _results(case)
            row["regression"] = case.is_beyond(threshold)
        rows.append(row)
    return rows


def _results(case: ComparedCase) -> Columns:
    """Return the columns that say how two sides compare."""
    comparison, effort = case.comparison, case.comparison.further
    row = {
        name: getattr(comparison, name)
        for name in ("ratio", "detectable", "p_value", "launches_a", "launches_b")
    }
    row |= {"time_us_a": case.time_a_us, "time_us_b": case.time_b_us, "baselines": case.baselines}
    row["verdict"] = str(comparison.verdict)
    _, row["ratio_ci_low"], row["ratio_ci_high"] = comparison.estimate
    if comparison.interval:
        row["ci_level"] = comparison.interval.level
    if effort:
        row["further"] = effort.forecast
        if effort.forecast == "settles":
            row |= {"further_launches_low": effort.low, "further_launches_high": effort.high}
    return row


def comparison_csv(table: ComparisonTable, threshold: float) -> str:
    """Return one line for each case, with `COMPARISON_COLUMNS`."""
    return rows_csv(comparison_rows(table, threshold), COMPARISON_COLUMNS)


def comparison_json(table: ComparisonTable, threshold: float) -> str:
    """Return the comparison as one JSON object, with the text above and below the table."""
    cases = comparison_rows(table, threshold)
    for row in cases:
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                row[name] = None  # JSON has no infinity
    facts = {
        "schema": SCHEMA,
        "a": list(table.names_a),
        "b": table.name_b,
        "margin": table.margin,
        "threshold": threshold,
        "forced": table.is_forced,
        "complete": table.is_complete,
        "summary": as_text(answer(table)),
        "counts": table.counts,
        "regressions": [name for names in regressions(table, threshold) for name in names],
        "differences": [asdict(difference) for difference in table.differences],
        "cases": cases,
        "only_in_a": list(map(str, table.only_in_a)),
        "only_in_b": list(map(str, table.only_in_b)),
        "too_few_launches": table.has_too_few_launches,
    }
    return json_text(facts)
