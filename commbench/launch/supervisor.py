"""Sees one launch through: starts it, hears it, and tells how it ended; nothing of it is left when it is over."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from commbench.collectives.backends import MPI_BACKENDS
from commbench.launch.diagnosis import Blame, Culprit, Evidence, MemoryKills, blame_exit, of_a_crash
from commbench.launch.heartbeat import STARTUP_TIMEOUT_S
from commbench.launch.launcher_errors import doubt
from commbench.launch.launchers import Launcher
from commbench.launch.process import STACKS_S, Event, Launched
from commbench.launch.protocol import FINISH, FRAME_HEAD, Heartbeat, LastWords, parse_frame, split_line
from commbench.launch.signals import Interrupts
from commbench.launch.watchdog import Watchdog
from commbench.results.plan import LaunchPlan
from commbench.results.record_types import AnyCase, AnyRecord, read_record

#: What the launcher is to start: a rank, without the command line around it.
PROGRAM = ("-m", "commbench.launch.rank")
#: How often the watchdog looks.
LOOK_S = 0.25
#: How long a launch may go on in which a rank has said why it ends.
DOOMED_S = 10.0
#: How long the interpreter of a rank gets to print its stacks.
PRINTING_S = 0.5
#: How many lines of stderr are kept for the person to read after a failure.
KEPT_LINES = 200


class Listener(Protocol):
    """Told what a launch reports, as it comes."""

    def on_session(self, session: Mapping[str, Any]) -> None:
        """All ranks have come together, under these conditions."""

    def on_case(self, index: int) -> None:
        """The planned case number ``index`` begins; one that is trained begins with each of its blocks."""

    def on_record(self, record: AnyRecord) -> None:
        """A case is finished."""

    def on_last_case(self) -> None:
        """A signal asks for an end, and the launch ends with the case that has begun."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a launch ended."""

    status: Literal["ok", "cut", "failed", "hung", "interrupted", "refused"]
    """``cut``: time ran out before the last case; ``refused``: a rank says that what was asked for cannot be done."""
    reason: str = ""
    """One sentence without its full stop; for ``ok`` a doubt, or empty."""
    culprit: Culprit | None = None
    """Of a launch that failed or hung."""
    is_host_lost: bool = False
    """Whether a host cannot be reached any more."""


class Supervisor:
    """One launch.

    Args:
        plan: what the ranks are to do.
        ranks: how many.
        launcher: what starts them.
        listener: what hears of sessions, cases and records.
        interrupts: ends the launch when it has noted a signal.
    """

    def __init__(
        self, plan: LaunchPlan, ranks: int, launcher: Launcher, listener: Listener, interrupts: Interrupts
    ) -> None:
        self._plan = plan
        self._ranks = ranks
        self._launcher = launcher
        self._listener = listener
        self._interrupts = interrupts
        self._startup_s = max(plan.case_timeout_s, STARTUP_TIMEOUT_S)
        self._watchdog = Watchdog(ranks, plan.case_timeout_s, now=time.monotonic(), startup_timeout=self._startup_s)
        self._evidence = Evidence()
        self._memory = MemoryKills()
        self._has_begun = self._finishing = False
        self._doomed_at: float | None = None
        self._recorded: set[str] = set()
        self._end: bool | None = None
        self.current: int | None = None
        """Index of the case that has begun and not finished."""
        self.stderr: deque[str] = deque(maxlen=KEPT_LINES)
        """What was written beside our messages and frames."""
        self.told: list[str] = []
        """Where the ranks of a failed launch were, for people."""

    def run(self) -> Ending:
        """Start the launch and stay until it is over."""
        program = (*PROGRAM, f"{self._startup_s:g}")
        command = self._launcher.command(self._ranks, program, training=self._plan.training is not None)
        try:
            launched = Launched(command, {**os.environ, **self._launcher.environment()}, self._plan.to_json())
        except OSError as error:
            why = f"{command[0]} cannot be started ({error.strerror}); install it again, or load its module"
            return Ending(status="failed", reason=why)
        self._interrupts.wake = launched.wake
        try:
            return self._watch(launched)
        finally:
            launched.close()

    def _watch(self, launched: Launched) -> Ending:
        looked = time.monotonic()
        while launched.returncode is None:
            self._handle(launched.next_event(LOOK_S))
            if self._interrupts.number is not None and self._is_over(launched):
                launched.stop(self._handle)
                return self._interrupted()
            now = time.monotonic()
            if now - looked < LOOK_S:
                continue
            looked = now
            hang = self._watchdog.stuck(now)
            if hang:
                return self._tear_down(launched, hang)
            if self._doomed_at is not None and now > self._doomed_at:
                launched.stop(self._handle)
        return self._judge(launched.finish(self._handle))

    def _is_over(self, launched: Launched) -> bool:
        """Whether a signal ends the launch at once; else its ranks are told, once, to finish their case."""
        if self._interrupts.now or not self._has_begun:
            return True
        if not self._finishing:
            self._finishing = True
            launched.tell(FINISH)
            self._listener.on_last_case()
        return False

    def _interrupted(self) -> Ending:
        name = signal.Signals(self._interrupts.number or signal.SIGINT).name
        return Ending(status="interrupted", reason=f"interrupted by {name}")

    def _tear_down(self, launched: Launched, hang: Blame) -> Ending:
        """End a hung launch, after its ranks had the time to tell where they are."""
        self._evidence.forget_stacks()
        launched.ask_for_stacks(self._watchdog.pids, by_launcher=self._launcher.forwards_signals)
        launched.drain(STACKS_S, self._handle, until=lambda: self._evidence.located >= set(self._watchdog.pids))
        culprit = self._evidence.convict(hang, self._case, self._watchdog.processes, self._printed(launched, hang))
        self.told = self._evidence.lines()
        is_reached = launched.stop(self._handle)
        if self._complete:
            return Ending(status="ok", reason=f"the ranks did not end after their last case: {hang.text}")
        return Ending(
            status="hung",
            reason=f"no progress for {self._watchdog.timeout:g} s: {hang.text}",
            culprit=culprit,
            is_host_lost=hang.is_lost and not is_reached,
        )

    def _printed(self, launched: Launched, hang: Blame) -> list[str]:
        """What the interpreter prints of a rank on this host that cannot tell its stacks itself."""
        pid = self._watchdog.pids.get(-1 if hang.rank is None else hang.rank)
        if pid is None or hang.rank in self._evidence.located or hang.host != socket.gethostname():
            return []
        before = list(self.stderr)
        self.stderr.clear()
        launched.make_print(pid)
        launched.drain(PRINTING_S, self._handle)
        printed = list(self.stderr)
        self.stderr = deque([*before, *printed], maxlen=KEPT_LINES)
        return printed

    def _judge(self, returncode: int) -> Ending:
        """How a launch ended whose launcher has left."""
        refused = [words.text for words in self._evidence.words if words.bad_input]
        if refused:
            return Ending(status="refused", reason=refused[0])
        if returncode == 0 and self._end is False:
            if self._finishing:
                return self._interrupted()
            return Ending(status="cut", reason="the time limit ended the launch before its last case")
        if returncode == 0 and self._complete:
            return Ending(status="ok", reason=doubt(list(self.stderr)))
        blame = blame_exit(
            list(self.stderr),
            self._evidence.words,
            returncode,
            self._watchdog.processes,
            silent=self._watchdog.silent(time.monotonic()),
            is_out_of_memory=self._memory.is_out_of_memory,
        )
        if self._complete:
            return Ending(status="ok", reason=f"the ranks did not leave cleanly after their last case: {blame.text}")
        self.told = self._evidence.lines()
        printed = of_a_crash(list(self.stderr))
        culprit = self._evidence.convict(blame, self._case, self._watchdog.processes, printed)
        return Ending(status="failed", reason=blame.text, culprit=culprit)

    @property
    def _case(self) -> AnyCase | None:
        return None if self.current is None else self._plan.cases[self.current].case

    @property
    def _complete(self) -> bool:
        return all(planned.case.key in self._recorded for planned in self._plan.cases)

    def _handle(self, event: Event) -> None:
        if event.source == "stdout":
            frame = parse_frame(event.line)
            if frame is not None:
                self._watchdog.progress(time.monotonic())
                self._frame(frame)
            elif event.line.strip() and not event.line.startswith(FRAME_HEAD):
                self.stderr.append(event.line)  # Hydra says here which process has died, and mpirun what it lacks
        elif event.source == "stderr":
            self._stderr_line(event.line)

    def _frame(self, frame: Mapping[str, Any]) -> None:
        kind = frame["frame"]
        if kind == "session":
            for rank in frame["session"]["ranks"]:
                self._watchdog.introduce(rank["rank"], rank["host"], rank["pid"])
            self._listener.on_session(frame["session"])
        elif kind == "case":
            self._begin(int(frame["index"]))
        elif kind == "record":
            record = read_record(frame["record"])
            if self.current is not None and self._plan.cases[self.current].case.key == record.case.key:
                self.current = None
            self._recorded.add(record.case.key)
            self._listener.on_record(record)
        elif kind == "end":
            self._end = bool(frame["finished"])

    def _begin(self, index: int) -> None:
        case = self._plan.cases[index].case
        self.current = index
        self._has_begun = True
        # Gloo's threads sleep while they wait, so CPU time says nothing about who is idle.
        self._watchdog.case(time.monotonic(), polls=case.backend in MPI_BACKENDS)
        self._listener.on_case(index)

    def _stderr_line(self, line: str) -> None:
        foreign, message = split_line(line)
        if isinstance(message, Heartbeat):
            self._watchdog.heartbeat(message, time.monotonic())
        elif message is not None:
            self._evidence.hear(message)
            if isinstance(message, LastWords):
                self._doomed_at = self._doomed_at or time.monotonic() + DOOMED_S
        if foreign.strip():
            self.stderr.append(foreign)
