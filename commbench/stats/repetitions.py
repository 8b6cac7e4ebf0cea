"""Rules for the repetitions of a launch: how many are warm-up, whether times drift or are
bimodal.
"""

import math

import numpy as np

from commbench.stats.intervals import Floats, Values, median_interval


def warmup_count(times: Values, window: int = 20) -> int | None:
    """Return how many leading repetitions to discard so that the rest is steady, or None if it is
    not steady yet.

    The least w >= 1 (the first repetition never counts) after which two successive windows agree:
    the first value is no high outlier (<= Q3 + 1.5 IQR of the others), the mean falls by at most a
    tenth or doubles at most, the quartiles differ by at most 5 % and the median absolute deviation
    by at most 10 %, or by 1 % of the median, which a clock tick may cause. Source: pyperf's
    calibration of warm-ups. Needs 1 + 2 * window times for an answer.
    """
    if len(times) < 1 + 2 * window:
        return None
    spans = np.lib.stride_tricks.sliding_window_view(np.asarray(times, dtype=float)[1:], 2 * window)
    lower, upper = np.percentile(spans[:, 1:], (25, 75), axis=1)
    steady = spans[:, 0] <= upper + 1.5 * (upper - lower)
    before, after = spans[:, :window], spans[:, window:]
    mean_before, mean_after = before.mean(axis=1), after.mean(axis=1)
    steady &= (mean_before <= 1.1 * mean_after) & (mean_before >= 0.5 * mean_after)
    quartiles_before, deviation_before = _spread_of(before)
    quartiles_after, deviation_after = _spread_of(after)
    shifts = np.abs(quartiles_before - quartiles_after)
    steady &= (shifts <= 0.05 * quartiles_after)[[0, 2]].all(axis=0)
    allowed = np.maximum(0.1 * deviation_after, 0.01 * quartiles_after[1])
    steady &= np.abs(deviation_before - deviation_after) <= allowed
    if not steady.any():
        return None
    return int(np.argmax(steady)) + 1


def _spread_of(windows: Floats) -> tuple[Floats, Floats]:
    """Return the quartiles of each window, (3, windows), and its median absolute deviation."""
    quartiles = np.percentile(windows, (25, 50, 75), axis=1)
    return quartiles, np.median(np.abs(windows - quartiles[1][:, None]), axis=1)


def is_steady(times: Values) -> bool:
    """Return whether the medians of the first and the last third differ by at most 5 %, or their
    intervals overlap.

    True below 18 times, whose thirds have no intervals.
    """
    third = len(times) // 3
    first, last = np.asarray(times[:third], float), np.asarray(times[-third:], float)
    one, other = median_interval(first), median_interval(last)
    if one is None or other is None:
        return True
    if abs(np.median(first) - np.median(last)) <= 0.05 * np.median(first):
        return True
    return one.low <= other.high and other.low <= one.high


# The share of the variance that the best two-class split must explain, by sample size, linear in
# log n between. Calibrated by simulation (4,000 to 20,000 samples per size): the 98.8 % quantile of
# the worst of eight unimodal shapes of log time, namely normal, uniform, Laplace, Student t with 2
# and 3 degrees of freedom, exponential, lognormal, and normal with 2 % of values ten times too high
# (not at n = 9 and 10, where 1.6 % of samples hold two such outliers).
_BIMODAL_SIZES = (6, 8, 9, 10, 11, 15, 21, 30, 50, 100, 200, 1000)
_BIMODAL_SHARES = (
    *(0.979, 0.968, 0.961, 0.953, 0.961, 0.942),
    *(0.918, 0.890, 0.868, 0.843, 0.824, 0.800),
)


def is_bimodal(values: Values) -> bool:
    """Return whether values (launch medians or repetitions) have two modes at least 5 % apart, see
    `modes_of`.
    """
    return modes_of(values) is not None


def modes_of(values: Values, *, apart: float = 1.05) -> tuple[float, float] | None:
    """Return the geometric means of the two modes of values, the lower first.

    None if they are not bimodal.

    The best split of the sorted logarithms in two (Otsu's criterion) must leave each side at least
    20 % of the values and at least 2, and explain more of the variance than it does in 98 % of
    unimodal samples of that size. Values not above 0 are left out; fewer than 6 never count. Power:
    modes of 60 and 40 % that lie 30 % apart with 2 % noise are detected in 9 of 10 samples of 10
    values, 12 % apart with 3 % noise in most samples from 200 values on.

    Args:
        values: of any unit.
        apart: the least ratio of the two modes.
    """
    raw = np.asarray(values, dtype=float)
    logs = np.sort(np.log(raw[raw > 0]))
    n = len(logs)
    if n < _BIMODAL_SIZES[0]:
        return None
    side = max(2, math.ceil(n / 5))
    # fewer than half a side: outliers join the bulk, a mode stays in place
    clipped = (side - 1) // 2
    logs = np.clip(logs, logs[clipped], logs[n - 1 - clipped])
    centre = float(logs.mean())
    logs -= centre
    sizes = np.arange(side, n - side + 1)
    sums = np.cumsum(logs)[sizes - 1]
    # between the means of the two sides, whose sums are opposite
    gaps = -sums * n / (sizes * (n - sizes))
    best = int(np.argmax(np.abs(sums * gaps)))
    total = float(logs @ logs)
    least_share = float(np.interp(math.log(n), np.log(_BIMODAL_SIZES), _BIMODAL_SHARES))
    if gaps[best] < math.log(apart) or -sums[best] * gaps[best] < least_share * total:
        return None
    low = math.exp(centre + sums[best] / sizes[best])
    return low, low * math.exp(gaps[best])
