"""A live tuning: the setting at each step of the training, its step time, and the loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commbench.ddp.plan.cases import CONFIRM, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.charts import Chart, Panel, Series, rows_height_in
from commbench.report.figures.learning import windows_of
from commbench.report.figures.words import prefixes
from commbench.results import Run
from commbench.results.info import is_live, is_watched
from commbench.results.recommendation import Choice, setting_of
from commbench.results.summary import latest
from commbench.results.tables import rows_by
from commbench.results.trained import block_medians_ms, median
from commbench.words import Estimate

_READING = (
    "The steps that each setting trained, the script's own first; the median step of each block in"
    " the same colours; and the training loss on rank 0: grey of each step, black the mean over"
    " windows of steps, with a mark at each change of the setting. Of several launches the last is"
    " shown. Blocks after the dashed line are those of the confirmation; without that line it was"
    " not reached, and no speedup is stated."
)
_STEPS = "optimiser step of the training"


class Span(NamedTuple):
    """A block of steps with one setting."""

    begin: int
    end: int
    """The step after the last."""
    name: str
    """The setting, beside the script's own."""
    step_ms: float
    """Median of its timed steps."""
    is_confirmation: bool


def live_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the course of the last launch of each live tuning."""
    charts = []
    for number, (run, prefix) in enumerate(zip(runs, prefixes(runs), strict=True), start=1):
        records = [each for each in latest(run.training_records).values() if len(each.block_at)]
        if is_live(run.info) and not is_watched(run.info) and records:
            launch = max(record.launch for record in records)
            own = Choice(**setting_of(TrainingCase.from_key(run.info["baseline"])))
            spans = spans_of([record for record in records if record.launch == launch], own)
            fresh = [span for span in spans if span.is_confirmation]
            screened = len(spans) - len(fresh)
            panels = _course(spans, own.name_beside(own))
            losses = {float(loss.step): loss.loss for loss in run.losses if loss.launch == launch}
            chart = Chart(
                name="live" if len(runs) == 1 else f"live-{number}",
                section="timeline",
                title=f"{prefix}Settings during the training",
                reading=_READING,
                results=[f"Blocks: {screened} of the screening, {len(fresh)} of the confirmation."],
                panels=[*panels, *_losses(losses, spans, panels[0])],
                moments={"confirmation": float(fresh[0].begin)} if fresh else {},
            )
            charts.append(chart)
    return charts


def spans_of(records: Sequence[TrainingRecord], own: Choice) -> list[Span]:
    """Return the blocks of one launch in the order of steps; each ends before the next begins."""
    spans = []
    for record in records:
        name = Choice(**setting_of(record.case)).name_beside(own)
        is_confirmation = record.case.phase == CONFIRM
        blocks = zip(record.block_at, record.block_lengths, block_medians_ms(record), strict=True)
        for begin, length, step_ms in blocks:
            end = begin + record.discarded + length
            spans.append(Span(begin, end, name, step_ms, is_confirmation))
    spans.sort()
    for place, (span, following) in enumerate(itertools.pairwise(spans)):
        spans[place] = span._replace(end=min(span.end, following.begin))
    return spans


def _course(spans: Sequence[Span], own: str) -> list[Panel]:
    """Return the steps and the step time of each setting, the script's own first."""
    by_name = rows_by(spans, lambda span: span.name)
    ranked = sorted(by_name, key=lambda name: median([span.step_ms for span in by_name[name]]))
    rows = []
    steps = []
    for name in [own, *(name for name in ranked if name != own)]:
        blocks = by_name.get(name, [])
        rows.append(Series(name=name, spans=[(span.begin, span.end) for span in blocks]))
        medians = {(span.begin + span.end) / 2: Estimate(span.step_ms) for span in blocks}
        steps.append(Series(name=name, points=medians, is_joined=False))
    return [
        Panel(series=rows, quantity=_STEPS, x="rows", height_in=rows_height_in(len(rows))),
        Panel(series=steps, quantity="step", unit="ms", x="number", x_label=_STEPS, height_in=1.7),
    ]


def _losses(losses: Mapping[float, float], spans: Sequence[Span], rows: Panel) -> list[Panel]:
    """Return the loss with a mark at each change of the setting; none without losses."""
    finite = {step: loss for step, loss in losses.items() if math.isfinite(loss)}
    if len(finite) < 2:  # noqa: PLR2004 - no curve
        return []
    names = [series.name for series in rows.series]
    before = names[0]
    ticks = {}
    for span in spans:
        if span.name != before:
            ticks[float(span.begin)] = names.index(span.name)
        before = span.name
    panel = Panel(
        series=[Series(name="", points=windows_of([finite]))],
        quantity="training loss",
        x="number",
        x_label=_STEPS,
        background=finite,
        ticks=ticks,
        height_in=1.7,
    )
    return [panel]
