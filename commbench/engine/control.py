"""The control plane: how ranks agree, beside the backend that is measured.

It carries plans, decisions and samples, never timed data. It is MPI if an MPI launcher started the
ranks, else torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from commbench.findings import Finding, UnsupportedError

T = TypeVar("T")


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


def agree_on(control: Control, work: Callable[[], T]) -> T:
    """Run ``work``, which a backend may refuse, on all ranks; collective.

    Raises:
        UnsupportedError: a rank refused; on all ranks, with the reason of the first that did.
    """
    refusal: Finding | None = None  # an error with keywords cannot be pickled
    try:
        result = work()
    except UnsupportedError as error:
        refusal = error.reason
    for reason in gather_everywhere(control, refusal):
        if reason:
            raise UnsupportedError(reason.code, reason.subject, **reason.numbers)
    return result
