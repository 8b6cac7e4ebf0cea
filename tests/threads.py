"""Ranks that are threads of this process, and the control plane between them."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import TypeVar

T = TypeVar("T")

#: Interval in seconds at which a waiting thread checks whether another has failed.
GIVEN_UP_S = 0.1


class _Rendezvous:
    """Memory that the threads of one `ThreadControl` family share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots = [None] * size
        self.mail = {(source, target): Queue() for source in range(size) for target in range(size)}


class ThreadControl:
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, rendezvous: _Rendezvous) -> None:
        self.rank = rank
        self.size = size
        self._rendezvous = rendezvous

    def _together(self, value: T) -> list[T]:
        """Return every rank's value, by rank."""
        self._rendezvous.slots[self.rank] = value
        self._rendezvous.barrier.wait()
        values = list(self._rendezvous.slots)
        self._rendezvous.barrier.wait()
        return values

    def gather(self, value: T) -> list[T] | None:
        """Return every rank's value on rank 0."""
        values = self._together(value)
        return values if self.rank == 0 else None

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""
        return self._together(value)[0]

    def broadcast_int(self, value: int, *, patient: bool = False) -> int:
        """Return rank 0's integer."""
        return self.broadcast(value)

    def barrier(self, *, patient: bool = False) -> None:
        """Wait for all threads."""
        self._rendezvous.barrier.wait()

    def exchange(self, target: int, source: int) -> None:
        """Meet: in shared memory a round of a dissemination barrier is a barrier."""
        self._rendezvous.barrier.wait()

    def send_int(self, value: int, target: int) -> None:
        """Put the integer into the target's mailbox."""
        self._rendezvous.mail[self.rank, target].put(value)

    def receive_int(self, source: int) -> int:
        """Wait for an integer from ``source``, as long as no thread has given up."""
        while not self._rendezvous.barrier.broken:
            with contextlib.suppress(Empty):
                return self._rendezvous.mail[source, self.rank].get(timeout=GIVEN_UP_S)
        raise threading.BrokenBarrierError

    def abort(self, code: int) -> None:
        """Release every waiting thread with `threading.BrokenBarrierError`."""
        self._rendezvous.barrier.abort()

    def close(self) -> None:
        """Do nothing: threads end by themselves."""


def run_threads(size: int, work: Callable[..., T], *arguments: object) -> list[T]:
    """Run ``work(control, *arguments)`` on ``size`` ranks that are threads; return their results by
    rank.

    The first error is raised.
    """
    rendezvous = _Rendezvous(size)

    def guarded(rank: int) -> T:
        try:
            return work(ThreadControl(rank, size, rendezvous), *arguments)
        except BaseException:
            rendezvous.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(size)]
    errors = [future.exception() for future in futures]
    real = [
        error for error in errors if error and not isinstance(error, threading.BrokenBarrierError)
    ]
    if real:
        raise real[0]
    return [future.result() for future in futures]
