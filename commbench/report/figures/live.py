"""A live tuning: the setting at each step of the training, its step time, and the loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commbench.ddp.plan.cases import CONFIRM, TrainingCase, setting_name
from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding
from commbench.report.figures.charts import Chart, Panel, Series, Span
from commbench.report.figures.learning import windows_of
from commbench.report.figures.words import prefixes
from commbench.results import Run
from commbench.results.info import is_live, is_watched
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


class Block(NamedTuple):
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
            own = TrainingCase.from_key(run.info["baseline"])
            blocks = blocks_of([record for record in records if record.launch == launch], own)
            fresh = [block for block in blocks if block.is_confirmation]
            screened = len(blocks) - len(fresh)
            panels = _course(blocks, setting_name(own, own))
            losses = {float(loss.step): loss.loss for loss in run.losses if loss.launch == launch}
            chart = Chart(
                name="live" if len(runs) == 1 else f"live-{number}",
                section="timeline",
                title=f"{prefix}Settings during the training",
                reading=_READING,
                results=[
                    Finding("figure_blocks", numbers={"screened": screened, "fresh": len(fresh)})
                ],
                panels=[*panels, *_losses(losses, blocks, panels[0])],
                moments={"confirmation": float(fresh[0].begin)} if fresh else {},
            )
            charts.append(chart)
    return charts


def blocks_of(records: Sequence[TrainingRecord], own: TrainingCase) -> list[Block]:
    """Return the blocks of one launch in the order of steps; each ends before the next begins."""
    blocks = []
    for record in records:
        name = setting_name(record.case, own)
        is_confirmation = record.case.phase == CONFIRM
        parts = zip(record.block_at, record.block_lengths, block_medians_ms(record), strict=True)
        for begin, length, step_ms in parts:
            end = begin + record.discarded + length
            blocks.append(Block(begin, end, name, step_ms, is_confirmation))
    blocks.sort()
    for place, (block, following) in enumerate(itertools.pairwise(blocks)):
        blocks[place] = block._replace(end=min(block.end, following.begin))
    return blocks


def _course(blocks: Sequence[Block], own: str) -> list[Panel]:
    """Return the steps and the step time of each setting, the script's own first."""
    by_name = rows_by(blocks, lambda block: block.name)
    ranked = sorted(by_name, key=lambda name: median([block.step_ms for block in by_name[name]]))
    rows = []
    steps = []
    for name in [own, *(name for name in ranked if name != own)]:
        members = by_name.get(name, [])
        rows.append(Series(name=name, spans=[Span(block.begin, block.end) for block in members]))
        medians = {(block.begin + block.end) / 2: Estimate(block.step_ms) for block in members}
        steps.append(Series(name=name, points=medians, is_joined=False))
    return [
        Panel(series=rows, quantity=_STEPS, x="rows"),
        Panel(
            series=steps,
            quantity="step",
            unit="ms",
            x="number",
            x_label=_STEPS,
            curves_height_in=1.7,
        ),
    ]


def _losses(losses: Mapping[float, float], blocks: Sequence[Block], rows: Panel) -> list[Panel]:
    """Return the loss with a mark at each change of the setting; none without losses."""
    finite = {step: loss for step, loss in losses.items() if math.isfinite(loss)}
    if len(finite) < 2:  # noqa: PLR2004 - no curve
        return []
    names = [series.name for series in rows.series]
    before = names[0]
    ticks = {}
    for block in blocks:
        if block.name != before:
            ticks[float(block.begin)] = names.index(block.name)
        before = block.name
    panel = Panel(
        series=[Series(name="", points=windows_of([finite]))],
        quantity="training loss",
        x="number",
        x_label=_STEPS,
        background=finite,
        ticks=ticks,
        curves_height_in=1.7,
    )
    return [panel]
