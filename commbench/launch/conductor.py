"""The conductor: plans a run's launches, sees each through, keeps what they measure, and says how the run ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from commbench.errors import InputError
from commbench.launch.display import Display, SilentDisplay
from commbench.launch.facts import changed_conditions, header_fields, refuse_other_conditions
from commbench.launch.launchers import Launcher
from commbench.launch.plan import DONE, RunRequest, launch_entry, missing_cases, plan_launch
from commbench.launch.supervisor import Ending, Interrupts, Supervisor
from commbench.launch.timeplan import TimePlan, dry_run_estimate
from commbench.records import Record, Status
from commbench.store import Store
from commbench.summary import latest

__all__ = ["Display", "RunRequest", "SilentDisplay", "conduct", "dry_run_estimate"]

DONE_CODE, PARTIAL_CODE, WRONG_CODE, SIGNAL_CODE = 0, 3, 4, 128


def conduct(request: RunRequest, store: Store, launcher: Launcher, display: Display) -> int:
    """Measure what ``store`` still lacks of ``request``; return the exit code.

    Each launch that is not complete measures its missing cases. The run ends at the first launch that fails or hangs,
    and at a signal; what was measured is kept, and the same call goes on from there.

    Returns:
        0 done, 3 a rank failed or hung, 4 wrong data was found, 128 + number of the signal that interrupted the run.

    Raises:
        InputError: the ranks find that what was asked for cannot be done, or that the run was begun elsewhere.
        LaunchError: the results cannot be written.
    """
    return _Run(request, store, launcher, display).conduct()


class _Run:
    """All launches of one run."""

    def __init__(self, request: RunRequest, store: Store, launcher: Launcher, display: Display) -> None:
        self.request = request
        self.store = store
        self.launcher = launcher
        self.display = display
        self.interrupts = Interrupts()
        self.times = TimePlan(budget=request.budget, begun=time.monotonic(), limit_s=request.time_limit_s)
        self.known = dict(store.info)
        self.warned = False

    def conduct(self) -> int:
        """See `conduct` above."""
        self.store.update(status="running", launcher=self.launcher.name, **_budget_fields(self.request))
        try:
            with self.interrupts:
                ending = self._launches()
                if ending.status != "refused":  # still within: a second Ctrl-C must not keep the end from run.json
                    return self._finish(ending)
        except BaseException as error:
            self.store.update(status="partial", reason=str(error))
            raise
        self.store.update(status=self.known.get("status", "partial"))
        raise InputError(ending.reason)

    def _finish(self, ending: Ending) -> int:
        """Write how the run ended and return the exit code for it."""
        code, status = DONE_CODE, "complete"
        if ending.status == "interrupted":
            code, status = SIGNAL_CODE + (self.interrupts.number or 0), "interrupted"
        elif ending.status in {"failed", "hung"}:
            code, status = PARTIAL_CODE, "partial"
        elif any(record.status == "wrong" for record in latest(self.store.records).values()):
            code = WRONG_CODE
        self.store.write_summary()
        self.store.update(status=status, reason=ending.reason)
        return code

    def _launches(self) -> Ending:
        launches = self.request.budget.launches
        for launch in range(launches):
            missing = missing_cases(self.request, self.store.records, launch)
            if not missing:
                continue
            if self.interrupts.number is not None:
                return Ending(status="interrupted", reason="interrupted between launches")
            if self.store.records and not self.times.fits(time.monotonic(), cases=len(missing)):
                return self._out_of_time(launch)
            ending = _LaunchRun(self, launch).run()
            if ending.status == "cut":
                return self._out_of_time(launch + 1)
            if ending.status != "ok":
                return ending
            if ending.reason:
                self.display.warning(f"Launch {launch + 1}: {ending.reason}.")
        return Ending(status="ok")

    def _out_of_time(self, launch: int) -> Ending:
        """End a run whose time limit is reached: it is complete, with fewer launches."""
        text = (
            f"The time limit of {self.request.time_limit_s:g} s was reached after {launch} of "
            f"{self.request.budget.launches} launches; the same command with a longer limit adds the rest."
        )
        self.display.warning(text)
        return Ending(status="ok", reason=text)

    @property
    def left(self) -> list[int]:
        """How many cases each launch has still to measure, launches that have none left out."""
        counts = [
            len(missing_cases(self.request, self.store.records, launch))
            for launch in range(self.request.budget.launches)
        ]
        return [count for count in counts if count]


class _LaunchRun:
    """One launch of a run: hears what its ranks report, keeps it, and enters how it went into run.json."""

    def __init__(self, run: _Run, launch: int) -> None:
        self.run_ = run
        self.launch = launch
        self.begun = time.monotonic()
        self.started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.startup_s: float | None = None
        self.measuring_s = 0.0
        counts = run.left
        self.left = sum(counts)
        self.later = len(counts) - 1
        self.plan = plan_launch(
            run.request,
            run.store.records,
            launch,
            slice_s=run.times.slice_s(self.begun, cases=self.left, launches=len(counts)),
            deadline_s=run.times.deadline_s(self.begun),
        )

    def run(self) -> Ending:
        """See the launch through."""
        run = self.run_
        run.display.launch_started(self.launch, run.request.budget.launches)
        supervisor = Supervisor(self.plan, run.request.ranks, run.launcher, self, run.interrupts)
        ending = Ending(status="failed", reason="the conductor itself failed")
        try:
            ending = self._blame_case(supervisor.run(), supervisor.current)
        except InputError as error:
            ending = Ending(status="refused", reason=str(error))
        finally:
            if ending.status != "refused":
                self._enter(ending)
        if ending.status in {"failed", "hung"}:
            run.display.output(list(supervisor.stderr))
        return ending

    def _blame_case(self, ending: Ending, current: int | None) -> Ending:
        """Make the case in which a launch failed or hung a record, and name it in the reason."""
        if ending.status not in {"failed", "hung"} or current is None:
            return ending
        case = self.plan.cases[current].case
        status: Status = "hung" if ending.status == "hung" else "failed"
        self._keep(Record(case=case, launch=self.launch, status=status, reason=ending.reason))
        return replace(ending, reason=f"{ending.reason}, in case {case}")

    def _enter(self, ending: Ending) -> None:
        """Enter how the launch went into run.json, and bring the table up to date."""
        seconds = time.monotonic() - self.begun
        startup_s = seconds if self.startup_s is None else self.startup_s
        store = self.run_.store
        entry = launch_entry(
            launch=self.launch,
            started=self.started,
            seconds=seconds,
            startup_s=startup_s,
            measuring_s=self.measuring_s,
            status=ending.status,
            reason=ending.reason,
        )
        store.update(launches=[*store.info.get("launches", []), entry])
        store.write_summary()
        if ending.status == "ok":
            cases = len(self.plan.cases)
            self.run_.times.learn(startup_s=startup_s, seconds=seconds, measuring_s=self.measuring_s, cases=cases)
        self.run_.display.launch_finished(seconds)

    def on_session(self, session: Mapping[str, Any]) -> None:
        """See `Listener`: the first session of this run, or of a resumed one, settles the conditions."""
        run = self.run_
        self.startup_s = time.monotonic() - self.begun
        refuse_other_conditions(session, run.known)
        changes = changed_conditions(session, run.store.info)
        if changes and not run.warned:
            run.warned = True
            run.display.warning(f"The conditions have changed since the first launch: {'; '.join(changes[:3])}.")
        run.store.update(**header_fields(session, run.store.info))

    def on_case(self, index: int) -> None:
        """See `Listener`."""
        run = self.run_
        total = len(run.request.cases) * run.request.budget.launches
        eta_s = run.times.eta_s(time.monotonic(), cases=self.left, launches=self.later)
        run.display.case(total - self.left, total, str(self.plan.cases[index].case), eta_s)

    def on_record(self, record: Record) -> None:
        """See `Listener`."""
        self.measuring_s += record.measuring_s
        self._keep(record)

    def _keep(self, record: Record) -> None:
        self.run_.store.append(record)
        self.left -= record.status in DONE
        self.run_.display.record(record)


def _budget_fields(request: RunRequest) -> dict[str, Any]:
    """What the summary needs to know of the budget."""
    return {"budget": request.budget.name, "relative_half_width": request.budget.relative_half_width}
