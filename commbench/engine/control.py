"""The control plane: how ranks agree, beside the backend that is measured.

It carries plans, decisions and samples, never timed data. It is MPI if an MPI launcher started the
ranks, else torch.distributed; `ThreadControl` runs ranks as threads of one process, for the fake
backend and for tests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import Protocol, TypeVar

from commbench.findings import Finding, UnsupportedError

T = TypeVar("T")

#: Interval in seconds at which a waiting thread checks whether another has failed.
GIVEN_UP_S = 0.1


class Assembly(Protocol):
    """Ranks that exchange values; every method is collective."""

    rank: int
    size: int

    def gather(self, value: T) -> list[T] | None:
        """Return every rank's value, by rank, on rank 0; None elsewhere."""

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank."""


class Control(Assembly, Protocol):
    """The control plane that the engine needs.

    Every method is collective except `exchange`, `send_int` and `receive_int`.
    """

    def broadcast_int(self, value: int, *, patient: bool = False) -> int:
        """Broadcast one 64-bit integer as fast as the transport allows; used for start instants.

        ``patient``: yield the core while waiting instead of polling.
        """

    def barrier(self, *, patient: bool = False) -> None:
        """Wait until every rank has entered; ``patient`` as in `broadcast_int`."""

    def exchange(self, target: int, source: int) -> None:
        """Send an empty message to ``target`` and receive one from ``source``."""

    def send_int(self, value: int, target: int) -> None:
        """Send one 64-bit integer to ``target`` as fast as the transport allows.

        Used to compare clocks.
        """

    def receive_int(self, source: int) -> int:
        """Return the next integer that ``source`` sent to this rank."""

    def abort(self, code: int) -> None:
        """End every rank of the launch at once with a non-zero exit status."""

    def close(self) -> None:
        """Shut down in order; collective."""


def gather_everywhere(control: Assembly, value: T) -> list[T]:
    """Return every rank's value, by rank, on every rank."""
    gathered: list[T] | None = control.broadcast(control.gather(value))
    assert gathered is not None  # noqa: S101 - rank 0 always holds the list
    return gathered


def agree_on(control: Control, work: Callable[[], T]) -> T | Finding:
    """Run ``work``, which a backend may refuse, on all ranks; collective.

    Returns:
        The result of this rank's work; if any rank refused, the first refusal.
    """
    refusal: Finding | None = None
    try:
        result = work()
    except UnsupportedError as error:
        refusal = error.reason
    first = next((reason for reason in gather_everywhere(control, refusal) if reason), None)
    return first or result


class _Rendezvous:
    """Memory that the threads of one `ThreadControl` family share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[object] = [None] * size
        self.mail: Mapping[tuple[int, int], Queue[int]] = {
            (source, target): Queue() for source in range(size) for target in range(size)
        }


class ThreadControl:
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, rendezvous: _Rendezvous) -> None:
        self.rank = rank
        self.size = size
        self._rendezvous = rendezvous

    def gather(self, value: T) -> list[T] | None:
        """Return every rank's value on rank 0."""
        self._rendezvous.slots[self.rank] = value
        self._rendezvous.barrier.wait()
        values = list(self._rendezvous.slots) if self.rank == 0 else None
        self._rendezvous.barrier.wait()
        return values  # type: ignore[return-value]

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""
        if self.rank == 0:
            self._rendezvous.slots[0] = value
        self._rendezvous.barrier.wait()
        shared = self._rendezvous.slots[0]
        self._rendezvous.barrier.wait()
        return shared  # type: ignore[return-value]

    def broadcast_int(self, value: int, *, patient: bool = False) -> int:  # noqa: ARG002 - threads block anyway
        """Return rank 0's integer."""
        return self.broadcast(value)

    def barrier(self, *, patient: bool = False) -> None:  # noqa: ARG002 - threads block anyway
        """Wait for all threads."""
        self._rendezvous.barrier.wait()

    def exchange(self, target: int, source: int) -> None:  # noqa: ARG002 - one rendezvous serves any pattern
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

    def abort(self, code: int) -> None:  # noqa: ARG002 - threads have no exit status
        """Release every waiting thread with `threading.BrokenBarrierError`."""
        self._rendezvous.barrier.abort()

    def close(self) -> None:
        """Do nothing: threads end by themselves."""


def run_threads(size: int, work: Callable[[ThreadControl], T]) -> list[T]:
    """Run ``work`` on ``size`` ranks that are threads; return their results by rank.

    The first error is raised.
    """
    rendezvous = _Rendezvous(size)

    def guarded(rank: int) -> T:
        try:
            return work(ThreadControl(rank, size, rendezvous))
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
