"""The conductor: plans a run's launches, supervises each, and reports how the run ended."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from commbench.errors import InputError, LaunchError
from commbench.findings import Finding
from commbench.launch.diagnosis import Ending
from commbench.launch.events import Listener, Notice, RankOutput
from commbench.launch.launchers import Launcher
from commbench.launch.ledger import LaunchLedger, Ledger, Remaining
from commbench.launch.signals import Interrupts
from commbench.launch.supervisor import LOOK_S, Supervisor
from commbench.results import Store
from commbench.results.info import Launch
from commbench.results.plan import (
    DONE,
    RunRequest,
    Stage,
    TimePlan,
    exceeds_aim,
    missing_cases,
    plan_launch,
    slice_seconds,
    unmeasured_clause,
)
from commbench.results.record_types import AnyCase
from commbench.units import utc_text

#: After this many consecutive launches without a result, the next would probably fail too.
MOST_FAILURES_IN_A_ROW = 3
#: A soak begins no launch that would last less, in seconds.
LEAST_SOAK_S = 2.0
#: Seconds between a launch of a soak whose ranks did not start, and the next one: a host may be out
#: of reach.
PAUSE_S = 10.0


def conduct(
    stages: Sequence[Stage],
    store: Store,
    launcher: Launcher,
    display: Listener,
    *,
    fail_fast: bool = False,
) -> int:
    """Measure what ``store`` still lacks of each stage in turn; return the exit code.

    Each launch that is not complete measures its missing cases. If a case fails or hangs, it is
    kept as failed, and the launch goes on without it with newly started ranks. This call measures
    the case no more; the next call tries it again. If ranks do not start under one of several
    environments, all its cases are kept as failed. The run ends at any other launch that fails
    before its first case or loses a host, at the third failure in a row without a result, at the
    first failure if ``fail_fast``, and at a signal. The first Ctrl-C lets the case that is being
    measured come to its end.

    Returns:
        0 done, 3 a rank failed or hung or a case has no launch, 4 wrong data was found, 128 +
        number of the signal that interrupted the run.

    Raises:
        InputError: the ranks find that the request cannot be carried out, or that the run was begun
            elsewhere.
        LaunchError: the results cannot be written.
    """
    ledger = Ledger(store, display, launcher.name, fail_fast=fail_fast)
    return _Run(stages, ledger, launcher, fail_fast=fail_fast).conduct()


class _Run:
    """All stages of one run."""

    def __init__(
        self, stages: Sequence[Stage], ledger: Ledger, launcher: Launcher, *, fail_fast: bool
    ) -> None:
        self.stages = stages
        self.ledger = ledger
        self.launcher = launcher
        self.fail_fast = fail_fast
        self.interrupts = Interrupts()
        self.begun = time.monotonic()

    def conduct(self) -> int:
        """Measure all stages; return the exit code, see `conduct` above."""
        store = self.ledger.store
        try:
            with self.interrupts:
                ending = self._stages()
                if (
                    ending.status != "refused"
                ):  # still within: a second Ctrl-C must not keep the end from run.json
                    return self.ledger.close(ending, signal=self.interrupts.number or 0)
        except BaseException as error:
            with contextlib.suppress(
                LaunchError
            ):  # the error that the disk is full has been reported
                store.update(status="partial", reason=str(error))
            raise
        self.ledger.refuse(ending.reason)
        raise InputError(ending.reason)

    def _stages(self) -> Ending:
        """Return how the run ended.

        A stage that its time limit cuts does not keep the next one from its own time.
        """
        cut, startup_s = None, None
        for plan in self.stages:
            request = plan(tuple(self.ledger.store.records))
            if request is None:
                continue
            self.ledger.begin_stage(request)
            stage = (_SoakRun if request.soak_s else _StageRun)(self, request, startup_s)
            ending = stage.run()
            if ending.status == "cut":
                cut = cut or ending
                self.ledger.cut(request)
            elif ending.status != "ok":
                return ending
            startup_s = stage.times.startup_s
        return cut or Ending(status="ok")


class _StageRun:
    """All launches of one stage."""

    def __init__(self, run: _Run, request: RunRequest, startup_s: float | None) -> None:
        self.run_ = run
        self.ledger = run.ledger
        self.request = request
        self.label = request.name if len(run.stages) > 1 else ""
        self.launches = range(request.first_launch, request.budget.launches)
        self.times = TimePlan.of(request, run.begun)
        if startup_s is not None:
            self.times.startup_s = startup_s

    def run(self) -> Ending:
        """Make the launches; ``cut`` if the time limit leaves some out."""
        for launch in self.launches:
            if exceeds_aim(self.request, self.ledger.store.info.get("launches", []), launch):
                break
            ending = self._launch(launch)
            if ending.status != "ok":
                return ending
        return Ending(status="ok")

    def _launch(self, launch: int) -> Ending:
        """Measure what a launch lacks, each environment with ranks of its own."""
        for request in self.request.by_env(launch):
            ending = self._start(launch, request)
            if ending.status != "ok":
                return ending
        return Ending(status="ok")

    def _start(self, launch: int, request: RunRequest) -> Ending:
        """Measure what a launch lacks of ``request``, which has one environment.

        After a failure, start new ranks.
        """
        ending: Ending | None = None
        while ending is None and (missing_cases := self._missing(launch, request)):
            ending = self._obstacle(launch, slices=request.slices(missing_cases))
            if ending is None:
                attempt = self._plan(launch, request)
                ending = self._judge(self._supervise(attempt), attempt)
        return ending or Ending(status="ok")

    def _obstacle(self, launch: int, *, slices: float) -> Ending | None:
        """Return why a launch cannot be started; None if it can."""
        if interruption := self._interruption():
            return interruption
        records = self.ledger.store.records
        slice_s, whole = slice_seconds(self.request, records), self._may_use_whole_limit(launch)
        if records and not self.times.fits(
            time.monotonic(), slices=slices, whole=whole, slice_s=slice_s
        ):
            return self._out_of_time(launch)
        return None

    def _interruption(self) -> Ending | None:
        """Return how a run ends that a signal has interrupted between launches.

        None without a signal.
        """
        number = self.run_.interrupts.number
        if number is None:
            return None
        return Ending(
            status="interrupted",
            reason=f"interrupted by {signal.Signals(number).name} between launches",
        )

    def _may_use_whole_limit(self, launch: int) -> bool:
        return launch < self.request.fewest_launches

    def _plan(self, launch: int, request: RunRequest) -> LaunchLedger:
        """Plan one start of a launch."""
        begun = time.monotonic()
        total = len(self.request.cases) * len(self.launches)
        starts = (
            (number, part) for number in self.launches for part in self.request.by_env(number)
        )
        remaining = Remaining.of(request, itertools.starmap(self._missing, starts), total=total)
        plan = plan_launch(
            request,
            self.ledger.store.records,
            launch,
            slice_s=self.times.slice_s(
                begun,
                slices=remaining.slices,
                launches=remaining.launches,
            ),
            deadline_s=self.times.deadline_s(begun, whole=self._may_use_whole_limit(launch)),
            left_out=self.ledger.failed,
        )
        return LaunchLedger(
            self.ledger, request, plan, times=self.times, begun=begun, remaining=remaining
        )

    def _supervise(self, launch: LaunchLedger) -> Ending:
        """Run one start of a launch; return how it ended, having entered that."""
        launch.show_start(
            max(self.request.budget.launches, launch.plan.launch + 1),
            " ".join(filter(None, (self.label, launch.plan.env))),
        )
        run = self.run_
        supervisor = Supervisor(
            launch.plan, self.request.ranks, run.launcher, launch, run.interrupts
        )
        try:
            ending = supervisor.run()
        except InputError as error:
            return Ending(status="refused", reason=str(error))
        except BaseException as error:
            reason = str(error) if isinstance(error, LaunchError) else "the conductor itself failed"
            with contextlib.suppress(LaunchError):
                launch.enter(Ending(status="failed", reason=reason))
            raise
        if ending.status == "refused":
            if not (self.ledger.store.records and self._has_never_worked(launch)):
                return ending
            ending = Ending.broken("failed", Finding.stated(ending.reason.rstrip(".")))
        ending = launch.close(ending)
        if ending.is_broken:
            self.ledger.display.on(RankOutput(lines=[*supervisor.stderr, *supervisor.stack_lines]))
        if ending.failed_rank and ending.failed_rank.waiting:
            self._warn(f"{ending.failed_rank.waiting}.")
        return ending

    def _judge(self, ending: Ending, launch: LaunchLedger) -> Ending | None:
        """Return how the stage ends; None if it goes on."""
        if ending.is_broken:
            return self._after_failure(ending, launch)
        if ending.status == "cut":
            return self._out_of_time(launch.plan.launch + 1)
        if self.run_.fail_fast and self.ledger.failed:
            return Ending(status="failed", reason=next(iter(self.ledger.failed.values())))
        if ending.status == "ok" and ending.reason:
            self._warn(f"Launch {launch.plan.launch + 1}: {ending.reason}.")
        return ending

    def _after_failure(self, ending: Ending, launch: LaunchLedger) -> Ending | None:
        """Return how the run ends; None if the launch goes on with new ranks."""
        ledger, number = self.ledger, launch.plan.launch
        ledger.failures_in_a_row += 1
        fails_by_env = not launch.has_begun and self._has_never_worked(launch)
        if self.run_.fail_fast or ending.is_host_lost or not (launch.has_begun or fails_by_env):
            return ending
        if fails_by_env:
            launch.fail_all(ending)
        if ledger.failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            text = f"stopped after {ledger.failures_in_a_row} failed launches in a row"
            return replace(ending, reason=text if ledger.failed else f"{text}: {ending.reason}")
        without = launch.plan.env if fails_by_env else launch.failed_case
        continuation = (
            f"without {without}" if without else f"after a failure between cases: {ending.reason}"
        )
        if fails_by_env or self._missing(number, launch.request):
            self._warn(f"Launch {number + 1} goes on {continuation}.")
        else:  # each case has a visit, or has failed
            self._warn(f"Launch {number + 1} has fewer visits than planned: {ending.reason}.")
        return None

    def _has_never_worked(self, launch: LaunchLedger) -> bool:
        """Return whether the environment of a launch is one of several and has no result yet."""
        worked = (
            r
            for r in self.ledger.store.records
            if r.case.env == launch.plan.env and r.status in DONE
        )
        return len(self.request.envs) > 1 and not any(worked)

    def _out_of_time(self, launch: int) -> Ending:
        """End a stage whose time limit is reached, and report what is missing."""
        stage_limit_s, total_limit_s = self.request.time_limit_s, self.request.whole_limit_s
        limit = f"{stage_limit_s:g} s{f' for all up to the {self.label}' if self.label else ''}"
        in_all = (
            f", of {total_limit_s:g} s in all,"
            if total_limit_s not in {None, stage_limit_s}
            else ""
        )
        name = f"{self.label} " if self.label else ""
        without = unmeasured_clause(self.request, self.ledger.store.records)
        reason = (
            f"the time limit of {limit}{in_all} was reached after {launch} of"
            f" {self.request.budget.launches} {name}launches{without}"
        )
        self._warn(f"{reason[:1].upper()}{reason[1:]}; the same command adds the rest.")
        return Ending(status="cut", reason=reason)

    def _missing(self, launch: int, request: RunRequest) -> list[AnyCase]:
        """Return the cases of a request that a launch has yet to measure, without those that have
        failed.
        """
        return missing_cases(request, self.ledger.store.records, launch, self.ledger.failed)

    def _warn(self, text: str) -> None:
        self.ledger.display.on(Notice(text=text))


class _SoakRun(_StageRun):
    """The launches of a soak, one after another until its time is up.

    A failed launch is followed by the next one.
    """

    def run(self) -> Ending:
        """Make the launches.

        Return early at a signal, with ``fail_fast``, or if no launch works from the start.
        """
        earlier_s = sum(entry.get("seconds", 0.0) for entry in self._entries)
        ends = time.monotonic() + (self.request.soak_s or 0.0) - earlier_s
        while (left_s := ends - time.monotonic() - self.times.startup_s) > LEAST_SOAK_S:
            ending = self._interruption() or self._soak(left_s)
            if ending is not None:
                return ending
        self.ledger.has_failed_launches = any(
            entry.get("status") in {"failed", "hung"} for entry in self._entries
        )
        return Ending(status="ok")

    @property
    def _entries(self) -> Sequence[Launch]:
        return self.ledger.store.info.get("launches", [])

    def _soak(self, left_s: float) -> Ending | None:
        """Make the next launch, within ``left_s`` after its start-up.

        Return how the soak ends, None if it goes on.
        """
        launch = self._plan_soak(left_s)
        ending = self._supervise(launch)
        if ending.is_broken:
            return self._after_failed_launch(ending, launch)
        if ending.status in {"interrupted", "refused"}:
            return ending
        if ending.status == "ok" and ending.reason:
            self._warn(f"Launch {launch.plan.launch + 1}: {ending.reason}.")
        return None

    def _plan_soak(self, left_s: float) -> LaunchLedger:
        request, records, begun = self.request, self.ledger.store.records, time.monotonic()
        numbers = [record.launch for record in records] + [
            entry.get("launch", -1) for entry in self._entries
        ]
        number = max(numbers, default=-1) + 1
        slices = request.slices(request.cases)
        slice_s = min(request.budget.slice_s, left_s / slices)
        plan = plan_launch(request, records, number, slice_s=slice_s, deadline_s=left_s)
        length_s = slices * request.budget.slice_s
        launches = 1 + max(0, math.ceil((left_s - length_s) / (length_s + self.times.startup_s)))
        cases = len(request.cases)
        remaining = Remaining(
            cases=launches * cases,
            slices=launches * slices,
            launches=launches,
            total=(number + launches) * cases,
        )
        return LaunchLedger(
            self.ledger, request, plan, times=self.times, begun=begun, remaining=remaining
        )

    def _after_failed_launch(self, ending: Ending, launch: LaunchLedger) -> Ending | None:
        """Return how the soak ends.

        None if it goes on, a moment later if the ranks did not start.
        """
        ledger = self.ledger
        ledger.failures_in_a_row += 1
        has_worked = any(record.status in DONE for record in ledger.store.records)
        if self.run_.fail_fast or (
            not has_worked and ledger.failures_in_a_row >= MOST_FAILURES_IN_A_ROW
        ):
            return ending
        now = utc_text(time.time())
        self._warn(
            f"Launch {launch.plan.launch + 1} {ending.status} at {now}: {ending.reason}. The soak"
            " goes on."
        )
        resumes = time.monotonic() + (0.0 if launch.has_begun else PAUSE_S)
        while time.monotonic() < resumes and self.run_.interrupts.number is None:
            time.sleep(LOOK_S)
        return None
