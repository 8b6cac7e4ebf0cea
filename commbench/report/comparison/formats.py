"""A comparison as CSV and as JSON."""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from commbench.records import column
from commbench.report.comparison.verdicts import ComparedCase, ComparisonTable
from commbench.report.comparison.words import summary
from commbench.tables import csv_text
from commbench.training.cases import TrainingCase

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One line of a comparison's CSV. None is an empty cell."""

    schema: int = SCHEMA
    kind: str = column("collective or training", "")
    case: str = column("the case as tables name it", "")
    group: str = column("of a pattern that makes groups, the ranks of one", "")
    verdict: str = column("slower, faster, same or inconclusive; else how it ended in A and B", "")
    regression: bool = column("slower with the interval wholly beyond the threshold, or lost", default=False)
    ratio: float | None = column("time in B over time in A")
    ratio_ci_low: float | None = column("its interval at ci_level, low end")
    ratio_ci_high: float | None = column("and its high end")
    ci_level: float | None = column("level of the interval that decided, wider where many cases are judged")
    detectable: float | None = column("slowdown that such launches would show in 4 of 5 comparisons, as a share")
    p_value: float | None = column("of the test that both are alike: of launches, with several baselines of runs")
    time_us_a: float | None = column("median over launches in A, of several baselines the median of theirs")
    time_us_b: float | None = column("and in B; of training the time of a step")
    baselines: int | None = column("runs behind A")
    launches_a: int | None = column("launches behind A, of all baselines")
    launches_b: int | None = column("launches behind B")
    further: str = column("of an inconclusive case: settles, near (the margin) or noisy", "")
    further_launches_low: int | None = column("launches that each run would need more to settle it")
    further_launches_high: int | None = column("and the range's high end; empty where it is open")
    forced: bool = column("conditions differ that should be alike", default=False)


COMPARISON_COLUMNS = tuple(f.name for f in fields(ComparisonRow))


def comparison_rows(table: ComparisonTable, threshold: float) -> list[ComparisonRow]:
    """The cases in the table's order, then those that only one side could measure."""
    lost = [
        ComparisonRow(
            kind=_kind(one.case),
            case=str(one.case),
            group=one.group,
            verdict=f"{one.status_a} in A, {one.status_b} in B",
            regression=one.is_regression,
            forced=table.is_forced,
        )
        for one in table.broken
    ]
    return [_row(one, table, threshold) for one in table.cases] + lost


def _kind(case: object) -> str:
    return "training" if isinstance(case, TrainingCase) else "collective"


def _row(one: ComparedCase, table: ComparisonTable, threshold: float) -> ComparisonRow:
    comparison, interval, effort = one.comparison, one.comparison.interval, one.comparison.further
    return ComparisonRow(
        kind=_kind(one.case),
        case=str(one.case),
        group=one.group,
        verdict=str(comparison.verdict),
        regression=one.is_beyond(threshold),
        ratio=comparison.ratio,
        ratio_ci_low=interval.low if interval else None,
        ratio_ci_high=interval.high if interval else None,
        ci_level=interval.level if interval else None,
        detectable=comparison.detectable,
        p_value=comparison.p_value,
        time_us_a=one.time_a_us,
        time_us_b=one.time_b_us,
        baselines=one.baselines,
        launches_a=comparison.launches_a,
        launches_b=comparison.launches_b,
        further=effort.outlook if effort else "",
        further_launches_low=effort.low if effort and effort.outlook == "settles" else None,
        further_launches_high=effort.high if effort and effort.outlook == "settles" else None,
        forced=table.is_forced,
    )


def comparison_csv(table: ComparisonTable, threshold: float) -> str:
    """One line a case, with the columns of `ComparisonRow`."""
    return csv_text(comparison_rows(table, threshold), COMPARISON_COLUMNS)


def comparison_json(table: ComparisonTable, threshold: float) -> str:
    """The same and what is above and below the table, as one JSON object."""
    facts = {
        "schema": SCHEMA,
        "a": list(table.names_a),
        "b": table.name_b,
        "margin": table.margin,
        "threshold": threshold,
        "forced": table.is_forced,
        "summary": summary(table),
        "counts": {str(verdict): count for verdict, count in table.counts.items()},
        "regressions": [str(case) for case in table.regressions_beyond(threshold)],
        "differences": [asdict(difference) for difference in table.differences],
        "cases": [_plain(asdict(row)) for row in comparison_rows(table, threshold)],
        "only_in_a": list(map(str, table.only_in_a)),
        "only_in_b": list(map(str, table.only_in_b)),
        "too_few_launches": table.too_few_launches,
    }
    return json.dumps(facts, indent=1) + "\n"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
