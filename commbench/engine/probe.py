"""The probe: a short operation before and after each visit, whose time tells the state of the
machine.

A virtual machine whose CPUs are placed again can be in two states for seconds, in one of which all
operations take longer. Which state a visit met is told by the probe alone, never by the visit's own
times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commbench.collectives.cases import Case
from commbench.engine.communicator import Communicator
from commbench.engine.session import Session
from commbench.engine.setup import prepare
from commbench.engine.timing.loops import Call, Timer

#: Timed intervals of a probe, their length in seconds, and the most operations of each.
INTERVALS, INTERVAL_S, MOST_OPERATIONS = 5, 5e-6, 32


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An 8-byte all_reduce of all ranks in the native loop, the same number of operations each
    time.
    """

    calls: tuple[Call, ...]
    timer: Timer
    operations: int
    """Operations of each timed interval."""

    @classmethod
    def open(cls, communicator: Communicator, session: Session) -> Probe | None:
        """Return the probe of a backend, collective.

        None without a native loop, a second rank, or a CPU for each.
        """
        if "native" not in communicator.loops or communicator.size < 2 or session.oversubscribed:  # noqa: PLR2004
            return None
        case = Case(
            backend=communicator.backend,
            operation="all_reduce",
            message_bytes=8,
            dtype="float64",
            redop="sum",
            in_place=True,
            loop="native",
        )
        prepared = prepare(case, communicator, session.hosts)
        probe = cls(
            calls=tuple(prepared.calls), timer=session.timer(case, communicator), operations=1
        )
        probe.time_us()
        fitting = int(INTERVAL_S * 1e6 / max(probe.time_us(), 1e-3))
        operations = session.control.broadcast_int(max(1, min(MOST_OPERATIONS, fitting)))
        return cls(calls=probe.calls, timer=probe.timer, operations=operations)

    def time_us(self) -> float:
        """Return this rank's median time of an operation; collective."""
        repeated = self.timer.run(self.calls, INTERVALS, self.operations)
        return float(np.median(repeated.end_ns - repeated.start_ns)) / self.operations / 1e3


def probe_of(communicator: Communicator, session: Session) -> Probe | None:
    """Return the backend's probe, opened once per launch; collective."""
    backend = communicator.backend
    if backend not in session.probes:
        session.probes[backend] = Probe.open(communicator, session)
    return session.probes[backend]
