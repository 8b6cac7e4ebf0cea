"""The posterior of each setting's speedup, and the settings that the next round measures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commbench.analysis.prediction.steps import StepPrediction
from commbench.ddp.plan.cases import SWEEP, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.results.summary import launch_medians, records_by_case
from commbench.results.trained import Trained, paired_sample_ms, trained
from commbench.stats import MARGIN, Floats

#: What is believed of a logarithm's standard deviation before it is seen, and how many observations that is worth:
#: of predicted against measured speedups, and of a measured speedup from launch to launch, which is no less at first.
MODEL_ERROR, LAUNCH_SPREAD = (0.10, 2), (0.03, 3)


#: No model is taken to be better than that.
LEAST_MODEL_ERROR = 0.01


#: Standard error of a median over that of a mean, of normally distributed values: sqrt(pi / 2).
_MEDIAN_OVER_MEAN = 1.2533


def block_spread(records: Iterable[TrainingRecord]) -> float:
    """How far a speedup may be off just because blocks have few steps: the standard deviation of its logarithm.

    sqrt(2) times the standard error of a block's median, for which steps are taken as independent; the median over
    blocks, so that a few that were disturbed do not count. 0 where no block has two steps.
    """
    timed = [r.step_ms for r in records if r.case.uses_ddp and r.status == "ok" and len(r.step_ms) > 1]
    blocks = [np.log(steps_ms) for steps_ms in timed if min(steps_ms) > 0]
    errors = [float(steps.std(ddof=1)) * _MEDIAN_OVER_MEAN / math.sqrt(len(steps)) for steps in blocks]
    return math.sqrt(2) * float(np.median(errors)) if errors else 0.0


def network_spread(collectives: Iterable[Record]) -> float:
    """How much collectives differ from launch to launch, as a share of their time; long ones count most, as in a step.

    sqrt(sum of variances / sum of squared means) over cases; 0 where none has two launches.
    """
    launches = [launch_medians(of_case) for of_case in records_by_case(collectives).values()]
    several = [np.array(medians) for medians in launches if len(medians) > 1]
    squares = sum(float(medians.mean()) ** 2 for medians in several)
    return math.sqrt(sum(float(medians.var(ddof=1)) for medians in several) / squares) if squares else 0.0


def launch_spread(measured: Iterable[Mapping[int, float]], expected: float = 0.0) -> float:
    """The standard deviation of a speedup's logarithm from launch to launch, pooled over settings.

    Args:
        measured: of each setting, the logarithm by launch.
        expected: before it is seen, but no less than `LAUNCH_SPREAD`.
    """
    several = [np.array(list(of_case.values())) for of_case in measured if len(of_case) > 1]
    squares = sum(float(np.square(values - values.mean()).sum()) for values in several)
    least, worth = LAUNCH_SPREAD
    return _believed((max(least, expected), worth), squares, sum(len(values) - 1 for values in several))


def combine(expected: Floats, measured: Sequence[Mapping[int, float]], spread: float) -> tuple[Floats, Floats, float]:
    """What prediction and measurement together say of the logarithms of steps over the default's.

    Both the prediction and a launch's measurement of such a ratio err by what its two steps err by, alike and
    independently, and the default's step is that of all ratios: so every two errors have a correlation of one half.
    With such covariances, K of predictions and R of measurements, the answer is that of Gaussian regression,
    x = expected + K (K + R)^-1 (measured - expected); Rasmussen and Williams, Gaussian Processes for Machine Learning,
    2006, section 2.2. So what all measured ones have in common is put down to the default and shifts what was not
    measured, too.

    Args:
        expected: of every setting, predicted.
        measured: of every setting, by launch.
        spread: of a measured one from launch to launch.

    Returns:
        The logarithms, their standard deviations, and the model's error: of predicted ones against true ones.
    """
    which = [index for index, by_launch in enumerate(measured) if by_launch]
    launches = [measured[index] for index in which]
    misses = np.array([float(np.mean(list(by_launch.values()))) for by_launch in launches]) - expected[which]
    noise = _noise(launches, spread)
    error = _model_error(misses, noise)
    prior = error**2 * _halves(len(expected))
    gain = np.linalg.solve(prior[np.ix_(which, which)] + noise, prior[which]).T
    variances = np.diag(prior) - np.einsum("ij,ji->i", gain, prior[which])
    return expected + gain @ misses, np.sqrt(np.maximum(variances, 0.0)), error


def _halves(count: int) -> Floats:
    """The correlations of so many ratios to one default: one, and one half between any two."""
    return (np.eye(count) + np.ones((count, count))) / 2


def _noise(launches: Sequence[Mapping[int, float]], spread: float) -> Floats:
    """The covariance of means over launches; where two settings share a launch they share its default."""
    shared = np.array([[len(a.keys() & b.keys()) / (len(a) * len(b)) for b in launches] for a in launches])
    noise: Floats = spread**2 * _halves(len(launches)) * shared.reshape(len(launches), len(launches))
    return noise


def _model_error(misses: Floats, noise: Floats) -> float:
    """The standard deviation of predicted from true logarithms: what was believed, and the misses beyond the noise.

    With C the correlations, misses' C^-1 misses is expected to be n error^2 + trace(C^-1 noise).
    """
    inverse = np.linalg.inv(_halves(len(misses)))
    squares = max(0.0, float(misses @ inverse @ misses) - float(np.trace(inverse @ noise)))
    return max(LEAST_MODEL_ERROR, _believed(MODEL_ERROR, squares, len(misses)))


def _believed(prior: tuple[float, int], squares: float, freedom: int) -> float:
    """A standard deviation from what was believed before and the sum of squares that was seen since."""
    believed, worth = prior
    return math.sqrt((worth * believed**2 + squares) / (worth + freedom))


#: One-sided 95 % of a normal distribution.
_REACH = 1.645
#: What is predicted to take so many times as long as the fastest is not measured: no disturbed block explains that.
HOPELESS = 3.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How a setting's step compares with the default's, by prediction and measurement; natural logarithms."""

    case: TrainingCase
    log_ratio: float
    """Of its step time over the default's: below 0 is faster."""
    error: float
    """Standard deviation of that."""
    by_launch: Mapping[int, float]
    """The measured logarithm in each launch; empty where it was only predicted."""

    @property
    def is_plain(self) -> bool:
        """Whether gradients are sent as they are."""
        return self.case.is_plain


@dataclass(frozen=True, kw_only=True)
class Standing:
    """All settings but the default, the fastest first."""

    estimates: Sequence[Estimate]
    model_error: float
    """Standard deviation of predicted from measured logarithms of speedups."""
    launch_spread: float
    """Standard deviation of a measured one from launch to launch."""
    predicted: Mapping[TrainingCase, StepPrediction] = field(default_factory=dict)
    """What was predicted, of the default too."""

    @classmethod
    def of(
        cls,
        predicted: Mapping[TrainingCase, StepPrediction],
        records: Iterable[TrainingRecord],
        baseline: TrainingCase,
        *,
        network: float = 0.0,
    ) -> Standing:
        """Weigh predictions with measurements, see `commbench.tuner.choice`.

        Args:
            predicted: every setting that may be chosen, and the default.
            records: of the calibration and of the rounds, whose launches all have the default.
            baseline: the default.
            network: how much collectives differ from launch to launch, as a share of their time.
        """
        records = list(records)
        known, base = trained(records, SWEEP), predicted[baseline]
        cases = [case for case in predicted if case != baseline]
        expected = np.array([math.log(predicted[case].step_ms / base.step_ms) for case in cases])
        measured = [_measured(known.get(case.key), known.get(baseline.key)) for case in cases]
        exposed = network * base.exposed_comm_ms / base.step_ms
        spread = launch_spread(measured, math.hypot(block_spread(records), exposed))
        ratios, errors, model_error = combine(expected, measured, spread)
        found = zip(cases, ratios.tolist(), errors.tolist(), measured, strict=True)
        estimates = [
            Estimate(case=case, log_ratio=log_ratio, error=error, by_launch=by_launch)
            for case, log_ratio, error, by_launch in found
        ]
        return cls(
            estimates=sorted(estimates, key=lambda one: one.log_ratio),
            model_error=model_error,
            launch_spread=spread,
            predicted=predicted,
        )

    def without(self, unfit: Iterable[TrainingCase]) -> Standing:
        """The same without some settings."""
        left_out = set(unfit)
        return dataclasses.replace(self, estimates=[one for one in self.estimates if one.case not in left_out])

    def best(self, among: Iterable[TrainingCase] | None = None, *, plain: bool = False) -> Estimate | None:
        """The fastest of some settings, or of all; ``plain``: of those whose gradients are sent as they are."""
        allowed = None if among is None else set(among)
        fitting = (one for one in self.estimates if allowed is None or one.case in allowed)
        return next((one for one in fitting if one.is_plain or not plain), None)

    def promising(self, room: int) -> list[TrainingCase]:
        """The settings to measure first, at most ``room``.

        The fastest of every hook by prediction, as one disturbed block of the calibration is enough to misjudge a hook,
        but not by `HOPELESS`: the fastest of all first, then the one without compression, which may be far behind as
        long as it gains anything. Then whatever is predicted within the model's error of the first, in the order of
        prediction; those of which the hook has one with as many buckets come last.
        """
        if not self.estimates:
            return []
        leader = self.estimates[0]
        hopeful = [one for one in self.estimates if one.log_ratio <= leader.log_ratio + math.log(HOPELESS)]
        plain = [one.case for one in self.estimates if one.is_plain and (one in hopeful or one.log_ratio < -MARGIN)]
        chosen = [leader.case, *plain[:1], *_firsts((one.case for one in hopeful), lambda case: case.hook_name)]
        near = [one.case for one in self.estimates if one.log_ratio <= leader.log_ratio + self.model_error]
        return list(dict.fromkeys([*chosen, *_firsts([*chosen, *near], self._layout), *near]))[:room]

    def _layout(self, case: TrainingCase) -> tuple[str, int]:
        """The hook and the number of buckets: settings that share both are nearly the same."""
        return case.hook_name, len(self.predicted[case].buckets)

    def survivors(self, previous: Sequence[TrainingCase], room: int) -> list[TrainingCase]:
        """The settings of the next round: the better half of the previous one's, then what else may be best.

        That is what is left of the previous ones unless shown to be slower than the best of them, and what was not
        measured but is now predicted to be faster than it; together at most ``room``, or the half where that is more.
        """
        before = [one for one in self.estimates if one.case in set(previous)]
        if not before:
            return []
        leader, half = before[0], math.ceil(len(before) / 2)
        undecided = [one for one in before[half:] if not self._is_slower(one, leader)]
        newcomers = [one for one in self.estimates if not one.by_launch and one.log_ratio < leader.log_ratio]
        others = sorted([*undecided, *newcomers], key=lambda one: one.log_ratio)
        kept = [*before[:half], *others[: max(0, room - half)]]
        return [one.case for one in sorted(kept, key=lambda one: one.log_ratio)]

    def _is_slower(self, one: Estimate, leader: Estimate) -> bool:
        """Whether the one-sided 95 % bound of the mean difference, paired by launch, lies above 0."""
        both = sorted(one.by_launch.keys() & leader.by_launch.keys())
        if not both:
            return False
        difference = float(np.mean([one.by_launch[launch] - leader.by_launch[launch] for launch in both]))
        return difference > _REACH * self.launch_spread / math.sqrt(len(both))


def can_gain(predicted: Mapping[TrainingCase, StepPrediction], baseline: TrainingCase, measured_ms: float) -> bool:
    """Whether any setting would beat the default by the margin if its communication overlapped perfectly.

    The default counts as predicted: what of its measured step communication cannot explain is noise. But a model that
    misses that step, of ``measured_ms``, by more than models are believed to err excludes nothing.
    """
    base_ms = predicted[baseline].step_ms
    if abs(base_ms / measured_ms - 1) > MODEL_ERROR[0]:
        return True
    limit_ms = base_ms / (1 + MARGIN)
    return any(one.overlapped_ms < limit_ms for case, one in predicted.items() if case != baseline)


def _firsts(cases: Iterable[TrainingCase], kind: Callable[[TrainingCase], object]) -> list[TrainingCase]:
    """The first of each kind."""
    first: dict[object, TrainingCase] = {}
    for case in cases:
        first.setdefault(kind(case), case)
    return list(first.values())


def _measured(one: Trained | None, base: Trained | None) -> dict[int, float]:
    """The logarithm of the step over the default's in each launch that has both."""
    if one is None or base is None:
        return {}
    launches = sorted(one.steps_ms.keys() & base.steps_ms.keys())
    own, theirs = paired_sample_ms(one, base)
    both = zip(launches, own, theirs, strict=True)
    return {launch: math.log(ours / base_ms) for launch, ours, base_ms in both if ours > 0 and base_ms > 0}
