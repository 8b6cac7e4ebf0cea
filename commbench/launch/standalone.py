"""A launch that a person has started with mpirun, torchrun or srun: rank 0 plans it and writes the results itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import NoReturn

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.engine.records import Status
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError, LaunchError
from commbench.launch.display import Display, SilentDisplay
from commbench.launch.facts import header_fields, refuse_other_conditions, remark
from commbench.launch.heartbeat import DEADLY, STARTUP_TIMEOUT_S, Heart, stacks_of_threads, waits_in
from commbench.launch.identity import Identity
from commbench.launch.protocol import MAIN, LastWords, Message, Stack
from commbench.launch.rank import leave, run_process, run_rank
from commbench.launch.signals import SignalFeed
from commbench.launch.tables import write_tables
from commbench.results import Store
from commbench.results.plan import (
    LaunchPlan,
    RunRequest,
    Stage,
    TimePlan,
    budget_fields,
    launch_entry,
    next_launch,
    plan_launch,
    unmeasured_cases,
)
from commbench.results.record_types import AnyCase, AnyRecord, blank_record
from commbench.system.variables import relevant_variables
from commbench.units import counted

_DONE_CODE, _PARTIAL_CODE, _WRONG_CODE, _SIGNAL_CODE = 0, 3, 4, 128
#: How long other ranks leave rank 0 to say, or to write, why the launch ends.
AFTER_RANK_0_S = 2.0


class StoreSink:
    """Rank 0's results go straight into the run's directory. May be told from any thread that the launch fails.

    Args:
        store: the run.
        plan: of the launch.
        request: of the stage that the launch belongs to.
        display: is shown what happens.
        begun: when the launch began, by the monotonic clock.
        launcher: what has started the ranks.
        is_last: whether the run is complete when the launch has ended well, rather than to go on with another stage.
    """

    def __init__(
        self,
        store: Store,
        plan: LaunchPlan,
        request: RunRequest,
        display: Display,
        begun: float,
        *,
        launcher: str,
        is_last: bool = True,
    ) -> None:
        self.store = store
        self.wrong = False
        self.failed = ""
        """Why the first case that could not be trained could not."""
        self.cut = False
        self.is_partial = False
        """Whether the run stays partial although this launch ended in order: a case failed or has no launch."""
        self.is_last_case = False
        """Whether a signal asks for an end after the case that is being measured."""
        self._plan = plan
        self._request = request
        self._conditions = {"launcher": launcher, **budget_fields(request)}
        self._is_last = is_last
        self._display = display
        self._begun = begun
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._startup_s: float | None = None
        """How long the ranks took to come together; None before that."""
        self._measuring_s = 0.0
        self._done = 0
        self._current: AnyCase | None = None
        self._lock = threading.RLock()
        self._over = False

    def session(self, facts: Mapping[str, object]) -> None:
        """See `commbench.launch.rank.Sink`.

        Raises:
            InputError: the run was begun under other conditions.
        """
        with self._lock:
            refuse_other_conditions(facts, self.store.info)
            self._startup_s = time.monotonic() - self._begun
            # mpirun leaves a quarter of a second between SIGTERM and SIGKILL: what is true then stands here already.
            unfinished = f"launch {self._plan.launch + 1} has begun and not ended"
            known = header_fields(facts, self.store.info)
            self.store.update(status="partial", reason=unfinished, **self._conditions, **known)
        if said := remark(facts):
            self._display.warning(said)

    def case(self, index: int, case: AnyCase) -> None:  # noqa: ARG002 - what is trained comes in an order of its own
        """See `commbench.launch.rank.Sink`."""
        self._current = case
        left = len(self._plan.cases) - self._done
        eta_s = left * self._plan.budget.slice_s
        self._display.case(self._done, len(self._plan.cases), str(case), eta_s)

    def record(self, record: AnyRecord) -> None:
        """See `commbench.launch.rank.Sink`."""
        with self._lock:
            self._current = None
            self._done += 1
            self._measuring_s += record.measuring_s
            self.wrong = self.wrong or record.status == "wrong"
            if isinstance(record, TrainingRecord) and record.status == "failed":
                self.failed = self.failed or f"{record.reason}, in case {record.case}"
            self.store.append(record)
            self._display.record(record)

    def end(self, *, finished: bool) -> None:
        """See `commbench.launch.rank.Sink`."""
        self.cut = not finished
        if self.cut and self.is_last_case:
            self.fail("interrupted", "interrupted by SIGINT")
            return
        reason = "the time limit ended the launch" if self.cut else ""
        others = (
            "" if self._is_last else f"stage {self._request.name} has got its launch and the next stage has not begun"
        )
        unmeasured = len(unmeasured_cases(self._request, self.store.records)) if self.cut else 0
        if unmeasured:
            reason += f"; {unmeasured} of {counted(len(self._request.cases), 'case')} have no launch"
        self.is_partial = bool(self.failed) or unmeasured > 0 or (self.cut and not self._is_last)
        status = "partial" if self.is_partial or not self._is_last else "cut" if self.cut else "complete"
        self._close(status, "cut" if self.cut else "ok", reason, self.failed or reason or others)

    def fail(self, status: str, reason: str, *, hung: bool = False) -> None:
        """The launch ends before its last case: ``status`` is the run's, ``partial`` or ``interrupted``.

        What cannot be written is not: the rank that is told to end all others must not be kept from it.
        """
        with self._lock, contextlib.suppress(LaunchError):
            if self._over:
                return
            self._over = True
            what: Status = "hung" if hung else "failed"
            if self._current is not None and status == "partial":
                self.store.append(blank_record(self._current, launch=self._plan.launch, status=what, reason=reason))
            self._close(status, "interrupted" if status == "interrupted" else what, reason, reason)

    def refuse(self) -> bool:
        """Whether what was asked for is refused before the launch has begun: then the run stays as it was."""
        with self._lock:
            if self._startup_s is not None or self._over:
                return False
            self._over = True
            return True

    def _close(self, status: str, launch_status: str, launch_reason: str, reason: str) -> None:
        with self._lock:
            self._over = True
            seconds = time.monotonic() - self._begun
            entry = launch_entry(
                stage=self._request.name,
                launch=self._plan.launch,
                started=self._started,
                seconds=seconds,
                startup_s=seconds if self._startup_s is None else self._startup_s,
                measuring_s=self._measuring_s,
                status=launch_status,
                reason=launch_reason,
            )
            entries = [*self.store.info.get("launches", []), entry]
            self.store.update(launches=entries, status=status, reason=reason, **self._conditions)
            write_tables(self.store)
            self._display.launch_finished(seconds)


def run_standalone(
    stages: Sequence[Stage],
    identity: Identity,
    open_store: Callable[[], Store],
    display: Display | None = None,
    finish: Callable[[Store], None] = lambda _: None,
) -> NoReturn:
    """Be a rank of the launch that a person has started; never returns.

    Of each stage in turn, the launch completes an unfinished one of the store, else adds one.

    Args:
        stages: called on rank 0 only; their requests are for as many ranks as were started.
        identity: this rank.
        open_store: called on rank 0 only.
        display: of rank 0; silent by default.
        finish: called on rank 0 when everything has been measured.
    """
    _Standalone(stages, identity, open_store, display or SilentDisplay(), finish).run()


class _Standalone:
    def __init__(
        self,
        stages: Sequence[Stage],
        identity: Identity,
        open_store: Callable[[], Store],
        display: Display,
        finish: Callable[[Store], None],
    ) -> None:
        self.stages = list(stages)
        self.finish = finish
        self.identity = identity
        self.open_store = open_store
        self.display = display
        self.several = len(self.stages) > 1
        self.variables = relevant_variables(os.environ)
        self.begun = time.monotonic()
        self.store: Store | None = None
        self.sink: StoreSink | None = None
        self.failed = ""
        self.waits = ""
        """What has to be made by further invocations before the run is complete."""
        self.has_trained = False
        """Whether this invocation has trained for a stage that settles what follows."""
        self.code = _DONE_CODE
        self.interrupts = 0
        self.heart = Heart(
            identity.rank,
            Progress(),
            tell=self._hear,
            timeout_s=STARTUP_TIMEOUT_S,
            on_stall=self._end_hung_launch,
            leave_with_parent=bool(identity.launcher),
            signals=SignalFeed([signal.SIGUSR1, signal.SIGINT, *DEADLY]),
            on_signal=self._on_signal,
        )

    def run(self) -> NoReturn:
        self.heart.start()
        run_process(
            self.identity,
            self.heart,
            self._work,
            on_error=self._report,
            on_refusal=self._say,
            status=lambda: self.code,
        )

    def _work(self, control: Control) -> list[Communicator]:
        opened: dict[str, Communicator] = {}
        while True:
            sentence, text = control.broadcast(self._next() if control.rank == 0 else ("", ""))
            if not text:
                break
            plan = LaunchPlan.from_json(text)
            self.heart.timeout_s = plan.case_timeout_s
            self.heart.enter(-1, "")
            opened = run_rank(
                plan,
                control,
                self.sink,
                self.heart,
                self.variables,
                opened=opened,
                leave_off=lambda: self.interrupts > 0,
            )
            if self.sink:
                self.failed = self.failed or self.sink.failed
                self.code = max(self.code, self._code_of(self.sink))
        if sentence:  # rank 0 speaks, all leave
            self.code = InputError.exit_code
            if control.rank == 0:
                self._say(sentence)
        elif self.store:
            self.finish(self.store)
        return list(opened.values())

    @staticmethod
    def _code_of(sink: StoreSink) -> int:
        """The exit code for a launch: a signal outranks wrong data, and wrong data a partial run."""
        if sink.cut and sink.is_last_case:
            return _SIGNAL_CODE + signal.SIGINT
        if sink.wrong:
            return _WRONG_CODE
        return _PARTIAL_CODE if sink.is_partial else _DONE_CODE

    def _next(self) -> tuple[str, str]:
        """On rank 0: (why nothing can be done or "", the plan of the next stage's launch or "" where none is left)."""
        try:
            if self.store is None:
                self.store = self.open_store()
            request = self._next_request(self.store)
        except InputError as error:
            if self.store is not None and self.sink is not None:
                self.store.update(status="partial", reason=str(error))
            elif self.store is not None:
                self.store.discard()
            return str(error), ""
        return "", self._plan(self.store, request).to_json() if request else ""

    def _next_request(self, store: Store) -> RunRequest | None:
        """What the next stage that has anything to do asks for; None at the end of the run, or of its time."""
        if self.sink and self.sink.cut:
            return None
        while self.stages:
            request = self._due(self.stages.pop(0)(tuple(store.records)), store)
            if request and self.interrupts and self.sink:  # in the last case of the stage before
                self.code = _SIGNAL_CODE + signal.SIGINT
                store.update(status="interrupted", reason="interrupted by SIGINT between stages")
                return None
            if request:
                return request
        if self.failed or self.waits:
            store.update(status="partial", reason=self.failed or self.waits)
        else:
            store.update(status="complete", reason="")
        return None

    def _due(self, request: RunRequest | None, store: Store) -> RunRequest | None:
        """The request if this invocation is to make a launch of it: see `RunRequest.settles` and ``depends``."""
        if request is None or not request.settles:
            return request
        launch, launches = next_launch(request, store.records), request.budget.launches
        if launch >= launches:
            return None
        if request.depends and (self.waits or self.has_trained):
            self.waits = self.waits or _waiting(
                f"stage {request.name} comes next, launch {launch + 1} of {launches}", launches - launch
            )
            self.stages.clear()
            return None
        self.has_trained = self.has_trained or request.training is not None
        if launch + 1 < launches:
            made = f"stage {request.name} has got {launch + 1} of its {launches} launches"
            self.waits = _waiting(made, launches - launch - 1)
        return request

    def _plan(self, store: Store, request: RunRequest) -> LaunchPlan:
        """Plan the stage's next launch, and make ready to hear of it."""
        now = self.begun if self.sink is None else time.monotonic()
        budget = request.budget
        times = TimePlan(
            budget=budget, begun=self.begun, limit_s=request.time_limit_s, whole_limit_s=request.whole_limit_s
        )
        times.startup_s = 0.0  # the ranks are here already
        launch = next_launch(request, store.records)
        plan = plan_launch(
            request,
            store.records,
            launch,
            slice_s=times.slice_s(now, slices=request.slices(request.cases), launches=1),
            deadline_s=times.deadline_s(now, whole=launch < request.fewest_launches),
        )
        self.sink = StoreSink(
            store, plan, request, self.display, now, launcher=self.identity.launcher, is_last=not self.stages
        )
        self.sink.is_last_case = self.interrupts > 0  # one that has come just now
        self.display.launch_started(launch, launch + 1, request.name if self.several else "")
        return plan

    def _report(self, words: LastWords) -> None:
        """This rank ends all others: say why, and on rank 0 note it."""
        self._say(f"rank {words.rank} on host {words.host}: {words.text}")
        if self.sink and self.store and words.bad_input and self.sink.refuse():
            self.store.discard()
        elif self.sink:
            self.sink.fail("partial", f"rank {words.rank} on host {words.host} raised {words.text}")

    def _end_hung_launch(self) -> None:
        """From the heartbeat's thread: this rank has made no progress for the case timeout."""
        what = f"no progress for {self.heart.limit_s:g} s in {self.heart.progress.case or 'starting'}"
        if self.sink:
            self.sink.fail(
                "partial", f"{what}; start commbench without mpirun or torchrun to learn which rank", hung=True
            )
        elif self.identity.rank:
            time.sleep(AFTER_RANK_0_S)
        where = waits_in(stacks_of_threads().get(MAIN, []))
        self._say(f"rank {self.identity.rank} on host {self.heart.host}: {what}, at {where}.")
        leave(_PARTIAL_CODE)

    def _on_signal(self, number: signal.Signals) -> None:
        """From the heartbeat's thread: keep what was measured when a person or the launcher ends us.

        Ctrl-C may reach every rank or rank 0 alone; rank 0 then lets all of them finish the case, once.
        """
        if number == signal.SIGUSR1:
            return
        if number == signal.SIGINT:
            self.interrupts += 1
            if self.interrupts == 1 and (self.identity.rank or self._finish_case()):
                return
        if self.sink:
            status = "interrupted" if number == signal.SIGINT else "partial"
            self.sink.fail(status, f"ended by {number.name}: a person, a time limit or a failed rank")
        leave(_SIGNAL_CODE + number)

    def _finish_case(self) -> bool:
        """Whether a case is being measured that may come to its end."""
        if self.sink is None or self.heart.case < 0:
            return False
        self.sink.is_last_case = True
        self._say("finishing the case; press Ctrl-C again to stop now.")
        return True

    def _hear(self, message: Message) -> None:
        """Show a person who asks by SIGUSR1 where this rank is."""
        if isinstance(message, Stack):
            self._say("\n  ".join([f"rank {message.rank} on host {message.host}, {message.thread}:", *message.stack]))

    def _say(self, sentence: str) -> None:
        sys.stderr.write(f"commbench: {sentence}\n")


def _waiting(what: str, invocations: int) -> str:
    """What comes next, and how often the command has to be repeated for it: stages that follow are decided later."""
    return f"{what}, which takes this command {counted(invocations, 'more time')}, and what follows may take more"
