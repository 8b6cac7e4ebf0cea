"""How long an operation takes over its message size: piecewise alpha + beta n, fitted to launches, with its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.stats import Interval


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of message sizes over which time = alpha + beta n."""

    from_bytes: int
    to_bytes: int
    alpha_us: float
    beta_us_per_byte: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Time over message size of one operation, as measured and as fitted."""

    sizes: Sequence[int]
    """Message sizes that were measured, in bytes, ascending."""
    times_us: Sequence[float]
    """The median over launches at each."""
    segments: Sequence[Segment]
    """Ascending and adjacent."""
    residuals: Sequence[float]
    """(fitted - measured) / measured at each size."""
    held_out_error: float | None = None
    """Median absolute relative error at sizes left out of the fit; None where there are too few to leave one out."""

    def time_us(self, message_bytes: float) -> float:
        """The predicted time; monotone interpolation inside the data, the outer segments' lines beyond."""
        raise NotImplementedError

    def interval_us(self, message_bytes: float) -> Interval | None:
        """Its 95 % interval, by resampling launches; None where there are too few."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Curve:
        """Return what `to_json` wrote."""
        raise NotImplementedError


def fit_curve(sizes: Sequence[int], launches_us: Sequence[Sequence[float]]) -> Curve:
    """Fit a curve to relative error, with breakpoints chosen by BIC.

    Args:
        sizes: message sizes in bytes.
        launches_us: for each size the median time of every launch.
    """
    raise NotImplementedError
