"""How much communication holds up computing, and computing communication: fitted to measured steps of a hook."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from commbench.analysis.prediction.timeline import BucketWork, overlapped_end_ms
from commbench.ddp.plan.cases import SWEEP, TrainingCase
from commbench.ddp.plan.records import TrainingRecord

#: What is believed of `Sharing` before anything is measured, and how strongly: so far from it weighs as much as a step
#: that is wrong by 1 %. Weak, so that one measured setting decides, unless hardly anything depends on the number. The
#: slowdown is a factor, 1 usually; the rest is a share of the step, 0 usually.
USUAL_CONTENTION, LOOSE_CONTENTION, LOOSE_SLOWDOWN, LOOSE_REST = 0.5, 1.0, 0.1, 0.01
_ONE_PERCENT = 0.01**2
#: Of 1 degree of freedom: -2 log of the likelihood is so much higher at the ends of a 95 % range.
CHI_SQUARE_95 = 3.84
#: Communication in training takes between half and twice as long as on the network alone; beyond, it is something else.
FARTHEST_SLOWDOWN = 2.0
#: Copying reads one tensor and writes another, dividing in place works on one: twice the traffic to memory.
COPY_OVER_DIVISION = 2.0
#: Beyond this share of the way to it a slowdown is said to be on the border.
BORDER = 0.95
#: Points of the first grid, and how often the best point's neighbourhood is halved.
GRID, HALVINGS = 7, 5


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

    def slowed(self, slowdown: float) -> Observation:
        """The same step with communication that takes as long as it does in training."""
        return dataclasses.replace(self, work=Sharing(slowdown=slowdown).slowed(self.work))

    def excess_ms(self, sharing: Sharing) -> float:
        """Predicted - measured."""
        return self.slowed(sharing.slowdown).excess_of_slowed_ms(sharing.contention, sharing.rest_ms)

    def excess_of_slowed_ms(self, contention: float, rest_ms: float = 0.0) -> float:
        """Predicted - measured, of a step that is slowed already."""
        end_ms = overlapped_end_ms(self.work, self.backward_ms, servers=self.servers, contention=contention)
        return self.others_ms + end_ms + rest_ms - self.step_ms

    def error(self, sharing: Sharing) -> float:
        """(predicted - measured) / measured."""
        return self.excess_ms(sharing) / self.step_ms


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What measured steps tell about sharing, by hook: as is likely, and at both ends of what they allow."""

    likely: Mapping[str, Sharing]
    least: Mapping[str, Sharing]
    """With the least slowdown that the steps allow, and what then meets them best of its other numbers."""
    most: Mapping[str, Sharing]
    """With the most."""
    error: float
    """Root mean square of the relative errors that remain where several settings of a hook were measured; else 0."""


def fit_sharing(observations: Mapping[str, Sequence[Observation]]) -> Calibration:
    """Fit to the squares of relative errors, with pulls to what is usual; what remains of a hook is its rest.

    The slowdown is one for all hooks, for it is the network's: a hook has its say by how much its step depends on it,
    which is by how much of the step is communication. A hook that hardly communicates cannot pass off what else its
    steps take as a slow network, which would grow with every rank. Contention and rest are each hook's own. The pulls
    decide where the steps tell nothing about a number: as of contention where there is only one bucket, of slowdown
    where communication is a small part of every step.
    """

    @cache
    def badness(logarithm: float) -> float:
        misfit = sum(_fit_hook(of_hook, logarithm)[0] for of_hook in observations.values())
        return misfit + _ONE_PERCENT * (logarithm / LOOSE_SLOWDOWN) ** 2

    farthest = math.log(FARTHEST_SLOWDOWN)
    _, best = _minimum(badness, -farthest, farthest)
    least, most = _allowed(badness, best, farthest, sum(map(len, observations.values())))
    at_best, at_least, at_most = (
        {hook: _sharing(of_hook, logarithm) for hook, of_hook in observations.items()}
        for logarithm in (best, least, most)
    )
    return Calibration(likely=at_best, least=at_least, most=at_most, error=_remaining(observations, at_best))


def _remaining(observations: Mapping[str, Sequence[Observation]], sharings: Mapping[str, Sharing]) -> float:
    """Root mean square of relative errors; the rest takes one degree of freedom of each hook."""
    several = {hook: of_hook for hook, of_hook in observations.items() if len(of_hook) > 1}
    squares = sum(one.error(sharings[hook]) ** 2 for hook, of_hook in several.items() for one in of_hook)
    return math.sqrt(squares / sum(len(of_hook) - 1 for of_hook in several.values())) if several else 0.0


def _sharing(observations: Sequence[Observation], logarithm: float) -> Sharing:
    """A hook's contention for a slowdown, and the rest with which its steps are met on average."""
    sharing = Sharing(contention=_fit_hook(observations, logarithm)[1], slowdown=math.exp(logarithm))
    rest_ms = -statistics.fmean(observation.excess_ms(sharing) for observation in observations)
    return dataclasses.replace(sharing, rest_ms=rest_ms)


def _fit_hook(observations: Sequence[Observation], logarithm: float) -> tuple[float, float]:
    """How badly a hook's steps are met with a slowdown, at the least, and the contention with which."""
    slowed = [observation.slowed(math.exp(logarithm)) for observation in observations]

    def badness(contention: float) -> float:
        pull = ((contention - USUAL_CONTENTION) / LOOSE_CONTENTION) ** 2
        return _misfit(slowed, contention) + _ONE_PERCENT * pull

    return _minimum(badness, 0.0, 1.0)


def _misfit(slowed: Sequence[Observation], contention: float) -> float:
    """The sum of squares of relative errors that the best rest leaves, and the pull on this."""
    errors = [observation.excess_of_slowed_ms(contention) / observation.step_ms for observation in slowed]
    scales = [1 / observation.step_ms for observation in slowed]
    pull = _ONE_PERCENT * (statistics.fmean(scales) / LOOSE_REST) ** 2
    explained = float(sum(map(operator.mul, errors, scales))) ** 2 / (sum(scale**2 for scale in scales) + pull)
    return sum(error**2 for error in errors) - explained


def _allowed(badness: Callable[[float], float], best: float, farthest: float, steps: int) -> tuple[float, float]:
    """The 95 % range of the logarithm of slowdown: up to where -2 log of the likelihood is 3.84 higher.

    Errors are taken to be of 1 %, or as large as they are. The best on the border shows that something else is the
    matter: the range then reaches from there to no slowdown at all.
    """
    level = badness(best) + CHI_SQUARE_95 * max(_ONE_PERCENT, badness(best) / steps)
    ends = []
    for border in (-farthest, farthest):
        inside, outside = best, border
        for _ in range(HALVINGS if badness(border) > level else 0):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if badness(middle) > level else (middle, outside)
        ends.append(outside)
    hit = abs(best) > BORDER * farthest
    return (min(ends[0], 0.0), max(ends[1], 0.0)) if hit else (ends[0], ends[1])


def _minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return the least value of a function within a range and where it is: a grid, then ever finer around its best.

    The simulated step has kinks and several local minima, where scipy.optimize.minimize_scalar stops at the nearest.
    """
    step = (high - low) / (GRID - 1)
    best = min((function(x), x) for x in (low + i * step for i in range(GRID)))
    for _ in range(HALVINGS):
        step /= 2
        around = {max(low, best[1] - step), min(high, best[1] + step)} - {best[1]}
        best = min([best, *((function(x), x) for x in sorted(around))])
    return best
