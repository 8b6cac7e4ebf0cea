"""Plans the launches of a run one after another, and judges how each ended: no process, no file."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding, Numbers, Value
from commbench.launch.clues import Ending, in_case
from commbench.launch.events import CaseFinished, LaunchStarted, Listener, Notice
from commbench.launch.signals import Interrupts
from commbench.results import Store
from commbench.results.info import Launch as Entry
from commbench.results.info import VariableValues
from commbench.results.plan import (
    DONE,
    OTHER_S,
    STARTUP_S,
    LaunchPlan,
    RunRequest,
    Stage,
    missing_cases,
    plan_launch,
    slice_seconds,
)
from commbench.results.record_types import AnyCase, AnyRecord
from commbench.schema import JsonMapping
from commbench.units import utc_now, utc_text

#: After this many consecutive launches without a result, the next would probably fail too.
MOST_FAILURES_IN_A_ROW = 3
#: A soak begins no launch that would last less, in seconds.
LEAST_SOAK_S = 2.0
#: Seconds between a launch of a soak whose ranks did not start, and the next one: a host may be out
#: of reach.
PAUSE_S = 10.0
#: A collective that failed this often no longer keeps a launch unfinished, where the user starts
#: the ranks.
TRIES = 2
#: A shorter time slice, in seconds, has too few repetitions for a launch.
SHORTEST_SLICE_S = 0.02
#: Seconds kept free at the end of a time limit, for the last launch to leave and for the summary.
LEAVING_S = 1.0


@dataclass(kw_only=True)
class TimePlan:
    """Shares the time of a run among launches and cases, and learns from finished launches: what
    they took in the median.

    All times are in seconds; ``now`` comes from one steady clock. Cases are counted by their time
    slices, see `RunRequest.slices`.
    """

    request: RunRequest
    begun: float
    """When the run began."""
    startup_s: float = STARTUP_S
    """Time until the ranks have come together."""

    def __post_init__(self) -> None:
        self.other_s = OTHER_S + self.request.budget.energy_s
        """Time of a slice beside measuring."""
        self.per_slice_s = self.request.budget.slice_s + self.other_s
        """Time of a slice with all that belongs to it."""
        self._launches: list[tuple[float, float, float]] = []

    def learn(self, entry: Entry, slices: float) -> None:
        """Learn from a finished launch of ``slices``, with its entry in run.json."""
        startup_s = entry["startup_s"]
        per_slice_s = (entry["seconds"] - startup_s) / slices
        self._launches.append((startup_s, per_slice_s, entry["other_s"] / slices))
        medians: list[float] = np.median(self._launches, axis=0).tolist()
        self.startup_s, self.per_slice_s, self.other_s = medians

    def left_s(self, now: float, *, whole: bool = False) -> float:
        """Return the time left until the limit; infinite without a limit."""
        limit_s = self.request.time_limit_s
        if whole and self.request.whole_limit_s is not None:
            limit_s = self.request.whole_limit_s
        if limit_s is None:
            return math.inf
        return self.begun + limit_s - LEAVING_S - now

    def slice_s(self, now: float, *, slices: float, launches: int) -> float:
        """Return the length of a time slice if ``launches`` have still to measure ``slices`` in
        all.

        It is (time left - launches * start-up) / slices, less what a case costs beside measuring,
        and at most the budget's slice.
        """
        share = (self.left_s(now) - launches * self.startup_s) / slices - self.other_s
        return min(self.request.budget.slice_s, max(SHORTEST_SLICE_S, share))

    def fits(self, left_s: float, *, slices: float, slice_s: float | None = None) -> bool:
        """Return whether a launch of ``slices`` would end within the time that is left.

        ``slice_s`` is their length if it is fixed; None: they may be as short as
        `SHORTEST_SLICE_S`.
        """
        shortest = SHORTEST_SLICE_S
        if slice_s is not None:
            shortest = slice_s
        return left_s >= self.startup_s + slices * (shortest + self.other_s)

    def deadline_s(self, left_s: float) -> float:
        """Return how long after its session a launch that is started now may begin cases."""
        return max(0.0, left_s - self.startup_s)

    def eta_s(self, now: float, *, slices: float, launches: int) -> float:
        """Return the time for ``slices``, and for ``launches`` further starts."""
        eta_s = launches * self.startup_s + slices * self.per_slice_s
        return min(eta_s, max(0.0, self.left_s(now)))


def next_launch(request: RunRequest, records: Sequence[AnyRecord]) -> int:
    """Return the launch that an invocation under mpirun or torchrun makes: the lowest unfinished
    one, else a new one.

    A failed case does not keep a launch unfinished for ever. A training case is tried once per
    launch; a collective is given up once it has failed twice, in any launch.
    """
    requested = {case.key for case in request.cases}
    begun = set()
    failed = []
    for record in records:
        if record.case.key in requested and record.launch >= request.first_launch:
            begun.add(record.launch)
        if record.status not in DONE:
            failed.append(record)
    times = Counter(record.case.key for record in failed)
    for launch in sorted(begun):
        given_up = set()
        for record in failed:
            is_last_try = request.training is not None or times[record.case.key] >= TRIES
            if record.launch == launch and is_last_try:
                given_up.add(record.case.key)
        if missing_cases(request, records, launch, given_up):
            return launch
    return max(begun, default=request.first_launch - 1) + 1


def exceeds_aim(request: RunRequest, entries: Iterable[JsonMapping], launch: int) -> bool:
    """Return whether ``launch`` is left out because all launches would exceed the request's target
    time.

    Args:
        request: the stage.
        entries: the launches of the run in run.json; a launch is expected to take as long as the
            stage's last one.
        launch: its number; a launch that has begun is completed.
    """
    if request.aim_s is None or launch < request.fewest_launches:
        return False
    seconds: dict[int, float] = {}
    for entry in entries:
        if entry["stage"] == request.name:
            seconds[entry["launch"]] = seconds.get(entry["launch"], 0.0) + entry["seconds"]
    if launch in seconds or not seconds:
        return False
    return sum(seconds.values()) + seconds[max(seconds)] > request.aim_s


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


@dataclass(kw_only=True)
class Launch:
    """One start of ranks: all that it measures, with what that needs to be shown and timed, and how
    far the ranks are.
    """

    request: RunRequest
    """The stage; its cases are those under the environment of the launch."""
    plan: LaunchPlan
    remaining: Remaining
    """Work of the stage when the launch begins."""
    times: TimePlan
    """Of the stage; learns from the launch."""
    begun: float
    """When the launch begins, by the clock."""
    is_trial: bool = False
    """Whether its environment is one of several and has no result yet: if its ranks do not start,
    its cases have failed."""
    started: str = field(default_factory=utc_now)
    """UTC in ISO 8601."""
    startup_s: float | None = None
    """Seconds until all ranks had come together; None before that."""
    variables: Mapping[str, VariableValues] = field(default_factory=dict)
    """See `commbench.launch.events.SessionStarted`."""
    case: AnyCase | None = None
    """The case that has begun and not finished."""
    has_begun: bool = False
    """Whether a case has begun."""
    has_result: bool = False
    """Whether a case has come to its end."""
    measuring_s: float = 0.0
    is_complete: bool | None = None
    """Whether the ranks have measured all cases; None before they have ended."""
    lost: dict[str, str] = field(default_factory=dict)
    """By key, the reason of each case that is not to be measured again."""

    def note(self, finished: CaseFinished) -> None:
        """Note a record.

        A configuration that fails to train on all ranks alike would do so again.
        """
        record, share = finished.record, finished.share
        self.measuring_s += record.measuring_s
        if self.case is not None and self.case.key == record.case.key:
            self.case = None
        if record.status in DONE:
            self.has_result = True
            self.remaining.cases -= share
            self.remaining.slices -= share * self.request.slices([record.case])
        if isinstance(record, TrainingRecord) and record.status == "failed":
            self.lost[record.case.key] = in_case(record.reason, record.case)


@dataclass(kw_only=True)
class Stop(Exception):  # noqa: N818 - it is no error
    """How a run ends; raised as soon as nothing more is to be measured."""

    kind: Literal["done", "faulty", "cut", "lacking", "later", "failed", "interrupted"]
    """``faulty``: a soak is done, some launches of which failed; ``cut``: a time limit left out
    launches, ``lacking``: it left cases without any; ``later``: further invocations go on."""
    reason: str = ""
    """A clause; empty for ``done``."""
    signal: int = 0
    """Number of the signal that interrupted the run."""


@dataclass
class Schedule:
    """The launches of a run.

    A launch lacks some cases, or is new. If a case fails or hangs, the launch goes on without it
    with new ranks, and so do later launches. If ranks do not start under one of several
    environments, its cases are left out. The run ends at any other launch that fails before its
    first case or loses a host, at the third failure in a row without a result, at the first
    failure if ``fail_fast``, and at a signal. A stage that its time limit cuts does not keep the
    next one from its own time.

    """

    stages: Sequence[Stage]
    """The parts of the run; each plans from the records of the parts before."""
    store: Store
    """Grows while launches are made."""
    display: Listener
    """Receives sentences for the user."""
    interrupts: Interrupts
    """Signals that have come."""
    make: Callable[[Launch], Ending]
    """Makes a launch; returns how it ended."""
    once: bool = False
    """The ranks have been started by the user: make one launch of each stage, and none if a stage
    has a fixed number of launches or depends on launches that are still to be made."""
    fail_fast: bool = False
    """Whether the first failure ends the run; always if ``once``."""
    clock: Callable[[], float] = time.monotonic
    """In seconds; steady."""
    begun: float = field(default_factory=time.monotonic)
    """When the run began, by the clock."""

    def __post_init__(self) -> None:
        self._left_out: dict[str, str] = {}
        """Failed cases by key with the reason; this invocation does not measure them again."""
        self._failures = 0
        """Failed launches since the last result."""
        self._cuts: list[Finding] = []
        """Why time limits have cut stages."""
        self._lacks_cases = False
        """Whether a time limit has left cases without any launch."""
        self._later = ""
        """What is left to further invocations."""
        self._has_trained = False
        """Whether this invocation has made a launch on which further stages depend."""

    def carry_out(self) -> Stop:
        """Make all launches; return how the run ends.

        Raises:
            InputError: a stage cannot be planned.
        """
        startup_s = 0.0 if self.once else STARTUP_S
        try:
            for stage in self.stages:
                request = stage(tuple(self.store.records))
                if request is None:
                    continue
                self._stage = request
                self._times = TimePlan(request=request, begun=self.begun, startup_s=startup_s)
                if request.soak_s:
                    self._soak(request, request.soak_s)
                else:
                    self._make_stage(request)
                if not self.once:
                    startup_s = self._times.startup_s
        except Stop as stop:
            return stop
        return self._end()

    # ------------------------------------------------------------------------------------ planning

    def _make_stage(self, request: RunRequest) -> None:
        """Make the launches of a stage until all are made or its time limit is reached."""
        for number in self._numbers(request):
            for part in request.by_env(number):
                if not self._complete(part, number):
                    return

    def _numbers(self, request: RunRequest) -> Iterator[int]:
        """Yield the launches of a stage in this invocation; note what is left to others."""
        if not self.once:
            for number in range(request.first_launch, request.budget.launches):
                if exceeds_aim(request, self._entries, number):
                    return
                yield number
            return
        launch, launches = next_launch(request, self.store.records), request.budget.launches
        if request.is_fixed_length and launch >= launches:
            return
        depends = request.is_fixed_length and not request.searches
        if depends and (self._later or self._has_trained):
            self._later = self._later or _comes_next(request, launch)
            raise self._end()
        if request.is_fixed_length and launch + 1 < launches:
            self._later = _comes_next(request, launch + 1)
        self._has_trained = self._has_trained or request.training is not None
        yield launch

    def _complete(self, request: RunRequest, number: int) -> bool:
        """Start ranks until a launch has measured what it lacks of ``request``, which is the part
        of the stage under one environment.

        Return False if the time limit ends the stage.
        """
        times, records = self._times, self.store.records
        while missing := missing_cases(request, records, number, self._left_out):
            self._heed_signals()
            now = self.clock()
            left_s = times.left_s(now, whole=number < request.fewest_launches)
            slices, slice_s = request.slices(missing), slice_seconds(request, records)
            if records and not times.fits(left_s, slices=slices, slice_s=slice_s):
                self._cut(number)
                return False
            remaining = self._remaining(number)
            plan = plan_launch(
                request,
                records,
                number,
                slice_s=times.slice_s(now, slices=remaining.slices, launches=remaining.launches),
                deadline_s=times.deadline_s(left_s),
                left_out=self._left_out,
            )
            ending = self._start(request, plan, remaining, now)
            if ending.status == "cut":
                self._cut(number + 1)
                return False
            if not ending.is_broken:
                break
        return True

    def _remaining(self, number: int) -> Remaining:
        """Return the work of the stage; of launch ``number`` if this invocation makes no other."""
        stage = self._stage
        numbers: Sequence[int] = range(stage.first_launch, stage.budget.launches)
        if self.once:
            numbers = [number]
        work = Remaining(cases=0, slices=0.0, launches=0, total=len(stage.cases) * len(numbers))
        for each in numbers:
            for part in stage.by_env(each):
                missing = missing_cases(part, self.store.records, each, self._left_out)
                work.cases += len(missing)
                work.slices += stage.slices(missing)
                work.launches += len(missing) > 0
        return work

    def _start(
        self, request: RunRequest, plan: LaunchPlan, remaining: Remaining, now: float
    ) -> Ending:
        """Make a launch; return how it ended if the run goes on."""
        stage = plan.env
        if len(self.stages) > 1:
            stage = f"{request.name} {plan.env}".rstrip()
        launches = max(request.budget.launches, plan.launch + 1)
        self.display.on(LaunchStarted(launch=plan.launch, launches=launches, stage=stage))
        is_trial = len(self._stage.envs) > 1 and not self.fail_fast
        for record in self.store.records:
            if record.case.env == plan.env and record.status in DONE:
                is_trial = False
        launch = Launch(
            request=request,
            plan=plan,
            remaining=remaining,
            times=self._times,
            begun=now,
            is_trial=is_trial,
        )
        ending = self.make(launch)
        self._judge(launch, ending)
        return ending

    def _soak(self, request: RunRequest, soak_s: float) -> None:
        """Make launches one after another until the time of a soak is up."""
        ends = self.clock() + soak_s
        for entry in self._entries:
            ends -= entry.get("seconds", 0.0)
        slices = request.slices(request.cases)
        length_s = slices * request.budget.slice_s
        while True:
            self._heed_signals()
            now, startup_s = self.clock(), self._times.startup_s
            left_s = ends - now - startup_s
            if left_s <= LEAST_SOAK_S:
                if any(entry.get("status") in {"failed", "hung"} for entry in self._entries):
                    raise Stop(kind="faulty")
                return
            begun = {record.launch for record in self.store.records}
            begun.update(entry["launch"] for entry in self._entries)
            number = max(begun, default=-1) + 1
            slice_s = min(length_s, left_s) / slices
            plan = plan_launch(
                request, self.store.records, number, slice_s=slice_s, deadline_s=left_s
            )
            launches = 1 + max(0, math.ceil((left_s - length_s) / (length_s + startup_s)))
            remaining = Remaining(
                cases=launches * len(request.cases),
                slices=launches * slices,
                launches=launches,
                total=(number + launches) * len(request.cases),
            )
            self._start(request, plan, remaining, now)

    @property
    def _entries(self) -> Sequence[Entry]:
        entries: Sequence[Entry] = self.store.info.get("launches", [])
        return entries

    # ------------------------------------------------------------------------------------- judging

    def _heed_signals(self) -> None:
        """End the run if a signal has come."""
        number = self.interrupts.number
        if number:
            reason = Ending.early(number).reason
            raise Stop(kind="interrupted", reason=reason, signal=number)

    def _judge(self, launch: Launch, ending: Ending) -> None:
        """End the run by how a launch ended, or let it go on."""
        if launch.has_result:
            self._failures = 0
        self._left_out.update(launch.lost)
        if ending.status == "interrupted":
            self._heed_signals()
        if ending.is_broken:
            self._failures += 1
            if self.fail_fast or self.once:
                raise Stop(kind="failed", reason=ending.reason)
            if launch.request.soak_s:
                self._judge_soak(launch, ending)
            else:
                self._judge_failure(launch, ending)
        if ending.status != "ok":
            return
        if self.fail_fast and self._left_out:
            raise Stop(kind="failed", reason=next(iter(self._left_out.values())))
        if ending.reason:
            self._warn("launch_warning", launch, ending)

    def _judge_failure(self, launch: Launch, ending: Ending) -> None:
        """End the run, or let the launch go on with new ranks."""
        if ending.is_host_lost or not (launch.has_begun or launch.is_trial):
            raise self._failed(ending.reason)
        if self._failures >= MOST_FAILURES_IN_A_ROW:
            numbers: Numbers = {"failures": self._failures, "cause": ending.reason}
            raise self._failed(str(Finding("failures_in_a_row", numbers=numbers)))
        code = "launch_goes_on"
        if not launch.has_begun:
            code = "launch_goes_on_without"
        self._warn(code, launch, ending, env=launch.plan.env)

    def _judge_soak(self, launch: Launch, ending: Ending) -> None:
        """End a soak if no launch works from the start; else let it go on, a moment later if the
        ranks did not start.
        """
        has_worked = any(record.status in DONE for record in self.store.records)
        if not has_worked and self._failures >= MOST_FAILURES_IN_A_ROW:
            raise Stop(kind="failed", reason=ending.reason)
        at = utc_text(time.time())
        self._warn("soak_goes_on", launch, ending, status=ending.status, at=at)
        if not launch.has_begun:
            self.interrupts.pause(PAUSE_S)

    def _warn(self, code: str, launch: Launch, ending: Ending, **numbers: Value) -> None:
        numbers = {"launch": launch.plan.launch + 1, "cause": ending.reason, **numbers}
        self.display.on(Notice(text=str(Finding(code, numbers=numbers))))

    def _cut(self, made: int) -> None:
        """End the present stage, whose time limit is reached after ``made`` launches."""
        stage = self._stage
        numbers: Numbers = {
            "made": made,
            "launches": stage.budget.launches,
            "limit_s": stage.time_limit_s or 0.0,
        }
        self._cuts.append(Finding("time_limit", stage.name, numbers))
        missing = {case.key for case in stage.cases}
        if stage.searches:
            missing = {stage.cases[0].key}
        for record in self.store.records:
            if record.status in DONE:
                missing.discard(record.case.key)
        if missing:
            self._lacks_cases = True
            numbers = {"missing": len(missing), "cases": len(stage.cases)}
            self._cuts.append(Finding("cases_unmeasured", numbers=numbers))

    def _end(self) -> Stop:
        """Return how the run ends after its last stage."""
        cut = "; ".join(map(str, self._cuts))
        if self._left_out:
            return self._failed(cut)
        if cut and (self._later or self._lacks_cases):
            return Stop(kind="lacking", reason=cut)
        if cut:
            return Stop(kind="cut", reason=cut)
        if self._later:
            return Stop(kind="later", reason=self._later)
        return Stop(kind="done")

    def _failed(self, reason: str) -> Stop:
        """Return the end of a run in which cases failed, or the last launch for ``reason``."""
        if not self._left_out:
            return Stop(kind="failed", reason=reason)
        first = next(iter(self._left_out.values()))
        numbers: Numbers = {"failed": len(self._left_out), "cause": first}
        findings = [Finding("cases_failed", numbers=numbers)]
        if reason:
            findings.append(Finding.stated(reason))
        return Stop(kind="failed", reason="; ".join(map(str, findings)))


def _comes_next(request: RunRequest, launch: int) -> str:
    """Return what of a stage is left to further invocations."""
    launches = request.budget.launches
    numbers: Numbers = {
        "launch": launch + 1,
        "launches": launches,
        "invocations": launches - launch,
    }
    return str(Finding("launch_comes_next", request.name, numbers))
