"""Where compression pays: the density below which top-k beats sending gradients whole, over ranks and bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from commbench.analysis.prediction.larger import best_buckets, model_with_density
from commbench.analysis.prediction.steps import StepModel
from commbench.ddp.plan.cases import DEFAULT_CAP
from commbench.ddp.plan.records import TrainingRow
from commbench.errors import InputError
from commbench.hooks.registry import TOP_K

#: Densities that are looked at, and how many halvings of the range between them a break-even takes: to 2 %.
SPARSEST, DENSEST = 1e-5, 1.0
_HALVINGS = 9


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """Where top-k and the best dense setting take equally long, on one network."""

    world_size: int
    dense_ms: float
    """The best step that sends gradients whole."""
    density: float | None
    """Below it top-k is faster; `DENSEST` where it always is, None where it never is."""

    @property
    def byte_density(self) -> float:
        """Above it top-k sends more bytes than a ring all_reduce of float32: 8 (p-1) dn = 8 (p-1)/p n."""
        return 1 / self.world_size


@dataclass(frozen=True, kw_only=True)
class BreakEvenSearch:
    """The search for the break-even on one network, which may be asked again with other handicaps at little cost."""

    model: StepModel
    """Of the network at hand (`commbench.analysis.prediction.larger.model_on_network`)."""
    caps: Sequence[str]
    """Bucket sizes to choose from: both sides take the one that is best for them."""
    dense: Sequence[str] = ("none",)
    """Hooks that send gradients whole, by name."""
    _known_ms: dict[float, float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def dense_ms(self) -> float:
        """The best step that sends gradients whole.

        Raises:
            InputError: nothing is known of what a hook sends on the network.
        """
        return min(best_buckets(self.model, hook, self.caps).step_ms for hook in self.dense)

    def density(self, *, handicap: float = 1.0, halvings: int = _HALVINGS) -> float | None:
        """Below it top-k is faster; `DENSEST` where it always is, None where it never is.

        Args:
            handicap: by what the steps with top-k are multiplied, to learn how far the break-even moves.
            halvings: of the range between `SPARSEST` and `DENSEST`.

        Raises:
            InputError: no top-k was measured, or nothing is known of what a hook sends on the network.
        """

        def gains(log_density: float) -> bool:
            return handicap * self._sparse_ms(log_density) < self.dense_ms

        low, high = math.log(SPARSEST), math.log(DENSEST)
        if gains(high):
            return DENSEST
        if not gains(low):
            return None
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (middle, high) if gains(middle) else (low, middle)
        return math.exp((low + high) / 2)

    def _sparse_ms(self, log_density: float) -> float:
        if log_density not in self._known_ms:
            sparse, name = model_with_density(self.model, math.exp(log_density))
            self._known_ms[log_density] = best_buckets(sparse, name, self.caps).step_ms
        return self._known_ms[log_density]


def break_even(model: StepModel, caps: Sequence[str], *, dense: Sequence[str] = ("none",)) -> BreakEven:
    """Find the break-even density by halving; the arguments are `BreakEvenSearch`'s.

    Raises:
        InputError: as `BreakEvenSearch.density`.
    """
    search = BreakEvenSearch(model=model, caps=caps, dense=dense)
    return BreakEven(world_size=model.network.world_size, dense_ms=search.dense_ms, density=search.density())


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """Top-k of one density against the best dense setting, as measured, beside what was predicted."""

    world_size: int
    density: float
    speedup: float
    """The dense step over the step with top-k."""
    has_won: bool | None
    """None where the interval of the speedup holds 1, or the two of the steps overlap: not shown either way."""
    predicted: float | None
    """The break-even density."""

    @property
    def agrees(self) -> bool | None:
        """Whether it lies on the side of the break-even where it was predicted; None where nothing was shown."""
        if self.has_won is None:
            return None
        return self.has_won == (self.predicted is not None and self.density < self.predicted)


def compare_with_measured(
    predicted: BreakEven, rows: Sequence[TrainingRow], *, dense: Sequence[str] = ("none",)
) -> list[MeasuredPoint]:
    """Say of every density that was measured whether top-k won as predicted, each side at its best bucket size.

    Args:
        predicted: the break-even on the network on which ``rows`` were measured.
        rows: of ``ddp.csv``, of one workload and batch; those on other numbers of ranks do not count.
        dense: as for `break_even`.

    Raises:
        InputError: no dense setting was measured on so many ranks.
    """
    timed = [
        row for row in rows if row.status == "ok" and row.step_ms is not None and row.world_size == predicted.world_size
    ]
    whole = [row for row in timed if row.hook in dense]
    if not whole:
        raise InputError(
            f"No step with {' or '.join(dense)} was measured on {predicted.world_size} ranks, with which top-k could "
            "be compared: measure one."
        )
    best = min(whole, key=_step_ms)
    points = []
    for density in sorted({row.density for row in timed if row.hook == TOP_K and row.density is not None}):
        sparse = min((row for row in timed if row.hook == TOP_K and row.density == density), key=_step_ms)
        points.append(
            MeasuredPoint(
                world_size=predicted.world_size,
                density=density,
                speedup=_step_ms(best) / _step_ms(sparse),
                has_won=_has_won(sparse, best),
                predicted=predicted.density,
            )
        )
    return points


def _step_ms(row: TrainingRow) -> float:
    return row.step_ms or math.inf


def _has_won(sparse: TrainingRow, dense: TrainingRow) -> bool | None:
    """Whether top-k is faster, slower, or neither is shown; launch by launch where speedups are over that dense row."""
    low, high = sparse.speedup_ci_low, sparse.speedup_ci_high
    if (dense.hook, dense.bucket_cap_mb) == ("none", DEFAULT_CAP) and low is not None and high is not None:
        return None if low <= 1 <= high else low > 1
    bounds = (sparse.step_ms_ci_low, sparse.step_ms_ci_high, dense.step_ms_ci_low, dense.step_ms_ci_high)
    if any(bound is None for bound in bounds):
        return None
    sparse_low, sparse_high, dense_low, dense_high = (bound or 0.0 for bound in bounds)
    if sparse_high < dense_low:
        return True
    return False if sparse_low > dense_high else None
