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

#: Values tried for each of two or three unknowns, in how many rounds, and over which range in the first.
_TRIED, _REFINED, _LARGEST_OVER_SMALLEST = {2: 61, 3: 25}, 8, 1e9


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
    call_us: float = 0.0
    """What an operation takes whatever its ranks and bytes: threads that wake up, for instance."""

    def at(self, link: Link, world_size: int) -> Hop:
        """The hop over a link, for so many ranks."""
        crowding = link.crowding(world_size)
        of_link = link.us_per_byte if link.rate_bps is not None else self.link_us_per_byte or 0.0
        return Hop(alpha_us=crowding * self.alpha_us, beta_us_per_byte=of_link + crowding * self.local_us_per_byte)

    def time_us(self, message_bytes: float | Floats, world_size: int, link: Link) -> Floats:
        """The algorithm's time in microseconds, of the shape of ``message_bytes``."""
        return self.call_us + self.form(world_size, message_bytes, self.at(link, world_size))

    def errors(self, measured: MeasuredCurve) -> Floats:
        """log(fitted / measured) at each size of a curve."""
        sizes, times = np.asarray(measured.curve.sizes, float), np.asarray(measured.curve.times_us, float)
        return np.asarray(np.log(self.time_us(sizes, measured.world_size, measured.link) / times))


def fit_hop(form: Form, measured: Sequence[MeasuredCurve]) -> FittedHop:
    """Fit what a hop costs to curves on one or more numbers of ranks, by the mean absolute log error.

    Where all rates are known, the link takes what follows from its rate, and the cost of a byte that is fitted is local
    work; elsewhere all of it counts as the link's. What does not grow with the ranks shows on several numbers of them
    only.
    """
    points = [
        (one.world_size, size, time, one.link.crowding(one.world_size), one.link.us_per_byte)
        for one in measured
        for size, time in zip(one.curve.sizes, one.curve.times_us, strict=True)
    ]
    ranks, sizes, times, crowding, of_link = np.asarray(points, float).T
    rates_are_known = not np.isnan(of_link).any()
    crowding_of_bytes, given = (crowding, of_link) if rates_are_known else (np.ones_like(crowding), 0.0)

    def loss(alpha_us: Floats, us_per_byte: Floats, call_us: Floats | float = 0.0) -> Floats:
        hop = Hop(alpha_us=alpha_us * crowding, beta_us_per_byte=given + us_per_byte * crowding_of_bytes)
        fitted = np.maximum(call_us + form(ranks, sizes, hop), np.finfo(float).tiny)
        return np.asarray(np.abs(np.log(fitted / times)).mean(axis=-1))

    most = [float(times.max()), float((times / sizes).max())]
    several = len(set(ranks.tolist())) > 1
    alpha_us, us_per_byte, *call_us = _minimise(loss, [*most, float(times.max())] if several else most)
    local, link_us = (us_per_byte, None) if rates_are_known else (0.0, us_per_byte)
    return FittedHop(
        form=form,
        alpha_us=alpha_us,
        local_us_per_byte=local,
        link_us_per_byte=link_us,
        call_us=call_us[0] if call_us else 0.0,
    )


def _minimise(loss: Callable[..., Floats], most: Sequence[float]) -> list[float]:
    """The arguments, each 0 or at most the given, at which ``loss`` is least: a logarithmic grid, refined again.

    ``loss`` takes an array an argument, of shapes that broadcast and end in an axis of length 1, and returns one
    without that axis.
    """
    tried, reach = _TRIED[len(most)], math.log(_LARGEST_OVER_SMALLEST) / 2
    middles = [math.log(value) - reach for value in most]
    best = math.inf, [0.0] * len(most)
    for _ in range(_REFINED):
        axes = [np.append(np.exp(np.linspace(middle - reach, middle + reach, tried)), 0.0) for middle in middles]
        losses = loss(*(axis[..., None] for axis in np.ix_(*axes)))
        at = np.unravel_index(int(np.argmin(losses)), losses.shape)
        found = [float(axis[i]) for axis, i in zip(axes, at, strict=True)]
        best = min(best, (float(losses[at]), found))
        reach *= 4 / tried
        middles = [math.log(value) if value else middle for value, middle in zip(best[1], middles, strict=True)]
    return best[1]
