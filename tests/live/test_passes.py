"""Tests of the clock of live tuning: periods, gaps, and what counts as a synchronised pass."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from commbench.live.passes import (  # noqa: E402
    Pass,
    losses_of_steps,
    period_of,
    times_of_steps,
)

MS = 1_000_000


@pytest.mark.parametrize(
    ("signatures", "period"),
    [
        ([(1, 1)] * 9, 1),
        ([(1, 1), (2, 1)] * 5, 2),
        ([(0, 1), (0, 1), (0, 1), (1, 1)] * 8, 4),
        ([(1, 1)] * 30 + [(0, 1)] + [(1, 1)] * 30, 1),
        ([(1, 1)], 1),
    ],
)
def test_a_period_is_found_from_what_passes_do(
    signatures: list[tuple[int, int]], period: int
) -> None:
    """Find steps of one, two and four passes, also if one update was skipped."""
    assert period_of(signatures) == period


def test_a_gap_lasts_from_the_optimiser_or_the_last_pass_to_the_forward_pass() -> None:
    """Take the optimiser's end where one was seen."""
    assert Pass(index=1, resumed_ns=2 * MS, forward_ns=9 * MS).gap_ns == 7 * MS
    assert Pass(index=1, resumed_ns=2 * MS, updated_ns=5 * MS, forward_ns=9 * MS).gap_ns == 4 * MS
    assert Pass(index=1).gap_ns == 0


def test_passes_are_summed_to_steps_without_the_one_in_which_a_setting_was_tried() -> None:
    """Sum pairs of passes, and leave out the step of the pass before the last."""
    times = np.arange(12.0).reshape(6, 2)
    assert times_of_steps(times, 2).tolist() == [[2, 4], [10, 12]]
    assert times_of_steps(times, 1)[:, 0].tolist() == [0, 2, 4, 6, 10]
    passes = [Pass(index=number, losses=[torch.tensor(float(number))]) for number in range(6)]
    assert losses_of_steps(passes, 2) == [[0, 1], [2, 3]]
    assert losses_of_steps(passes, 1) == [[0], [1], [2], [3], [5]]
