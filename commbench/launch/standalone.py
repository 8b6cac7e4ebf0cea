"""A launch that a person has started with mpirun, torchrun or srun: rank 0 plans it and writes the results itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import NoReturn

from commbench.cases import Case
from commbench.communicators.base import Communicator
from commbench.control import Control
from commbench.environment import relevant_variables
from commbench.errors import CommbenchError, InputError
from commbench.launch.display import Display, SilentDisplay
from commbench.launch.facts import header_fields, refuse_other_conditions
from commbench.launch.heartbeat import Heart
from commbench.launch.plan import LaunchPlan, RunRequest, launch_entry, next_launch, plan_launch
from commbench.launch.rank import leave, run_process, run_rank
from commbench.launch.timeplan import TimePlan
from commbench.launch.whoami import Identity
from commbench.launch.wire import LastWords
from commbench.records import Record, Status
from commbench.store import Store
from commbench.timing.progress import Progress

_DONE_CODE, _HUNG_CODE, _WRONG_CODE, _SIGNAL_CODE = 0, 3, 4, 128
#: How long other ranks leave rank 0 to write that the launch is hung.
_AFTER_RANK_0_S = 2.0


class StoreSink:
    """Rank 0's results go straight into the run's directory. May be told from any thread that the launch fails."""

    def __init__(self, store: Store, plan: LaunchPlan, display: Display, begun: float) -> None:
        self.store = store
        self.wrong = False
        self._plan = plan
        self._display = display
        self._begun = begun
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._startup_s: float | None = None
        self._measuring_s = 0.0
        self._current: Case | None = None
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
            self.store.update(status="partial", reason=unfinished, **header_fields(facts, self.store.info))

    def case(self, index: int, case: Case) -> None:
        """See `commbench.launch.rank.Sink`."""
        self._current = case
        left = len(self._plan.cases) - index
        eta_s = left * self._plan.budget.slice_s
        self._display.case(index, len(self._plan.cases), str(case), eta_s)

    def record(self, record: Record) -> None:
        """See `commbench.launch.rank.Sink`."""
        with self._lock:
            self._current = None
            self._measuring_s += record.measuring_s
            self.wrong = self.wrong or record.status == "wrong"
            self.store.append(record)
            self._display.record(record)

    def end(self, *, finished: bool) -> None:
        """See `commbench.launch.rank.Sink`."""
        self._close("complete", "ok" if finished else "cut", "" if finished else "the time limit ended the launch")

    def fail(self, status: str, reason: str, *, hung: bool = False) -> None:
        """The launch ends before its last case: ``status`` is the run's, ``partial`` or ``interrupted``."""
        with self._lock:
            if self._over:
                return
            what: Status = "hung" if hung else "failed"
            self._close(status, what, reason)
            if self._current is not None and status == "partial":
                self.store.append(Record(case=self._current, launch=self._plan.launch, status=what, reason=reason))
                self.store.write_summary()

    def _close(self, status: str, launch_status: str, reason: str) -> None:
        with self._lock:
            self._over = True
            seconds = time.monotonic() - self._begun
            entry = launch_entry(
                launch=self._plan.launch,
                started=self._started,
                seconds=seconds,
                startup_s=seconds if self._startup_s is None else self._startup_s,
                measuring_s=self._measuring_s,
                status=launch_status,
                reason=reason,
            )
            self.store.update(launches=[*self.store.info.get("launches", []), entry], status=status, reason=reason)
            self.store.write_summary()
            self._display.launch_finished(seconds)


def run_standalone(
    request: RunRequest,
    identity: Identity,
    open_store: Callable[[], Store],
    display: Display | None = None,
    finish: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Be a rank of the launch that a person has started; never returns.

    The launch completes an unfinished one of the store, else adds one.

    Args:
        request: the same on every rank, with as many ranks as were started.
        identity: this rank.
        open_store: called on rank 0 only.
        display: of rank 0; silent by default.
        finish: called on rank 0 when everything has been written.
    """
    _Standalone(request, identity, open_store, display or SilentDisplay(), finish).run()


class _Standalone:
    def __init__(
        self,
        request: RunRequest,
        identity: Identity,
        open_store: Callable[[], Store],
        display: Display,
        finish: Callable[[], None],
    ) -> None:
        self.finish = finish
        self.request = request
        self.identity = identity
        self.open_store = open_store
        self.display = display
        self.variables = relevant_variables(os.environ)
        self.begun = time.monotonic()
        self.sink: StoreSink | None = None
        self.code = _DONE_CODE
        self.heart = Heart(identity.rank, Progress(), timeout_s=request.case_timeout_s, on_stall=self._end_hung_launch)

    def run(self) -> NoReturn:
        if self.identity.rank == 0:
            self._watch_signals()
        self.heart.start()
        run_process(self.identity, self.heart, self._work, on_error=self._report, status=lambda: self.code)

    def _work(self, control: Control) -> list[Communicator]:
        sentence, text = control.broadcast(self._plan() if control.rank == 0 else ("", ""))
        if sentence:  # rank 0 speaks, all leave
            self.code = InputError.exit_code
            if control.rank == 0:
                self._say(sentence)
            return []
        communicators = run_rank(LaunchPlan.from_json(text), control, self.sink, self.heart, self.variables)
        if self.sink and self.sink.wrong:
            self.code = _WRONG_CODE
        if self.sink:
            self.finish()
        return communicators

    def _plan(self) -> tuple[str, str]:
        """On rank 0: (why nothing can be done or "", the plan)."""
        try:
            store = self.open_store()
        except CommbenchError as error:
            return str(error), ""
        times = TimePlan(budget=self.request.budget, begun=self.begun, limit_s=self.request.time_limit_s)
        times.startup_s = 0.0  # the ranks are here already
        launch = next_launch(self.request, store.records)
        cases = len(self.request.cases)
        plan = plan_launch(
            self.request,
            store.records,
            launch,
            slice_s=times.slice_s(self.begun, cases=cases, launches=1),
            deadline_s=times.deadline_s(self.begun),
        )
        self.sink = StoreSink(store, plan, self.display, self.begun)
        self.display.launch_started(launch, launch + 1)
        budget = self.request.budget
        store.update(
            launcher=self.identity.launcher, budget=budget.name, relative_half_width=budget.relative_half_width
        )
        return "", plan.to_json()

    def _report(self, words: LastWords) -> None:
        """This rank ends all others: say why, and on rank 0 note it."""
        self._say(f"rank {words.rank} on host {words.host}: {words.text}")
        if self.sink:
            self.sink.fail("partial", f"rank {words.rank} on host {words.host} raised {words.text}")

    def _end_hung_launch(self) -> None:
        """From the heartbeat's thread: this rank has made no progress for the case timeout."""
        what = f"no progress for {self.request.case_timeout_s:g} s in {self.heart.progress.case or 'starting'}"
        if self.sink:
            self.sink.fail(
                "partial", f"{what}; start commbench without mpirun or torchrun to learn which rank", hung=True
            )
        elif self.identity.rank:
            time.sleep(_AFTER_RANK_0_S)
        self._say(f"rank {self.identity.rank} on host {self.heart.host}: {what}.")
        leave(_HUNG_CODE)

    def _watch_signals(self) -> None:
        """Keep what was measured when the launcher ends us: by a thread, as the main one may be inside a library."""
        numbers = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

        def wait() -> None:
            number = signal.sigwait(numbers)
            if self.sink:
                status = "interrupted" if number == signal.SIGINT else "partial"
                self.sink.fail(
                    status, f"ended by {signal.Signals(number).name}: a person, a time limit or a failed rank"
                )
            leave(_SIGNAL_CODE + number)

        threading.Thread(target=wait, name="signals", daemon=True).start()

    def _say(self, sentence: str) -> None:
        sys.stderr.write(f"commbench: {sentence}\n")
