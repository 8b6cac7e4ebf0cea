"""Comparison of one run with a sample of runs: a prediction interval for a further run like
those.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commbench.stats.intervals import (
    LARGEST_LOG,
    Floats,
    Interval,
    detectable_effect,
    student_p,
    student_t,
)
from commbench.stats.ratios import POWER, Scatter, resampled_medians

_RESAMPLES = 2000


def split_runs(launches: Floats, sizes: Sequence[int]) -> list[Floats]:
    """Return the launches of each run in order; ``sizes`` are their numbers."""
    return np.split(launches, np.cumsum(sizes)[:-1])


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

    runs: Sequence[Floats]
    """The launch medians of each run, above 0; two runs at least."""
    b: Floats
    """The launch medians of the judged run, above 0; two at least."""

    @cached_property
    def ratio(self) -> float:
        """The median of b over the median of the runs' medians: each run counts alike, however many
        launches it made.
        """
        return float(np.median(self.b)) / float(np.median([np.median(run) for run in self.runs]))

    @property
    def scatter(self) -> Scatter:
        """The scatter of launches, and that of runs beyond it."""
        sides = (*self.runs, self.b)
        fixed = self.state_spread * math.sqrt(self.draws)
        fewest = min(map(len, sides))
        return Scatter.of([np.log(side) for side in sides], fewest, self.draws, fixed)

    @property
    def draws(self) -> float:
        """The variance of the ratio over that of a run: 1 for b, and the variance of the median of
        the runs.
        """
        return 1 + math.pi / 2 / len(self.runs)

    @cached_property
    def error(self) -> float:
        """The standard error of the ratio's logarithm.

        It is at least what launches explain: runs may agree by chance, or because their launches
        fell in one of two modes. If b is noisier than the runs, for example with fewer launches,
        the further noise is added.
        """
        own = max(self._launch_variance / len(self.b), _median_variance(self.b))
        variance = max(self._variance, self._explained) * self.draws
        return math.sqrt(variance + max(0.0, own - self._explained))

    @cached_property
    def state_spread(self) -> float:
        """The standard deviation of the runs' logarithms beyond what launches explain."""
        return math.sqrt(max(0.0, self._variance - self._explained))

    def p_value(self, _smallest: float = 0.0) -> float:
        """Return the two-sided p-value of the hypothesis that b is a run like the others."""
        if not self.error:
            return float(self.ratio == 1)
        return student_p(math.log(self.ratio) / self.error, len(self.runs) - 1)

    def intervals(self, levels: Sequence[float]) -> list[Interval]:
        """Return the ratio's interval at each level."""
        intervals = []
        for level in levels:
            reach = student_t(level, len(self.runs) - 1) * self.error
            factor = math.exp(min(LARGEST_LOG, reach))
            interval = Interval(low=self.ratio / factor, high=self.ratio * factor, level=level)
            intervals.append(interval)
        return intervals

    def margin_errors(self, level: float) -> float:
        """Return the distance from the margin, in standard errors, at which 80 % of intervals
        exclude the margin.
        """
        return detectable_effect(level, POWER, len(self.runs) - 1)

    def can_differ(self, _alpha: float) -> bool:
        """Return whether so many launches can show a difference."""
        return True

    def fewest_launches(self, _level: float) -> int:
        """Return how many launches an interval of a level takes."""
        return 2

    @cached_property
    def _variance(self) -> float:
        """The variance of the runs' log medians."""
        return float(np.var([math.log(np.median(run)) for run in self.runs], ddof=1))

    @cached_property
    def _launch_variance(self) -> float:
        """The variance of the logarithm of a median times its number of launches, pooled over all
        runs.
        """
        sides = [side for side in (*self.runs, self.b) if len(side) > 1]
        return float(np.mean([len(side) * _median_variance(side) for side in sides]))

    @cached_property
    def _explained(self) -> float:
        """The part of `_variance` that launches explain."""
        return self._launch_variance * float(np.mean([1 / len(run) for run in self.runs]))


def _median_variance(launches: Floats) -> float:
    """Return the variance of the logarithm of the median of at least two launches, by resampling
    them.

    Resampled variances are (n - 1) / n as large, exactly so for the mean, which the median of two
    launches is.
    """
    medians = np.log(resampled_medians(launches, _RESAMPLES, (0, 3)))
    return float(np.var(medians)) * len(launches) / (len(launches) - 1)
