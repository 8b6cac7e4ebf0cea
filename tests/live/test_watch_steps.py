"""The parts of a step from the marks of its passes, with marks written by hand."""

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

from commbench.live.passes import Pass
from commbench.live.watch_steps import split_step

Spans = Sequence[tuple[int, int]]


def make_step(
    forwards: Sequence[int], backwards: Spans, updates: Spans = (), broadcasts: Spans = ()
) -> Pass:
    """Return a step with marks at these milliseconds."""
    step = Pass(index=0)
    step.forwards += [1_000_000 * each for each in forwards]
    marks = (step.backwards, backwards), (step.updates, updates), (step.broadcasts, broadcasts)
    for own, spans in marks:
        own += [(1_000_000 * begin, 1_000_000 * end) for begin, end in spans]
    return step


#: A step that ends at 10 ms, and whose optimiser takes 2 ms afterwards.
BEFORE = make_step([0], [(4, 10)], [(11, 13)])


@pytest.mark.parametrize(
    ("before", "step", "last_gradient", "expected"),
    [
        (BEFORE, make_step([15], [(20, 30)]), 26, (20, 0, 5, 6, 4, 2)),
        (BEFORE, make_step([14, 24], [(16, 20), (27, 33)]), 32, (23, 0, 5, 9, 1, 2)),
        (BEFORE, make_step([15], [(20, 30)], broadcasts=[(15, 18)]), 26, (20, 3, 2, 6, 4, 2)),
        (BEFORE, make_step([14, 15, 31], [(20, 30)]), 30, (20, 0, 6, 10, 0, 2)),
        (
            make_step([2], [(4, 10)]),
            make_step([12], [(14, 20)], [(1, 40)]),
            20,
            (10, 0, 2, 6, 0, 2),
        ),
    ],
    ids=["plain", "accumulated", "broadcast", "forward alone", "closure of the optimiser"],
)
def test_a_step_is_divided(before, step, last_gradient, expected):
    """Last from one exchange to the next, with the broadcast, forward, backward, exposed and
    optimiser times of it.

    Accumulated passes count together. A broadcast is no part of the forward pass in which DDP makes
    it, a forward pass that no backward pass follows is left out, and passes inside an optimiser
    step, such as of LBFGS, are not the optimiser.
    """
    step.last_gradient = 1_000_000 * last_gradient
    assert expected == tuple(split_step(before, step))
