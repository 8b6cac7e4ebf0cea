"""Several runs as one side of a comparison: how runs differ from each other enters beside how launches do."""

import math
from collections.abc import Sequence

import numpy as np

from commbench.stats.intervals import NORMAL, STUDENT_T_975, Floats, Interval
from commbench.stats.ratios import resampled_medians, widening


def split_runs(launches: Floats, sizes: Sequence[int]) -> list[Floats]:
    """Return the launches of each run, of which there are ``sizes``, in order."""
    return np.split(launches, np.cumsum(sizes)[:-1])


def median_of_runs(runs: Sequence[Floats]) -> float:
    """Return the median of the runs' medians: each run counts alike, however many launches it made."""
    return float(np.median([np.median(run) for run in runs]))


def run_spread(runs: Sequence[Floats]) -> float:
    """Return the standard deviation of the logarithm of a run's state, what launches explain taken out; at least 0.

    The variance of the runs' log medians minus what launches give a mean of them, s^2 / n: a median's noise is larger,
    so that rather too little is taken out.
    """
    logs = [np.log(run) for run in runs]
    between = float(np.var([np.median(log) for log in logs], ddof=1))
    within = [(float(np.var(log, ddof=1)), len(log)) for log in logs if len(log) > 1]
    pooled = sum(variance * (n - 1) for variance, n in within) / max(1, sum(n - 1 for _, n in within))
    return math.sqrt(max(0.0, between - pooled * float(np.mean([1 / len(log) for log in logs]))))


def new_run_spread(runs: Sequence[Floats]) -> float:
    """Return by how much a run not seen yet may differ from the median of these, as a standard deviation of logarithms.

    sqrt(1 + 1/K) spreads as in a prediction interval, widened for a spread that is known from K runs only by the ratio
    of Student's t to the normal quantile: 7.9 spreads with 2 runs, 2.5 with 3, 1.6 with 5, 1.2 with 10.
    """
    student = _student_t_975(len(runs)) / NORMAL.inv_cdf(0.975)
    return run_spread(runs) * math.sqrt(1 + 1 / len(runs)) * student


def _student_t_975(n: int) -> float:
    """Return Student's t at 0.975 for n - 1 degrees of freedom, from 6 on by its expansion (within 1 %).

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if n in STUDENT_T_975:
        return STUDENT_T_975[n]
    z, freedom = NORMAL.inv_cdf(0.975), n - 1
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def run_ratio_intervals(
    runs: Sequence[Floats], b: Floats, levels: Sequence[float], *, resamples: int, seed: int
) -> list[Interval]:
    """Return the interval of median(b) / `median_of_runs` at each level, ``b`` being a run of its own.

    Runs are resampled, then launches within each, and launches of ``b``. That ``b`` is one draw of the machine's state
    too no resampling of its launches can show: each resample moves it by `new_run_spread`, normal.
    """
    generator = np.random.default_rng((seed, 3))
    count = len(runs)
    medians = np.stack([resampled_medians(run, resamples, (seed, 4 + k)) for k, run in enumerate(runs)])
    chosen = generator.integers(0, count, (count, resamples))
    centres = np.median(medians[chosen, np.arange(resamples)], axis=0)
    state = np.exp(new_run_spread(runs) * generator.standard_normal(resamples))
    ratio = float(np.median(b)) / median_of_runs(runs)
    ratios = resampled_medians(b, resamples, (seed, 1)) * state / centres
    sides = np.quantile(ratios, [((1 - level) / 2, (1 + level) / 2) for level in levels])
    bounds = (ratio * (sides / ratio) ** widening(min(len(b), *map(len, runs)))).tolist()
    return [Interval(low=low, high=high, level=level) for level, (low, high) in zip(levels, bounds, strict=True)]
