"""Fits of each possible algorithm's cost per hop to measured times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from commbench.analysis.prediction.closed_forms import ALGORITHMS, Form, Hop, hierarchical_all_reduce, ring_all_reduce
from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.links import WITHIN_HOST, Link
from commbench.collectives.backends import backend_of_any_tool
from commbench.collectives.operations import OPERATIONS
from commbench.errors import InputError
from commbench.stats import Floats

#: Grid search: values per axis by the number of unknowns, rounds, and the range of the first round (largest /
#: smallest).
_TRIED, _REFINED, _LARGEST_OVER_SMALLEST = {2: 61, 3: 25}, 8, 1e9


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """A curve with its number of ranks and link."""

    curve: Curve
    world_size: int
    link: Link

    def covers(self, message_bytes: float, link: Link) -> bool:
        """Return whether messages of this size, or of sizes around it, were measured over an equivalent link."""
        sizes = self.curve.sizes
        return sizes[0] <= message_bytes <= sizes[-1] and link.is_like(self.link, self.world_size)


@dataclass(frozen=True, kw_only=True)
class FittedHop:
    """One algorithm's fitted cost per hop: the part that a faster link shortens and the part that it does not."""

    form: Form
    alpha_us: float
    """Start-up time of a message. This and the next two hold if every rank has its own core."""
    local_us_per_byte: float = 0.0
    """A rank's own work per byte sent, independent of the link: copying, protocol, reduction."""
    link_excess: float = 0.0
    """Share by which the link takes longer than its nominal rate implies."""
    link_us_per_byte: float | None = None
    """Fitted time of the link per byte if its rate is unknown; None: the rate gives it."""
    call_us: float = 0.0
    """Fixed time of a call, independent of ranks and bytes, for instance to wake threads."""

    def at(self, link: Link, world_size: float | Floats) -> Hop:
        """Return the hop's cost over a link for ``world_size`` ranks."""
        oversubscription = link.oversubscription(world_size)
        of_link = link.us_per_byte if link.rate_bps is not None else self.link_us_per_byte or 0.0
        beta = of_link * (1 + oversubscription * self.link_excess) + oversubscription * self.local_us_per_byte
        return Hop(alpha_us=oversubscription * self.alpha_us, beta_us_per_byte=beta)

    def time_us(self, message_bytes: float | Floats, world_size: float | Floats, link: Link) -> Floats:
        """Return the algorithm's time in microseconds, in the shape of ``message_bytes``."""
        return self.call_us + self.form(world_size, message_bytes, self.at(link, world_size))

    def link_us(self, message_bytes: float | Floats, world_size: float | Floats, link: Link) -> Floats:
        """Return the time of the link alone for the algorithm's bytes, in microseconds."""
        beta = link.us_per_byte if link.rate_bps is not None else self.link_us_per_byte or 0.0
        with_bytes, without_bytes = (Hop(alpha_us=0.0, beta_us_per_byte=us_per_byte) for us_per_byte in (beta, 0.0))
        return self.form(world_size, message_bytes, with_bytes) - self.form(world_size, message_bytes, without_bytes)

    def start_up_share(self, message_bytes: float, world_size: int, link: Link) -> float:
        """Return the share of the time that does not depend on the bytes."""
        start = dataclasses.replace(self.at(link, world_size), beta_us_per_byte=0.0)
        start_us = self.call_us + float(self.form(world_size, message_bytes, start))
        return start_us / float(self.time_us(message_bytes, world_size, link))

    def lower_bound_us(self, message_bytes: float, world_size: int, link: Link) -> float:
        """Return the link's time without any headers, which no time can undercut; 0 if the rate is unknown."""
        bare = dataclasses.replace(link, payload=1.0)
        return 0.0 if link.rate_bps is None else float(self.link_us(message_bytes, world_size, bare))

    def errors(self, measured: MeasuredCurve) -> Floats:
        """Return log(fitted / measured) at each size of a curve."""
        sizes, times = np.asarray(measured.curve.sizes, float), np.asarray(measured.curve.times_us, float)
        return np.asarray(np.log(self.time_us(sizes, measured.world_size, measured.link) / times))


def fit_hop(form: Form, measured: Sequence[MeasuredCurve]) -> FittedHop:
    """Fit the cost per hop to curves on one or more numbers of ranks; minimise the mean absolute log error.

    If a rate is unknown, the whole cost per byte is the link's. If all rates are known, the cost per byte beyond the
    rate is either inefficiency of the link or local work:

    - Over several rates, the better fit decides.
    - Over one rate, it is the link's inefficiency if it is less than the link's time. Local work of that length would
      overlap with the transfer of the next segment.

    The fixed time of a call is fitted only if several numbers of ranks were measured.
    """
    if any(curve.link.rate_bps is None for curve in measured):
        fitted, _ = _fit(form, measured, "link_us_per_byte")
        return fitted
    local, loss = _fit(form, measured, "local_us_per_byte")
    rates = {curve.link.rate_bps for curve in measured}
    if math.inf in rates:
        return local
    excess, loss_of_link = _fit(form, measured, "link_excess")
    if len(rates) > 1:
        return excess if loss_of_link < loss else local
    widest = max(float(curve.link.oversubscription(curve.world_size)) for curve in measured)
    return excess if widest * excess.link_excess < 1 else local


def _fit(form: Form, measured: Sequence[MeasuredCurve], name: str) -> tuple[FittedHop, float]:
    """Return the best fit with field ``name`` as the cost per byte beyond the link's rate, and its loss."""
    points = [
        (curve.world_size, size, time, float(curve.link.oversubscription(curve.world_size)), curve.link.us_per_byte)
        for curve in measured
        for size, time in zip(curve.curve.sizes, curve.curve.times_us, strict=True)
    ]
    ranks, sizes, times, oversubscription, of_link = np.asarray(points, float).T
    fixed_us, unit, largest = {
        "link_us_per_byte": (np.zeros_like(times), np.ones_like(times), float((times / sizes).max())),
        "local_us_per_byte": (of_link, oversubscription, float((times / sizes).max())),
        "link_excess": (of_link, of_link * oversubscription, 10.0),
    }[name]

    def loss(alpha_us: Floats, fitted_cost: Floats, call_us: Floats | float = 0.0) -> Floats:
        hop = Hop(alpha_us=alpha_us * oversubscription, beta_us_per_byte=fixed_us + fitted_cost * unit)
        fitted = np.maximum(call_us + form(ranks, sizes, hop), np.finfo(float).tiny)
        return np.asarray(np.abs(np.log(fitted / times)).mean(axis=-1))

    longest = float(times.max())
    has_several_ranks = len(set(ranks.tolist())) > 1
    (alpha_us, cost, *call_us), loss_at_minimum = _minimise(
        loss, [longest, largest, longest] if has_several_ranks else [longest, largest]
    )
    fields = {name: cost, "call_us": call_us[0] if call_us else 0.0}
    return FittedHop(form=form, alpha_us=alpha_us, **fields), loss_at_minimum


def _minimise(loss: Callable[..., Floats], largest: Sequence[float]) -> tuple[list[float], float]:
    """Return the arguments that minimise ``loss`` and the minimum, by a logarithmic grid that is refined.

    scipy.optimize.differential_evolution finds the same minima in 20 times the time, and its bounds exclude 0.

    Args:
        loss: takes one array for each argument; they broadcast and end in an axis of length 1, which the result lacks.
        largest: the largest value of each argument; each may also be 0.
    """
    values, half_range = _TRIED[len(largest)], math.log(_LARGEST_OVER_SMALLEST) / 2
    middles = [math.log(value) - half_range for value in largest]
    best = math.inf, [0.0] * len(largest)
    for _ in range(_REFINED):
        axes = [
            np.append(np.exp(np.linspace(middle - half_range, middle + half_range, values)), 0.0) for middle in middles
        ]
        losses = loss(*(axis[..., None] for axis in np.ix_(*axes)))
        at = np.unravel_index(int(np.argmin(losses)), losses.shape)
        arguments = [float(axis[i]) for axis, i in zip(axes, at, strict=True)]
        best = min(best, (float(losses[at]), arguments))
        half_range *= 4 / values
        middles = [math.log(value) if value else middle for value, middle in zip(best[1], middles, strict=True)]
    return best[1], best[0]


#: Patterns with more ranks on more hosts.
GROWING_PATTERNS = ("flat", "cross", "hierarchical")


def closed_forms_of(
    operation: str, backend: str, pattern: str, *, ranks_per_node: int = 1, inner: Curve | None = None
) -> dict[str, Form]:
    """Return the closed forms that may describe an operation, by algorithm; one if the backend's algorithm is known.

    Args:
        operation: as in ``collectives.csv``.
        backend: Gloo's algorithms are known; other libraries choose by message size and number of ranks.
        pattern: see `GROWING_PATTERNS`.
        ranks_per_node: ranks on each host.
        inner: the operation within each host (pattern ``node``); for ``hierarchical``.

    Raises:
        InputError: the operation or the pattern has no closed form.
    """
    forms = ALGORITHMS.get(operation)
    if forms is None:
        raise InputError(
            f"No closed form of {operation} over the number of ranks exists; choose from {', '.join(ALGORITHMS)}."
        )
    algorithm = OPERATIONS[operation].gloo_algorithm if backend_of_any_tool(backend).has_fixed_algorithms else ""
    chosen = {algorithm: forms[algorithm]} if algorithm else forms
    if pattern == "flat":
        return dict(chosen)
    if pattern == "cross":
        return {name: _across(form, ranks_per_node) for name, form in chosen.items()}
    if pattern == "hierarchical" and operation == "all_reduce" and algorithm:
        return {"hierarchical rings": _hierarchical(ranks_per_node, inner)}
    raise InputError(f"No closed form of {backend} {operation} in pattern {pattern} exists; choose flat or cross.")


def _across(form: Form, k: int) -> Form:
    """Return the form of a group of every k-th rank: k groups share the hosts' links at the same time."""
    return lambda p, n, hop: form(
        np.asarray(p, float) / k, n, dataclasses.replace(hop, beta_us_per_byte=k * hop.beta_us_per_byte)
    )


def _hierarchical(k: int, inner: Curve | None) -> Form:
    """Return the form of a hierarchical operation on hosts of k ranks; zero cost within hosts without ``inner``."""
    within = Hop(alpha_us=0.0, beta_us_per_byte=0.0)
    if inner:
        measured = MeasuredCurve(curve=inner, world_size=k, link=WITHIN_HOST)
        within = fit_hop(ring_all_reduce, [measured]).at(WITHIN_HOST, k)
    return lambda p, n, hop: hierarchical_all_reduce(p, n, within, hop, k)
