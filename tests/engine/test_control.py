"""Tests of the control plane among threads, which stands in for real ranks in other tests."""

import threading

import pytest

from commbench.engine.control import ThreadControl, agree_on, gather_everywhere, run_threads
from commbench.errors import Reason, UnsupportedError


def test_values_are_gathered_by_rank() -> None:
    """Give rank 0 every rank's value in order, and the others none."""
    assert [[0, 10, 20], None, None] == run_threads(3, lambda control: control.gather(10 * control.rank))


def test_broadcast_delivers_rank_0s_value() -> None:
    """Return rank 0's object or integer on every rank."""
    assert ["0"] * 3 == run_threads(3, lambda control: control.broadcast(str(control.rank)))
    assert [5] * 3 == run_threads(3, lambda control: control.broadcast_int(5 + control.rank))


def test_everybody_learns_everything() -> None:
    """Give every rank every rank's value, round after round."""

    def work(control: ThreadControl) -> list[list[int]]:
        return [gather_everywhere(control, control.rank + step) for step in range(20)]

    assert [[[step, step + 1, step + 2] for step in range(20)]] * 3 == run_threads(3, work)


@pytest.mark.parametrize("refusing", [set(), {2}, {1, 2}])
def test_what_one_rank_cannot_do_none_does(refusing: set[int]) -> None:
    """Give every rank what it has found, or the sentence of the first rank that cannot."""

    def work(control: ThreadControl) -> int | Reason:
        def find() -> int:
            if control.rank in refusing:
                raise UnsupportedError("missing", backend=f"rank {control.rank}", what="reduce")
            return control.rank

        return agree_on(control, find)

    results = run_threads(3, work)
    if refusing:
        assert [f"rank {min(refusing)} has no reduce"] * 3 == list(map(str, results))
    else:
        assert [0, 1, 2] == results


def test_nobody_leaves_a_barrier_early() -> None:
    """Let no rank see a barrier's end before all have entered."""
    entered: list[int] = []
    lock = threading.Lock()

    def work(control: ThreadControl) -> int:
        with lock:
            entered.append(control.rank)
        control.barrier()
        return len(entered)

    assert [8] * 8 == run_threads(8, work)


def test_an_error_of_one_rank_is_raised() -> None:
    """Raise the rank's own error rather than the broken barrier of those that waited for it."""

    def work(control: ThreadControl) -> None:
        if control.rank == 1:
            raise ValueError("of rank 1")
        control.barrier()

    with pytest.raises(ValueError, match="of rank 1"):
        run_threads(3, work)


def test_abort_releases_everybody() -> None:
    """End ranks that wait when one aborts."""

    def work(control: ThreadControl) -> None:
        if control.rank == 0:
            control.abort(1)
        else:
            control.barrier()

    with pytest.raises(threading.BrokenBarrierError):
        run_threads(2, work)


def test_integers_arrive_in_order_from_whom_they_are_expected() -> None:
    """Keep what two ranks send to one apart, and in order."""

    def work(control: ThreadControl) -> list[int]:
        if control.rank:
            for step in (1, 2):
                control.send_int(10 * control.rank + step, 0)
            return []
        return [control.receive_int(source) for source in (2, 1, 1, 2)]

    assert [21, 11, 12, 22] == run_threads(3, work)[0]


def test_nobody_waits_for_a_letter_from_a_rank_that_failed() -> None:
    """Raise what the other raised instead of waiting for ever."""

    def work(control: ThreadControl) -> int:
        if control.rank:
            raise ValueError("gone")
        return control.receive_int(1)

    with pytest.raises(ValueError, match="gone"):
        run_threads(2, work)
