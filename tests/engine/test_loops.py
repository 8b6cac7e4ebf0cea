"""Tests of the calls that a timed loop makes in each repetition."""

from threads import ThreadControl, run_threads

from commbench.engine.timing.loops import Call, Progress, PythonTimer, Turns, order_of
from commbench.engine.timing.sync import Synchroniser


def numbered(sets: int, used_sets: list[int], calls: int = 1) -> list[list[Call]]:
    """Return the calls of an operation on several sets of buffers.

    Each call records the number of its set.
    """
    return [
        [Call(run=lambda number=number: used_sets.append(number)) for _ in range(calls)]
        for number in range(sets)
    ]


def run(calls: list[Call], *runs: tuple[int, int]) -> None:
    """Run the Python loop of a single rank for each (repetitions, batch)."""

    def work(control: ThreadControl) -> None:
        timer = PythonTimer(Synchroniser(control, "none"), Progress())
        for repetitions, batch in runs:
            timer.run(calls, repetitions, batch)

    run_threads(1, work)


def test_sets_take_turns_from_run_to_run():
    """Continue with the next set in the next run, and wrap around after the last; start a longer
    batch with the next multiple of its sets.
    """
    used_sets = []
    run(Turns(numbered(4, used_sets)), (3, 1), (1, 1), (3, 1))
    assert [0, 1, 2, 3, 0, 1, 2] == used_sets
    used_sets.clear()
    run(Turns(numbered(8, used_sets)), (3, 1), (2, 2))
    assert [0, 1, 2, 4, 5, 6, 7] == used_sets


def test_all_calls_of_a_set_belong_together():
    """Make both calls of an operation on one set before the next."""
    used_sets = []
    turns = Turns(numbered(2, used_sets, calls=2))
    run(turns, (3, 1))
    assert [0, 0, 1, 1, 0, 0] == used_sets
    assert 4 == len(turns)
    assert 1 == len(order_of(list(turns), 5, 1).turns)
