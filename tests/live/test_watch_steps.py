"""The parts of a step from the marks of its passes, with marks written by hand."""

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

from commbench.live.passes import Pass
from commbench.live.watch_steps import (
    BACKWARD,
    BROADCAST,
    EXPOSED,
    FORWARD,
    OPTIMIZER,
    STEP,
    split_step,
)

MS = 1_000_000


def at(*milliseconds: float) -> list[int]:
    """Return marks of the host's clock."""
    return [round(MS * each) for each in milliseconds]


def make_step(
    index: int,
    forwards: Sequence[float],
    backwards: Sequence[tuple[float, float]],
    updates: Sequence[tuple[float, float]] = (),
) -> Pass:
    """Return a step with passes and optimiser steps at these milliseconds."""
    step = Pass(index=index)
    step.forwards += at(*forwards)
    for marks, spans in ((step.backwards, backwards), (step.updates, updates)):
        marks += [(begin, end) for begin, end in (at(*span) for span in spans)]
    return step


def parts(
    before: Pass, step: Pass, last_gradient: float, broadcasts: Sequence[tuple[float, float]] = ()
) -> list[float]:
    """Return the milliseconds of a step and of its parts."""
    (step.last_gradient,) = at(last_gradient)
    step.broadcasts = [(begin, end) for begin, end in (at(*span) for span in broadcasts)]
    return split_step(before, step)


#: A step that ends at 10 ms, and whose optimiser takes 2 ms afterwards.
BEFORE = make_step(0, [0], [(4, 10)], [(11, 13)])


def test_a_step_lasts_from_one_exchange_to_the_next() -> None:
    """Count the optimiser after the exchange, the next passes, and leave 3 ms of loading data and
    the like.
    """
    found = parts(BEFORE, make_step(1, [15], [(20, 30)]), last_gradient=26)
    assert 20 == found[STEP]
    assert (5, 6, 4, 2, 0) == (
        found[FORWARD],
        found[BACKWARD],
        found[EXPOSED],
        found[OPTIMIZER],
        found[BROADCAST],
    )
    assert 3 == found[STEP] - sum(found[STEP + 1 :])


def test_accumulated_passes_count_together() -> None:
    """Sum passes, and take exposed communication from the last backward pass alone.

    Gaps between passes are no part.
    """
    step = make_step(1, [14, 24], [(16, 20), (27, 33)])
    found = parts(BEFORE, step, last_gradient=32)
    assert (5, 9, 1, 2) == (found[FORWARD], found[BACKWARD], found[EXPOSED], found[OPTIMIZER])
    assert 23 - 5 - 9 - 1 - 2 == found[STEP] - sum(found[STEP + 1 :])


def test_a_broadcast_is_no_part_of_the_forward_pass() -> None:
    """Take the broadcast of buffers out of the forward pass in which DDP makes it."""
    found = parts(BEFORE, make_step(1, [15], [(20, 30)]), last_gradient=26, broadcasts=[(15, 18)])
    assert (3, 2) == (found[BROADCAST], found[FORWARD])


def test_a_forward_pass_without_a_backward_pass_is_left_out() -> None:
    """End a forward pass where the next one begins, and drop one that nothing follows."""
    found = parts(BEFORE, make_step(1, [14, 15, 31], [(20, 30)]), last_gradient=30)
    assert (6, 0) == (found[FORWARD], found[EXPOSED])


def test_passes_inside_an_optimiser_step_are_not_the_optimiser() -> None:
    """Divide an optimiser step with a closure, such as of LBFGS, into passes and the rest."""
    before = make_step(0, [2], [(4, 10)])
    step = make_step(1, [12], [(14, 20)], [(1, 40)])
    found = parts(before, step, last_gradient=20)
    assert (10, 2, 6, 2) == (found[STEP], found[FORWARD], found[BACKWARD], found[OPTIMIZER])
