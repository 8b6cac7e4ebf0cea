"""Calibration of the model of a step: how communication and computing slow each other down, by
hook.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from commbench.analysis.prediction.timeline import BucketWork, overlapped_end_ms
from commbench.ddp.plan.cases import SWEEP, TrainingCase
from commbench.ddp.plan.records import TrainingRecord

#: Prior of `Sharing`: means (slowdown 1, unexplained time 0) and scales. A deviation of one scale
#: costs as much as a step that is wrong by 1 %. The prior is weak: one measured setting outweighs
#: it, unless the step hardly depends on the parameter.
USUAL_CONTENTION, LOOSE_CONTENTION, LOOSE_SLOWDOWN, LOOSE_UNEXPLAINED = 0.5, 1.0, 0.1, 0.01
_ONE_PERCENT = 0.01**2
#: Communication takes between half and twice its time alone; anything beyond has another cause.
FARTHEST_SLOWDOWN = 2.0
#: Copying reads one tensor and writes another; dividing in place touches one: half the memory
#: traffic.
COPY_OVER_DIVISION = 2.0
#: Points of the first grid, and halvings of the neighbourhood of its best point.
GRID, HALVINGS = 7, 5


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How communication and computing share a rank's core under one hook."""

    contention: float = USUAL_CONTENTION
    """Share of the computing core that communication uses while it is in progress; see
    `overlapped`."""
    slowdown: float = 1.0
    """Communication time in training over that on the network alone, without concurrent
    computing."""
    unexplained_ms: float = 0.0
    """Time of a step that the two do not explain; may be negative."""

    def slowed(self, work: Sequence[BucketWork]) -> list[BucketWork]:
        """Return the buckets with the communication times of training."""
        factor = self.slowdown
        return [
            dataclasses.replace(
                bucket, comm_ms=factor * bucket.comm_ms, latency_ms=factor * bucket.latency_ms
            )
            for bucket in work
        ]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One configuration in all its launches: medians over launches of launch medians, in
    milliseconds.
    """

    case: TrainingCase
    records: Sequence[TrainingRecord]

    def _median(self, of: Callable[[TrainingRecord], float | None]) -> float:
        return statistics.median(of(record) or 0.0 for record in self.records)

    @property
    def step_ms(self) -> float:
        """Step time of the slowest rank."""
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
        """The optimiser's step."""
        return self._median(lambda record: record.optimizer_ms)

    @property
    def copy_ms_per_byte(self) -> float:
        """Time to copy a gradient into its bucket, from the time in which the pass-through hook
        divides it there.
        """
        with_buckets = [record for record in self.records if record.buckets]
        if not with_buckets:
            return 0.0
        return COPY_OVER_DIVISION * statistics.median(
            sum(bucket.compress_ms for bucket in record.buckets)
            / sum(bucket.size_bytes for bucket in record.buckets)
            for record in with_buckets
        )


def settings_of(records: Iterable[TrainingRecord]) -> list[Setting]:
    """Return valid records by setting, the fewest passes per step first.

    Sweep and confirmation are one setting.

    Compiled settings are left out: their computing takes another time.
    """
    by_case: dict[TrainingCase, list[TrainingRecord]] = {}
    for record in records:
        if record.status == "ok" and record.step_ms and not record.case.compile:
            by_case.setdefault(dataclasses.replace(record.case, phase=SWEEP), []).append(record)
    return [
        Setting(case=case, records=by_case[case])
        for case in sorted(by_case, key=lambda case: case.accumulation)
    ]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A measured step with the inputs of the timeline; milliseconds."""

    work: Sequence[BucketWork]
    """Buckets, with communication times of the network alone."""
    backward_ms: float
    servers: int
    others_ms: float
    """The step without its last backward pass."""
    step_ms: float
    """As measured."""

    def slowed(self, slowdown: float) -> Observation:
        """Return the same step with communication slower by a factor."""
        return dataclasses.replace(self, work=Sharing(slowdown=slowdown).slowed(self.work))

    def excess_ms(self, sharing: Sharing) -> float:
        """Return predicted - measured."""
        return self.slowed(sharing.slowdown).excess_of_slowed_ms(
            sharing.contention, sharing.unexplained_ms
        )

    def excess_of_slowed_ms(self, contention: float, unexplained_ms: float = 0.0) -> float:
        """Return predicted - measured of a step with the communication times of training."""
        end_ms = overlapped_end_ms(
            self.work, self.backward_ms, servers=self.servers, contention=contention
        )
        return self.others_ms + end_ms + unexplained_ms - self.step_ms


def fit_sharing(observations: Mapping[str, Sequence[Observation]]) -> dict[str, Sharing]:
    """Return each hook's `Sharing`, fitted by least squares of relative errors with weak priors.

    Each hook's mean error is its unexplained time.

    All hooks share one slowdown, because it belongs to the network. A hook's influence on it grows
    with the share of communication in its step. So a hook that hardly communicates cannot pass its
    other costs off as a slow network, which would grow with the number of ranks. Contention and
    unexplained time are fitted per hook. The priors decide a
    parameter if the steps do not: contention with a single bucket, or slowdown with little
    communication.
    """

    def loss(logarithm: float) -> float:
        misfit = sum(_fit_hook(of_hook, logarithm)[0] for of_hook in observations.values())
        return misfit + _ONE_PERCENT * (logarithm / LOOSE_SLOWDOWN) ** 2

    farthest = math.log(FARTHEST_SLOWDOWN)
    _, best = _minimum(loss, -farthest, farthest)
    return {hook: _sharing(of_hook, best) for hook, of_hook in observations.items()}


def _sharing(observations: Sequence[Observation], logarithm: float) -> Sharing:
    """Return a hook's contention for a slowdown, and the unexplained time that makes its mean error
    zero.
    """
    sharing = Sharing(
        contention=_fit_hook(observations, logarithm)[1], slowdown=math.exp(logarithm)
    )
    unexplained_ms = -statistics.fmean(
        observation.excess_ms(sharing) for observation in observations
    )
    return dataclasses.replace(sharing, unexplained_ms=unexplained_ms)


def _fit_hook(observations: Sequence[Observation], logarithm: float) -> tuple[float, float]:
    """Return the smallest loss of a hook's steps for a slowdown, and the contention there."""
    slowed = [observation.slowed(math.exp(logarithm)) for observation in observations]

    def loss(contention: float) -> float:
        prior = ((contention - USUAL_CONTENTION) / LOOSE_CONTENTION) ** 2
        return _misfit(slowed, contention) + _ONE_PERCENT * prior

    return _minimum(loss, 0.0, 1.0)


def _misfit(slowed: Sequence[Observation], contention: float) -> float:
    """Return the sum of squared relative errors at the best unexplained time, with its prior."""
    errors = [
        observation.excess_of_slowed_ms(contention) / observation.step_ms for observation in slowed
    ]
    scales = [1 / observation.step_ms for observation in slowed]
    prior = _ONE_PERCENT * (statistics.fmean(scales) / LOOSE_UNEXPLAINED) ** 2
    explained = float(sum(map(operator.mul, errors, scales))) ** 2 / (
        sum(scale**2 for scale in scales) + prior
    )
    return sum(error**2 for error in errors) - explained


def _minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return the minimum of a function in a range and its argument, by a grid that is refined
    around its best point.

    The simulated step has kinks and several local minima; scipy.optimize.minimize_scalar would stop
    at the nearest.
    """
    step = (high - low) / (GRID - 1)
    best = min((function(x), x) for x in (low + i * step for i in range(GRID)))
    for _ in range(HALVINGS):
        step /= 2
        around = {max(low, best[1] - step), min(high, best[1] + step)} - {best[1]}
        best = min([best, *((function(x), x) for x in sorted(around))])
    return best
