"""The timeline of a step: when each bucket is ready, waits and communicates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from commbench.ddp.plan.cases import TrainingCase, setting_name
from commbench.ddp.plan.records import BucketRow, TrainingRow
from commbench.report.figures.charts import Chart, Panel, Series, Span
from commbench.report.figures.drawing import slug
from commbench.report.figures.words import Trial, groups
from commbench.results import Run
from commbench.units import three_digits

#: The numbers of colours, by what they mean.
_COLOURS = {
    "forward": 6,
    "backward": 0,
    "optimiser": 4,
    "exposed": 1,
    "waits": 8,
    "hook's own work": 3,
    "communicate": 2,
}
#: The fields that say of which setting a bucket is.
_SHARED = set(BucketRow.__dataclass_fields__) & set(TrainingCase.__dataclass_fields__)
_setting_of = attrgetter(*_SHARED)
_READING = (
    "Medians over launches: the passes and the exposed communication, below them each bucket from"
    " ready over its wait and the hook's own work (compressing, dividing) to done. Exposed is how"
    " much longer the backward pass is than without DDP and compressing, or in a watched training"
    " the time from the last local gradient to its end. Buckets of hook none are timed in extra"
    " steps, so they may end after the pass on top."
)


def timeline_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yield the default's step above the recommended setting's, for each workload and run."""
    for group in groups(runs):
        for place, trial in enumerate(group.trials, start=1):
            rows = steps_of(trial)
            if rows:
                yield Chart(
                    name=slug("timeline", group.key, place if len(group.trials) > 1 else ""),
                    section="training",
                    title=f"{trial.prefix}Timeline of a step: {group.name}",
                    reading=_READING,
                    panels=[_panel(row, _buckets_of(trial.run, row)) for row in rows],
                    key=_COLOURS,
                )


def steps_of(trial: Trial) -> list[TrainingRow]:
    """Return the default, and the recommended setting, or else the fastest one."""
    rows = trial.fastest[:1]
    if trial.default is not None:
        rows = [trial.default, *(row for row in rows if row is not trial.default)]
    return [row for row in rows if row.backward_ms is not None]


def _buckets_of(run: Run, row: TrainingRow) -> Iterator[BucketRow]:
    """Yield the buckets of a setting whose times are all known."""
    for bucket in run.bucket_rows:
        times = {bucket.ready_ms, bucket.start_ms, bucket.done_ms}
        if _setting_of(bucket) == _setting_of(row) and None not in times:
            yield bucket


def _panel(row: TrainingRow, buckets: Iterator[BucketRow]) -> Panel:
    """Return a step in milliseconds since its backward pass began: its passes, then buckets."""
    backward = row.backward_ms or 0.0
    passes = [
        _span("forward", -(row.forward_ms or 0.0), 0.0),
        _span("backward", 0.0, backward),
        _span("optimiser", backward, backward + (row.optimizer_ms or 0.0)),
    ]
    exposed = [_span("exposed", backward - (row.exposed_comm_ms or 0.0), backward)]
    series = [Series(name="step", spans=passes), Series(name="exposed", spans=exposed)]
    for place, bucket in enumerate(buckets):
        name = f"{place}: {three_digits((bucket.size_bytes or 0) / 1e6)} MB"
        series.append(Series(name=name, spans=_parts(bucket)))
    return Panel(
        series=series,
        quantity="ms since the backward pass began",
        x="rows",
        title=setting_name(row),
    )


def _parts(bucket: BucketRow) -> list[Span]:
    """Return waiting and compressing until the start, communicating, and decompressing."""
    ready, start, done = bucket.ready_ms or 0.0, bucket.start_ms or 0.0, bucket.done_ms or 0.0
    compress = bucket.compress_ms or 0.0
    before = min(compress, start - ready)
    after = min(compress - before, done - start)
    return [
        _span("waits", ready, start - before),
        _span("hook's own work", start - before, start),
        _span("communicate", start, done - after),
        _span("hook's own work", done - after, done),
    ]


def _span(part: str, begin: float, end: float) -> Span:
    return Span(begin, end, _COLOURS[part])
