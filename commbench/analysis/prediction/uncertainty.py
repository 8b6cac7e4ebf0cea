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
#: Halvings of the range of densities for an end of an interval: to 10 %.
_HALVINGS = 7


@dataclass(frozen=True, kw_only=True)
class NetworkEnd:
    """A predicted network with all collective times at the same end of their 95 % intervals."""

    network: LargerNetwork
    is_high: bool
    _cached_us: dict[tuple[str, str, float], float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.network.world_size

    @property
    def servers(self) -> int:
        """Concurrent buckets."""
        return self.network.servers

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """Return the time of one operation alone at that end, in microseconds.

        Raises:
            InputError: as `LargerNetwork.time_us`.
        """
        key = operation, dtype, message_bytes
        if key not in self._cached_us:
            likely = self.network.time_us(*key)
            estimate = self.network.estimate(*key)
            self._cached_us[key] = max(likely, estimate.high_us) if self.is_high else min(likely, estimate.low_us)
        return self._cached_us[key]


@dataclass(frozen=True, kw_only=True)
class UncertainSteps:
    """The model of a step on one network, and pairs of models at the ends of each independent uncertainty."""

    likely: StepModel
    ends: Sequence[tuple[StepModel, StepModel]]
    """At the ends of the network's intervals, and of the slowdown's interval."""
    network: LargerNetwork
    held_out: HeldOut
    """The error of steps."""

    @classmethod
    def on(cls, model: StepModel, network: LargerNetwork, held_out: HeldOut) -> UncertainSteps:
        """Return the model of a measured step on another network."""
        low, high = (model_on_network(model, NetworkEnd(network=network, is_high=is_high)) for is_high in (False, True))
        least, most = (model_on_network(extreme, network) for extreme in model.extremes())
        ends = [(low, high), (least, most)]
        return cls(likely=model_on_network(model, network), ends=ends, network=network, held_out=held_out)

    def sent(self, case: TrainingCase) -> list[tuple[str, str, float]]:
        """Return a case's messages: operation, data type and bytes, as for `LargerNetwork.estimate`."""
        return [(message.operation, message.dtype, message.message_bytes) for message in self.likely.messages(case)]

    def interval_ms(self, step: StepPrediction) -> Interval:
        """Return the interval of a predicted step; without a held-out error, it lacks the model's error.

        Raises:
            InputError: the network lacks a collective that the hook uses.
        """
        below, above = self._log_half_widths(step)
        return Interval(
            low=step.step_ms * math.exp(-math.hypot(below, self._model_half_width)),
            high=step.step_ms * math.exp(math.hypot(above, self._model_half_width)),
            level=_LEVEL,
        )

    def break_even(self, caps: Sequence[str]) -> tuple[BreakEven, Interval]:
        """Return the break-even density and its interval; 0 at an end at which top-k never pays.

        The collective times of both sides and the error of steps count as independent.

        Raises:
            InputError: as `commbench.analysis.prediction.breakeven.break_even`.
        """
        search = BreakEvenSearch(model=self.likely, caps=caps)
        density = search.density()
        below, above = self._log_half_widths(best_buckets(self.likely, "none", caps))
        sparse, hook = self._with_density(density or SPARSEST)
        faster, slower = sparse._log_half_widths(best_buckets(sparse.likely, hook, caps))  # noqa: SLF001 - of the same class
        worst = math.exp(math.hypot(below, slower, self._model_half_width))
        best = math.exp(math.hypot(above, faster, self._model_half_width))
        low, high = (search.density(handicap=by, halvings=_HALVINGS) or 0.0 for by in (worst, 1 / best))
        likely = BreakEven(world_size=self.likely.network.world_size, dense_ms=search.dense_ms, density=density)
        return likely, Interval(low=min(low, density or 0.0), high=max(high, density or 0.0), level=_LEVEL)

    @property
    def _model_half_width(self) -> float:
        """The half-width of a step's interval in logarithms, on a network with known times."""
        return log_half_width(self.held_out.error or 0.0)

    def _with_density(self, density: float) -> tuple[UncertainSteps, str]:
        """Return the same models with top-k of a density, and the name of that hook."""
        likely, hook = model_with_density(self.likely, density)
        ends = [(model_with_density(low, density)[0], model_with_density(high, density)[0]) for low, high in self.ends]
        return dataclasses.replace(self, likely=likely, ends=ends), hook

    def _log_half_widths(self, step: StepPrediction) -> tuple[float, float]:
        """Return how far a step's logarithm may lie below and above, from independent uncertainties."""
        below, above = [0.0], [0.0]
        for pair in self.ends:
            logs = [math.log(model.predict(step.case).step_ms / step.step_ms) for model in pair]
            below.append(max(0.0, -min(logs)))
            above.append(max(0.0, *logs))
        return math.hypot(*below), math.hypot(*above)
