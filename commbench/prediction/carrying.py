"""What was measured of an algorithm, carried over to other ranks and links: never faster than the link."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from commbench.prediction.hops import FittedHop, MeasuredCurve
from commbench.prediction.links import Link
from commbench.stats import Floats

#: Numbers of ranks in each doubling at which times are made non-decreasing; between them they are interpolated.
_STEPS = 4
_TINY = 1e-9


def carried_us(
    hop: FittedHop, measured: MeasuredCurve, *, alike_bytes: Floats, message_bytes: float, ranks: Floats, link: Link
) -> Floats:
    """Times of a message on each number of ranks over a link, from what was measured of ones of ``alike_bytes``.

    What the link takes follows from its rate; the rest of what was measured, start-up and local work, grows as the
    textbook's rest does: t = link there + (measured - link here) (rest there) / (rest here). So nothing beats its link,
    nor does a slower link slow down further what was slow for another reason. But nothing exceeds the textbook by a
    larger factor there than here: where the textbook has hardly any rest, what was measured beyond it is noise.
    """
    time_us = np.array([measured.curve.time_us(size) for size in alike_bytes])
    here_us = hop.time_us(alike_bytes, measured.world_size, measured.link)
    there_us = hop.time_us(message_bytes, ranks, link)
    as_whole_us = there_us * time_us / here_us
    if link.rate_bps is None:
        return np.asarray(as_whole_us)
    link_here_us = hop.link_us(alike_bytes, measured.world_size, measured.link)
    link_there_us = hop.link_us(message_bytes, ranks, link)
    rest_us = here_us - link_here_us
    share = (time_us - link_here_us) / np.where(rest_us > 0, rest_us, math.inf)
    apart_us = np.where(rest_us > 0, link_there_us + share * (there_us - link_there_us), as_whole_us)
    found_us = np.where(time_us < here_us, apart_us, np.minimum(apart_us, as_whole_us))
    # What beats its link has fewer headers than was assumed: at least none.
    beating_us = link_there_us * np.maximum(link.payload, time_us / np.maximum(link_here_us, _TINY))
    found_us = np.where(time_us < link_here_us, beating_us, np.maximum(found_us, link_there_us))
    is_here = (ranks == measured.world_size) & (alike_bytes == message_bytes) & measured.holds(message_bytes, link)
    return np.where(is_here, time_us, found_us)


def rising_us(times_us: Callable[[Floats], Floats], measured: Sequence[int], world_size: int) -> float:
    """The time on so many ranks, made non-decreasing from one measured number of ranks to the next and beyond.

    Args:
        times_us: of numbers of ranks, not necessarily whole.
        measured: numbers of ranks, ascending, at which the time stays.
        world_size: which is asked for.
    """
    below = [ranks for ranks in measured if ranks <= world_size]
    above = [ranks for ranks in measured if ranks >= world_size]
    start = below[-1] if below else above[0]
    place = _STEPS * math.log2(world_size / start)
    steps = np.arange(math.ceil(abs(place) - _TINY) + 1)
    knots = start * 2 ** (math.copysign(1, place) * steps / _STEPS)
    level_us = (np.maximum if below else np.minimum).accumulate(times_us(knots))
    upwards = slice(None, None, 1 if knots[-1] < start else -1)
    # Over 1/p the link's (p-1)/p is straight.
    found_us = float(np.interp(1 / world_size, 1 / knots[upwards], level_us[upwards]))
    if below and above:  # a time between two that were measured is no longer than both
        found_us = min(found_us, max(float(level_us[0]), float(times_us(np.array(above[:1], float))[0])))
    return found_us
