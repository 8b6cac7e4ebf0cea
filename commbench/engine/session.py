"""State of one launch on one rank, shared by all cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from commbench.collectives.cases import Case
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.energy import EnergyMeter
from commbench.engine.timing.clocks import GlobalClock, is_close
from commbench.engine.timing.loops import Call, Progress, Timer, empty_call, median_us
from commbench.engine.timing.sync import Synchroniser, choose_method
from commbench.findings import UnsupportedError
from commbench.stats.budgets import Budget

OVERHEAD_WARMUPS, OVERHEAD_REPETITIONS = 10, 100

Overhead = dict[str, float | None]
"""Fields of a record, see `Session.overhead`."""


@dataclass
class Session:
    """State of one launch on one rank, shared by all cases."""

    control: Control
    budget: Budget
    progress: Progress
    clock: GlobalClock = field(default_factory=GlobalClock)
    """Makes stamps of different ranks comparable."""
    oversubscribed: bool = False
    hosts: Sequence[str] = ()
    """The host of each rank; empty: all are on one."""
    meter: EnergyMeter = field(default_factory=EnergyMeter)
    """Energy counters that this rank reads."""
    kept_bytes: int = 0
    """Bytes of buffers that cases keep between their visits, the same on all ranks."""
    probes: dict[str, Callable[[], float] | None] = field(default_factory=dict)
    """The probe of each backend that has measured, see `commbench.engine.observers.probe_of`."""
    _caches: dict[str, int] = field(default_factory=dict)
    _timers: dict[tuple[str, str, str], Timer] = field(default_factory=dict)
    _overheads: dict[tuple[str, str, str, int], Overhead] = field(default_factory=dict)

    def cache_bytes(self, communicator: Communicator) -> int:
        """Return the largest cache behind any rank's buffers; 0 if a rank's is unknown;
        collective.
        """
        if communicator.backend not in self._caches:
            gathered = gather_everywhere(self.control, communicator.cache_bytes())
            self._caches[communicator.backend] = max(gathered) if all(gathered) else 0
        return self._caches[communicator.backend]

    def check(self, case: Case, communicator: Communicator) -> None:
        """Raise `UnsupportedError` if the backend cannot time the case as requested."""
        if case.loop not in ("auto", *communicator.loops):
            raise UnsupportedError(
                "loop_missing",
                backend=case.backend,
                loop=case.loop,
                loops=" or ".join(communicator.loops),
            )
        if case.sync not in communicator.syncs:
            raise UnsupportedError(
                "start_method_missing",
                backend=case.backend,
                sync=case.sync,
                syncs=" or ".join(communicator.syncs),
            )

    def timer(self, case: Case, communicator: Communicator, *, lasting_ns: float = 0.0) -> Timer:
        """Return the timed loop for a case, calibrated once per launch; collective.

        ``lasting_ns``: duration of the operation, which decides whether clocks agree closely enough
        for an agreed start.
        """
        method = choose_method(
            case.sync,
            shared_clock=is_close(self.clock.error_ns, lasting_ns),
            own_threads=communicator.own_threads,
        )
        key = (case.backend, case.loop, method)
        if key not in self._timers:
            sync = Synchroniser(
                self.control,
                method,
                clock=self.clock,
                yielding=self.oversubscribed,
                patient=communicator.own_threads,
            )
            timer = communicator.timer(case.loop, sync, self.progress)
            timer.prepare()
            self._timers[key] = timer
        return self._timers[key]

    def refresh_clock(self) -> None:
        """Compare the hosts' clocks again if the last comparison is old; collective."""
        if not self.clock.is_shared and self.control.broadcast_int(self.clock.is_stale()):
            self.clock.refresh()

    def overhead(self, case: Case, communicator: Communicator, batch: int) -> Overhead:
        """Measure what is in the time of an operation besides the library's work, in microseconds.

        ``harness_us`` is the loop around an empty call, ``framework_us`` what a framework's call
        adds on one rank, where nothing is communicated; None without a framework.

        A loop on the host needs no other ranks for that. A loop of events does, because only a
        common start hides the host's time; the framework's call is not timed there.
        """
        key = (case.backend, case.loop, case.mode, batch)
        if key not in self._overheads:
            timer = self.timer(case, communicator)
            local = []
            if timer.name != "event":
                sync = Synchroniser(self.control, "none", patient=communicator.own_threads)
                timer = communicator.timer(case.loop, sync, self.progress)
                local = communicator.local_calls()
            harness_us = _warm_median_us(timer, [empty_call()], batch)
            framework_us = None
            if local:
                added_us = _warm_median_us(timer, local, batch) - harness_us
                framework_us = round(max(0.0, added_us), 4)
            self._overheads[key] = {
                "harness_us": round(harness_us, 4),
                "framework_us": framework_us,
            }
        return self._overheads[key]


def _warm_median_us(timer: Timer, calls: Sequence[Call], batch: int) -> float:
    timer.run(calls, OVERHEAD_WARMUPS, batch)
    return median_us(timer, calls, OVERHEAD_REPETITIONS, batch)
