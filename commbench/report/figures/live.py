"""Figures of a live tuning: the setting at each step of the training, its step time, and the
loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commbench.ddp.plan.cases import CONFIRM, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.drawing import GRID, INK, MOST_SERIES, MUTED, SERIES, Drawing, Style
from commbench.report.figures.words import prefixes, sentences
from commbench.report.formats import listed
from commbench.results import Run
from commbench.results.info import is_live, is_watched
from commbench.results.losses import Loss
from commbench.results.recommendation import Choice, setting_of
from commbench.results.summary import latest
from commbench.results.trained import block_medians_ms, median
from commbench.units import counted, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Steps of a window whose mean loss the line shows, as a share of all steps.
_WINDOW = 1 / 40
#: Height of a line of the timeline, in inches.
_LINE_IN = 0.24


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive steps with one setting."""

    case: TrainingCase
    begin: int
    end: int
    """The step after the last."""
    step_ms: float
    """Median of its timed steps, in ms."""
    name: str
    """The setting, beside the script's own."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """One launch of a live tuning."""

    prefix: str
    launch: int
    launches: int
    """Number of launches of the whole run."""
    spans: Sequence[Span]
    """The blocks in the order of steps."""
    names: Sequence[str]
    """Names of the settings: the script's own, then the others, the fastest first."""
    losses: Sequence[Loss]

    @property
    def begins_confirmation(self) -> int | None:
        """The step at which the fresh blocks begin; None if there are none."""
        return next((span.begin for span in self.spans if span.case.phase == CONFIRM), None)

    @property
    def own(self) -> str:
        """The name of the script's own setting."""
        return self.names[0]


def live_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return the timeline and the loss of the last launch of each live tuning."""
    drawings = []
    for place, (run, prefix) in enumerate(zip(runs, prefixes(runs), strict=True), start=1):
        course = course_of(run, prefix)
        if course is not None:
            number = f"-{place}" if len(runs) > 1 else ""
            drawings.append(_timeline(course, number))
            drawings += [_loss(course, number)] if len(course.losses) > 1 else []
    return drawings


def course_of(run: Run, prefix: str = "") -> Course | None:
    """Return the last launch of a live tuning; None for any other run, or without a block."""
    records = [record for record in latest(run.training_records).values() if len(record.block_at)]
    if not is_live(run.info) or is_watched(run.info) or not records:
        return None
    launch = max(record.launch for record in records)
    own = Choice(**setting_of(TrainingCase.from_key(run.info["baseline"])))
    spans = _spans([record for record in records if record.launch == launch], own)
    return Course(
        prefix=prefix,
        launch=launch,
        launches=len({record.launch for record in records}),
        spans=spans,
        names=_names(spans, own.name_beside(own)),
        losses=[loss for loss in run.losses if loss.launch == launch and math.isfinite(loss.loss)],
    )


def _spans(records: Sequence[TrainingRecord], own: Choice) -> list[Span]:
    """Return the blocks of one launch in the order of steps.

    Each lasts until the next one begins.
    """
    blocks = sorted(
        (
            (begin, begin + record.discarded + length, step_ms, record.case)
            for record in records
            for begin, length, step_ms in zip(
                record.block_at, record.block_lengths, block_medians_ms(record), strict=True
            )
        ),
        key=lambda block: block[0],
    )
    following = [*(begin for begin, *_ in blocks[1:]), math.inf]
    return [
        Span(
            case=case,
            begin=begin,
            end=int(min(end, limit)),
            step_ms=step_ms,
            name=Choice(**setting_of(case)).name_beside(own),
        )
        for (begin, end, step_ms, case), limit in zip(blocks, following, strict=True)
    ]


def _names(spans: Sequence[Span], own: str) -> list[str]:
    """Return the names of the settings: the script's own, then the others, the fastest first."""
    times_ms: dict[str, list[float]] = {}
    for span in spans:
        times_ms.setdefault(span.name, []).append(span.step_ms)
    return [own, *sorted(times_ms.keys() - {own}, key=lambda name: median(times_ms[name]))]


def _colours(course: Course) -> dict[str, str]:
    """Return the colour of each setting; settings beyond the number of colours are grey."""
    return {
        name: SERIES[place] if place < MOST_SERIES else MUTED
        for place, name in enumerate(course.names)
    }


# ----------------------------------------------------------------------------------------- painting


def _timeline(course: Course, number: str) -> Drawing:
    return Drawing(
        paint=lambda figure: paint_timeline(figure, course),
        name=f"live{number}",
        section="timeline",
        title=f"{course.prefix}Settings during the training",
        caption=timeline_caption(course),
        alt=(
            "The setting in use at each optimiser step, and the median step of each block:"
            f" {listed(course.names, 8)}."
        ),
        height_in=2.6 + _LINE_IN * len(course.names),
    )


def paint_timeline(figure: Figure, course: Course) -> None:
    """Draw a line for each setting with the steps that used it, and below it the median of each
    block.
    """
    colours = _colours(course)
    above, below = figure.subplots(
        2, 1, sharex=True, height_ratios=[0.5 + _LINE_IN * len(course.names), 1.7]
    )
    for place, name in enumerate(course.names):
        bars = [(span.begin, span.end - span.begin) for span in course.spans if span.name == name]
        above.broken_barh(bars, (place - 0.4, 0.8), color=colours[name], linewidth=0, gid="spans")
    above.set_yticks(range(len(course.names)), course.names)
    above.set_ylim(len(course.names) - 0.4, -0.6)
    above.grid(visible=False, axis="y")
    for span in course.spans:
        style: Style = {
            "color": colours[span.name],
            "linewidth": 2.5,
            "solid_capstyle": "butt",
            "gid": "median",
        }
        below.plot([span.begin, span.end], [span.step_ms] * 2, **style)
    _mark_confirmation(above, course, writes=True)
    _mark_confirmation(below, course)
    below.set(xlabel="optimiser step of the training", ylabel="step, ms")
    below.set_xlim(0, course.spans[-1].end)


def _mark_confirmation(axes: Axes, course: Course, *, writes: bool = False) -> None:
    """Separate the screening from the fresh blocks."""
    begin = course.begins_confirmation
    if begin is None:
        return
    axes.axvline(begin, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    if writes:
        style: Style = {
            "xycoords": ("data", "axes fraction"),
            "textcoords": "offset points",
            "fontsize": 8,
        }
        axes.annotate("confirmation", (begin, 1.0), xytext=(3, 1), color=INK, va="bottom", **style)


def _loss(course: Course, number: str) -> Drawing:
    return Drawing(
        paint=lambda figure: paint_loss(figure, course),
        name=f"live-loss{number}",
        section="learning",
        title=f"{course.prefix}Training loss while settings changed",
        caption=loss_caption(course),
        alt="Training loss over optimiser steps, with a mark at each change of the setting.",
        height_in=2.8,
    )


def paint_loss(figure: Figure, course: Course) -> None:
    """Draw the loss of each step and its running mean, and a mark at each change of the setting."""
    axes = figure.subplots()
    steps = np.array([loss.step for loss in course.losses], dtype=float)
    values = np.array([loss.loss for loss in course.losses])
    axes.plot(steps, values, color=GRID, linewidth=0.8)
    width = max(1, round(_WINDOW * len(values)))
    window = np.ones(width) / width
    axes.plot(
        *(np.convolve(of_steps, window, mode="valid") for of_steps in (steps, values)), color=INK
    )
    colours = _colours(course)
    for span in _switches(course):
        style: Style = {"color": colours[span.name], "linewidth": 1.2, "gid": "switch"}
        axes.plot([span.begin] * 2, [0.0, 0.06], transform=axes.get_xaxis_transform(), **style)
    _mark_confirmation(axes, course, writes=True)
    axes.set(
        xlabel="optimiser step of the training",
        ylabel="training loss",
        xlim=(0, course.spans[-1].end),
    )


def _switches(course: Course) -> list[Span]:
    """Return the spans that begin with a change of the setting."""
    before = course.own
    spans = []
    for span in course.spans:
        if span.name != before:
            spans.append(span)
        before = span.name
    return spans


# ----------------------------------------------------------------------------------------- captions


def timeline_caption(course: Course) -> str:
    """Return the caption: how to read the timeline, and how many blocks each stage had."""
    fresh = [span for span in course.spans if span.case.phase == CONFIRM]
    confirmed = list(dict.fromkeys(span.name for span in fresh))
    return sentences(
        "Above, the steps that each setting trained; below, the median step of each"
        f" block{_which(course)}. The script's own setting is {course.own}.",
        f"The screening took {counted(len(course.spans) - len(fresh), 'block')}.",
        (
            f"The confirmation took {counted(len(fresh), 'fresh block')}, of {listed(confirmed)}."
            if fresh
            else ""
        ),
        "It was never reached: no speedup is stated." if not fresh else "",
    )


def _which(course: Course) -> str:
    return f", in launch {course.launch + 1} of {course.launches}" if course.launches > 1 else ""


def loss_caption(course: Course) -> str:
    """Return the caption: how to read the curve, and how far the loss fell."""
    values = [loss.loss for loss in course.losses]
    width = max(1, round(_WINDOW * len(values)))
    first, last = float(np.mean(values[:width])), float(np.mean(values[-width:]))
    return sentences(
        "Grey the loss of each optimiser step on rank 0, black the mean of"
        f" {counted(width, 'step')}{_which(course)}: from {three_digits(first)} to"
        f" {three_digits(last)}.",
        f"Marks at the bottom are {counted(len(_switches(course)), 'change')} of the setting, in"
        " the colour of what followed.",
    )
