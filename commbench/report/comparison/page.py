"""A comparison as one self-contained HTML page."""

import math
from collections.abc import Mapping
from importlib import resources

from commbench.report.comparison.sides import AnyCase
from commbench.report.comparison.verdicts import ComparedCase, ComparisonTable
from commbench.report.comparison.words import (
    closing,
    detectable_of,
    further_of,
    name_of,
    names_of,
    ratio_of,
    short_name,
    summary,
    times_of,
)

#: Width of the drawn interval, in the unit of its view box, and the least ratio that its ends show.
_WIDTH, _LEAST_END = 200.0, 1.1


def comparison_page(table: ComparisonTable, threshold: float) -> str:
    """The page as text; whatever runs say is escaped, and nothing is loaded from elsewhere."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("commbench.report.comparison", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    names, reach = names_of(table), _reach(table)
    return (
        environment.get_template("page.html").render(
            title=f"{short_name(table.name_b)} compared with {' and '.join(map(short_name, table.names_a))}",
            style=_style(),
            table=table,
            threshold=threshold,
            regressions=table.regressions_beyond(threshold),
            summary=summary(table),
            unsound=[each for each in table.differences if each.reason],
            known=[each for each in table.differences if not each.reason],
            lines=[_line(one, names, reach) for one in table.cases],
            band=_band(table.margin, reach),
            width=_WIDTH,
            closing=closing(table),
        )
        + "\n"
    )


def _style() -> str:
    """The report page's stylesheet, and what is the comparison's own."""
    sheets = (
        resources.files("commbench.report").joinpath("page", "style.css"),
        resources.files(__package__).joinpath("page.css"),
    )
    return "\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets if sheet.is_file())


def _reach(table: ComparisonTable) -> float:
    """The logarithm that the drawings' ends stand for: all ratios fit, and most intervals."""
    ratios = [abs(math.log(one.comparison.ratio)) for one in table.cases if one.comparison.ratio > 0]
    return 1.2 * max([math.log(_LEAST_END), *ratios])


def _place(ratio: float, reach: float) -> float:
    """Where a ratio lies in the drawing, clipped at its ends."""
    share = math.log(ratio) / reach if ratio > 0 else -1.0
    return round(_WIDTH / 2 * (1 + min(1.0, max(-1.0, share))), 1)


def _band(margin: float, reach: float) -> tuple[float, float]:
    return _place(1 - margin, reach), _place(1 + margin, reach)


def _line(one: ComparedCase, names: Mapping[AnyCase, str], reach: float) -> dict[str, object]:
    comparison, interval = one.comparison, one.comparison.interval
    time_a, time_b = times_of(one)
    is_drawn = interval is not None and comparison.ratio > 0
    return {
        "name": name_of(one, names),
        "time_a": time_a,
        "time_b": time_b,
        "ratio": ratio_of(comparison),
        "verdict": str(comparison.verdict),
        "detectable": detectable_of(comparison),
        "further": further_of(comparison.further),
        "drawn": (
            [_place(ratio, reach) for ratio in (interval.low, comparison.ratio, interval.high)]
            if interval is not None and is_drawn
            else None
        ),
    }
