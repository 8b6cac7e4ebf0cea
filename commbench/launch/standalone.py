"""A launch that the user has started with mpirun, torchrun or srun: rank 0 plans it and writes the
results itself.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from commbench.errors import InputError, LaunchError
from commbench.findings import Finding
from commbench.launch.clues import (
    Ending,
    describe_place,
    error_clue,
    hang_reason,
    name_rank,
)
from commbench.launch.events import (
    MAIN,
    Heartbeat,
    LastCase,
    Listener,
    RankError,
    Stack,
)
from commbench.launch.heartbeat import stacks_of_threads
from commbench.launch.identity import Identity
from commbench.launch.ledger import (
    DONE_CODE,
    PARTIAL_CODE,
    SIGNAL_CODE,
    Ledger,
)
from commbench.launch.rank import RankProcess, leave
from commbench.launch.schedule import Launch, Schedule, Stop
from commbench.launch.signals import Interrupts
from commbench.results import Store
from commbench.results.plan import LaunchPlan, Stage

#: Seconds that other ranks leave rank 0 to report why the launch ends: launchers end all ranks
#: when the first leaves.
AFTER_RANK_0_S = 2.0


class OwnRank(RankProcess):
    """A rank of the launch that the user has started: `run` never returns.

    For each stage in turn, it completes an unfinished launch of the store, else adds one.

    Args:
        stages: called on rank 0 only; their requests are for as many ranks as were started.
        identity: this rank.
        open_store: called on rank 0 only.
        display: of rank 0.
        finish: called on rank 0 after the last launch.
    """

    caught = (*RankProcess.caught, signal.SIGINT)

    def __init__(
        self,
        stages: Sequence[Stage],
        identity: Identity,
        open_store: Callable[[], Store],
        display: Listener,
        finish: Callable[[Store], None],
    ) -> None:
        self.interrupts = Interrupts()
        self._open_store = open_store
        self._display = display
        self._finish = finish
        self._ledger: Ledger | None = None
        self._stages = stages
        self._begun = time.monotonic()
        super().__init__(identity)

    def work(self) -> None:
        """Make the launches that rank 0 plans."""
        if self.control.rank == 0:
            code = self._lead()
            self.control.broadcast(("", code))
            if self._ledger and code == DONE_CODE:
                self._finish(self._ledger.store)
            return
        while True:
            text, self.code = self.control.broadcast(("", DONE_CODE))
            if not text:
                return
            self.make_launch(LaunchPlan.from_json(text))
            self._rest()

    def leave_off(self) -> bool:
        """Return whether a signal has come."""
        return self.interrupts.number > 0

    def _lead(self) -> int:
        """Make all launches, on rank 0; return the exit code of the other ranks."""

        def run(launch: Launch) -> Ending:
            self.control.broadcast((launch.plan.to_json(), DONE_CODE))
            self.make_launch(launch.plan, self._ledger)
            self._rest()
            if launch.is_complete:
                return Ending(status="ok")
            return Ending.early(self.interrupts.number)

        try:
            store = self._open_store()
            self._ledger = Ledger(store, self._display, self.identity.launcher, status="partial")
            schedule = Schedule(
                self._stages,
                store,
                self._display,
                self.interrupts,
                partial(self._ledger.carry_out, run=run),
                once=True,
                begun=self._begun,
            )
            self.code = self._ledger.close(schedule.carry_out())
        except InputError as error:
            if self._ledger and self._ledger.launch:
                raise  # the other ranks take part in the launch
            self.refuse(str(error))
            self.code = error.exit_code
            return error.exit_code
        return DONE_CODE

    def _rest(self) -> None:
        """Let rank 0 take as long as a start to write the results: no case is in progress."""
        self.enter(-1, "between launches")

    # ------------------------------------------------------------------------ from any thread

    def refuse(self, text: str) -> None:
        """Print why nothing can be measured, and leave the run as it was."""
        self._say(text)
        if self._ledger:
            self._ledger.refuse(text)
            self._ledger.store.discard()

    def report(self, event: Heartbeat | Stack | RankError) -> None:
        """Print a stack, which SIGUSR1 requests, or why this rank ends all others; note why it
        cannot make the present case.
        """
        if isinstance(event, Stack):
            rank = name_rank(event.rank, event.host)
            self._say("\n  ".join([f"{rank}, {event.thread}:", *event.stack]))
        elif isinstance(event, RankError) and event.is_of_case:
            self.refusal = event.message
        elif isinstance(event, RankError):
            self._fail(event)

    def _fail(self, error: RankError) -> None:
        """Print why this rank ends all others, and enter it on rank 0."""
        sentence = f"{name_rank(error.rank, error.host)}: {error.message}"
        launch = self._ledger and self._ledger.launch
        if error.is_bad_input and launch and launch.startup_s is None:
            self.refuse(sentence)
            return
        self._say(sentence)
        self._end(Ending(status="failed", cause=error_clue(error).reason))

    def on_signal(self, number: signal.Signals) -> None:
        """Write the results when a user or the launcher ends this rank.

        Ctrl-C may reach every rank or only rank 0, which lets all ranks finish the case at the
        first one.
        """
        if number == signal.SIGUSR1:
            return
        self.interrupts.note(number)
        has_case = self.rank > 0 or bool(self.progress.case)  # results are written to their end
        if not self.interrupts.must_end(has_case=has_case):
            if self._ledger:
                self._ledger.on(LastCase())
            return
        ending = Ending.early(signal.SIGINT)
        if number != signal.SIGINT:
            reason = Finding("rank_ended", numbers={"signal": number.name})
            ending = Ending(status="failed", cause=reason)
        elif self.rank:
            time.sleep(AFTER_RANK_0_S)
        with self._lock():
            self._end(ending)
            leave(SIGNAL_CODE + number)

    def on_stall(self) -> None:
        """End the launch: this rank has made no progress for the case timeout."""
        if self.rank:
            time.sleep(AFTER_RANK_0_S)
        limit_s = self.limit_s
        reason = hang_reason(limit_s, self.refusal or str(Finding("start_conductor")))
        case = self.progress.case or "starting"
        place = describe_place(stacks_of_threads().get(MAIN, []))
        rank = name_rank(self.rank, self.host)
        with self._lock():
            self._end(Ending(status="hung", cause=reason))
            self._say(f"{rank}: no progress for {limit_s:g} s in {case}, at {place}.")
            if self.refusal:
                self._say(f"{rank}: {self.refusal}")
            leave(PARTIAL_CODE)

    def _lock(self) -> contextlib.AbstractContextManager[object]:
        """Keep other threads from writing until this process has left."""
        if self._ledger:
            return self._ledger.lock
        return contextlib.nullcontext()

    def _end(self, ending: Ending) -> None:
        """Enter on rank 0 that the launch ended before its last case, and the run with it.

        Errors of writing are ignored: they must not keep this rank from ending all others.
        """
        ledger = self._ledger
        if ledger is None:
            return
        with ledger.lock, contextlib.suppress(LaunchError):
            if ledger.launch:
                kind: Literal["failed", "interrupted"] = "failed"
                if ending.status == "interrupted":
                    kind = "interrupted"
                ledger.close(Stop(kind=kind, reason=ledger.end(ending).reason))

    def _say(self, sentence: str) -> None:
        sys.stderr.write(f"commbench: {sentence}\n")
