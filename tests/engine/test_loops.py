"""Tests of which calls a timed loop makes in which repetition."""

from commbench.engine.control import ThreadControl, run_threads
from commbench.engine.timing.loops import Call, Progress, PythonTimer, Turns, order_of
from commbench.engine.timing.sync import Synchroniser, SyncPlan


def numbered(sets: int, seen: list[int], calls: int = 1) -> list[list[Call]]:
    """Return the calls of an operation on so many sets of buffers, each of which notes the number of its set."""
    return [[Call(run=lambda number=number: seen.append(number)) for _ in range(calls)] for number in range(sets)]


def run(calls: list[Call], *runs: tuple[int, int]) -> None:
    """Make runs of (repetitions, batch) in the Python loop of a single rank."""

    def work(control: ThreadControl) -> None:
        timer = PythonTimer(Synchroniser(control, SyncPlan(method="none")), Progress())
        for repetitions, batch in runs:
            timer.run(calls, repetitions, batch)

    run_threads(1, work)


def test_one_set_of_buffers_is_used_each_time() -> None:
    """Make the same calls in every repetition, as often as the batch says."""
    seen: list[int] = []
    run(numbered(1, seen, calls=2)[0], (3, 4))
    assert [0] * 2 * 3 * 4 == seen


def test_sets_take_turns_from_run_to_run() -> None:
    """Go on in the next run where the last one ended, and begin again after the last set."""
    seen: list[int] = []
    run(Turns(numbered(4, seen)), (3, 1), (1, 1), (3, 1))
    assert [0, 1, 2, 3, 0, 1, 2] == seen


def test_a_batch_goes_over_the_sets() -> None:
    """Use another set for each operation of a batch, also where there are more operations than sets."""
    seen: list[int] = []
    run(Turns(numbered(4, seen)), (3, 2), (1, 8))
    assert [0, 1, 2, 3, 0, 1] + [0, 1, 2, 3] * 2 == seen


def test_another_batch_uses_no_set_again_at_once() -> None:
    """Begin a longer batch with the next set that begins one."""
    seen: list[int] = []
    run(Turns(numbered(8, seen)), (3, 1), (2, 2))
    assert [0, 1, 2, 4, 5, 6, 7] == seen


def test_all_calls_of_a_set_belong_together() -> None:
    """Make both calls of an operation on one set before the next, and hold them all as a list."""
    seen: list[int] = []
    turns = Turns(numbered(2, seen, calls=2))
    run(turns, (3, 1))
    assert [0, 0, 1, 1, 0, 0] == seen
    assert 4 == len(turns)
    assert 1 == len(order_of(list(turns), 5, 1).turns)
