"""The ledger of a run: the only writer of its records, launches and end, in the store and on the
display.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Status
from commbench.errors import InputError, LaunchError
from commbench.findings import Finding, Value
from commbench.launch.clues import Ending, in_case, waiting
from commbench.launch.events import (
    ROUNDING,
    CaseFinished,
    CaseProgress,
    CasesEnded,
    CaseStarted,
    Event,
    LastCase,
    LaunchFinished,
    LaunchStarted,
    Listener,
    Notice,
    RankOutput,
    SessionStarted,
)
from commbench.launch.facts import (
    changed_conditions,
    header_fields,
    refuse_other_conditions,
    remark,
)
from commbench.launch.schedule import Launch, Schedule, Stop
from commbench.launch.tables import write_tables
from commbench.results import Store
from commbench.results.info import Launch as Entry
from commbench.results.info import RunInfo, VariableValues
from commbench.results.plan import DONE, launch_times, slice_seconds
from commbench.results.record_types import AnyCase, blank_record
from commbench.results.summary import latest

DONE_CODE, PARTIAL_CODE, WRONG_CODE, SIGNAL_CODE = 0, 3, 4, 128
#: Status of a run and exit code by how it ended, see `Stop`.
ENDS = {
    "done": ("complete", DONE_CODE),
    "faulty": ("complete", PARTIAL_CODE),
    "cut": ("cut", DONE_CODE),
    "lacking": ("partial", PARTIAL_CODE),
    "later": ("partial", DONE_CODE),
    "failed": ("partial", PARTIAL_CODE),
    "interrupted": ("interrupted", SIGNAL_CODE),
}


class Ledger:
    """The additions of one invocation to a run.

    Args:
        store: the run.
        display: receives events.
        launcher: name of the launcher.
        status: of the run while a launch is in progress; it remains if the invocation is killed.
    """

    def __init__(
        self, store: Store, display: Listener, launcher: str, *, status: str = "running"
    ) -> None:
        self.store = store
        self.display = display
        self.lock = threading.RLock()
        """Held while something is entered: any thread may end a launch."""
        self.launch: LaunchLedger | None = None
        """The launch in progress."""
        self._info_before = store.info.copy()
        self._records_before = len(store.records)
        self.launcher = launcher
        self._status = status
        self._warned: set[str] = set()
        self._has_all_rows = False
        """Whether the tables hold all records."""

    def begin(self, launch: Launch) -> LaunchLedger:
        """Enter that a launch begins; return the listener of its ranks' events."""
        number, reason = launch.plan.launch, ""
        if self._status != "running":
            reason = str(Finding("launch_begun", numbers={"launch": number + 1}))
        budget = launch.request.budget
        self.store.update(
            status=self._status,
            reason=reason,
            launcher=self.launcher,
            budget=budget.name,
            relative_half_width=budget.relative_half_width,
        )
        stage = " ".join(filter(None, (launch.stage, launch.plan.env)))
        started = LaunchStarted(launch=number, launches=launch.launches, stage=stage)
        self.display.on(started)
        self.launch = LaunchLedger(self, launch)
        return self.launch

    def end(self, ending: Ending) -> Ending:
        """Enter how the launch ended; return that with the cases in which it failed or hung.

        Raises:
            InputError: its ranks refuse what is asked for; the launch is not entered.
        """
        with self.lock:
            assert self.launch is not None  # noqa: S101 - `begin` comes before
            ending = self.launch.end(ending)
            self.launch = None
            return ending

    def close(self, stop: Stop) -> int:
        """Write how the run ended.

        Return the exit code: a signal outranks wrong data, wrong data a partial run.
        """
        with self.lock:
            status, code = ENDS[stop.kind]
            code += stop.signal
            for record in latest(self.store.records).values():
                if record.status == "wrong" and code < SIGNAL_CODE:
                    code = WRONG_CODE
            # the status first: mpirun leaves a quarter of a second between SIGTERM and SIGKILL
            self.store.update(status=status, reason=stop.reason)
            self.write_tables()
            return code

    def refuse(self, reason: str) -> None:
        """Leave a run that was refused before anything was measured as it was."""
        has_measured = len(self.store.records) > self._records_before
        if not has_measured:
            self.store.restore(self._info_before)
        if has_measured or self._info_before.get("status", "running") == "running":
            self.store.update(status="partial", reason=reason)

    def fail(self, error: BaseException) -> None:
        """Enter that commbench itself failed, as far as the disk allows."""
        reason = "the conductor itself failed"
        if isinstance(error, LaunchError):
            reason = str(error)
        with contextlib.suppress(LaunchError):  # that the disk is full has been reported
            if self.launch is not None:
                self.launch.enter(Ending(status="failed", cause=Finding.stated(reason)))
        with contextlib.suppress(LaunchError):
            self.store.update(status="partial", reason=str(error))

    # ------------------------------------------------------------------------- from launches

    def begin_session(self, facts: RunInfo, *, trains: bool) -> None:
        """State the conditions of a launch; the first session of a run fixes them.

        Raises:
            InputError: the run was begun under other conditions.
        """
        refuse_other_conditions(facts, self._info_before, trains=trains)
        changes = changed_conditions(facts, self.store.info, trains=trains)
        if changes:
            numbers: dict[str, Value] = {"changes": tuple(changes[:3])}
            self._warn_once("change", str(Finding("conditions_changed", numbers=numbers)))
        text = remark(facts)
        if text:
            self._warn_once("remark", text)
        self.store.update(**header_fields(facts, self.store.info))

    def _warn_once(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            self.display.on(Notice(text=text))

    def add(self, finished: CaseFinished) -> None:
        """Keep a record and show it."""
        self._has_all_rows = False
        self.store.append(finished.record)
        self.display.on(finished)

    def add_launch(self, entry: Entry) -> None:
        """Enter a launch into run.json."""
        self._has_all_rows = False
        self.store.update(launches=[*self.store.info.get("launches", []), entry])

    def write_tables(self) -> None:
        """Bring the tables up to date."""
        if not self._has_all_rows:
            write_tables(self.store)
            self._has_all_rows = True


class LaunchLedger:
    """One launch in the ledger: the listener of its ranks' events, which knows how far they are."""

    def __init__(self, ledger: Ledger, launch: Launch) -> None:
        self.launch = launch
        self.plan = launch.plan
        self.ranks = launch.request.ranks
        self.startup_s: float | None = None
        """Seconds until all ranks had come together; None before that."""
        self.case: AnyCase | None = None
        """The case that has begun and not finished."""
        self.has_begun = False
        """Whether a case has begun."""
        self.is_complete: bool | None = None
        """Whether the ranks have measured all cases; None before they have ended."""
        self._ledger = ledger
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._shares: defaultdict[str, float] = defaultdict(float)
        """By case key, the share of its time slice whose visits have been reported."""
        self._measuring_s = 0.0
        self._variables: Mapping[str, VariableValues] = {}
        self._has_result = False
        self._lost: dict[str, str] = {}

    @property
    def has_everything(self) -> bool:
        """Whether the ranks have measured all cases, or have reported every visit of each."""
        reported = [self._shares[planned.case.key] for planned in self.plan.cases]
        return self.is_complete is True or min(reported) > 1 - ROUNDING

    def on(self, event: Event) -> None:
        """Enter an event.

        Raises:
            InputError: the run was begun under other conditions.
        """
        with self._ledger.lock:
            match event:
                case SessionStarted(facts=facts, variables=variables):
                    startup_s = time.monotonic() - self.launch.begun
                    self._variables = variables
                    self._ledger.begin_session(facts, trains=self.plan.training is not None)
                    self.startup_s = startup_s
                case CaseStarted(index=index):
                    self._begin(self.plan.cases[index].case)
                case CaseFinished():
                    self._finish(event)
                case CasesEnded(is_complete=is_complete):
                    self.is_complete = is_complete
                case LastCase():
                    self._ledger.display.on(Notice(text=str(Finding("last_case"))))

    def _begin(self, case: AnyCase) -> None:
        self._has_result = self.has_begun  # the case before has come to its end
        self.has_begun = True
        self.case = case
        remaining = self.launch.remaining
        eta_s = self.launch.times.eta_s(
            time.monotonic(),
            slices=remaining.slices,
            launches=max(0, remaining.launches - 1),
            slice_s=slice_seconds(self.launch.request, self._ledger.store.records),
        )
        done = remaining.total - math.ceil(remaining.cases - ROUNDING)
        progress = CaseProgress(done=done, total=remaining.total, case=str(case), eta_s=eta_s)
        self._ledger.display.on(progress)

    def _finish(self, finished: CaseFinished) -> None:
        """Keep a record.

        A configuration that fails to train on all ranks alike would do so again.
        """
        record, share = finished.record, finished.share
        self._measuring_s += record.measuring_s
        self._shares[record.case.key] += share
        if self.case is not None and self.case.key == record.case.key:
            self.case = None
        if record.status in DONE:
            self._has_result = True
            self.launch.remaining.cases -= share
            self.launch.remaining.slices -= share * self.launch.request.slices([record.case])
        self._ledger.add(finished)
        if isinstance(record, TrainingRecord) and record.status == "failed":
            self._lost[record.case.key] = in_case(record.reason, record.case)

    def end(self, ending: Ending) -> Ending:
        """Enter how the launch ended, and the cases that failed by that; see `Ledger.end`."""
        if ending.status == "refused":
            if not (self._ledger.store.records and self.launch.is_trial):
                raise InputError(ending.reason)
            ending = Ending(status="failed", cause=Finding.stated(ending.reason.rstrip(".")))
        if ending.is_broken and self.case is not None:
            self._fail(ending, self.case)
            ending = replace(ending, case=self.case)
        self.enter(ending)
        has_failed = ending.is_broken and not (self.has_begun or ending.is_host_lost)
        if has_failed and self.launch.is_trial:
            for planned in self.plan.cases:
                self._fail(ending, planned.case)
        if ending.is_broken:
            self._ledger.display.on(RankOutput(lines=ending.output))
        if ending.failed_rank and ending.failed_rank["others"]:
            self._ledger.display.on(Notice(text=waiting(ending.failed_rank)))
        return replace(
            ending, has_begun=self.has_begun, has_result=self._has_result, lost=self._lost
        )

    def _fail(self, ending: Ending, case: AnyCase) -> None:
        """Keep a case as failed.

        A soak measures it again, and keeps the results before.
        """
        if self.launch.request.soak_s:
            for record in self._ledger.store.records:
                if record.case.key == case.key and record.status in DONE:
                    return
        else:
            self._lost[case.key] = in_case(ending.reason, case)
        status: Status = "failed"
        if ending.status == "hung":
            status = "hung"
        assert ending.cause is not None  # noqa: S101 - it is broken
        record = blank_record(case, launch=self.plan.launch, status=status, reason=ending.cause)
        self._ledger.add(CaseFinished(record=record))

    def enter(self, ending: Ending) -> None:
        """Enter how the launch ended, without a case."""
        seconds = time.monotonic() - self.launch.begun
        startup_s = self.startup_s
        if startup_s is None:
            startup_s = seconds
        entry: Entry = {
            "stage": self.launch.request.name,
            "launch": self.plan.launch,
            "started": self._started,
            "status": ending.status,
            "reason": ending.reason,
            **launch_times(seconds=seconds, startup_s=startup_s, measuring_s=self._measuring_s),
        }
        if self.plan.env:
            entry["env"], entry["variables"] = self.plan.env, self._variables
        if ending.failed_rank:
            entry["culprit"] = ending.failed_rank
        self._ledger.add_launch(entry)
        if ending.status == "ok":
            cases = [planned.case for planned in self.plan.cases]
            self.launch.times.learn(entry, self.launch.request.slices(cases))
        self._ledger.display.on(LaunchFinished(seconds=seconds))


def make_launches(schedule: Schedule, ledger: Ledger, run: Callable[[LaunchLedger], Ending]) -> int:
    """Make launches until the schedule stops; return the exit code.

    Args:
        schedule: plans them.
        ledger: keeps them.
        run: makes a launch that hears its ranks' events; returns how it ended.
    """
    while isinstance(step := schedule.next(), Launch):
        ending = run(ledger.begin(step))
        schedule.ended(step, ledger.end(ending))
        ledger.write_tables()
    return ledger.close(step)
