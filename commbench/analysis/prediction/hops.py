"""The algorithms that an operation may run on a backend, and the cost of a hop fitted to measured times of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from commbench.analysis.prediction.closed_forms import ALGORITHMS, Form, Hop, hierarchical_all_reduce, ring_all_reduce
from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.links import WITHIN_HOST, Link
from commbench.collectives.operations import OPERATIONS
from commbench.errors import InputError
from commbench.stats import Floats

#: Values tried for each of two or three unknowns, in how many rounds, and over which range in the first.
_TRIED, _REFINED, _LARGEST_OVER_SMALLEST = {2: 61, 3: 25}, 8, 1e9


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """A curve and where it was measured."""

    curve: Curve
    world_size: int
    link: Link

    def holds(self, message_bytes: float, link: Link) -> bool:
        """Whether such a message was measured over such a link, or one between two that were."""
        sizes = self.curve.sizes
        return sizes[0] <= message_bytes <= sizes[-1] and link.is_like(self.link, self.world_size)


@dataclass(frozen=True, kw_only=True)
class FittedHop:
    """The hop of one algorithm: what a faster link shortens, and what it does not."""

    form: Form
    alpha_us: float
    """Start of one message. This and the next two hold where every rank has a core of its own."""
    local_us_per_byte: float = 0.0
    """A rank's own work for a byte that it sends, whatever the link: copying, protocol, reducing."""
    link_excess: float = 0.0
    """Share by which the link takes longer than its rate says."""
    link_us_per_byte: float | None = None
    """The link's, where its rate is not known and has been fitted; None: it follows from the rate."""
    call_us: float = 0.0
    """What an operation takes whatever its ranks and bytes: threads that wake up, for instance."""

    def at(self, link: Link, world_size: float | Floats) -> Hop:
        """The hop over a link, for so many ranks."""
        crowding = link.crowding(world_size)
        of_link = link.us_per_byte if link.rate_bps is not None else self.link_us_per_byte or 0.0
        beta = of_link * (1 + crowding * self.link_excess) + crowding * self.local_us_per_byte
        return Hop(alpha_us=crowding * self.alpha_us, beta_us_per_byte=beta)

    def time_us(self, message_bytes: float | Floats, world_size: float | Floats, link: Link) -> Floats:
        """The algorithm's time in microseconds, of the shape of ``message_bytes``."""
        return self.call_us + self.form(world_size, message_bytes, self.at(link, world_size))

    def link_us(self, message_bytes: float | Floats, world_size: float | Floats, link: Link) -> Floats:
        """What the link alone takes for the algorithm's bytes, in microseconds."""
        beta = link.us_per_byte if link.rate_bps is not None else self.link_us_per_byte or 0.0
        carried, nothing = (Hop(alpha_us=0.0, beta_us_per_byte=each) for each in (beta, 0.0))
        return self.form(world_size, message_bytes, carried) - self.form(world_size, message_bytes, nothing)

    def start_up(self, message_bytes: float, world_size: int, link: Link) -> float:
        """The share of the time that is no byte's."""
        start = dataclasses.replace(self.at(link, world_size), beta_us_per_byte=0.0)
        start_us = self.call_us + float(self.form(world_size, message_bytes, start))
        return start_us / float(self.time_us(message_bytes, world_size, link))

    def least_us(self, message_bytes: float, world_size: int, link: Link) -> float:
        """What the link takes if there are no headers at all: less is impossible. 0 where its rate is not known."""
        bare = dataclasses.replace(link, payload=1.0)
        return 0.0 if link.rate_bps is None else float(self.link_us(message_bytes, world_size, bare))

    def errors(self, measured: MeasuredCurve) -> Floats:
        """log(fitted / measured) at each size of a curve."""
        sizes, times = np.asarray(measured.curve.sizes, float), np.asarray(measured.curve.times_us, float)
        return np.asarray(np.log(self.time_us(sizes, measured.world_size, measured.link) / times))


def fit_hop(form: Form, measured: Sequence[MeasuredCurve]) -> FittedHop:
    """Fit what a hop costs to curves on one or more numbers of ranks, by the mean absolute log error.

    Where a rate is not known the whole cost of a byte counts as the link's. Where all are, what a byte takes beyond its
    link is either the link's own inefficiency or local work: over several rates whichever fits better; over one rate
    the link's while it is less than what the link takes, since local work hides behind the transfer of the next segment
    as long as that takes longer. What does not grow with the ranks shows on several numbers of them only.
    """
    if any(one.link.rate_bps is None for one in measured):
        found, _ = _fit(form, measured, "link_us_per_byte")
        return found
    local, loss = _fit(form, measured, "local_us_per_byte")
    rates = {one.link.rate_bps for one in measured}
    if math.inf in rates:
        return local
    excess, loss_of_link = _fit(form, measured, "link_excess")
    if len(rates) > 1:
        return excess if loss_of_link < loss else local
    widest = max(float(one.link.crowding(one.world_size)) for one in measured)
    return excess if widest * excess.link_excess < 1 else local


def _fit(form: Form, measured: Sequence[MeasuredCurve], name: str) -> tuple[FittedHop, float]:
    """The best fit whose cost of a byte beyond the link's own is the field of that name, and its loss."""
    points = [
        (one.world_size, size, time, float(one.link.crowding(one.world_size)), one.link.us_per_byte)
        for one in measured
        for size, time in zip(one.curve.sizes, one.curve.times_us, strict=True)
    ]
    ranks, sizes, times, crowding, of_link = np.asarray(points, float).T
    given, unit, most = {
        "link_us_per_byte": (np.zeros_like(times), np.ones_like(times), float((times / sizes).max())),
        "local_us_per_byte": (of_link, crowding, float((times / sizes).max())),
        "link_excess": (of_link, of_link * crowding, 10.0),
    }[name]

    def loss(alpha_us: Floats, each: Floats, call_us: Floats | float = 0.0) -> Floats:
        hop = Hop(alpha_us=alpha_us * crowding, beta_us_per_byte=given + each * unit)
        fitted = np.maximum(call_us + form(ranks, sizes, hop), np.finfo(float).tiny)
        return np.asarray(np.abs(np.log(fitted / times)).mean(axis=-1))

    longest = float(times.max())
    several = len(set(ranks.tolist())) > 1
    (alpha_us, cost, *call_us), least = _minimise(loss, [longest, most, longest] if several else [longest, most])
    fields = {name: cost, "call_us": call_us[0] if call_us else 0.0}
    return FittedHop(form=form, alpha_us=alpha_us, **fields), least


def _minimise(loss: Callable[..., Floats], most: Sequence[float]) -> tuple[list[float], float]:
    """The arguments, each 0 or at most the given, at which ``loss`` is least, and that: a logarithmic grid, refined.

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
    return best[1], best[0]


#: Patterns that more hosts make larger.
GROWING_PATTERNS = ("flat", "cross", "hierarchical")


def forms_of(
    operation: str, backend: str, pattern: str, *, ranks_per_node: int = 1, inner: Curve | None = None
) -> dict[str, Form]:
    """The textbook times that may be those of an operation, by algorithm: one where the backend's is known.

    Args:
        operation: as in ``collectives.csv``.
        backend: the algorithm of gloo is known; other libraries choose by message size and number of ranks.
        pattern: see `GROWING_PATTERNS`.
        ranks_per_node: ranks of each host.
        inner: the same operation within each host (pattern ``node``), for ``hierarchical``.

    Raises:
        InputError: there is no textbook time of the operation or of the pattern.
    """
    forms = ALGORITHMS.get(operation)
    if forms is None:
        raise InputError(f"How {operation} grows with the ranks is not known; choose from {', '.join(ALGORITHMS)}.")
    known = OPERATIONS[operation].gloo_algorithm if backend == "gloo" else ""
    chosen = {known: forms[known]} if known else forms
    if pattern == "flat":
        return dict(chosen)
    if pattern == "cross":
        return {name: _across(form, ranks_per_node) for name, form in chosen.items()}
    if pattern == "hierarchical" and operation == "all_reduce" and known:
        return {"hierarchical rings": _hierarchical(ranks_per_node, inner)}
    raise InputError(f"How pattern {pattern} of {backend} {operation} grows is not known; choose flat or cross.")


def _across(form: Form, k: int) -> Form:
    """One group of each k-th rank of the hosts: k groups at the same time share the hosts' links."""
    return lambda p, n, hop: form(
        np.asarray(p, float) / k, n, dataclasses.replace(hop, beta_us_per_byte=k * hop.beta_us_per_byte)
    )


def _hierarchical(k: int, inner: Curve | None) -> Form:
    """What is done within hosts of k ranks takes what was measured there, or nothing."""
    within = Hop(alpha_us=0.0, beta_us_per_byte=0.0)
    if inner:
        measured = MeasuredCurve(curve=inner, world_size=k, link=WITHIN_HOST)
        within = fit_hop(ring_all_reduce, [measured]).at(WITHIN_HOST, k)
    return lambda p, n, hop: hierarchical_all_reduce(p, n, within, hop, k)
