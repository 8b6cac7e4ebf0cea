"""The algorithms that an operation may run on a backend, and what a pattern makes of their textbook times."""

from __future__ import annotations

import dataclasses

import numpy as np

from commbench.analysis.prediction.closed_forms import ALGORITHMS, Form, Hop, hierarchical_all_reduce, ring_all_reduce
from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.hops import MeasuredCurve, fit_hop
from commbench.analysis.prediction.links import WITHIN_HOST
from commbench.collectives.operations import OPERATIONS
from commbench.errors import InputError

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
