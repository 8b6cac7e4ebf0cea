"""The timeline of a step: when each bucket is ready, waits and communicates, and the exposed
communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from commbench.ddp.plan.cases import setting_name
from commbench.ddp.plan.records import BucketRow, TrainingRow
from commbench.hooks.registry import NONE
from commbench.report.figures.drawing import BAD, INK, MUTED, SERIES, Drawing, Style, slug
from commbench.report.figures.words import Group, Trial, case_of, groups, sentences
from commbench.results import Run
from commbench.results.info import is_watched
from commbench.units import counted, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The most buckets whose sizes are written.
_WRITTEN = 12
#: Height of a bucket, and largest height of all buckets, in inches.
_BUCKET_IN, _MOST_IN = 0.19, 2.6
FORWARD, BACKWARD, OPTIMIZER = SERIES[6], SERIES[0], SERIES[4]
_EXPOSED_ALPHA = 0.2
WAIT, COMPRESS, COMMUNICATE = MUTED, SERIES[3], SERIES[2]

_BAR: Style = MappingProxyType({"height": 0.75, "linewidth": 0})


@dataclass(frozen=True, kw_only=True)
class Step:
    """The step of one setting; milliseconds since its backward pass began."""

    name: str
    row: TrainingRow
    buckets: Sequence[BucketRow]
    """The buckets whose times are all known."""

    @property
    def exposed(self) -> tuple[float, float] | None:
        """The exposed communication: the end of the backward pass."""
        if not self.row.exposed_comm_ms or self.row.backward_ms is None:
            return None
        return self.row.backward_ms - self.row.exposed_comm_ms, self.row.backward_ms


def timeline_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return the default's step above the recommended setting's, one drawing for each workload and
    run.
    """
    drawings = []
    for group in groups(runs):
        for place, trial in enumerate(group.trials):
            steps = steps_of(trial)
            if steps:
                drawings.append(_drawing(group, trial, steps, place))
    return drawings


def steps_of(trial: Trial) -> list[Step]:
    """Return the default, and the recommended setting, or else the fastest one."""
    rows = [trial.default] if trial.default else []
    recommended = [row for row in trial.ok if trial.is_chosen(row)] if trial.recommendation else []
    candidates = recommended or sorted(trial.ok, key=lambda row: -(row.samples_per_s or 0.0))
    rows += [row for row in candidates[:1] if row is not trial.default]
    steps = [
        Step(name=setting_name(row), row=row, buckets=_buckets_of(trial.run, row)) for row in rows
    ]
    return [step for step in steps if step.row.backward_ms is not None]


def _buckets_of(run: Run, row: TrainingRow) -> list[BucketRow]:
    case = case_of(row)
    shared_fields = set(BucketRow.__dataclass_fields__) & set(type(case).__dataclass_fields__)
    bucket_rows = (
        b
        for b in run.bucket_rows
        if all(getattr(b, name) == getattr(case, name) for name in shared_fields)
    )
    return [b for b in bucket_rows if None not in {b.ready_ms, b.start_ms, b.done_ms}]


# ----------------------------------------------------------------------------------------- painting


def _drawing(group: Group, trial: Trial, steps: Sequence[Step], place: int) -> Drawing:
    several = len(group.trials) > 1
    return Drawing(
        paint=lambda figure: paint_steps(figure, steps),
        name=slug("timeline", group.key, place + 1 if several else ""),
        section="timeline",
        title=f"{trial.prefix}Timeline of a step: {group.name}",
        caption=caption_of(trial, steps),
        alt=(
            "Passes and buckets' communication over time:"
            f" {' and '.join(step.name for step in steps)}."
        ),
        height_in=1.0 + sum(0.55 + _height_in(step) for step in steps),
    )


def _height_in(step: Step) -> float:
    return 0.45 + min(_MOST_IN, _BUCKET_IN * len(step.buckets))


def paint_steps(figure: Figure, steps: Sequence[Step]) -> None:
    """Draw panels one above the other with a common time axis."""
    heights = [_height_in(step) for step in steps]
    all_axes = figure.subplots(len(steps), 1, sharex=True, squeeze=False, height_ratios=heights)[
        :, 0
    ]
    for axes, step in zip(all_axes, steps, strict=True):
        _paint_step(axes, step)
    all_axes[-1].set_xlabel("ms since the backward pass began")
    _legend(figure)


def _paint_step(axes: Axes, step: Step) -> None:
    row = step.row
    backward = row.backward_ms or 0.0
    axes.barh(
        [-1.2], [row.forward_ms or 0.0], left=[-(row.forward_ms or 0.0)], color=FORWARD, **_BAR
    )
    axes.barh([-1.2], [backward], left=[0.0], color=BACKWARD, **_BAR)
    axes.barh([-1.2], [row.optimizer_ms or 0.0], left=[backward], color=OPTIMIZER, **_BAR)
    for place, bucket in enumerate(step.buckets):
        _paint_bucket(axes, place, bucket, has_label=len(step.buckets) <= _WRITTEN)
    if step.exposed is not None:
        # drawn behind the bars, whose colours the legend explains
        axes.axvspan(
            *step.exposed, color=BAD, alpha=_EXPOSED_ALPHA, linewidth=0, gid="exposed", zorder=0.4
        )
    count = len(step.buckets)
    axes.set_ylim(max(count, 1) - 0.4, -1.75)
    labelled_places = range(count) if count <= _WRITTEN else range(0, count, -(-count // _WRITTEN))
    axes.set_yticks([-1.2, *labelled_places], ["step", *(str(place) for place in labelled_places)])
    axes.grid(visible=False, axis="y")
    axes.set_title(step.name, loc="left")


def _paint_bucket(axes: Axes, place: int, bucket: BucketRow, *, has_label: bool) -> None:
    """Draw waiting and compressing from ready to start, then communicating, then decompressing."""
    ready, start, done = bucket.ready_ms or 0.0, bucket.start_ms or 0.0, bucket.done_ms or 0.0
    compress = bucket.compress_ms or 0.0
    before = min(compress, start - ready)
    after = min(compress - before, done - start)
    axes.barh([place], [start - ready - before], left=[ready], color=WAIT, **_BAR)
    axes.barh([place], [before], left=[start - before], color=COMPRESS, **_BAR)
    axes.barh([place], [done - start - after], left=[start], color=COMMUNICATE, **_BAR)
    axes.barh([place], [after], left=[done - after], color=COMPRESS, **_BAR)
    axes.plot([ready, ready], [place - 0.38, place + 0.38], color=INK, linewidth=1.2)
    if has_label and bucket.size_bytes:
        aside: Style = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(
            f"{three_digits(bucket.size_bytes / 1e6)} MB",
            (done, place),
            fontsize=8,
            color=MUTED,
            **aside,
        )


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    parts = {
        "forward": FORWARD,
        "backward": BACKWARD,
        "optimiser": OPTIMIZER,
        "waits": WAIT,
        "hook's own work": COMPRESS,
        "communicate": COMMUNICATE,
    }
    handles = [Patch(color=colour, label=name) for name, colour in parts.items()]
    handles.append(Patch(color=BAD, alpha=_EXPOSED_ALPHA, label="exposed"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, handlelength=1.2, columnspacing=1.2
    )


# ------------------------------------------------------------------------------------------ caption


def caption_of(trial: Trial, steps: Sequence[Step]) -> str:
    """Return the caption: how to read the figure, and the exposed communication of each setting."""
    first = steps[0]
    plain = any(step.row.hook == NONE for step in steps)
    return sentences(
        "Medians over launches: the passes on top, below them each bucket from ready (black tick)"
        " over its wait and the hook's own work (compressing, dividing) to done; shaded at its end"
        f" is {_shaded(trial)}: exposed communication.",
        (
            "Buckets of hook none are timed in extra steps with the pass-through hook, so they may"
            " end after the pass on top, which comes from other steps."
            if plain
            else ""
        ),
        *(_waits(step) for step in steps),
        _gain(first, steps[1]) if len(steps) > 1 else _alone(trial),
    )


def _shaded(trial: Trial) -> str:
    if is_watched(trial.run.info):
        return "the time from the last local gradient to the end of the backward pass"
    return "by how much the backward pass is longer than without DDP and compressing"


def _waits(step: Step) -> str:
    row = step.row
    text = (
        f"{step.name}: {counted(len(step.buckets), 'bucket')}, step"
        f" {three_digits(row.step_ms or 0.0)} ms"
    )
    if row.exposed_comm_ms is not None and row.step_ms:
        text += (
            f", of it {three_digits(row.exposed_comm_ms)} ms"
            f" ({100 * row.exposed_comm_ms / row.step_ms:.0f} %) exposed"
        )
    return text + "."


def _gain(first: Step, second: Step) -> str:
    first_ms, second_ms = first.row.exposed_comm_ms, second.row.exposed_comm_ms
    if first_ms is None or second_ms is None:
        return ""
    difference = first_ms - second_ms
    return (
        f"The second exposes {three_digits(abs(difference))} ms"
        f" {'less' if difference > 0 else 'more'}."
        if difference
        else ""
    )


def _alone(trial: Trial) -> str:
    is_default_recommended = trial.default is not None and trial.is_chosen(trial.default)
    return "The default is recommended." if is_default_recommended else ""
