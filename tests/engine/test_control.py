"""Tests of the control plane among threads, which replace real ranks in other tests."""

import threading

import pytest

from commbench.engine.control import ThreadControl, agree_on, gather_everywhere, run_threads
from commbench.errors import Reason, UnsupportedError


def test_values_are_gathered_by_rank() -> None:
    """Return every rank's value in rank order to rank 0, and None to the others."""
    assert [[0, 10, 20], None, None] == run_threads(
        3, lambda control: control.gather(10 * control.rank)
    )


def test_broadcast_delivers_rank_0s_value() -> None:
    """Return rank 0's object or integer on every rank."""
    assert ["0"] * 3 == run_threads(3, lambda control: control.broadcast(str(control.rank)))
    assert [5] * 3 == run_threads(3, lambda control: control.broadcast_int(5 + control.rank))


def test_everybody_learns_everything() -> None:
    """Return every rank's value to every rank, in repeated rounds."""

    def work(control: ThreadControl) -> list[list[int]]:
        return [gather_everywhere(control, control.rank + step) for step in range(20)]

    assert [[[step, step + 1, step + 2] for step in range(20)]] * 3 == run_threads(3, work)


@pytest.mark.parametrize("refusing", [set(), {2}, {1, 2}])
def test_what_one_rank_cannot_do_none_does(refusing: set[int]) -> None:
    """Return every rank's result, or the sentence of the first rank that failed."""

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
    """Block every rank in a barrier until all have entered."""
    entered: list[int] = []
    lock = threading.Lock()

    def work(control: ThreadControl) -> int:
        with lock:
            entered.append(control.rank)
        control.barrier()
        return len(entered)

    assert [8] * 8 == run_threads(8, work)


def test_an_error_of_one_rank_is_raised() -> None:
    """Raise a rank's own error instead of the broken barrier of the waiting ranks."""

    def work(control: ThreadControl) -> None:
        if control.rank == 1:
            raise ValueError("of rank 1")
        control.barrier()

    with pytest.raises(ValueError, match="of rank 1"):
        run_threads(3, work)


def test_abort_releases_everybody() -> None:
    """End waiting ranks when one aborts."""

    def work(control: ThreadControl) -> None:
        if control.rank == 0:
            control.abort(1)
        else:
            control.barrier()

    with pytest.raises(threading.BrokenBarrierError):
        run_threads(2, work)


def test_integers_arrive_in_order_from_whom_they_are_expected() -> None:
    """Receive integers in order and separately by sender."""

    def work(control: ThreadControl) -> list[int]:
        if control.rank:
            for step in (1, 2):
                control.send_int(10 * control.rank + step, 0)
            return []
        return [control.receive_int(source) for source in (2, 1, 1, 2)]

    assert [21, 11, 12, 22] == run_threads(3, work)[0]


def test_nobody_waits_for_a_letter_from_a_rank_that_failed() -> None:
    """Raise the sender's error instead of waiting for its message."""

    def work(control: ThreadControl) -> int:
        if control.rank:
            raise ValueError("gone")
        return control.receive_int(1)

    with pytest.raises(ValueError, match="gone"):
        run_threads(2, work)
