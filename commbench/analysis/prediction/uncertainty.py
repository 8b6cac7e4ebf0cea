"""Intervals of predictions: noise of launch medians, resamples, calibration error and step error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from commbench.analysis.prediction.breakeven import SPARSEST, BreakEven, BreakEvenSearch
from commbench.analysis.prediction.fits import UNKNOWN, Noise
from commbench.analysis.prediction.growth import HeldOut
from commbench.analysis.prediction.larger import LargerNetwork, best_buckets, on_network, with_density
from commbench.analysis.prediction.steps import StepModel, StepPrediction
from commbench.ddp.plan.cases import TrainingCase
from commbench.stats import Floats, Interval
from commbench.stats.intervals import STUDENT_T_975

RESAMPLES = 1000
LEVEL = 0.95
_SEED = 20_261_121
#: Half the width of a 95 % interval over the median absolute error, where errors are normal.
_HALF_WIDTH = 1.96 / 0.6745
#: Fewer launches on both sides of a median than this have no spread to speak of.
_LEAST = 2


def reach(error: float, doublings: float = 1.0) -> float:
    """Return half the width, in natural logarithms, of a 95 % interval of predictions with a median absolute error.

    That error is one of each doubling, of ranks for instance, and independent of those of the others.
    """
    return _HALF_WIDTH * math.log1p(error) * math.sqrt(doublings)


def table_of(launches_us: Sequence[Sequence[float | None]]) -> Floats:
    """Return the times of shape (sizes, launches), NaN where a launch has none."""
    return np.array([[math.nan if time is None else time for time in row] for row in launches_us])


def medians_over_launches(table: Floats) -> Floats:
    """Return the median of what is not NaN along the last axis, NaN where all is; shape without that axis.

    As `numpy.nanmedian`, which is ten times as slow and warns of what has no median.
    """
    ordered = np.sort(table, axis=-1)  # NaN last
    counts = np.isfinite(table).sum(axis=-1, keepdims=True)
    middles = (np.take_along_axis(ordered, np.maximum((counts - less) // 2, 0), axis=-1) for less in (1, 0))
    return np.where(counts > 0, np.mean([*middles], axis=0), math.nan)[..., 0]


def noise_of(table: Floats) -> Noise:
    """Return how far medians over launches are off, from how far launches differ; shape (sizes, launches).

    What a launch has in common at all sizes is taken out, for it moves a curve and does not bend it. The variance is
    the median over sizes, since at some a launch strays far, divided by the median of chi-square over its mean
    (Wilson and Hilferty, PNAS 17, 1931). A median's error is sqrt(pi / 2) that of a mean.
    """
    logs = np.log(table[np.isfinite(table).sum(axis=1) >= _LEAST])
    if not len(logs):
        return UNKNOWN
    strayed = logs - medians_over_launches(logs)[:, None]
    if len(logs) > 1:
        strayed = strayed - medians_over_launches(strayed.T)
    counts = np.isfinite(strayed).sum(axis=1)
    variances = np.nansum(strayed**2, axis=1) / (counts - 1)
    degrees, launches = float(np.mean(counts - 1)), float(np.mean(counts))
    variance = float(np.median(variances)) / (1 - 2 / (9 * degrees)) ** 3 / launches
    of_median = math.pi / 2 if launches > _LEAST else 1
    return Noise(error=math.sqrt(variance * of_median), degrees=int((counts - 1).sum()))


def resampled_medians(table: Floats) -> Floats:
    """Return medians over launches drawn with replacement, the same at all sizes, of shape (resamples, sizes).

    The same, since a slow launch is slow at all sizes. Where a resample has drawn no launch that has a size, it says
    nothing about it and the median stays.
    """
    draws = np.random.default_rng(_SEED).integers(0, table.shape[1], (RESAMPLES, table.shape[1]))
    medians = medians_over_launches(table[:, draws]).T
    return np.where(np.isfinite(medians), medians, medians_over_launches(table))


def interval_of(centre: float, resampled: Floats, launches: int) -> Interval | None:
    """Return the 95 % interval of a prediction from those of its resamples; None for one launch.

    From 6 launches on these are the resamples' quantiles. Resamples of fewer stray too little and too coarsely: then it
    is Student's t on logarithms, as for a row of ``collectives.csv``, with the spread of the resamples, whose variance
    is too small by (n - 1) / n.
    """
    logarithm = parameter_interval(math.log(centre), np.log(resampled), launches, least=-math.inf)
    if logarithm is None:
        return None
    return Interval(low=math.exp(logarithm.low), high=math.exp(logarithm.high), level=LEVEL)


def parameter_interval(centre: float, resampled: Floats, launches: int, *, least: float = 0.0) -> Interval | None:
    """Return likewise that of a parameter, which may be 0 and is at least ``least``: with its own spread."""
    if launches < _LEAST:
        return None
    if launches in STUDENT_T_975:
        reach = STUDENT_T_975[launches] * float(np.std(resampled)) * math.sqrt(launches / (launches - 1))
        return Interval(low=max(least, centre - reach), high=centre + reach, level=LEVEL)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(low=min(low, centre), high=max(high, centre), level=LEVEL)


_LEVEL = 0.95
#: Of the range of densities, for an end of an interval: to 10 %.
_HALVINGS = 7


@dataclass(frozen=True, kw_only=True)
class NetworkEnd:
    """A predicted network whose collectives all take what one end of their 95 % interval says."""

    network: LargerNetwork
    is_high: bool
    _known: dict[tuple[str, str, float], float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def world_size(self) -> int:
        """Its ranks."""
        return self.network.world_size

    @property
    def servers(self) -> int:
        """Buckets that it serves at once."""
        return self.network.servers

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """How long one operation alone takes at that end, in microseconds.

        Raises:
            InputError: as `LargerNetwork.time_us`.
        """
        key = operation, dtype, message_bytes
        if key not in self._known:
            likely = self.network.time_us(*key)
            estimate = self.network.estimate(*key)
            self._known[key] = max(likely, estimate.high_us) if self.is_high else min(likely, estimate.low_us)
        return self._known[key]


@dataclass(frozen=True, kw_only=True)
class UncertainSteps:
    """The model of a step on one network, and pairs of models between which it lies for one reason each."""

    likely: StepModel
    ends: Sequence[tuple[StepModel, StepModel]]
    """With the network at either end of its interval, and with the slowdowns that the measured steps allow."""
    network: LargerNetwork
    held_out: HeldOut
    """Of steps."""

    @classmethod
    def on(cls, model: StepModel, network: LargerNetwork, held_out: HeldOut) -> UncertainSteps:
        """The model of a measured step on another network."""
        low, high = (on_network(model, NetworkEnd(network=network, is_high=is_high)) for is_high in (False, True))
        least, most = (on_network(extreme, network) for extreme in model.extremes())
        ends = [(low, high), (least, most)]
        return cls(likely=on_network(model, network), ends=ends, network=network, held_out=held_out)

    def sent(self, case: TrainingCase) -> list[tuple[str, str, float]]:
        """What a case sends: operation, data type and bytes, as `LargerNetwork.estimate` takes them."""
        return [(one.operation, one.dtype, one.message_bytes) for one in self.likely.messages(case)]

    def interval_ms(self, step: StepPrediction) -> Interval:
        """The interval of a step that `likely` predicted; it lacks the error of steps where none is known.

        Raises:
            InputError: nothing is known of what its hook sends.
        """
        below, above = self._reach(step)
        return Interval(
            low=step.step_ms * math.exp(-math.hypot(below, self._off)),
            high=step.step_ms * math.exp(math.hypot(above, self._off)),
            level=_LEVEL,
        )

    def break_even(self, caps: Sequence[str]) -> tuple[BreakEven, Interval]:
        """The density below which top-k pays, and its interval; 0 at an end where it pays at none.

        The times of what either side sends and the error of steps are taken to be independent of each other.

        Raises:
            InputError: as `commbench.analysis.prediction.breakeven.break_even`.
        """
        search = BreakEvenSearch(model=self.likely, caps=caps)
        density = search.density()
        below, above = self._reach(best_buckets(self.likely, "none", caps))
        sparse, hook = self._with_density(density or SPARSEST)
        faster, slower = sparse._reach(best_buckets(sparse.likely, hook, caps))  # noqa: SLF001 - of the same class
        worst = math.exp(math.hypot(below, slower, self._off))
        best = math.exp(math.hypot(above, faster, self._off))
        low, high = (search.density(handicap=by, halvings=_HALVINGS) or 0.0 for by in (worst, 1 / best))
        found = BreakEven(world_size=self.likely.network.world_size, dense_ms=search.dense_ms, density=density)
        return found, Interval(low=min(low, density or 0.0), high=max(high, density or 0.0), level=_LEVEL)

    @property
    def _off(self) -> float:
        """Half the interval of a step's logarithm on a network that is known."""
        return reach(self.held_out.error or 0.0)

    def _with_density(self, density: float) -> tuple[UncertainSteps, str]:
        """The same with top-k of a density, and the name of that hook."""
        likely, hook = with_density(self.likely, density)
        ends = [(with_density(low, density)[0], with_density(high, density)[0]) for low, high in self.ends]
        return dataclasses.replace(self, likely=likely, ends=ends), hook

    def _reach(self, step: StepPrediction) -> tuple[float, float]:
        """How far a step's logarithm may be off below and above, for reasons that are independent of each other."""
        below, above = [0.0], [0.0]
        for pair in self.ends:
            logs = [math.log(model.predict(step.case).step_ms / step.step_ms) for model in pair]
            below.append(max(0.0, -min(logs)))
            above.append(max(0.0, *logs))
        return math.hypot(*below), math.hypot(*above)
