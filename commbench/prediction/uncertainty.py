"""How sure a step and a break-even on another network are: the network's own interval, and how far off steps were."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from commbench.prediction.breakeven import SPARSEST, BreakEven, break_even
from commbench.prediction.growing import HeldOut
from commbench.prediction.larger import LargerNetwork
from commbench.prediction.larger_steps import best_buckets, on_network, with_density
from commbench.prediction.resampling import reach
from commbench.prediction.steps import StepModel, StepPrediction
from commbench.stats import Interval

_LEVEL = 0.95


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
    """The model of a step on one network and on both ends of that network's interval."""

    likely: StepModel
    low: StepModel
    high: StepModel
    held_out: HeldOut
    """Of steps."""

    @classmethod
    def on(cls, model: StepModel, network: LargerNetwork, held_out: HeldOut) -> UncertainSteps:
        """The model of a measured step on another network."""
        ends = [on_network(model, NetworkEnd(network=network, is_high=is_high)) for is_high in (False, True)]
        return cls(likely=on_network(model, network), low=ends[0], high=ends[1], held_out=held_out)

    def interval_ms(self, step: StepPrediction) -> Interval:
        """The 95 % interval of a step that `likely` predicted; of the network alone where no error of steps is known.

        Raises:
            InputError: nothing is known of what its hook sends.
        """
        below, above = self._ends(step)
        off = self._off
        return Interval(
            low=step.step_ms * math.exp(-math.hypot(below, off)),
            high=step.step_ms * math.exp(math.hypot(above, off)),
            level=_LEVEL,
        )

    def bounds_ms(self, step: StepPrediction) -> tuple[float, float]:
        """The step if communication overlapped perfectly and if not at all, while it takes what it takes alone."""
        alone = dataclasses.replace(self.likely, slowdown=1.0).predict(step.case)
        return alone.overlapped_ms, alone.serial_ms

    def break_even(self, caps: Sequence[str]) -> tuple[BreakEven, Interval]:
        """The density below which top-k pays, and its 95 % interval; 0 at an end where it pays at none.

        The times of what either side sends and the error of steps are taken to be independent of each other.

        Raises:
            InputError: as `commbench.prediction.breakeven.break_even`.
        """
        found = break_even(self.likely, caps)
        below, above = self._ends(best_buckets(self.likely, "none", caps))
        sparse, hook = self._with_density(found.density or SPARSEST)
        faster, slower = sparse._ends(best_buckets(sparse.likely, hook, caps))  # noqa: SLF001 - of the same class
        worst = math.exp(math.hypot(below, slower, self._off))
        best = math.exp(math.hypot(above, faster, self._off))
        low, high = (break_even(self.likely, caps, handicap=by).density or 0.0 for by in (worst, 1 / best))
        return found, Interval(low=low, high=high, level=_LEVEL)

    @property
    def _off(self) -> float:
        """Half the interval of a step's logarithm on a network that is known."""
        return reach(self.held_out.error or 0.0)

    def _with_density(self, density: float) -> tuple[UncertainSteps, str]:
        """The same with top-k of a density, and the name of that hook."""
        (likely, hook), (low, _), (high, _) = (with_density(m, density) for m in (self.likely, self.low, self.high))
        return dataclasses.replace(self, likely=likely, low=low, high=high), hook

    def _ends(self, step: StepPrediction) -> tuple[float, float]:
        """How far, in logarithms, a step lies above what the network's lower end gives, and below its upper end."""
        low, high = (model.predict(step.case).step_ms for model in (self.low, self.high))
        return max(0.0, math.log(step.step_ms / low)), max(0.0, math.log(high / step.step_ms))
