"""The trend of launches over time: a robust slope and its interval."""

from __future__ import annotations

import numpy as np

from commbench.stats.intervals import Interval, Values


def trend(times: Values, values: Values, *, alpha: float = 0.05) -> tuple[float, Interval]:
    """Return the factor by which values change from the first time to the last, and its interval.

    The slope of the logarithms is Theil and Sen's: the median over all pairs. Its interval is
    Sen's, of Kendall's rank correlation, and assumes no distribution (Sen, Journal of the American
    Statistical Association 63, 1968). At least 6 values are needed for 95 %.

    Args:
        times: in any unit; not all equal.
        values: positive.
        alpha: 1 - the confidence aimed at.
    """
    from scipy.stats import theilslopes

    span = max(times) - min(times)
    slope, _, low, high = theilslopes(np.log(values), np.asarray(times), alpha=1 - alpha)
    factor, bound_low, bound_high = (float(np.exp(each * span)) for each in (slope, low, high))
    return factor, Interval(low=bound_low, high=bound_high, level=1 - alpha)
