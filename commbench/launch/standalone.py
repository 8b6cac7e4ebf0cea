"""A launch that the user has started with mpirun, torchrun or srun: rank 0 plans it and writes the
results itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError, LaunchError
from commbench.findings import Finding
from commbench.launch.diagnosis import (
    Ending,
    describe_place,
    diagnose_error,
    hang_reason,
    name_rank,
)
from commbench.launch.events import (
    MAIN,
    CasesEnded,
    Event,
    Heartbeat,
    Listener,
    RankError,
    SilentListener,
    Stack,
)
from commbench.launch.heartbeat import DEADLY, STARTUP_TIMEOUT_S, Heart, Patience, stacks_of_threads
from commbench.launch.identity import Identity
from commbench.launch.ledger import (
    DONE_CODE,
    PARTIAL_CODE,
    SIGNAL_CODE,
    LaunchLedger,
    Ledger,
    Remaining,
)
from commbench.launch.rank import RankWork, leave, run_process
from commbench.launch.signals import SignalFeed
from commbench.results import Store
from commbench.results.plan import (
    LaunchPlan,
    RunRequest,
    Stage,
    TimePlan,
    next_launch,
    plan_launch,
    unmeasured_clause,
)
from commbench.system.variables import relevant_variables
from commbench.units import counted

#: Seconds that other ranks leave rank 0 to report why the launch ends.
AFTER_RANK_0_S = 2.0


class OwnLaunch(LaunchLedger):
    """A launch that rank 0 enters into the ledger itself.

    Any thread may report that the launch fails.
    """

    is_last_case = False
    """Whether a signal asks for an end after the case that is being measured."""
    is_cut = False
    """Whether the launch ended before its last case."""
    is_last_stage = True
    code = DONE_CODE
    """The exit code of the run so far."""

    def on(self, event: Event) -> None:
        """Enter an event; see `LaunchLedger.on`."""
        super().on(event)
        if isinstance(event, CasesEnded):
            self._end(is_complete=event.is_complete)

    def _end(self, *, is_complete: bool) -> None:
        """Enter that the launch ended in order, and how the run would end now."""
        self.is_cut = not is_complete
        if is_complete:
            ending = Ending(status="ok")
        elif self.is_last_case:
            ending = Ending(status="interrupted", reason="interrupted by SIGINT")
        else:
            self.ledger.cut(self.request)
            unmeasured = unmeasured_clause(self.request, self.ledger.store.records)
            ending = Ending(status="cut", reason=f"the time limit ended the launch{unmeasured}")
        self.close(ending)
        stage = f"stage {self.request.name} has got its launch and the next stage has not begun"
        self.code = self.ledger.close(
            ending, next_step="" if self.is_last_stage else stage, signal=signal.SIGINT
        )

    def fail(self, ending: Ending) -> None:
        """Enter that the launch ended before its last case, and the run with it; once.

        Errors of writing are ignored: they must not keep this rank from ending all others.
        """
        with self.ledger.lock, contextlib.suppress(LaunchError):
            if self.is_open:
                self.is_open = False
                self.ledger.close(self.close(ending), signal=signal.SIGINT)

    def refuse(self) -> bool:
        """Return whether the request is refused before the ranks came together: the run then stays
        as it was.
        """
        with self.ledger.lock:
            is_refused = self.is_open and not self.has_session
            self.is_open = self.is_open and not is_refused
            return is_refused


def run_standalone(
    stages: Sequence[Stage],
    identity: Identity,
    open_store: Callable[[], Store],
    display: Listener | None = None,
    finish: Callable[[Store], None] = lambda _: None,
) -> NoReturn:
    """Be a rank of the launch that the user has started; never returns.

    For each stage in turn, complete an unfinished launch of the store, else add one.

    Args:
        stages: called on rank 0 only; their requests are for as many ranks as were started.
        identity: this rank.
        open_store: called on rank 0 only.
        display: of rank 0; silent by default.
        finish: called on rank 0 after the last launch.
    """
    _Standalone(stages, identity, open_store, display or SilentListener(), finish).run()


class _Standalone:
    def __init__(
        self,
        stages: Sequence[Stage],
        identity: Identity,
        open_store: Callable[[], Store],
        display: Listener,
        finish: Callable[[Store], None],
    ) -> None:
        self.stages = list(stages)
        self.finish = finish
        self.identity = identity
        self.open_store = open_store
        self.display = display
        self.has_several_stages = len(self.stages) > 1
        self.variables = relevant_variables(os.environ)
        self.begun = time.monotonic()
        self.ledger: Ledger | None = None
        self.launch: OwnLaunch | None = None
        self.next_step = ""
        """Remaining work of further invocations, in words."""
        self.has_trained = False
        """Whether this invocation has trained for a stage on which further stages depend."""
        self.code = DONE_CODE
        self.interrupts = 0
        self.heart = Heart(
            identity.rank,
            Progress(),
            report=self._show_stack,
            patience=Patience(timeout_s=STARTUP_TIMEOUT_S, on_stall=self._end_hung_launch),
            leave_with_parent=bool(identity.launcher),
            signals=SignalFeed([signal.SIGUSR1, signal.SIGINT, *DEADLY], self._on_signal),
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
        rank = RankWork(control, self.heart, self.variables, lambda: self.interrupts > 0)
        while True:
            sentence, text = control.broadcast(self._next() if control.rank == 0 else ("", ""))
            if not text:
                break
            plan = LaunchPlan.from_json(text)
            self.heart.timeout_s = plan.case_timeout_s
            self.heart.enter(-1, "")
            rank.run(plan, self.launch)
            if self.launch:
                self.code = self.launch.code
        if sentence:  # rank 0 speaks, all leave
            self.code = InputError.exit_code
            if control.rank == 0:
                self._say(sentence)
        elif self.ledger:
            self.finish(self.ledger.store)
        return list(rank.opened.values())

    def _next(self) -> tuple[str, str]:
        """On rank 0: (why nothing can be done or "", the plan of the next stage's launch or "" if
        none is left).
        """
        try:
            if self.ledger is None:
                self.ledger = Ledger(
                    self.open_store(),
                    self.display,
                    self.identity.launcher,
                    fail_fast=True,
                    status="partial",
                )
            request = self._next_request(self.ledger)
        except InputError as error:
            if self.launch is not None and self.ledger is not None:
                self.ledger.store.update(status="partial", reason=str(error))
            elif self.ledger is not None:
                self.ledger.store.discard()
            return str(error), ""
        return "", self._plan(self.ledger, request).to_json() if request else ""

    def _next_request(self, ledger: Ledger) -> RunRequest | None:
        """Return the request of the next stage with a launch to make.

        None at the end of the run, or of its time.
        """
        if self.launch and self.launch.is_cut:
            return None
        while self.stages:
            request = self._due(self.stages.pop(0)(tuple(ledger.store.records)), ledger.store)
            if request and self.interrupts and self.launch:  # in the last case of the stage before
                ending = Ending(status="interrupted", reason="interrupted by SIGINT between stages")
                self.code = ledger.close(ending, signal=signal.SIGINT)
                return None
            if request:
                return request
        self.code = ledger.close(Ending(status="ok"), next_step=self.next_step)
        return None

    def _due(self, request: RunRequest | None, store: Store) -> RunRequest | None:
        """Return the request if this invocation launches it: see `RunRequest.is_fixed_length` and
        ``depends``.
        """
        if request is None or not request.is_fixed_length:
            return request
        launch, launches = next_launch(request, store.records), request.budget.launches
        if launch >= launches:
            return None
        if request.depends and (self.next_step or self.has_trained):
            self.next_step = self.next_step or _next_step(
                f"stage {request.name} comes next, launch {launch + 1} of {launches}",
                launches - launch,
            )
            self.stages.clear()
            return None
        self.has_trained = self.has_trained or request.training is not None
        if launch + 1 < launches:
            progress = f"stage {request.name} has got {launch + 1} of its {launches} launches"
            self.next_step = _next_step(progress, launches - launch - 1)
        return request

    def _plan(self, ledger: Ledger, request: RunRequest) -> LaunchPlan:
        """Plan the stage's next launch, and open it in the ledger."""
        now = self.begun if self.launch is None else time.monotonic()
        times = TimePlan.of(request, self.begun)
        times.startup_s = 0.0  # the ranks are here already
        records = ledger.store.records
        launch = next_launch(request, records)
        plan = plan_launch(
            request,
            records,
            launch,
            slice_s=times.slice_s(now, slices=request.slices(request.cases), launches=1),
            deadline_s=times.deadline_s(now, whole=launch < request.fewest_launches),
        )
        cases = [planned.case for planned in plan.cases]
        remaining = Remaining.of(request, [cases], total=len(cases))
        self.launch = OwnLaunch(ledger, request, plan, times=times, begun=now, remaining=remaining)
        self.launch.is_last_stage = not self.stages
        self.launch.is_last_case = self.interrupts > 0  # a signal that has come just now
        self.launch.show_start(launch + 1, request.name if self.has_several_stages else "")
        return plan

    def _report(self, error: RankError) -> None:
        """Print why this rank ends all others, and enter it on rank 0."""
        self._say(f"{name_rank(error.rank, error.host)}: {error.text}")
        if self.launch and self.ledger and error.is_bad_input and self.launch.refuse():
            self.ledger.store.discard()
        elif self.launch:
            self.launch.fail(Ending.broken("failed", diagnose_error(error).reason))

    def _end_hung_launch(self) -> None:
        """End the launch, from the heartbeat's thread: this rank has made no progress for the case
        timeout.
        """
        if self.launch:
            cause = "start commbench without mpirun or torchrun to learn which rank"
            self.launch.fail(Ending.broken("hung", hang_reason(self.heart.limit_s or 0.0, cause)))
        elif self.identity.rank:
            time.sleep(AFTER_RANK_0_S)
        case = self.heart.progress.case or "starting"
        place = describe_place(stacks_of_threads().get(MAIN, []))
        rank = name_rank(self.identity.rank, self.heart.host)
        self._say(f"{rank}: no progress for {self.heart.limit_s:g} s in {case}, at {place}.")
        leave(PARTIAL_CODE)

    def _on_signal(self, number: signal.Signals) -> None:
        """Write the results when a user or the launcher ends this rank.

        Called from the heartbeat's thread.

        Ctrl-C may reach every rank or only rank 0. At the first one, rank 0 lets all ranks finish
        the case.
        """
        if number == signal.SIGUSR1:
            return
        if number == signal.SIGINT:
            self.interrupts += 1
            if self.interrupts == 1 and (self.identity.rank or self._finish_case()):
                return
        if self.launch:
            ending = Ending.broken(
                "failed", Finding(code="rank_ended", numbers={"signal": number.name})
            )
            self.launch.fail(
                replace(ending, status="interrupted") if number == signal.SIGINT else ending
            )
        leave(SIGNAL_CODE + number)

    def _finish_case(self) -> bool:
        """Let the current case finish; return whether there is one."""
        if self.launch is None or self.heart.case < 0:
            return False
        self.launch.is_last_case = True
        self._say("finishing the case; press Ctrl-C again to stop now.")
        return True

    def _show_stack(self, event: Heartbeat | Stack) -> None:
        """Print a stack of this rank, which SIGUSR1 requests."""
        if isinstance(event, Stack):
            self._say(
                "\n  ".join([f"{name_rank(event.rank, event.host)}, {event.thread}:", *event.stack])
            )

    def _say(self, sentence: str) -> None:
        sys.stderr.write(f"commbench: {sentence}\n")


def _next_step(text: str, invocations: int) -> str:
    """Return what comes next, and how often the command has to be repeated for it.

    Later stages may add to that.
    """
    return (
        f"{text}, which takes this command {counted(invocations, 'more time')}, and what follows"
        " may take more"
    )
