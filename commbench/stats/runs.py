"""Comparison of one run with a sample of runs: a prediction interval for a further run like
those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commbench.stats.intervals import (
    LARGEST_LOG,
    Floats,
    Interval,
    detectable_effect,
    median,
    student_p,
    student_t,
)
from commbench.stats.ratios import POWER, Scatter, resampled_medians

_RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class RunRatio:
    """The ratio of one run to a sample of runs, with the prediction interval of a further run like
    these.

    The runs' log medians are a sample of the machine's states, launch noise included, and the
    judged run is one more draw. So log(ratio) is compared with `error` by Student's t, with as many
    degrees of freedom as there are runs, less one. With normal logarithms, as many launches in each
    run as in ``b``, and the runs' own variance as the error, this is the interval of Hahn and
    Meeker, Statistical Intervals (1991), chapter 4, but for the median of the runs in place of
    their mean: its variance is taken to be pi / 2 as large, the limit for many runs. For few runs,
    and where `error` exceeds the runs' own variance, the interval is wider than it has to be.
    """

    ratio: float
    """The median of b over the median of the runs' medians: each run counts alike, however many
    launches it made."""
    error: float
    """The standard error of the ratio's logarithm.

    It is at least what launches explain: runs may agree by chance, or because their launches fell
    in one of two modes. If b is noisier than the runs, for example with fewer launches, the further
    noise is added."""
    scatter: Scatter
    """The scatter of launches, and the scatter of runs beyond what launches explain."""
    freedom: int
    """Degrees of freedom of the error."""

    @classmethod
    def of(cls, runs: Sequence[Floats], b: Floats) -> RunRatio:
        """Return the ratio of a run to others.

        Args:
            runs: the launch medians of each run, above 0; two runs at least.
            b: the launch medians of the judged run, above 0; two at least.
        """
        medians = [median(run) for run in runs]
        # The variance of the ratio in variances of a run: 1 for b, the rest for the runs' median.
        draws = 1 + math.pi / 2 / len(runs)
        variance = float(np.var([math.log(of_run) for of_run in medians], ddof=1))
        # The variance of a launch is the variance of a median's logarithm times its launches.
        of_b = _median_variance(b)
        of_launches = [len(run) * _median_variance(run) for run in runs if len(run) > 1]
        of_launch = float(np.mean([*of_launches, len(b) * of_b]))
        explained = of_launch * float(np.mean([1 / len(run) for run in runs]))
        own = max(of_launch / len(b), of_b)
        between_runs = math.sqrt(max(0.0, variance - explained)) * math.sqrt(draws)
        logs = [np.log(side) for side in (*runs, b)]
        return cls(
            ratio=median(b) / median(medians),
            error=math.sqrt(max(variance, explained) * draws + max(0.0, own - explained)),
            scatter=Scatter.of(logs, min(map(len, logs)), draws, between_runs),
            freedom=len(runs) - 1,
        )

    def p_value(self, _smallest: float = 0.0) -> float:
        """Return the two-sided p-value of the hypothesis that b is a run like the others."""
        if not self.error:
            return float(self.ratio == 1)
        return student_p(math.log(self.ratio) / self.error, self.freedom)

    def intervals(self, levels: Sequence[float]) -> list[Interval]:
        """Return the ratio's interval at each level."""
        intervals = []
        for level in levels:
            reach = student_t(level, self.freedom) * self.error
            factor = math.exp(min(LARGEST_LOG, reach))
            interval = Interval(low=self.ratio / factor, high=self.ratio * factor, level=level)
            intervals.append(interval)
        return intervals

    def margin_errors(self, level: float) -> float:
        """Return the distance from the margin, in standard errors, at which 80 % of intervals
        exclude the margin.
        """
        return detectable_effect(level, POWER, self.freedom)


def _median_variance(launches: Floats) -> float:
    """Return the variance of the logarithm of the median of at least two launches, by resampling
    them.

    Resampled variances are (n - 1) / n as large, exactly so for the mean, which the median of two
    launches is.
    """
    medians = np.log(resampled_medians(launches, _RESAMPLES, (0, 3)))
    return float(np.var(medians)) * len(launches) / (len(launches) - 1)
