"""State of one launch on one rank, shared by all cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from commbench.collectives.cases import Case
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.energy import RunMeter
from commbench.engine.gpu_clocks import GpuClocks, Reading
from commbench.engine.timing.clocks import GlobalClock, is_close
from commbench.engine.timing.loops import Call, Progress, Timer, empty_call
from commbench.engine.timing.sync import SyncPlan, choose_method
from commbench.findings import UnsupportedError
from commbench.stats import StoppingRule
from commbench.stats.budgets import Budget
from commbench.system.clock import timer_tick_s

if TYPE_CHECKING:
    from commbench.engine.probe import Probe

OVERHEAD_REPETITIONS = 100

WorkT = TypeVar("WorkT")


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What is in the time of an operation besides the library's work, in us."""

    harness_us: float
    """The timed loop around an empty call."""
    framework_us: float | None
    """What a framework's call adds to it on one rank, where nothing is communicated; None
    without a framework."""


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
    slice_s: float | None = None
    """Time slice of a case, in seconds; None: the budget's."""
    meter: RunMeter = field(default_factory=RunMeter)
    """Energy counters that this rank reads."""
    find_clocks: Callable[[str], GpuClocks | None] = GpuClocks.find
    """Returns the clock of a GPU by PCI address."""
    kept_bytes: int = 0
    """Bytes of buffers that cases keep between their visits, the same on all ranks."""
    probes: dict[str, Probe | None] = field(default_factory=dict)
    """The probe of each backend that has measured."""
    _gpus: dict[str, GpuClocks | None] = field(default_factory=dict)
    _caches: dict[str, int] = field(default_factory=dict)
    _timers: dict[tuple[str, str, str], Timer] = field(default_factory=dict)
    _readings: dict[str, float] = field(default_factory=dict)
    _overheads: dict[tuple[str, str, str, int], Overhead] = field(default_factory=dict)

    @cached_property
    def rule(self) -> StoppingRule:
        """Return the stopping rule of a case."""
        return StoppingRule(
            relative_half_width=self.budget.relative_half_width, ticks_s=timer_tick_s()
        )

    def reading_ns(self, timer: Timer) -> float:
        """Return the cost of one reading of a timed loop's clock, in nanoseconds."""
        if timer.name not in self._readings:
            self._readings[timer.name] = timer.reading_ns()
        return self._readings[timer.name]

    def with_energy(self, work: Callable[[], WorkT]) -> tuple[WorkT, float | None]:
        """Run ``work``; return its result and the joules per repetition; collective.

        Only rank 0 gets the energy. It is None if a counter cannot be read, if none changes, as on
        some virtual machines, or if ``work`` was too short.
        """
        before, repetitions_before = self.meter.own.read(), int(self.progress.counters[1])
        begun = time.perf_counter()
        result = work()
        lasted_s, repetitions = (
            time.perf_counter() - begun,
            int(self.progress.counters[1]) - repetitions_before,
        )
        joules_of_ranks = self.control.gather(self.meter.own.joules_since(before))
        readable = [joules for joules in joules_of_ranks or () if joules is not None]
        joules: float = sum(readable)
        if (
            joules_of_ranks is None
            or len(readable) < len(joules_of_ranks)
            or lasted_s < self.meter.least_s
            or not (joules and repetitions)
        ):
            return result, None
        return result, joules / repetitions

    def read_clock(self, communicator: Communicator) -> Reading | None:
        """Return the state of this rank's GPU; None if it uses no GPU or NVML does not list it."""
        address = communicator.gpu
        if address not in self._gpus:
            self._gpus[address] = self.find_clocks(address) if address else None
        clock = self._gpus[address]
        return clock.read() if clock else None

    def cache_bytes(self, communicator: Communicator) -> int:
        """Return the largest cache behind any rank's buffers; 0 if a rank's is unknown.

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
        if case.graph:
            communicator.check_capture()

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
            plan = SyncPlan(method=method, yielding=self.oversubscribed, clock=self.clock)
            timer = communicator.timer(case.loop, plan, self.progress)
            timer.prepare()
            self._timers[key] = timer
        return self._timers[key]

    def refresh_clock(self) -> None:
        """Compare the hosts' clocks again if the last comparison is old; collective."""
        if not self.clock.is_shared and self.control.broadcast_int(self.clock.is_stale()):
            self.clock.refresh()

    def overhead(self, case: Case, communicator: Communicator, batch: int) -> Overhead:
        """Measure the loop around an empty call, and around a call of the framework on one rank.

        A loop on the host needs no other ranks for that. A loop of events does, because only a
        common start hides the host's time; the framework's call is not timed there.
        """
        key = (case.backend, case.loop, case.mode, batch)
        if key not in self._overheads:
            timer = self.timer(case, communicator)
            local = []
            if timer.name != "event":
                timer = communicator.timer(case.loop, SyncPlan(method="none"), self.progress)
                local = communicator.local_calls()
            harness_us = _median_us(timer, [empty_call()], batch)
            framework_us = (
                round(max(0.0, _median_us(timer, local, batch) - harness_us), 4) if local else None
            )
            self._overheads[key] = Overhead(
                harness_us=round(harness_us, 4), framework_us=framework_us
            )
        return self._overheads[key]


def _median_us(timer: Timer, calls: Sequence[Call], batch: int) -> float:
    """Return the median time of the calls, per call of a batch."""
    timer.run(calls, 10, batch)
    repeated = timer.run(calls, OVERHEAD_REPETITIONS, batch)
    return float(np.median(repeated.end_ns - repeated.start_ns)) / batch / 1e3
