"""What a hop costs, found by fitting the textbook time of an algorithm to what was measured, at once for all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commbench.prediction.closed_forms import Form, Hop
from commbench.prediction.curves import Curve
from commbench.prediction.links import Link

Floats = NDArray[np.float64]

#: Values tried for each of the two unknowns, in how many rounds, and over which range in the first.
_TRIED, _REFINED, _LARGEST_OVER_SMALLEST = 61, 5, 1e9


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """A curve and where it was measured."""

    curve: Curve
    world_size: int
    link: Link


@dataclass(frozen=True, kw_only=True)
class FittedHop:
    """The hop of one algorithm: latency and local work, which a faster link does not shorten, and the link's share."""

    form: Form
    alpha_us: float
    """Start of one message where every rank has a core of its own; likewise the next."""
    local_us_per_byte: float
    """A rank's own work for a byte that it sends: copying, protocol, reducing."""
    link_us_per_byte: float | None
    """The link's, where its rate is not known and has been fitted; None: it follows from the rate."""

    def at(self, link: Link, world_size: int) -> Hop:
        """The hop over a link, for so many ranks."""
        crowding = link.crowding(world_size)
        of_link = link.us_per_byte if link.rate_bps is not None else self.link_us_per_byte or 0.0
        return Hop(alpha_us=crowding * self.alpha_us, beta_us_per_byte=of_link + crowding * self.local_us_per_byte)

    def time_us(self, message_bytes: float | Floats, world_size: int, link: Link) -> Floats:
        """The algorithm's time in microseconds, of the shape of ``message_bytes``."""
        return self.form(world_size, message_bytes, self.at(link, world_size))

    def errors(self, measured: MeasuredCurve) -> Floats:
        """log(fitted / measured) at each size of a curve."""
        sizes, times = np.asarray(measured.curve.sizes, float), np.asarray(measured.curve.times_us, float)
        return np.asarray(np.log(self.time_us(sizes, measured.world_size, measured.link) / times))


def fit_hop(form: Form, measured: Sequence[MeasuredCurve]) -> FittedHop:
    """Fit latency and cost of a byte to curves on one or more numbers of ranks, by the mean absolute log error.

    Where all rates are known, the link takes what follows from its rate, and the cost of a byte that is fitted is local
    work; elsewhere all of it counts as the link's.
    """
    points = [
        (one.world_size, size, time, one.link.crowding(one.world_size), one.link.us_per_byte)
        for one in measured
        for size, time in zip(one.curve.sizes, one.curve.times_us, strict=True)
    ]
    ranks, sizes, times, crowding, of_link = np.asarray(points, float).T
    rates_are_known = not np.isnan(of_link).any()
    crowding_of_bytes, given = (crowding, of_link) if rates_are_known else (np.ones_like(crowding), 0.0)

    def loss(alpha_us: Floats, us_per_byte: Floats) -> Floats:
        hop = Hop(
            alpha_us=alpha_us[:, None, None] * crowding,
            beta_us_per_byte=given + us_per_byte[None, :, None] * crowding_of_bytes,
        )
        fitted = np.maximum(form(ranks, sizes, hop), np.finfo(float).tiny)
        return np.asarray(np.abs(np.log(fitted / times)).mean(axis=-1))

    alpha_us, us_per_byte = _minimise(loss, float(times.max()), float((times / sizes).max()))
    local, link_us = (us_per_byte, None) if rates_are_known else (0.0, us_per_byte)
    return FittedHop(form=form, alpha_us=alpha_us, local_us_per_byte=local, link_us_per_byte=link_us)


def _minimise(loss: Callable[[Floats, Floats], Floats], most_x: float, most_y: float) -> tuple[float, float]:
    """The x and y, 0 or at most the given, at which ``loss`` is least: a logarithmic grid, again and again refined.

    ``loss`` takes arrays (X,) and (Y,) and returns (X, Y).
    """
    logs = np.array([math.log(most_x), math.log(most_y)])
    reach = math.log(_LARGEST_OVER_SMALLEST)
    axes = [np.exp(np.linspace(log - reach, log, _TRIED)) for log in logs]
    best = (math.inf, 0.0, 0.0)
    for _ in range(_REFINED):
        x, y = (np.append(axis, 0.0) for axis in axes)
        losses = loss(x, y)
        row, column = np.unravel_index(int(np.argmin(losses)), losses.shape)
        best = min(best, (float(losses[row, column]), float(x[row]), float(y[column])))
        reach *= 4 / _TRIED
        axes = [
            np.exp(np.linspace(math.log(value) - reach, math.log(value) + reach, _TRIED)) if value else axis[:1]
            for value, axis in zip(best[1:], axes, strict=True)
        ]
    return best[1], best[2]
