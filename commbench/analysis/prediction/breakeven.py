"""Break-evens with dense gradients: the density below which top-k pays, and the link rate below
which a hook does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from commbench.analysis.prediction.larger import (
    best_buckets,
    model_with_density,
)
from commbench.analysis.prediction.steps import StepModel
from commbench.ddp.plan.cases import DEFAULT_CAP
from commbench.ddp.plan.records import TrainingRow
from commbench.errors import InputError
from commbench.hooks.registry import NONE, TOP_K, gathered_density, hook_words

#: Range of the search for a break-even density, and the halvings that find it to 2 %.
SPARSEST, DENSEST = 1e-5, 1.0
_HALVINGS = 9


def crossing(
    is_faster: Callable[[float], bool], low: float, high: float, halvings: int
) -> float | None:
    """Return where a hook stops to be faster, by bisection.

    ``high`` if it always is, None if it is not at ``low``.
    """
    if is_faster(high):
        return high
    if not is_faster(low):
        return None
    for _ in range(halvings):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_faster(middle) else (low, middle)
    return math.sqrt(low * high)


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The density at which top-k and the best dense setting take equally long, on one network."""

    world_size: int
    dense_ms: float
    """The shortest step with dense gradients."""
    density: float | None
    """Top-k is faster below it; `DENSEST` if top-k is always faster, None if never."""

    @property
    def byte_density(self) -> float:
        """Above it top-k sends more bytes than a ring all_reduce of float32: 8 (p-1) dn = 8 (p-1)/p
        n.
        """
        return 1 / self.world_size


@dataclass(frozen=True, kw_only=True)
class BreakEvenSearch:
    """The search for the break-even on one network.

    Steps are cached between searches with other handicaps.
    """

    model: StepModel
    """On the network of the search (`commbench.analysis.prediction.larger.model_on_network`)."""
    caps: Sequence[str]
    """Bucket sizes to choose from; each side uses its best."""
    dense: Sequence[str] = ("none",)
    """Hooks that send dense gradients, by name."""
    _cached_ms: dict[float, float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def dense_ms(self) -> float:
        """The shortest step with dense gradients.

        Raises:
            InputError: the network lacks a collective that a hook uses.
        """
        return min(best_buckets(self.model, hook, self.caps).step_ms for hook in self.dense)

    def density(self, *, handicap: float = 1.0, halvings: int = _HALVINGS) -> float | None:
        """Return the break-even density; `DENSEST` if top-k is always faster, None if never.

        Args:
            handicap: factor on the steps with top-k, to find the ends of an interval.
            halvings: of the range between `SPARSEST` and `DENSEST`.

        Raises:
            InputError: no top-k was measured, or the network lacks a collective that a hook uses.
        """
        return crossing(
            lambda d: handicap * self._sparse_ms(d) < self.dense_ms, SPARSEST, DENSEST, halvings
        )

    def _sparse_ms(self, density: float) -> float:
        if density not in self._cached_ms:
            sparse, name = model_with_density(self.model, density)
            self._cached_ms[density] = best_buckets(sparse, name, self.caps).step_ms
        return self._cached_ms[density]


def break_even(
    model: StepModel, caps: Sequence[str], *, dense: Sequence[str] = ("none",)
) -> BreakEven:
    """Find the break-even density by bisection; arguments as for `BreakEvenSearch`.

    Raises:
        InputError: as `BreakEvenSearch.density`.
    """
    search = BreakEvenSearch(model=model, caps=caps, dense=dense)
    return BreakEven(
        world_size=model.network.world_size, dense_ms=search.dense_ms, density=search.density()
    )


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """Top-k of one density against the best dense setting: measured result and prediction."""

    world_size: int
    density: float
    speedup: float
    """Dense step over the step with top-k."""
    has_won: bool | None
    """Whether top-k is faster; None if the speedup's interval contains 1 or the steps' intervals
    overlap."""
    predicted: float | None
    """The predicted break-even density."""

    @property
    def agrees(self) -> bool | None:
        """Whether the measured result agrees with the prediction.

        None if the measurement is undecided.
        """
        if self.has_won is None:
            return None
        return self.has_won == (self.predicted is not None and self.density < self.predicted)


def compare_with_measured(
    predicted: BreakEven, rows: Sequence[TrainingRow], *, dense: Sequence[str] = ("none",)
) -> list[MeasuredPoint]:
    """Return for every measured density whether top-k won and whether that was predicted, at the
    best bucket sizes.

    Args:
        predicted: the break-even on the network on which ``rows`` were measured.
        rows: of ``ddp.csv``, of one workload and batch; rows on other numbers of ranks are ignored.
        dense: as for `break_even`.

    Raises:
        InputError: no dense setting was measured on that number of ranks.
    """
    timed = [
        row
        for row in rows
        if row.status == "ok" and row.step_ms is not None and row.world_size == predicted.world_size
    ]
    dense_rows = [row for row in timed if row.hook in dense]
    if not dense_rows:
        raise InputError(
            f"Top-k cannot be compared: no step with {' or '.join(dense)} was measured on"
            f" {predicted.world_size} ranks; measure one."
        )
    best = min(dense_rows, key=_step_ms)
    points = []
    gathered = [(density, row) for row in timed if (density := _gathered_density(row)) is not None]
    for density in sorted({density for density, _ in gathered}):
        sparse = min((row for its_density, row in gathered if its_density == density), key=_step_ms)
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


def measured_break_even(points: Sequence[MeasuredPoint]) -> float | None:
    """Return the density at which top-k and the dense step took equally long.

    None if all points lie on one side.

    Selecting, sending and adding values take time in proportion to their number. So the ratio of
    both steps is interpolated linearly over the density, between the last point that won and the
    next.

    Args:
        points: of one network.
    """
    ratios = sorted((point.density, 1 / point.speedup) for point in points)
    crossings = [
        sparser + (1 - ratio) / (next_ratio - ratio) * (denser - sparser)
        for (sparser, ratio), (denser, next_ratio) in pairwise(ratios)
        if ratio <= 1 < next_ratio
    ]
    return crossings[-1] if crossings else None


def _gathered_density(row: TrainingRow) -> float | None:
    """Return the density of a row with top-k whose ranks gather elements; None for other rows."""
    return (
        gathered_density(hook_words(row.hook, row.density, row.hook_options))
        if row.hook == TOP_K
        else None
    )


def _step_ms(row: TrainingRow) -> float:
    return row.step_ms or math.inf


def _has_won(sparse: TrainingRow, dense: TrainingRow) -> bool | None:
    """Return whether top-k is faster; None if undecided.

    Uses the paired speedup if its baseline is that dense row.
    """
    low, high = sparse.speedup_ci_low, sparse.speedup_ci_high
    if (
        (dense.hook, dense.bucket_cap_mb) == (NONE, DEFAULT_CAP)
        and low is not None
        and high is not None
    ):
        return None if low <= 1 <= high else low > 1
    bounds = (
        sparse.step_ms_ci_low,
        sparse.step_ms_ci_high,
        dense.step_ms_ci_low,
        dense.step_ms_ci_high,
    )
    if any(bound is None for bound in bounds):
        return None
    sparse_low, sparse_high, dense_low, dense_high = (bound or 0.0 for bound in bounds)
    if sparse_high < dense_low:
        return True
    return False if sparse_low > dense_high else None
