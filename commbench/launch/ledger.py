"""The ledger of a run: the only writer of its records, launches and end, in the store and on the
display.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from commbench.engine.records import Status
from commbench.errors import InputError, LaunchError
from commbench.findings import Finding
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
from commbench.launch.schedule import Launch, Stop
from commbench.launch.tables import write_tables
from commbench.results import Store
from commbench.results.info import Launch as Entry
from commbench.results.plan import DONE, launch_times, slice_seconds
from commbench.results.record_types import AnyCase, blank_record
from commbench.results.summary import latest
from commbench.units import counted

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


@dataclass
class Ledger:
    """The additions of one invocation to a run."""

    store: Store
    """The run."""
    display: Listener
    """Receives events."""
    launcher: str
    """Name of the launcher."""
    status: str = "running"
    """Of the run while a launch is in progress; it remains if the invocation is killed."""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        """Held while something is entered: any thread may end a launch."""
        self.launch: Launch | None = None
        """The launch in progress."""
        self._info_before = self.store.info.copy()
        self._records_before = len(self.store.records)
        self._warned: set[str] = set()
        self._has_all_rows = False
        """Whether the tables hold all records."""

    def carry_out(self, launch: Launch, run: Callable[[Launch], Ending]) -> Ending:
        """Make a launch by ``run``, whose ranks' events come to `on`; return how it ended."""
        number, reason = launch.plan.launch, ""
        if self.status != "running":
            reason = str(Finding("launch_begun", numbers={"launch": number + 1}))
        budget = launch.request.budget
        self.store.update(
            status=self.status,
            reason=reason,
            launcher=self.launcher,
            budget=budget.name,
            relative_half_width=budget.relative_half_width,
        )
        self.launch = launch
        ending = self.end(run(launch))
        self.write_tables()
        return ending

    def end(self, ending: Ending) -> Ending:
        """Enter how the launch ended; return that with the case in which it failed or hung.

        Raises:
            InputError: its ranks refuse what is asked for; the launch is not entered.
        """
        with self.lock:
            launch = self.launch
            assert launch is not None  # noqa: S101 - `carry_out` has begun it
            if ending.status == "refused":
                if not (self.store.records and launch.is_trial):
                    raise InputError(ending.reason)
                ending = Ending(status="failed", cause=Finding.stated(ending.reason.rstrip(".")))
            if ending.is_broken and launch.case is not None:
                self._fail(launch, ending, launch.case)
                ending = replace(ending, case=launch.case)
            self._enter(launch, ending)
            has_failed = ending.is_broken and not (launch.has_begun or ending.is_host_lost)
            if has_failed and launch.is_trial:
                for case in launch.plan.cases:
                    self._fail(launch, ending, case)
            if ending.is_broken:
                self.display.on(RankOutput(lines=ending.output))
            if ending.failed_rank and ending.failed_rank["others"]:
                self.display.on(Notice(text=waiting(ending.failed_rank)))
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
                self._enter(self.launch, Ending(status="failed", cause=Finding.stated(reason)))
        with contextlib.suppress(LaunchError):
            self.store.update(status="partial", reason=str(error))

    def write_tables(self) -> None:
        """Bring the tables up to date."""
        if not self._has_all_rows:
            write_tables(self.store)
            self._has_all_rows = True

    def on(self, event: Event) -> None:
        """Enter an event of the launch in progress.

        Raises:
            InputError: the run was begun under other conditions.
        """
        with self.lock:
            launch = self.launch
            if launch is None:
                return
            match event:
                case SessionStarted():
                    self._begin_session(launch, event)
                case CaseStarted(index=index):
                    self._begin_case(launch, launch.plan.cases[index])
                case CaseFinished():
                    launch.note(event)
                    self._add(event)
                case CasesEnded(is_complete=is_complete):
                    launch.is_complete = is_complete
                case LastCase():
                    self.display.on(Notice(text=str(Finding("last_case"))))

    def _begin_session(self, launch: Launch, session: SessionStarted) -> None:
        """State the conditions of a launch; the first session of a run fixes them."""
        startup_s = time.monotonic() - launch.begun
        facts, trains = session.facts, launch.plan.training is not None
        started, requested = len(facts["ranks"]), launch.request.ranks
        if started != requested:  # sizes and cases were planned for another number
            raise InputError(
                f"{counted(requested, 'rank')} were asked for and the launcher has started"
                f" {started}; leave that number to -n, also in --launcher-arg."
            )
        refuse_other_conditions(facts, self._info_before, trains=trains)
        changes = changed_conditions(facts, self.store.info, trains=trains)
        if changes:
            numbers = {"changes": tuple(changes[:3])}
            self._warn_once(str(Finding("conditions_changed", numbers=numbers)))
        text = remark(facts)
        if text:
            self._warn_once(text)
        self.store.update(**header_fields(facts, self.store.info))
        launch.startup_s, launch.variables = startup_s, session.variables

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.display.on(Notice(text=text))

    def _begin_case(self, launch: Launch, case: AnyCase) -> None:
        launch.has_result = launch.has_begun  # the case before has come to its end
        launch.has_begun = True
        launch.case = case
        remaining, eta_s = launch.remaining, self._eta_s(launch)
        done = remaining.total - math.ceil(remaining.cases - ROUNDING)
        progress = CaseProgress(done=done, total=remaining.total, case=str(case), eta_s=eta_s)
        self.display.on(progress)

    def _eta_s(self, launch: Launch) -> float:
        """Return the time that the stage will still take."""
        return launch.times.eta_s(
            time.monotonic(),
            slices=launch.remaining.slices,
            launches=max(0, launch.remaining.launches - 1),
            slice_s=slice_seconds(launch.request, self.store.records),
        )

    def _add(self, finished: CaseFinished) -> None:
        """Keep a record and show it."""
        self._has_all_rows = False
        self.store.append(finished.record)
        self.display.on(finished)

    def _fail(self, launch: Launch, ending: Ending, case: AnyCase) -> None:
        """Keep a case as failed.

        A soak measures it again, and keeps the results before.
        """
        if launch.request.soak_s:
            for record in self.store.records:
                if record.case.key == case.key and record.status in DONE:
                    return
        else:
            launch.lost[case.key] = in_case(ending.reason, case)
        status: Status = "failed"
        if ending.status == "hung":
            status = "hung"
        assert ending.cause is not None  # noqa: S101 - it is broken
        record = blank_record(case, launch=launch.plan.launch, status=status, reason=ending.cause)
        self._add(CaseFinished(record=record))

    def _enter(self, launch: Launch, ending: Ending) -> None:
        """Enter how a launch ended, without a case."""
        seconds = time.monotonic() - launch.begun
        startup_s = launch.startup_s
        if startup_s is None:
            startup_s = seconds
        entry: Entry = {
            "stage": launch.request.name,
            "launch": launch.plan.launch,
            "started": launch.started,
            "status": ending.status,
            "reason": ending.reason,
            **launch_times(seconds=seconds, startup_s=startup_s, measuring_s=launch.measuring_s),
        }
        if launch.plan.env:
            entry["env"], entry["variables"] = launch.plan.env, launch.variables
        if ending.failed_rank:
            entry["failed_rank"] = ending.failed_rank
        self._has_all_rows = False
        self.store.update(launches=[*self.store.info.get("launches", []), entry])
        if ending.status == "ok":
            launch.times.learn(entry, launch.request.slices(launch.plan.cases))
        self.display.on(LaunchFinished(seconds=seconds, eta_s=self._eta_s(launch)))
