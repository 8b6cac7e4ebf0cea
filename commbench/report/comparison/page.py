"""A comparison as one self-contained HTML page."""

import math
from pathlib import Path

from commbench.analysis.comparison.findings import answer, beyond, closing
from commbench.analysis.comparison.verdicts import ComparisonTable
from commbench.findings import as_text
from commbench.report.columns import tabulate
from commbench.report.comparison.formats import case_columns
from commbench.report.page import style_sheet, template_of
from commbench.stats import Comparison

_HERE = Path(__file__).parent
#: Width of the drawn interval in view box units, and the smallest ratio that its ends show.
_WIDTH, _LEAST_END = 200.0, 1.1


def comparison_page(table: ComparisonTable, threshold: float) -> str:
    """Render the page; text from runs is escaped, and the page loads nothing.

    Args:
        table: the comparison.
        threshold: share beyond which a slower case is a regression.
    """
    from markupsafe import Markup

    reach = _reach(table)
    first, *others = answer(table)
    style = style_sheet() + (_HERE / "comparison.css").read_text(encoding="utf-8")
    return template_of(_HERE / "comparison.html").render(
        title=(
            f"{_short_name(table.name_b)} compared with"
            f" {' and '.join(map(_short_name, table.names_a))}"
        ),
        style=Markup(style),  # noqa: S704 - our own files
        table=table,
        sides=[*(("A", name) for name in table.names_a), ("B", table.name_b)],
        answer=first,
        details=[as_text(others), as_text(beyond(table, threshold))],
        regressions=table.regressions_beyond(threshold),
        lines=_lines(table, reach),
        band=(_place(1 - table.margin, reach), _place(1 + table.margin, reach)),
        reach=math.exp(reach),
        width=_WIDTH,
        closing=closing(table),
    )


def _short_name(path: str) -> str:
    """Return the name of a run's directory."""
    return Path(path).name or path


def _reach(table: ComparisonTable) -> float:
    """Return the logarithm of the ratio at the ends of the drawings: all ratios and most intervals
    fit.
    """
    ratios = [
        abs(math.log(case.comparison.ratio)) for case in table.cases if case.comparison.ratio > 0
    ]
    return 1.2 * max([math.log(_LEAST_END), *ratios])


def _place(ratio: float, reach: float) -> float:
    """Return the position of a ratio in the drawing, clipped at its ends."""
    share = math.log(ratio) / reach if ratio > 0 else -1.0
    return round(_WIDTH / 2 * (1 + min(1.0, max(-1.0, share))), 1)


def _lines(table: ComparisonTable, reach: float) -> list[dict[str, object]]:
    """Return the cells of each case by name, and the positions of its interval and ratio in the
    drawing.
    """
    names = ("name", "time_a", "time_b", "ratio", "verdict", "detectable", "further")
    cells = tabulate(table.cases, case_columns(table), should_keep_empty=True).lines
    return [
        {
            **{name: cell.text for name, cell in zip(names, line, strict=True)},
            "drawn": _marks(case.comparison, reach),
        }
        for case, line in zip(table.cases, cells, strict=True)
    ]


def _marks(comparison: Comparison, reach: float) -> list[float]:
    interval = comparison.interval
    ratios = (interval.low, comparison.ratio, interval.high) if interval else ()
    return [_place(ratio, reach) for ratio in ratios]
