"""Intervals of predictions: noise of launch medians, resamples, calibration error and step error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from commbench.analysis.prediction.breakeven import SPARSEST, BreakEven, BreakEvenSearch
from commbench.analysis.prediction.fits import log_half_width
from commbench.analysis.prediction.growth import HeldOut
from commbench.analysis.prediction.larger import LargerNetwork, best_buckets, model_on_network, model_with_density
from commbench.analysis.prediction.steps import StepModel, StepPrediction
from commbench.ddp.plan.cases import TrainingCase
from commbench.stats import Interval

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
        low, high = (model_on_network(model, NetworkEnd(network=network, is_high=is_high)) for is_high in (False, True))
        least, most = (model_on_network(extreme, network) for extreme in model.extremes())
        ends = [(low, high), (least, most)]
        return cls(likely=model_on_network(model, network), ends=ends, network=network, held_out=held_out)

    def sent(self, case: TrainingCase) -> list[tuple[str, str, float]]:
        """What a case sends: operation, data type and bytes, as `LargerNetwork.estimate` takes them."""
        return [(one.operation, one.dtype, one.message_bytes) for one in self.likely.messages(case)]

    def interval_ms(self, step: StepPrediction) -> Interval:
        """The interval of a step that `likely` predicted; it lacks the error of steps where none is known.

        Raises:
            InputError: nothing is known of what its hook sends.
        """
        below, above = self._log_half_widths(step)
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
        below, above = self._log_half_widths(best_buckets(self.likely, "none", caps))
        sparse, hook = self._with_density(density or SPARSEST)
        faster, slower = sparse._log_half_widths(best_buckets(sparse.likely, hook, caps))  # noqa: SLF001 - of the same class
        worst = math.exp(math.hypot(below, slower, self._off))
        best = math.exp(math.hypot(above, faster, self._off))
        low, high = (search.density(handicap=by, halvings=_HALVINGS) or 0.0 for by in (worst, 1 / best))
        found = BreakEven(world_size=self.likely.network.world_size, dense_ms=search.dense_ms, density=density)
        return found, Interval(low=min(low, density or 0.0), high=max(high, density or 0.0), level=_LEVEL)

    @property
    def _off(self) -> float:
        """Half the interval of a step's logarithm on a network that is known."""
        return log_half_width(self.held_out.error or 0.0)

    def _with_density(self, density: float) -> tuple[UncertainSteps, str]:
        """The same with top-k of a density, and the name of that hook."""
        likely, hook = model_with_density(self.likely, density)
        ends = [(model_with_density(low, density)[0], model_with_density(high, density)[0]) for low, high in self.ends]
        return dataclasses.replace(self, likely=likely, ends=ends), hook

    def _log_half_widths(self, step: StepPrediction) -> tuple[float, float]:
        """How far a step's logarithm may be off below and above, for reasons that are independent of each other."""
        below, above = [0.0], [0.0]
        for pair in self.ends:
            logs = [math.log(model.predict(step.case).step_ms / step.step_ms) for model in pair]
            below.append(max(0.0, -min(logs)))
            above.append(max(0.0, *logs))
        return math.hypot(*below), math.hypot(*above)
