"""The ledger of a run: its records, failed cases, progress, launches and end, in the store and on
the display.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Status
from commbench.findings import Finding
from commbench.launch.diagnosis import Ending
from commbench.launch.events import (
    ROUNDING,
    CaseFinished,
    CaseProgress,
    CaseStarted,
    Event,
    LastCase,
    LaunchFinished,
    LaunchStarted,
    Listener,
    Notice,
    Session,
    SessionStarted,
)
from commbench.launch.facts import (
    changed_conditions,
    header_fields,
    refuse_other_conditions,
    remark,
)
from commbench.launch.tables import write_tables
from commbench.results import Store
from commbench.results.info import Launch, VariableValues
from commbench.results.plan import (
    DONE,
    LaunchPlan,
    RunRequest,
    TimePlan,
    budget_fields,
    launch_times,
    slice_seconds,
    unmeasured_cases,
)
from commbench.results.record_types import AnyCase, AnyRecord, blank_record
from commbench.results.summary import latest
from commbench.units import counted

DONE_CODE, PARTIAL_CODE, WRONG_CODE, SIGNAL_CODE = 0, 3, 4, 128


class Ledger:
    """The additions of one invocation to a run.

    Args:
        store: the run.
        display: receives events.
        launcher: name of the launcher.
        fail_fast: whether the first failure ends the run.
        status: of the run while a launch is in progress; it remains if the invocation is killed.
    """

    def __init__(
        self,
        store: Store,
        display: Listener,
        launcher: str,
        *,
        fail_fast: bool = False,
        status: str = "running",
    ) -> None:
        self.store = store
        self.display = display
        self.failed: dict[str, str] = {}
        """Failed cases by key with the reason; this invocation does not measure them again."""
        self.failures_in_a_row = 0
        """Failed launches since the last result."""
        self.has_failed_launches = False
        """Whether a launch of a soak has failed, which ends it with code 3 although it is
        complete."""
        self.lock = threading.RLock()
        self.info_before = store.info.copy()
        self._records_before = len(store.records)
        self._launcher = launcher
        self._fail_fast = fail_fast
        self._status = status
        self._cut: list[RunRequest] = []
        """Stages that a time limit has cut."""
        self._warned: set[str] = set()
        self._has_all_rows = False
        """Whether the tables hold all records."""

    def begin_stage(self, request: RunRequest) -> None:
        """Write the status, launcher and budget of a stage that begins."""
        self._has_all_rows = False
        self.store.update(status=self._status, launcher=self._launcher, **budget_fields(request))

    def begin_session(self, facts: Session, request: RunRequest, launch: int) -> None:
        """State the conditions of a launch; the first session of a run fixes them.

        Raises:
            InputError: the run was begun under other conditions.
        """
        refuse_other_conditions(facts, self.info_before)
        if changes := changed_conditions(facts, self.store.info):
            self.warn_once(
                "change",
                f"The conditions have changed since the first launch: {'; '.join(changes[:3])}.",
            )
        if text := remark(facts):
            self.warn_once("remark", text)
        # mpirun leaves a quarter of a second between SIGTERM and SIGKILL: run.json states the end
        # before it comes.
        reason = "" if self._status == "running" else f"launch {launch + 1} has begun and not ended"
        header = header_fields(facts, self.store.info)
        self.store.update(
            status=self._status,
            reason=reason,
            launcher=self._launcher,
            **budget_fields(request),
            **header,
        )

    def warn_once(self, topic: str, text: str) -> None:
        """Show a sentence the first time that a topic comes up."""
        if topic not in self._warned:
            self._warned.add(topic)
            self.display.on(Notice(text=text))

    def leave_out(self, case: AnyCase, reason: str) -> None:
        """Measure a case no more in this invocation."""
        self.failed[case.key] = f"{reason}, in case {case}"

    def add(self, record: AnyRecord) -> None:
        """Keep a record and show it."""
        self._has_all_rows = False
        self.store.append(record)
        if record.status in DONE:
            self.failures_in_a_row = 0
        self.display.on(CaseFinished(record=record))

    def add_launch(self, entry: Launch) -> None:
        """Enter how a launch ended into run.json, and bring the tables up to date."""
        self.store.update(launches=[*self.store.info.get("launches", []), entry])
        self._write_tables()

    def cut(self, request: RunRequest) -> None:
        """Note that a time limit has cut a stage."""
        self._cut.append(request)

    def close(self, ending: Ending, *, next_step: str = "", signal: int = 0) -> int:
        """Write how the run ended.

        Return the exit code: a signal outranks wrong data, wrong data a partial run.

        Args:
            ending: of the last launch.
            next_step: the measurements left to further invocations; empty if complete.
            signal: the signal that interrupted the run.
        """
        is_cut = ending.status == "cut"
        code, status, reason = DONE_CODE, "complete", ending.reason
        if ending.status == "interrupted":
            code, status = SIGNAL_CODE + signal, "interrupted"
        elif ending.is_broken or self.failed:
            code, status, reason = PARTIAL_CODE, "partial", self._why(ending)
        elif is_cut and (next_step or self._lacks_cases()):
            code, status = PARTIAL_CODE, "partial"
        elif next_step:
            status, reason = "partial", next_step
        elif is_cut:
            status = "cut"
        if code == DONE_CODE and self.has_failed_launches:
            code = PARTIAL_CODE
        if code < SIGNAL_CODE and any(
            r.status == "wrong" for r in latest(self.store.records).values()
        ):
            code = WRONG_CODE
        if not self._has_all_rows:
            self._write_tables()
        self.store.update(status=status, reason=reason)
        return code

    def _lacks_cases(self) -> bool:
        """Return whether a case of a cut stage has no launch at all."""
        return any(unmeasured_cases(request, self.store.records) for request in self._cut)

    def _why(self, ending: Ending) -> str:
        """Return how many cases failed and how the first did, or the reason of the launch that
        ended the run.
        """
        if not self.failed or (self._fail_fast and ending.is_broken):
            return ending.reason
        first = next(iter(self.failed.values()))
        text = (
            f"{counted(len(self.failed), 'case')}"
            f" failed{', the first' if len(self.failed) > 1 else ''}: {first}"
        )
        return f"{text}; {ending.reason}" if ending.reason else text

    def refuse(self, reason: str) -> None:
        """Leave a run that was refused before anything was measured as it was."""
        has_measured = len(self.store.records) > self._records_before
        if not has_measured:
            self.store.restore(self.info_before)
        if has_measured or self.info_before.get("status", "running") == "running":
            self.store.update(status="partial", reason=reason)

    def _write_tables(self) -> None:
        write_tables(self.store)
        self._has_all_rows = True


@dataclass(kw_only=True)
class Remaining:
    """What the launches of a stage have still to measure."""

    cases: float
    """A case that has some of its visits counts in part."""
    slices: float
    launches: int
    """Launches with missing cases, the present one included."""
    total: int
    """Cases of the stage in all launches, measured or not."""

    @classmethod
    def of(
        cls, request: RunRequest, missing_cases: Iterable[Sequence[AnyCase]], *, total: int
    ) -> Remaining:
        """Return the remaining work from the missing cases of each launch."""
        by_launch = [cases for cases in missing_cases if cases]
        return cls(
            cases=sum(map(len, by_launch)),
            slices=sum(map(request.slices, by_launch)),
            launches=len(by_launch),
            total=total,
        )


class LaunchLedger:
    """One launch in the ledger: the listener of its ranks' events.

    Args:
        ledger: of the run.
        request: the stage of the launch.
        plan: the cases of the launch, and how they are measured.
        times: of the stage; learns from the launch.
        begun: when the launch began, by the monotonic clock.
        remaining: work of the stage when the launch begins.
    """

    def __init__(
        self,
        ledger: Ledger,
        request: RunRequest,
        plan: LaunchPlan,
        *,
        times: TimePlan,
        begun: float,
        remaining: Remaining,
    ) -> None:
        self.ledger = ledger
        self.request = request
        self.plan = plan
        self.has_begun = False
        """Whether a case has begun."""
        self.failed_case: AnyCase | None = None
        """The case in which the launch failed or hung."""
        self.is_open = True
        self._times = times
        self._begun = begun
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._startup_s: float | None = None
        """Seconds until all ranks had come together; None before that."""
        self._measuring_s = 0.0
        self._variables: Mapping[str, VariableValues] = {}
        self._current: AnyCase | None = None
        self._remaining = remaining

    @property
    def has_session(self) -> bool:
        """Whether the ranks have come together."""
        return self._startup_s is not None

    def show_start(self, launches: int, stage: str) -> None:
        """Show that the launch is being started; ``stage`` is named in runs of several stages."""
        self.ledger.display.on(
            LaunchStarted(launch=self.plan.launch, launches=launches, stage=stage)
        )

    def on(self, event: Event) -> None:
        """Enter an event.

        Raises:
            InputError: the run was begun under other conditions.
        """
        with self.ledger.lock:
            match event:
                case SessionStarted(facts=facts):
                    startup_s = time.monotonic() - self._begun
                    self.ledger.begin_session(facts, self.request, self.plan.launch)
                    self._startup_s = startup_s
                    self._variables = facts.get("launch_variables", {})
                case CaseStarted(index=index):
                    self._begin(self.plan.cases[index].case)
                case CaseFinished(record=record, share=share):
                    self._finish(record, share)
                case LastCase():
                    text = "Finishing the case; press Ctrl-C again to stop now."
                    self.ledger.display.on(Notice(text=text))

    def _begin(self, case: AnyCase) -> None:
        if self.has_begun:
            self.ledger.failures_in_a_row = 0  # the case before has come to its end
        self.has_begun = True
        self._current = case
        slice_s = slice_seconds(self.request, self.ledger.store.records)
        remaining = self._remaining
        eta_s = self._times.eta_s(
            time.monotonic(),
            slices=remaining.slices,
            launches=max(0, remaining.launches - 1),
            slice_s=slice_s,
        )
        done = remaining.total - math.ceil(remaining.cases - ROUNDING)
        self.ledger.display.on(
            CaseProgress(done=done, total=remaining.total, case=str(case), eta_s=eta_s)
        )

    def _finish(self, record: AnyRecord, share: float) -> None:
        """Keep a record.

        A configuration that fails to train on all ranks alike would do so again.
        """
        self._measuring_s += record.measuring_s
        if self._current is not None and self._current.key == record.case.key:
            self._current = None
        self._keep(record, share)
        if isinstance(record, TrainingRecord) and record.status == "failed":
            self.ledger.leave_out(record.case, record.reason)

    def _keep(self, record: AnyRecord, share: float = 1.0) -> None:
        if record.status in DONE:
            self._remaining.cases -= share
            self._remaining.slices -= share * self.request.slices([record.case])
        self.ledger.add(record)

    def close(self, ending: Ending) -> Ending:
        """Enter how the launch ended.

        Return the ending, which names the case in which the launch failed or hung.
        """
        with self.ledger.lock:
            if ending.is_broken and self._current is not None:
                ending = self._fail_case(ending, self._current)
            self.enter(ending)
            return ending

    def fail_all(self, ending: Ending) -> None:
        """Keep the cases of a launch that failed before its first one as failed."""
        with self.ledger.lock:
            for planned in self.plan.cases:
                self._fail_case(ending, planned.case)

    def _fail_case(self, ending: Ending, case: AnyCase) -> Ending:
        """Keep a case as failed and measure it no more.

        A soak measures it again, and keeps the results before.
        """
        self.failed_case = case
        if self.request.soak_s and any(
            r.case.key == case.key and r.status in DONE for r in self.ledger.store.records
        ):
            return ending.in_case(case)
        status: Status = "hung" if ending.status == "hung" else "failed"
        reason = ending.cause or Finding.stated(ending.reason)
        self._keep(blank_record(case, launch=self.plan.launch, status=status, reason=reason))
        if not self.request.soak_s:
            self.ledger.leave_out(case, ending.reason)
        return ending.in_case(case)

    def enter(self, ending: Ending) -> None:
        """Enter how the launch ended, without a case."""
        self.is_open = False
        seconds = time.monotonic() - self._begun
        startup_s = seconds if self._startup_s is None else self._startup_s
        entry: Launch = {
            "stage": self.request.name,
            "launch": self.plan.launch,
            "started": self._started,
            "status": ending.status,
            "reason": ending.reason,
        }
        entry.update(
            launch_times(seconds=seconds, startup_s=startup_s, measuring_s=self._measuring_s)
        )
        if self.plan.env:
            entry["env"], entry["variables"] = self.plan.env, self._variables
        if ending.failed_rank:
            entry["culprit"] = ending.failed_rank.to_json()
        self.ledger.add_launch(entry)
        if ending.status == "ok":
            slices = self.request.slices(planned.case for planned in self.plan.cases)
            self._times.learn(
                startup_s=startup_s, seconds=seconds, measuring_s=self._measuring_s, slices=slices
            )
        self.ledger.display.on(LaunchFinished(seconds=seconds))
