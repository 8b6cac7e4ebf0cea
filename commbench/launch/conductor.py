"""The conductor: plans a run's launches, sees each through, keeps what they measure, and says how the run ended."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Status
from commbench.errors import InputError, LaunchError
from commbench.launch.display import Display, SilentDisplay
from commbench.launch.facts import changed_conditions, header_fields, refuse_other_conditions, remark
from commbench.launch.launchers import Launcher
from commbench.launch.signals import Interrupts
from commbench.launch.supervisor import Ending, Supervisor
from commbench.launch.tables import write_tables
from commbench.results import Store
from commbench.results.plan import (
    DONE,
    RunRequest,
    Stage,
    TimePlan,
    budget_fields,
    dry_run_estimate,
    exceeds_aim,
    launch_entry,
    missing_cases,
    plan_launch,
    single_stage,
    slice_seconds,
    unmeasured_cases,
)
from commbench.results.record_types import AnyCase, AnyRecord, blank_record
from commbench.results.summary import latest
from commbench.units import counted

__all__ = ["Display", "RunRequest", "SilentDisplay", "Stage", "conduct", "dry_run_estimate", "single_stage"]

DONE_CODE, PARTIAL_CODE, WRONG_CODE, SIGNAL_CODE = 0, 3, 4, 128
#: So many launches that fail one after the other without a result show that the next would too.
MOST_FRUITLESS = 3
_BROKEN = frozenset({"failed", "hung"})


def conduct(
    stages: Sequence[Stage], store: Store, launcher: Launcher, display: Display, *, fail_fast: bool = False
) -> int:
    """Measure what ``store`` still lacks of each stage in turn; return the exit code.

    Each launch that is not complete measures its missing cases. Where it fails or hangs, the case is kept as such and
    left out until the end of this call, and the launch goes on without it with newly started ranks; the same call
    tries the case again. The run ends at a launch that fails before its first case or loses a host, at the third
    failure in a row without a result, with ``fail_fast`` at the first failure, and at a signal: Ctrl-C lets the case
    that is being measured come to its end first, unless it is pressed again.

    Returns:
        0 done, 3 a rank failed or hung, 4 wrong data was found, 128 + number of the signal that interrupted the run.

    Raises:
        InputError: the ranks find that what was asked for cannot be done, or that the run was begun elsewhere.
        LaunchError: the results cannot be written.
    """
    return _Run(stages, store, launcher, display, fail_fast=fail_fast).conduct()


class _Run:
    """All stages of one run."""

    def __init__(
        self, stages: Sequence[Stage], store: Store, launcher: Launcher, display: Display, *, fail_fast: bool
    ) -> None:
        self.stages = stages
        self.store = store
        self.launcher = launcher
        self.display = display
        self.fail_fast = fail_fast
        self.interrupts = Interrupts()
        self.begun = time.monotonic()
        self.known = store.info.copy()
        self.known_records = len(store.records)
        self.warned: set[str] = set()
        """Of what in the sessions a warning has been given."""
        self.failed: dict[str, str] = {}
        """By case key, why a case has failed: it is left out from then on."""
        self.fruitless = 0
        """Launches that have failed since the last result."""

    def conduct(self) -> int:
        """See `conduct` above."""
        self.store.update(status="running", launcher=self.launcher.name)
        try:
            with self.interrupts:
                ending, unmeasured = self._stages()
                if ending.status != "refused":  # still within: a second Ctrl-C must not keep the end from run.json
                    return self._finish(ending, unmeasured)
        except BaseException as error:
            with contextlib.suppress(LaunchError):  # a disk that is full has been complained about
                self.store.update(status="partial", reason=str(error))
            raise
        self._restore(ending.reason)
        raise InputError(ending.reason)

    def _stages(self) -> tuple[Ending, int]:
        """Return how the run ended, and how many cases of stages that a time limit has cut no launch has measured.

        A stage that its time limit cuts does not keep the next one from its own time.
        """
        cut, unmeasured, startup_s = None, 0, None
        for plan in self.stages:
            request = plan(tuple(self.store.records))
            if request is None:
                continue
            self.store.update(**budget_fields(request))
            stage = _StageRun(self, request, startup_s)
            ending = stage.run()
            if ending.status == "cut":
                cut = cut or ending
                unmeasured += len(unmeasured_cases(request, self.store.records))
            elif ending.status != "ok":
                return ending, 0
            startup_s = stage.times.startup_s
        return cut or Ending(status="ok"), unmeasured

    def _finish(self, ending: Ending, unmeasured: int) -> int:
        """Write how the run ended and return its exit code: wrong data outranks a partial run."""
        code, status, reason = DONE_CODE, "complete", ending.reason
        if ending.status == "interrupted":
            code, status = SIGNAL_CODE + (self.interrupts.number or 0), "interrupted"
        elif ending.status in _BROKEN or self.failed:
            code, status, reason = PARTIAL_CODE, "partial", self._why(ending)
        elif unmeasured:
            code, status = PARTIAL_CODE, "partial"
        elif ending.status == "cut":
            status = "cut"
        if code < SIGNAL_CODE and any(r.status == "wrong" for r in latest(self.store.records).values()):
            code = WRONG_CODE
        write_tables(self.store)
        self.store.update(status=status, reason=reason)
        return code

    def _why(self, ending: Ending) -> str:
        """How many cases failed and how the first did; without any, or where the run was to end there, how it ended."""
        if self.fail_fast or not self.failed:
            return ending.reason
        first = next(iter(self.failed.values()))
        said = f"{counted(len(self.failed), 'case')} failed{', the first' if len(self.failed) > 1 else ''}: {first}"
        return f"{said}; {ending.reason}" if ending.reason else said

    def _restore(self, reason: str) -> None:
        """Leave a run that was refused before anything was measured as it was."""
        measured = len(self.store.records) > self.known_records
        if not measured:
            self.store.restore(self.known)
        if measured or self.known.get("status", "running") == "running":
            self.store.update(status="partial", reason=reason)

    def warn_once(self, of: str, text: str) -> None:
        """Say something the first time."""
        if of not in self.warned:
            self.warned.add(of)
            self.display.warning(text)

    def leave_out(self, case: AnyCase, reason: str) -> None:
        """Measure a case no more in this run."""
        self.failed[case.key] = f"{reason}, in case {case}"


class _StageRun:
    """All launches of one stage."""

    def __init__(self, run: _Run, request: RunRequest, startup_s: float | None) -> None:
        self.run_ = run
        self.request = request
        self.label = request.name if len(run.stages) > 1 else ""
        self.times = TimePlan(
            budget=request.budget,
            begun=run.begun,
            limit_s=request.time_limit_s,
            whole_limit_s=request.whole_limit_s,
        )
        if startup_s is not None:
            self.times.startup_s = startup_s

    @property
    def launches(self) -> range:
        """The numbers of the stage's launches."""
        return range(self.request.first_launch, self.request.budget.launches)

    def run(self) -> Ending:
        """See the launches through; ``cut`` where the time limit does not let all of them be made."""
        for launch in self.launches:
            if exceeds_aim(self.request, self.run_.store.info.get("launches", []), launch):
                break
            ending = self._launch(launch)
            if ending.status != "ok":
                return ending
        return Ending(status="ok")

    def _launch(self, launch: int) -> Ending:
        """Measure what a launch lacks, after a failure in a new start of the ranks."""
        ending: Ending | None = None
        while ending is None and (missing := self.missing(launch)):
            ending = self._obstacle(launch, slices=self.request.slices(missing))
            if ending is None:
                attempt = _LaunchRun(self, launch)
                ending = self._judge(attempt.run(), attempt)
        return ending or Ending(status="ok")

    def _obstacle(self, launch: int, *, slices: float) -> Ending | None:
        """What keeps a launch from being started."""
        run = self.run_
        if run.interrupts.number is not None:
            name = signal.Signals(run.interrupts.number).name
            return Ending(status="interrupted", reason=f"interrupted by {name} between launches")
        slice_s, whole = slice_seconds(self.request, run.store.records), self.is_vital(launch)
        if run.store.records and not self.times.fits(time.monotonic(), slices=slices, whole=whole, slice_s=slice_s):
            return self._out_of_time(launch)
        return None

    def is_vital(self, launch: int) -> bool:
        """Whether a launch is made for as long as the whole time limit lasts."""
        return launch < self.request.fewest_launches

    def _judge(self, ending: Ending, attempt: _LaunchRun) -> Ending | None:
        """What the end of a start means for the launch; None where it goes on with new ranks."""
        if ending.status in _BROKEN:
            return self._after_failure(ending, attempt)
        if ending.status == "cut":
            return self._out_of_time(attempt.launch + 1)
        if self.run_.fail_fast and self.run_.failed:
            return Ending(status="failed", reason=next(iter(self.run_.failed.values())))
        if ending.status == "ok" and ending.reason:
            self.run_.display.warning(f"Launch {attempt.launch + 1}: {ending.reason}.")
        return ending

    def _after_failure(self, ending: Ending, attempt: _LaunchRun) -> Ending | None:
        """How the run ends, or None where it goes on."""
        run = self.run_
        run.fruitless += 1
        if run.fail_fast or ending.is_host_lost or not attempt.cases_begun:
            return ending
        if run.fruitless >= MOST_FRUITLESS:
            said = f"stopped after {run.fruitless} failed launches in a row"
            return replace(ending, reason=said if run.failed else f"{said}: {ending.reason}")
        how = f"without {attempt.blamed}" if attempt.blamed else f"after a failure between cases: {ending.reason}"
        if self.missing(attempt.launch):
            run.display.warning(f"Launch {attempt.launch + 1} goes on {how}.")
        return None

    def _out_of_time(self, launch: int) -> Ending:
        """End a stage whose time limit is reached, and say what is missing."""
        own, whole = self.request.time_limit_s, self.request.whole_limit_s
        limit = f"{own:g} s{f' for all up to the {self.label}' if self.label else ''}"
        name = f"{self.label} " if self.label else ""
        unmeasured = len(unmeasured_cases(self.request, self.run_.store.records))
        without = f"; {unmeasured} of {counted(len(self.request.cases), 'case')} have no launch" if unmeasured else ""
        reason = (
            f"the time limit of {limit}{f', of {whole:g} s in all,' if whole not in {None, own} else ''} was reached "
            f"after {launch} of {self.request.budget.launches} {name}launches{without}"
        )
        self.run_.display.warning(f"{reason[:1].upper()}{reason[1:]}; the same command adds the rest.")
        return Ending(status="cut", reason=reason)

    def missing(self, launch: int) -> list[AnyCase]:
        """The cases that a launch has yet to measure, without those that have failed."""
        return missing_cases(self.request, self.run_.store.records, launch, self.run_.failed)

    @property
    def left(self) -> list[list[AnyCase]]:
        """The cases that each launch has still to measure, launches that have none left out."""
        missing = [self.missing(launch) for launch in self.launches]
        return [cases for cases in missing if cases]


class _LaunchRun:
    """One start of a launch: hears what its ranks report, keeps it, and enters how it went into run.json."""

    def __init__(self, stage: _StageRun, launch: int) -> None:
        run = stage.run_
        self.run_ = run
        self.stage = stage
        self.launch = launch
        self.begun = time.monotonic()
        self.started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.startup_s: float | None = None
        self.measuring_s = 0.0
        self.cases_begun = False
        self.blamed: AnyCase | None = None
        """The case in which the launch failed or hung."""
        left = stage.left
        self.left = sum(map(len, left))
        self.left_slices = sum(map(stage.request.slices, left))
        self.later = len(left) - 1
        self.plan = plan_launch(
            stage.request,
            run.store.records,
            launch,
            slice_s=stage.times.slice_s(
                self.begun,
                slices=self.left_slices + stage.request.later_slices,
                launches=len(left) + stage.request.later_launches,
                whole=stage.request.later_slices > 0,
            ),
            deadline_s=stage.times.deadline_s(self.begun, whole=stage.is_vital(launch)),
            left_out=run.failed,
        )

    def run(self) -> Ending:
        """See the launch through."""
        run, request = self.run_, self.stage.request
        run.display.launch_started(self.launch, request.budget.launches, self.stage.label)
        supervisor = Supervisor(self.plan, request.ranks, run.launcher, self, run.interrupts)
        try:
            ending = self._blame_case(supervisor.run(), supervisor.current)
        except InputError as error:
            ending = Ending(status="refused", reason=str(error))
        except BaseException as error:
            reason = str(error) if isinstance(error, LaunchError) else "the conductor itself failed"
            with contextlib.suppress(LaunchError):
                self._enter(Ending(status="failed", reason=reason))
            raise
        if ending.status != "refused":
            self._enter(ending)
        if ending.status in _BROKEN:
            run.display.output([*supervisor.stderr, *supervisor.told])
        if ending.culprit and ending.culprit.waiting:
            run.display.warning(f"{ending.culprit.waiting}.")
        return ending

    def _blame_case(self, ending: Ending, current: int | None) -> Ending:
        """Make the case in which a launch failed or hung a record, and name it in the reason."""
        if ending.status not in _BROKEN or current is None:
            return ending
        self.blamed = self.plan.cases[current].case
        status: Status = "hung" if ending.status == "hung" else "failed"
        self._keep(blank_record(self.blamed, launch=self.launch, status=status, reason=ending.reason))
        self.run_.leave_out(self.blamed, ending.reason)
        return replace(ending, reason=f"{ending.reason}, in case {self.blamed}")

    def _enter(self, ending: Ending) -> None:
        """Enter how the launch went into run.json, and bring the tables up to date."""
        seconds = time.monotonic() - self.begun
        startup_s = seconds if self.startup_s is None else self.startup_s
        store = self.run_.store
        entry = launch_entry(
            stage=self.stage.request.name,
            launch=self.launch,
            started=self.started,
            seconds=seconds,
            startup_s=startup_s,
            measuring_s=self.measuring_s,
            status=ending.status,
            reason=ending.reason,
            culprit=ending.culprit.to_json() if ending.culprit else None,
        )
        store.update(launches=[*store.info.get("launches", []), entry])
        write_tables(store)
        if ending.status == "ok":
            slices = self.stage.request.slices(planned.case for planned in self.plan.cases)
            self.stage.times.learn(startup_s=startup_s, seconds=seconds, measuring_s=self.measuring_s, slices=slices)
        self.run_.display.launch_finished(seconds)

    def on_session(self, session: Mapping[str, Any]) -> None:
        """See `Listener`: the first session of this run, or of a resumed one, settles the conditions."""
        run = self.run_
        self.startup_s = time.monotonic() - self.begun
        refuse_other_conditions(session, run.known)
        changes = changed_conditions(session, run.store.info)
        if changes:
            run.warn_once("change", f"The conditions have changed since the first launch: {'; '.join(changes[:3])}.")
        if said := remark(session):
            run.warn_once("remark", said)
        run.store.update(**header_fields(session, run.store.info))

    def on_case(self, index: int) -> None:
        """See `Listener`."""
        if self.cases_begun:
            self.run_.fruitless = 0  # the one before it has come to its end
        self.cases_begun = True
        request = self.stage.request
        total = len(request.cases) * len(self.stage.launches)
        slice_s = slice_seconds(request, self.run_.store.records)
        eta_s = self.stage.times.eta_s(time.monotonic(), slices=self.left_slices, launches=self.later, slice_s=slice_s)
        self.run_.display.case(total - self.left, total, str(self.plan.cases[index].case), eta_s)

    def on_record(self, record: AnyRecord) -> None:
        """See `Listener`; what fails to be trained on all ranks alike would do so again."""
        self.measuring_s += record.measuring_s
        self._keep(record)
        if isinstance(record, TrainingRecord) and record.status == "failed":
            self.run_.leave_out(record.case, record.reason)

    def on_last_case(self) -> None:
        """See `Listener`."""
        self.run_.display.warning("Finishing the case; press Ctrl-C again to stop now.")

    def _keep(self, record: AnyRecord) -> None:
        run = self.run_
        run.store.append(record)
        if record.status in DONE:
            self.left -= 1
            self.left_slices -= self.stage.request.slices([record.case])
            run.fruitless = 0
        run.display.record(record)
