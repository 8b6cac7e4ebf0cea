"""What both ways to NCCL have in common: timed by events, and what NCCL says of itself while it is not timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commbench.communicators.base import Communicator
from commbench.communicators.nccl_runtime import LOG
from commbench.control import Control, gather_everywhere
from commbench.timing.device import DeviceClock, EventTimer
from commbench.timing.loops import Timer
from commbench.timing.progress import Progress
from commbench.timing.sync import Synchroniser, SyncPlan


class NcclHeard(Communicator, DeviceClock):
    """A communicator on a GPU over NCCL; each has an ``_heard`` and a ``_failed`` of its own."""

    loops = ("event",)
    syncs = ("auto", "barrier", "none")
    own_threads = True  # as far as ranks that wait are concerned: the device works by itself
    _control: Control
    _heard: dict[str, str]
    """How the operation of the last case that was verified was carried; empty where nothing says so."""
    _failed: bool
    """Whether NCCL has refused something here."""

    def transport(self) -> str:
        """What this rank's channels go by, e.g. ``NET/Socket``, as NCCL's log has it; empty where it is elsewhere.

        Those of every communicator of this process so far: the log does not tell them apart.
        """
        return "self" if self.size == 1 else LOG.transport()

    def algorithm(self, operation: str) -> str:
        """As NCCL's log had it when the case was verified: its first rank alone tells."""
        return self._heard.get(operation, "")

    @contextmanager
    def watched(self, *, replayed: bool = False) -> Iterator[None]:
        """See `Communicator.watched`; NCCL's communicators are of no use after an error."""
        before = self._heard if replayed else {}
        try:
            with LOG.hearing() as heard:
                yield
        except RuntimeError:
            self._failed, self._heard = True, {}
            raise
        self._heard = dict(heard) or before

    def abort(self) -> None:
        """Give up what cannot end in order any more, its groups first."""
        for part in self.parts:
            part.abort()

    @property
    def parts(self) -> list[NcclHeard]:
        """The communicators of this rank's groups."""
        return [part for part in self._splits.values() if isinstance(part, NcclHeard)]

    @property
    def failed(self) -> bool:
        """Whether NCCL has refused something here or in a group."""
        return self._failed or any(part.failed for part in self.parts)

    def has_failed(self) -> bool:
        """Whether it has `failed` on any rank: one may fail alone, in capturing, and all must give it up; together."""
        return any(gather_everywhere(self._control, self.failed))

    def timer(self, loop: str, plan: SyncPlan, progress: Progress) -> Timer:  # noqa: ARG002 - there is one loop
        """Events on the stream of the operations."""
        return EventTimer(Synchroniser(self._control, plan, patient=True), self, progress)
