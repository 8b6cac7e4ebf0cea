"""The spread of launches: a dot for each launch, beside the interval of the median launch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from commbench import stats
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.ddp.plan.cases import CONFIRM, hook_position, setting_name
from commbench.engine.flags import split_flags
from commbench.engine.records import Row
from commbench.findings import Finding
from commbench.report.figures.charts import (
    MOST_ROWS,
    Chart,
    Panel,
    Series,
)
from commbench.report.figures.words import prefixes
from commbench.report.groups import brief
from commbench.results import Run
from commbench.results.summary import keyed_records, launch_flags, launch_medians
from commbench.results.trained import Trained, trained
from commbench.units import format_size
from commbench.words import Estimate

_READING = (
    "Each dot is the median of one launch, grey bars are the 95 % intervals of the median launch;"
    " dots far from 100 % are why one launch proves little. Rows with * are in two modes, those"
    f" with ~ have intervals wider than the budget's target; of more than {MOST_ROWS} rows these"
    " and the widest are shown."
)
#: Flags about the spread of launches, and their marks.
_MARKS = {"bimodal_launches": "*", "ci_wide": "~"}


class Spread(NamedTuple):
    """The launches of one case or setting."""

    is_flagged: bool
    """Whether it has a flag about launches."""
    ratio: float
    """The slowest launch over the fastest."""
    row: Series
    """The launches in percent of the median launch."""


def spread_of(name: str, medians: Sequence[float], flags: Collection[str], colour: int) -> Spread:
    """Return the spread of the medians of two launches or more, in any unit."""
    scale = 100 / stats.median(medians)
    point = Estimate(100.0)
    interval = stats.launch_interval(list(medians))
    if interval is not None:
        point = Estimate(100.0, scale * interval.low, scale * interval.high)
    marks = [mark for flag, mark in _MARKS.items() if flag in flags]
    row = Series(
        name=" ".join([name, *marks]),
        points={0.0: point},
        dots=[scale * median for median in medians],
        colour=colour,
    )
    return Spread(is_flagged=bool(marks), ratio=max(medians) / min(medians), row=row)


def launch_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the launches of collectives, and of the settings that the decision compared."""
    charts = []
    for kind, spreads_of in (("collectives", collective_spreads), ("training", training_spreads)):
        spreads = []
        for run, prefix in zip(runs, prefixes(runs), strict=True):
            spreads += spreads_of(run, prefix)
        if spreads:
            charts.append(_chart(kind, spreads))
    return charts


def _chart(kind: str, spreads: Sequence[Spread]) -> Chart:
    worst = sorted(spreads, key=lambda spread: spread[:2], reverse=True)[:MOST_ROWS]
    rows = [spread.row for spread in spreads if spread in worst]
    panel = Panel(
        series=rows,
        quantity="share of the median time",
        unit="%",
        includes=(95.0, 105.0),  # a smaller range would make noise look like a difference
        x="rows",
    )
    widest = max(spreads, key=lambda spread: spread.ratio)
    return Chart(
        name=f"launches-{kind}",
        section="launches",
        title=f"Launches of {kind}: {len(rows)} of {len(spreads)} rows",
        reading=_READING,
        results=[Finding("figure_launches", widest.row.name, {"ratio": widest.ratio})],
        panels=[panel],
        moments={"": 100.0},
    )


def collective_spreads(run: Run, prefix: str) -> list[Spread]:
    """Return every row of several launches; of a matrix none, whose times pool all pairs."""
    cases = {record.case.key: record.case for record in run.records}
    backends = list(dict.fromkeys(case.backend for case in cases.values()))
    records = keyed_records(run.records)
    spreads = []
    for (key, group), row in run.keyed_rows.items():
        case = cases[key]
        medians = launch_medians(records[key, group])
        if case.pattern != MATRIX and len(medians) > 1 and min(medians) > 0:
            flags = {flag.name for flag in split_flags(row.flags)}
            colour = backends.index(case.backend)
            spreads.append(spread_of(prefix + _name(case, row), medians, flags, colour))
    return spreads


def _name(case: Case, row: Row) -> str:
    words = [case.backend, case.operation]
    if case.message_bytes:
        words.append(format_size(case.message_bytes))
    if case.pattern != "flat":
        words += [case.pattern, brief(row.group)]
    words.append(case.env)
    return " ".join(word for word in words if word)


def training_spreads(run: Run, prefix: str) -> list[Spread]:
    """Return the settings measured in fresh launches; without these, the settings of the sweep."""
    settings = trained(run.training_records, CONFIRM) or trained(run.training_records)
    spreads = []
    for setting in sorted(settings.values(), key=_order):
        medians = list(setting.steps_ms.values())
        if setting.case.uses_ddp and len(medians) > 1 and min(medians) > 0:
            name = prefix + setting_name(setting.case)
            colour = hook_position(setting.case.hook)
            spreads.append(spread_of(name, medians, launch_flags(medians), colour))
    return spreads


def _order(setting: Trained) -> tuple[int, tuple[float, ...]]:
    """Return a sort key: the default first, then by hook and bucket size."""
    return hook_position(setting.case.hook), setting.case.caps_mb
