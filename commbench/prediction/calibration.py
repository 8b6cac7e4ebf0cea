"""How much communication holds up computing, and computing communication: fitted to measured steps of a hook."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from commbench.prediction.timeline import BucketWork, overlapped
from commbench.training.cases import SWEEP, TrainingCase
from commbench.training.records import TrainingRecord

#: What is believed of `Sharing` before anything is measured, and how strongly: so far from it weighs as much as a step
#: that is wrong by 1 %. Weak, so that one measured setting decides, unless hardly anything depends on the number.
USUAL_CONTENTION, LOOSE_CONTENTION, LOOSE_SLOWDOWN = 0.5, 1.0, 0.1
#: Communication in training takes between half and twice as long as on the network alone; beyond, it is something else.
FARTHEST_SLOWDOWN = 2.0
#: Copying reads one tensor and writes another, dividing in place works on one: twice the traffic to memory.
COPY_OVER_DIVISION = 2.0
#: Points of the first grid along each axis, and how often the best point's neighbourhood is halved.
GRID, HALVINGS = 11, 6


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How communication and computing share a rank's core under one hook."""

    contention: float = USUAL_CONTENTION
    """The share of the computing core that communication takes while it is under way; see `overlapped`."""
    slowdown: float = 1.0
    """Time of communication in training over that on the network alone, while nobody computed."""
    rest_ms: float = 0.0
    """What a step takes besides, as far as the two do not explain it; may be below 0."""

    def slowed(self, work: Sequence[BucketWork]) -> list[BucketWork]:
        """The buckets with communication that takes as long as it does in training."""
        factor = self.slowdown
        return [
            dataclasses.replace(bucket, comm_ms=factor * bucket.comm_ms, latency_ms=factor * bucket.latency_ms)
            for bucket in work
        ]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One configuration in all its launches: medians over launches of the launches' medians, in milliseconds."""

    case: TrainingCase
    records: Sequence[TrainingRecord]

    def _median(self, of: Callable[[TrainingRecord], float | None]) -> float:
        return statistics.median(of(record) or 0.0 for record in self.records)

    @property
    def step_ms(self) -> float:
        """The step of the slowest rank."""
        return self._median(lambda record: statistics.median(record.step_ms))

    @property
    def forward_ms(self) -> float:
        """All forward passes of a step."""
        return self._median(lambda record: record.forward_ms)

    @property
    def backward_ms(self) -> float:
        """All backward passes of a step, communication included."""
        return self._median(lambda record: record.backward_ms)

    @property
    def optimizer_ms(self) -> float:
        """The optimiser."""
        return self._median(lambda record: record.optimizer_ms)

    @property
    def copy_ms_per_byte(self) -> float:
        """What copying a gradient into its bucket costs, from what dividing it there costs the pass-through hook."""
        watched = [record for record in self.records if record.buckets]
        if not watched:
            return 0.0
        return COPY_OVER_DIVISION * statistics.median(
            sum(bucket.compress_ms for bucket in record.buckets) / sum(bucket.size_bytes for bucket in record.buckets)
            for record in watched
        )


def settings_of(records: Iterable[TrainingRecord]) -> list[Setting]:
    """Sound records by setting, with the fewest passes a step first; sweep and confirmation are the same setting."""
    found: dict[TrainingCase, list[TrainingRecord]] = {}
    for record in records:
        if record.status == "ok" and record.step_ms:
            found.setdefault(dataclasses.replace(record.case, phase=SWEEP), []).append(record)
    return [Setting(case=case, records=found[case]) for case in sorted(found, key=lambda case: case.accumulation)]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A measured step as the timeline sees it; milliseconds."""

    work: Sequence[BucketWork]
    """With communication as on the network alone."""
    backward_ms: float
    servers: int
    others_ms: float
    """What of the step is not the last backward pass."""
    step_ms: float
    """As measured."""

    def excess_ms(self, sharing: Sharing) -> float:
        """Predicted - measured."""
        timeline = overlapped(
            sharing.slowed(self.work), self.backward_ms, servers=self.servers, contention=sharing.contention
        )
        return self.others_ms + timeline.end_ms + sharing.rest_ms - self.step_ms

    def error(self, sharing: Sharing) -> float:
        """(predicted - measured) / measured."""
        return self.excess_ms(sharing) / self.step_ms


def fit_sharing(observations: Sequence[Observation]) -> Sharing:
    """Fit to the squares of relative errors, with a weak pull to what is usual; what remains on average is the rest.

    Contention and slowdown are both free because the measured step may lie outside the bounds that the network alone
    gives. The pull decides where the step tells nothing about one of them, as contention where there is only one
    bucket.
    """

    def badness(contention: float, logarithm: float) -> float:
        sharing = Sharing(contention=contention, slowdown=math.exp(logarithm))
        pull = ((contention - USUAL_CONTENTION) / LOOSE_CONTENTION) ** 2 + (logarithm / LOOSE_SLOWDOWN) ** 2
        return sum(observation.error(sharing) ** 2 for observation in observations) + 1e-4 * pull

    farthest = math.log(FARTHEST_SLOWDOWN)
    contention, logarithm = _minimum(badness, (0.0, 1.0), (-farthest, farthest))
    sharing = Sharing(contention=contention, slowdown=math.exp(logarithm))
    rest_ms = -statistics.fmean(observation.excess_ms(sharing) for observation in observations)
    return dataclasses.replace(sharing, rest_ms=rest_ms)


def _minimum(
    function: Callable[[float, float], float], first: tuple[float, float], second: tuple[float, float]
) -> tuple[float, float]:
    """Where a function of two numbers is least within their ranges: a grid, then ever finer around its best point."""
    steps = ((first[1] - first[0]) / (GRID - 1), (second[1] - second[0]) / (GRID - 1))
    best = min((function(x, y), x, y) for x in _points(*first, steps[0]) for y in _points(*second, steps[1]))
    for _ in range(HALVINGS):
        steps = (steps[0] / 2, steps[1] / 2)
        around = [
            (
                min(first[1], max(first[0], best[1] + i * steps[0])),
                min(second[1], max(second[0], best[2] + j * steps[1])),
            )
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
            if (i, j) != (0, 0)
        ]
        best = min([best, *((function(x, y), x, y) for x, y in around)])
    return best[1:]


def _points(low: float, high: float, step: float) -> Iterator[float]:
    return (low + i * step for i in range(round((high - low) / step) + 1))
