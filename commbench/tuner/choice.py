"""Which settings to measure: collectives to time, predicted and measured speedups, their posterior,
the next round.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commbench.analysis.prediction.network import LEAST_SIZES, NetworkModel
from commbench.analysis.prediction.steps import (
    NotTrainedError,
    StepModel,
    StepPrediction,
    messages_of,
)
from commbench.collectives.cases import Case, Sweep
from commbench.collectives.datatypes import find_dtype
from commbench.ddp.plan.cases import CALIBRATE, SWEEP, TrainingCase, baseline_of
from commbench.ddp.plan.layout import MIB
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.hooks.registry import NONE, parse_hook
from commbench.results.info import RunInfo
from commbench.results.summary import latest, launch_medians, records_by_case
from commbench.results.trained import Trained, paired_sample_ms, speedup_of, trained
from commbench.stats import MARGIN, Floats
from commbench.tuner.decision import comparable

#: Priors of standard deviations of logarithms, with their weight in observations: of predicted
#: against true speedups, and of a measured speedup between launches.
MODEL_ERROR, LAUNCH_SPREAD = (0.10, 2), (0.03, 3)
#: Lower bound of the model's error.
LEAST_MODEL_ERROR = 0.01
#: Standard error of a median over that of a mean, of normally distributed values: sqrt(pi / 2).
_MEDIAN_OVER_MEAN = 1.2533
#: One-sided 95 % quantile of the normal distribution.
_ONE_SIDED_95 = 1.645
#: A setting predicted to take this many times as long as the fastest is not measured; noise cannot
#: explain that.
HOPELESS = 3.0

# ---------------------------------------------------------------------------- spreads and posterior


def block_spread(records: Iterable[TrainingRecord]) -> float:
    """Return the standard deviation of a speedup's logarithm that follows from the few steps of a
    block.

    It is sqrt(2) times the standard error of a block's median, with independent steps. The median
    over blocks excludes disturbed blocks. 0 if no block has two steps.
    """
    timed = [
        r.step_ms for r in records if r.case.uses_ddp and r.status == "ok" and len(r.step_ms) > 1
    ]
    blocks = [np.log(steps_ms) for steps_ms in timed if min(steps_ms) > 0]
    errors = [
        float(steps.std(ddof=1)) * _MEDIAN_OVER_MEAN / math.sqrt(len(steps)) for steps in blocks
    ]
    return math.sqrt(2) * float(np.median(errors)) if errors else 0.0


def network_spread(collectives: Iterable[Record]) -> float:
    """Return the relative spread of collectives between launches.

    Long ones weigh most, as in a step.

    sqrt(sum of variances / sum of squared means) over cases; 0 if no case has two launches.
    """
    launches = [launch_medians(of_case) for of_case in records_by_case(collectives).values()]
    several = [np.array(medians) for medians in launches if len(medians) > 1]
    squares = sum(float(medians.mean()) ** 2 for medians in several)
    return (
        math.sqrt(sum(float(medians.var(ddof=1)) for medians in several) / squares)
        if squares
        else 0.0
    )


def launch_spread(measured: Iterable[Mapping[int, float]], expected: float = 0.0) -> float:
    """Return the standard deviation of a speedup's logarithm between launches, pooled over
    settings.

    Args:
        measured: for each setting, the logarithm by launch.
        expected: prior value, at least that of `LAUNCH_SPREAD`.
    """
    several = [np.array(list(of_case.values())) for of_case in measured if len(of_case) > 1]
    squares = sum(float(np.square(values - values.mean()).sum()) for values in several)
    least, worth = LAUNCH_SPREAD
    return _posterior_deviation(
        (max(least, expected), worth), squares, sum(len(values) - 1 for values in several)
    )


def combine(
    expected: Floats, measured: Sequence[Mapping[int, float]], spread: float
) -> tuple[Floats, Floats, float]:
    """Return the posterior of the logarithms of steps over the default's, from predictions and
    measurements.

    The errors of a setting's step and of the default's step are independent and alike, and the
    default's step is in every ratio; so any two ratios have a correlation of one half. With such
    covariances, K of predictions and R of measurements, the posterior is that of Gaussian
    regression, x = expected + K (K + R)^-1 (measured - expected) (Rasmussen and Williams, Gaussian
    Processes for Machine Learning, 2006, section 2.2). Hence a deviation that all measured settings
    share is attributed to the default and also shifts the unmeasured settings.

    Args:
        expected: predicted logarithms of all settings.
        measured: for each setting, the logarithm by launch.
        spread: standard deviation of a measured logarithm between launches.

    Returns:
        The logarithms, their standard deviations, and the model's error (standard deviation of
        predicted from true logarithms).
    """
    measured_indices = [index for index, by_launch in enumerate(measured) if by_launch]
    launches = [measured[index] for index in measured_indices]
    residuals = (
        np.array([float(np.mean(list(by_launch.values()))) for by_launch in launches])
        - expected[measured_indices]
    )
    noise = _noise(launches, spread)
    error = _model_error(residuals, noise)
    prior = error**2 * _ratio_correlations(len(expected))
    gain = np.linalg.solve(
        prior[np.ix_(measured_indices, measured_indices)] + noise, prior[measured_indices]
    ).T
    variances = np.diag(prior) - np.einsum("ij,ji->i", gain, prior[measured_indices])
    return expected + gain @ residuals, np.sqrt(np.maximum(variances, 0.0)), error


def _ratio_correlations(count: int) -> Floats:
    """Return the correlation matrix of ``count`` ratios to one default: 1, and 1/2 between any
    two.
    """
    return (np.eye(count) + np.ones((count, count))) / 2


def _noise(launches: Sequence[Mapping[int, float]], spread: float) -> Floats:
    """Return the covariance of means over launches.

    Settings share the default of a common launch.
    """
    shared = np.array(
        [[len(a.keys() & b.keys()) / (len(a) * len(b)) for b in launches] for a in launches]
    )
    noise: Floats = (
        spread**2
        * _ratio_correlations(len(launches))
        * shared.reshape(len(launches), len(launches))
    )
    return noise


def _model_error(residuals: Floats, noise: Floats) -> float:
    """Return the standard deviation of predicted from true logarithms: the prior, and residuals
    beyond the noise.

    With C the correlations, the expectation of residuals' C^-1 residuals is n error^2 + trace(C^-1
    noise).
    """
    inverse = np.linalg.inv(_ratio_correlations(len(residuals)))
    squares = max(0.0, float(residuals @ inverse @ residuals) - float(np.trace(inverse @ noise)))
    return max(LEAST_MODEL_ERROR, _posterior_deviation(MODEL_ERROR, squares, len(residuals)))


def _posterior_deviation(prior: tuple[float, int], squares: float, freedom: int) -> float:
    """Return a standard deviation from a prior and an observed sum of squares."""
    believed, worth = prior
    return math.sqrt((worth * believed**2 + squares) / (worth + freedom))


# ------------------------------------------------------------------------------- choice of settings


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A setting's step time relative to the default's, from prediction and measurement.

    Natural logarithms.
    """

    case: TrainingCase
    log_ratio: float
    """Its step time over the default's; below 0 is faster."""
    error: float
    """Standard deviation of ``log_ratio``."""
    by_launch: Mapping[int, float]
    """The measured logarithm of each launch; empty if it was only predicted."""

    @property
    def is_plain(self) -> bool:
        """Whether gradients are sent uncompressed."""
        return self.case.is_plain


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The estimates of all settings but the default, the fastest first."""

    estimates: Sequence[Estimate]
    model_error: float
    """Standard deviation of predicted from measured logarithms of speedups."""
    launch_spread: float
    """Standard deviation of a measured logarithm between launches."""
    predicted: Mapping[TrainingCase, StepPrediction] = field(default_factory=dict)
    """The predictions, including the default's."""

    @classmethod
    def of(
        cls,
        predicted: Mapping[TrainingCase, StepPrediction],
        records: Iterable[TrainingRecord],
        baseline: TrainingCase,
        *,
        network: float = 0.0,
    ) -> Standing:
        """Combine predictions with measurements, see `combine`.

        Args:
            predicted: every setting that may be chosen, and the default.
            records: of the calibration and the rounds; every launch has the default.
            baseline: the default.
            network: relative spread of collectives between launches.
        """
        records = list(records)
        swept, base = trained(records, SWEEP), predicted[baseline]
        cases = [case for case in predicted if case != baseline]
        expected = np.array([math.log(predicted[case].step_ms / base.step_ms) for case in cases])
        measured = [_measured(swept.get(case.key), swept.get(baseline.key)) for case in cases]
        exposed = network * base.exposed_comm_ms / base.step_ms
        spread = launch_spread(measured, math.hypot(block_spread(records), exposed))
        ratios, errors, model_error = combine(expected, measured, spread)
        posterior = zip(cases, ratios.tolist(), errors.tolist(), measured, strict=True)
        estimates = [
            Estimate(case=case, log_ratio=log_ratio, error=error, by_launch=by_launch)
            for case, log_ratio, error, by_launch in posterior
        ]
        return cls(
            estimates=sorted(estimates, key=lambda estimate: estimate.log_ratio),
            model_error=model_error,
            launch_spread=spread,
            predicted=predicted,
        )

    @property
    def cases(self) -> list[TrainingCase]:
        """The settings, the fastest first."""
        return [estimate.case for estimate in self.estimates]

    def without(self, unfit: Iterable[TrainingCase]) -> Standing:
        """Return the standing without some settings."""
        left_out = set(unfit)
        return dataclasses.replace(
            self,
            estimates=[estimate for estimate in self.estimates if estimate.case not in left_out],
        )

    def best(
        self, among: Iterable[TrainingCase] | None = None, *, is_plain: bool = False
    ) -> Estimate | None:
        """Return the fastest of some settings, or of all.

        With ``plain``, of those without compression.
        """
        allowed = None if among is None else set(among)
        fitting = (
            estimate for estimate in self.estimates if allowed is None or estimate.case in allowed
        )
        return next((estimate for estimate in fitting if estimate.is_plain or not is_plain), None)

    def promising(self, room: int) -> list[TrainingCase]:
        """Return at most ``room`` settings to measure first.

        In this order: the fastest of all; the fastest without compression if it gains anything; the
        fastest of every other hook, because one disturbed block of the calibration can misjudge a
        hook, unless it is slower by `HOPELESS`. Then settings predicted within the model's error of
        the first, by prediction, last those with as many buckets as another one of the hook.
        """
        if not self.estimates:
            return []
        leader = self.estimates[0]
        near_enough = [
            estimate
            for estimate in self.estimates
            if estimate.log_ratio <= leader.log_ratio + math.log(HOPELESS)
        ]
        plain = [
            estimate.case
            for estimate in self.estimates
            if estimate.is_plain and (estimate in near_enough or estimate.log_ratio < -MARGIN)
        ]
        chosen = [
            leader.case,
            *plain[:1],
            *_firsts((estimate.case for estimate in near_enough), lambda case: case.hook_name),
        ]
        near = [
            estimate.case
            for estimate in self.estimates
            if estimate.log_ratio <= leader.log_ratio + self.model_error
        ]
        return list(dict.fromkeys([*chosen, *_firsts([*chosen, *near], self._layout), *near]))[
            :room
        ]

    def _layout(self, case: TrainingCase) -> tuple[str, int]:
        """Return the hook and the number of buckets; settings with the same are nearly equal."""
        return case.hook_name, len(self.predicted[case].buckets)

    def survivors(self, previous: Sequence[TrainingCase], room: int) -> list[TrainingCase]:
        """Return the settings of the next round: the better half of the previous round, then others
        that may be best.

        These are the previous settings not shown to be slower than the best, and unmeasured ones
        predicted to be faster than it. There are at most ``room`` in total, or the half if that is
        more.
        """
        before = [estimate for estimate in self.estimates if estimate.case in set(previous)]
        if not before:
            return []
        leader, half = before[0], math.ceil(len(before) / 2)
        undecided = [
            estimate for estimate in before[half:] if not self._is_slower(estimate, leader)
        ]
        newcomers = [
            estimate
            for estimate in self.estimates
            if not estimate.by_launch and estimate.log_ratio < leader.log_ratio
        ]
        others = sorted([*undecided, *newcomers], key=lambda estimate: estimate.log_ratio)
        next_settings = [*before[:half], *others[: max(0, room - half)]]
        return [
            estimate.case
            for estimate in sorted(next_settings, key=lambda estimate: estimate.log_ratio)
        ]

    def _is_slower(self, estimate: Estimate, leader: Estimate) -> bool:
        """Return whether the one-sided 95 % bound of the mean difference, paired by launch, is
        above 0.
        """
        common_launches = sorted(estimate.by_launch.keys() & leader.by_launch.keys())
        if not common_launches:
            return False
        difference = float(
            np.mean(
                [
                    estimate.by_launch[launch] - leader.by_launch[launch]
                    for launch in common_launches
                ]
            )
        )
        return difference > _ONE_SIDED_95 * self.launch_spread / math.sqrt(len(common_launches))


def can_gain(
    predicted: Mapping[TrainingCase, StepPrediction], baseline: TrainingCase, measured_ms: float
) -> bool:
    """Return whether any setting would beat the default by the margin with perfectly overlapped
    communication.

    The default's predicted step is compared, not its measured one, to exclude noise. A model that
    misses the measured step, ``measured_ms``, by more than the prior model error excludes nothing.
    """
    base_ms = predicted[baseline].step_ms
    if abs(base_ms / measured_ms - 1) > MODEL_ERROR[0]:
        return True
    limit_ms = base_ms / (1 + MARGIN)
    return any(
        estimate.overlapped_ms < limit_ms
        for case, estimate in predicted.items()
        if case != baseline
    )


def _firsts(
    cases: Iterable[TrainingCase], kind: Callable[[TrainingCase], object]
) -> list[TrainingCase]:
    """Return the first case of each kind."""
    first: dict[object, TrainingCase] = {}
    for case in cases:
        first.setdefault(kind(case), case)
    return list(first.values())


def _measured(estimate: Trained | None, base: Trained | None) -> dict[int, float]:
    """Return the logarithm of the step over the default's in each launch that has both."""
    if estimate is None or base is None:
        return {}
    launches = sorted(estimate.steps_ms.keys() & base.steps_ms.keys())
    own, theirs = paired_sample_ms(estimate, base)
    paired = zip(launches, own, theirs, strict=True)
    return {
        launch: math.log(ours / base_ms)
        for launch, ours, base_ms in paired
        if ours > 0 and base_ms > 0
    }


#: Bytes of gradients in the buckets whose messages are timed: from the model's size, at most the
#: larger limit, down to the smaller one, by the factor.
SMALLEST_BUCKET, LARGEST_BUCKET, FACTOR = 4096, 64 * MIB, 4


# -------------------------------------------------------------------------------------- predictions


def network_cases(
    hooks: Sequence[str], facts: WorkloadFacts, ranks: int, backend: str
) -> list[Case]:
    """Return the collectives that hooks issue for buckets of all sizes, including those without a
    hook.

    Hooks that are not predicted are left out: those of a user's own file, and those that exchange
    parameters. A bucket is modelled as one square matrix; the messages of hooks that depend on
    tensor shapes lie near these sizes. For a model too small for a curve, larger buckets are added.
    ``backend`` is that of training.

    Raises:
        InputError: a parameter's data type cannot be timed.
    """
    sizes_by_type: dict[tuple[str, str], set[int]] = {}
    plain = TrainingCase(workload="", world_size=ranks, batch_per_rank=1, backend=backend)
    cases = (replace(plain, **parse_hook(hook)) for hook in dict.fromkeys([NONE, *hooks]))
    for case in (case for case in cases if case.is_predicted):
        for dtype, elements in _buckets(facts):
            side = max(1, math.isqrt(elements))
            for message in messages_of(
                case, elements, ranks, shapes=[(side, elements // side)], dtype=dtype
            ):
                share = find_dtype(message.dtype).itemsize * ranks
                size = share * math.ceil(message.message_bytes / share)
                sizes_by_type.setdefault((message.operation, message.dtype), set()).add(size)
    for sizes in sizes_by_type.values():
        while len(sizes) < LEAST_SIZES:
            sizes.add(FACTOR * max(sizes))
    sweeps = [
        Sweep(
            operations=(operation,), sizes=sorted(sizes), backends=(plain.carrier,), dtypes=(dtype,)
        )
        for (operation, dtype), sizes in sizes_by_type.items()
    ]
    return [case for sweep in sweeps for case in sweep.cases(ranks)]


def _buckets(facts: WorkloadFacts) -> Iterator[tuple[str, int]]:
    """Yield the data type and the elements of buckets.

    Each holds one data type, the largest first.
    """
    for dtype in dict.fromkeys(p.dtype for p in facts.parameters):
        itemsize = find_dtype(dtype).itemsize
        largest = min(
            sum(itemsize * p.numel for p in facts.parameters if p.dtype == dtype), LARGEST_BUCKET
        )
        powers = range(1 + max(0, math.ceil(math.log(largest / SMALLEST_BUCKET, FACTOR))))
        yield from ((dtype, max(1, largest // FACTOR**power // itemsize)) for power in powers)


def fit_steps(
    facts: WorkloadFacts,
    baseline: TrainingCase,
    collectives: Iterable[Record],
    trainings: Iterable[TrainingRecord],
) -> StepModel | None:
    """Return the model of a step from all measurements of network and training.

    None if the default was not trained.

    Raises:
        InputError: the network lacks a collective.
    """
    network = NetworkModel.fit(collectives).at(baseline.carrier, baseline.world_size)
    try:
        return StepModel.calibrate(facts, network, latest(trainings).values())
    except NotTrainedError:  # the record of the default, or of the step without DDP, says why
        return None


def predict_all(
    model: StepModel, cases: Iterable[TrainingCase]
) -> dict[TrainingCase, StepPrediction]:
    """Predict the cases whose hook is in the model."""
    return {case: model.predict(case) for case in cases if case.hook_name in model.hooks}


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """Predicts the candidates and ranks them."""

    facts: WorkloadFacts
    candidates: Sequence[TrainingCase]
    """Every setting that may be recommended, and the default."""
    info: RunInfo
    """Entries of run.json that `comparable` needs."""

    @property
    def baseline(self) -> TrainingCase:
        """The default."""
        return baseline_of(self.candidates)

    def predict(
        self, collectives: Iterable[Record], trainings: Sequence[TrainingRecord]
    ) -> dict[TrainingCase, StepPrediction]:
        """Predict the step of every calibrated candidate, and of all measured settings.

        Empty if the default was not trained or the network lacks a collective; the recommendation
        says so.
        """
        try:
            model = fit_steps(self.facts, self.baseline, collectives, trainings)
        except InputError:
            model = None
        if model is None:
            return {}
        calibrated_hooks = self._fit_hooks(trainings)
        measured = [r.case for r in trainings if r.case.phase == SWEEP and r.case.uses_ddp]
        predictable = [
            case
            for case in dict.fromkeys([*self.candidates, *measured])
            if case.hook_name in calibrated_hooks
        ]
        predicted = predict_all(model, predictable)
        return predicted | self._assumed(predicted, trainings)

    def _assumed(
        self, predicted: Mapping[TrainingCase, StepPrediction], trainings: Sequence[TrainingRecord]
    ) -> dict[TrainingCase, StepPrediction]:
        """Return the step of each candidate whose hook is not predicted.

        It is the hook's measured step with default buckets, relative to the default's: the effect
        of bucket sizes is unknown, so the rounds measure it.
        """
        baseline, others = comparable(trainings, self.info, CALIBRATE)
        speedups = {
            each.case.hook_name: speedup_of(each, baseline)
            for each in others
            if baseline and not each.case.is_predicted
        }
        assumed = {}
        for case in self.candidates:
            plain = predicted.get(dataclasses.replace(case, hook=NONE, hook_options=""))
            speedup = speedups.get(case.hook_name)
            if plain and speedup and self.baseline in predicted:
                step_ms = predicted[self.baseline].step_ms / speedup.ratio
                assumed[case] = dataclasses.replace(
                    plain,
                    case=case,
                    step_ms=step_ms,
                    overlapped_ms=step_ms,
                    serial_ms=step_ms,
                    exposed_comm_ms=0.0,
                )
        return assumed

    def standing(
        self,
        predicted: Mapping[TrainingCase, StepPrediction],
        collectives: Iterable[Record],
        trainings: Sequence[TrainingRecord],
    ) -> Standing:
        """Return the estimates of all settings that may be recommended, from predictions and the
        sweep.
        """
        if self.baseline not in predicted:
            return Standing(estimates=(), model_error=0.0, launch_spread=0.0)
        allowed = {member.case for member in comparable(trainings, self.info)[1]}
        unfit = {record.case for record in trainings if record.case.phase == SWEEP} - allowed
        network = network_spread(collectives)
        return Standing.of(predicted, trainings, self.baseline, network=network).without(unfit)

    def _fit_hooks(self, trainings: Sequence[TrainingRecord]) -> set[str]:
        """Return the hooks whose calibrated setting may be recommended."""
        baseline, others = comparable(trainings, self.info, CALIBRATE)
        return {member.case.hook_name for member in [*([baseline] if baseline else []), *others]}
