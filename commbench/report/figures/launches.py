"""The spread of launches: a dot for each launch, beside the interval of the median launch."""

from __future__ import annotations

from collections.abc import Sequence

from commbench import stats
from commbench.collectives.composed import MATRIX
from commbench.ddp.plan.cases import CONFIRM, hook_position, setting_name
from commbench.findings import Finding
from commbench.report.figures.charts import MOST_ROWS, Chart, Panel, Series
from commbench.report.figures.words import prefixes
from commbench.report.groups import brief
from commbench.results import Run
from commbench.results.summary import keyed_records, launch_values
from commbench.results.trained import Trained, trained
from commbench.units import format_size
from commbench.words import Estimate

_READING = (
    "Each dot is the median of one launch, grey bars are the 95 % intervals of the median launch;"
    f" dots far from 100 % are why one launch proves little. Of more than {MOST_ROWS} rows the"
    " widest are shown."
)


def launch_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the launches of collectives, and of the settings that the decision compared."""
    charts = []
    for kind, rows_of in (("collectives", collective_rows), ("training", training_rows)):
        rows = [row for run, prefix in prefixes(runs) for row in rows_of(run, prefix)]
        if rows:
            charts.append(_chart(kind, rows))
    return charts


def _chart(kind: str, rows: Sequence[Series]) -> Chart:
    widest = sorted(range(len(rows)), key=lambda place: _ratio(rows[place]), reverse=True)
    shown = [rows[place] for place in sorted(widest[:MOST_ROWS])]
    panel = Panel(
        series=shown,
        quantity="share of the median time",
        unit="%",
        includes=(95.0, 105.0),  # a smaller range would make noise look like a difference
        x="rows",
    )
    return Chart(
        name=f"launches-{kind}",
        section="launches",
        title=f"Launches of {kind}: {len(shown)} of {len(rows)} rows",
        reading=_READING,
        remarks=[
            Finding("figure_launches", rows[widest[0]].name, {"ratio": _ratio(rows[widest[0]])})
        ],
        panels=[panel],
        moments={"": 100.0},
    )


def _ratio(row: Series) -> float:
    """Return the slowest launch over the fastest."""
    return max(row.dots) / min(row.dots)


def _row(name: str, medians: Sequence[float], colour: int) -> list[Series]:
    """Return the medians of launches in percent of the median launch; no row of a single one."""
    if len(medians) < 2 or min(medians) <= 0:  # noqa: PLR2004 - one launch has no spread
        return []
    scale = 100 / stats.median(medians)
    point = Estimate(100.0)
    interval = stats.launch_interval(list(medians))
    if interval is not None:
        point = Estimate(100.0, scale * interval.low, scale * interval.high)
    dots = [scale * median for median in medians]
    return [Series(name=name, points={0.0: point}, dots=dots, colour=colour)]


def collective_rows(run: Run, prefix: str) -> list[Series]:
    """Return every row of several launches; of a matrix none, whose times pool all pairs."""
    cases = {record.case.key: record.case for record in run.records}
    backends = list(dict.fromkeys(case.backend for case in cases.values()))
    records = keyed_records(run.records)
    rows = []
    for (key, group), row in run.keyed_rows.items():
        case = cases[key]
        words = [case.backend, case.operation]
        if case.message_bytes:
            words.append(format_size(case.message_bytes))
        if case.pattern != "flat":
            words += [case.pattern, brief(row.group)]
        words.append(case.env)
        if case.pattern != MATRIX:
            name = prefix + " ".join(filter(None, words))
            medians = list(launch_values(records[key, group]).values())
            rows += _row(name, medians, backends.index(case.backend))
    return rows


def training_rows(run: Run, prefix: str) -> list[Series]:
    """Return the settings measured in fresh launches; without these, the settings of the sweep."""
    settings = trained(run.training_records, CONFIRM) or trained(run.training_records)
    rows = []
    for setting in sorted(settings.values(), key=_order):
        if setting.case.uses_ddp:
            name = prefix + setting_name(setting.case)
            medians = list(setting.steps_ms.values())
            rows += _row(name, medians, hook_position(setting.case.hook))
    return rows


def _order(setting: Trained) -> tuple[int, tuple[float, ...]]:
    """Return a sort key: the default first, then by hook and bucket size."""
    return hook_position(setting.case.hook), setting.case.caps_mb
