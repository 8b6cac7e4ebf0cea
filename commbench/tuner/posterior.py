"""The posterior of every setting's speedup, from predicted and measured speedups and their errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.results.summary import launch_medians, records_by_case
from commbench.stats import Floats

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
