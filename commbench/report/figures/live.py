"""A live tuning: the setting at each step of the training, its step time, and the loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from commbench.ddp.plan.cases import CONFIRM, TrainingCase, setting_name
from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding
from commbench.report.columns import prefixes
from commbench.report.figures.charts import Chart, Panel, Series, Span
from commbench.report.figures.learning import windows_of
from commbench.results import Run
from commbench.results.info import is_live, is_watched
from commbench.results.summary import latest
from commbench.results.tables import rows_by
from commbench.results.trained import block_medians_ms
from commbench.stats import median
from commbench.words import Estimate

_READING = (
    "The steps that each setting trained, the script's own first; the median step of each block in"
    " the same colours; and the training loss on rank 0, the mean over windows of steps. Of several"
    " launches the last is shown. Blocks after the dashed line are those of the confirmation;"
    " without that line it was not reached, and no speedup is stated."
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


def live_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yield the course of the last launch of each live tuning."""
    for number, (run, prefix) in enumerate(prefixes(runs), start=1):
        records = [each for each in latest(run.training_records).values() if len(each.block_at)]
        if is_live(run.info) and not is_watched(run.info) and records:
            launch = max(record.launch for record in records)
            own = TrainingCase.from_key(run.info["baseline"])
            blocks = blocks_of([record for record in records if record.launch == launch], own)
            losses = {}
            for loss in run.losses:
                if loss.launch == launch and math.isfinite(loss.loss):
                    losses[float(loss.step)] = loss.loss
            fresh = [block.begin for block in blocks if block.is_confirmation]
            numbers = {"screened": len(blocks) - len(fresh), "fresh": len(fresh)}
            yield Chart(
                name="live" if len(runs) == 1 else f"live-{number}",
                section="training",
                title=f"{prefix}Settings during the training",
                reading=_READING,
                remarks=[Finding("figure_blocks", numbers=numbers)],
                panels=_panels(blocks, setting_name(own, own), losses),
                moments={"confirmation": float(fresh[0])} if fresh else {},
            )


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


def _panels(blocks: Sequence[Block], own: str, losses: Mapping[float, float]) -> list[Panel]:
    """Return the steps and the step time of each setting, the script's own first, and the loss."""
    by_name = rows_by(blocks, attrgetter("name"))
    ranked = sorted(by_name, key=lambda name: median([block.step_ms for block in by_name[name]]))
    rows = []
    steps = []
    for name in dict.fromkeys([own, *ranked]):
        members = by_name.get(name, [])
        rows.append(Series(name=name, spans=[Span(block.begin, block.end) for block in members]))
        medians = {(block.begin + block.end) / 2: Estimate(block.step_ms) for block in members}
        steps.append(Series(name=name, points=medians, is_joined=False))
    panels = [Panel(series=rows, quantity=_STEPS, x="rows"), _course(steps, "step", "ms")]
    if len(losses) > 1:
        panels.append(_course([Series(name="", points=windows_of([losses]))], "training loss"))
    return panels


def _course(series: Sequence[Series], quantity: str, unit: str = "") -> Panel:
    return Panel(
        series=series,
        quantity=quantity,
        unit=unit,
        x="number",
        x_label=_STEPS,
        curves_height_in=1.7,
    )
