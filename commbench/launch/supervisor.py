"""Sees one launch through: starts it, hears it, and tells how it ended; nothing of it is left when it is over."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Literal, Protocol

from commbench.kinds import AnyRecord, read_record
from commbench.launch.heartbeat import STARTUP_TIMEOUT_S
from commbench.launch.launchers import Launcher
from commbench.launch.plan import LaunchPlan
from commbench.launch.process import STACKS_S, Event, Launched
from commbench.launch.watchdog import Watchdog, blame_exit
from commbench.launch.wire import Heartbeat, LastWords, parse_frame, split_line

#: What the launcher is to start: a rank, without the command line around it.
PROGRAM = ("-m", "commbench.launch.rank")
#: How often the watchdog looks.
LOOK_S = 0.25
#: How long a launch may go on in which a rank has said why it ends.
DOOMED_S = 10.0
#: How many lines of stderr are kept for the person to read after a failure.
KEPT_LINES = 200

_CATCHABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within it, the first SIGINT, SIGTERM or SIGHUP is noted instead of ending the process; later ones do nothing."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.wake: Callable[[], None] = lambda: None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:  # noqa: PYI034 - typing.Self needs Python 3.11
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _CATCHABLE}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        self.wake()


class Listener(Protocol):
    """Told what a launch reports, as it comes."""

    def on_session(self, session: Mapping[str, Any]) -> None:
        """All ranks have come together, under these conditions."""

    def on_case(self, index: int) -> None:
        """The planned case number ``index`` begins; one that is trained begins with each of its blocks."""

    def on_record(self, record: AnyRecord) -> None:
        """A case is finished."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a launch ended."""

    status: Literal["ok", "cut", "failed", "hung", "interrupted", "refused"]
    """``cut``: time ran out before the last case; ``refused``: a rank says that what was asked for cannot be done."""
    reason: str = ""
    """One sentence without its full stop; for ``ok`` a doubt, or empty."""


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
        startup_timeout = max(plan.case_timeout_s, STARTUP_TIMEOUT_S)
        self._watchdog = Watchdog(ranks, plan.case_timeout_s, now=time.monotonic(), startup_timeout=startup_timeout)
        self._words: list[LastWords] = []
        self._doomed_at: float | None = None
        self._recorded: set[str] = set()
        self._end: bool | None = None
        self.current: int | None = None
        """Index of the case that has begun and not finished."""
        self.stderr: deque[str] = deque(maxlen=KEPT_LINES)
        """What was written beside our messages."""

    def run(self) -> Ending:
        """Start the launch and stay until it is over."""
        command = self._launcher.command(self._ranks, PROGRAM, training=self._plan.training is not None)
        launched = Launched(command, {**os.environ, **self._launcher.environment()}, self._plan.to_json())
        self._interrupts.wake = launched.wake
        try:
            return self._watch(launched)
        finally:
            launched.close()

    def _watch(self, launched: Launched) -> Ending:
        looked = time.monotonic()
        while launched.returncode is None:
            self._handle(launched.next_event(LOOK_S))
            if self._interrupts.number is not None:
                launched.stop(self._handle)
                name = signal.Signals(self._interrupts.number).name
                return Ending(status="interrupted", reason=f"interrupted by {name}")
            now = time.monotonic()
            if now - looked < LOOK_S:
                continue
            looked = now
            hang = self._watchdog.stuck(now)
            if hang:
                self._tear_down(launched)
                return self._hung(hang.text)
            if self._doomed_at is not None and now > self._doomed_at:
                launched.stop(self._handle)
        return self._judge(launched.finish(self._handle))

    def _tear_down(self, launched: Launched) -> None:
        """End a hung launch, after its ranks had the time to print where they are."""
        launched.ask_for_stacks(self._watchdog.pids.values(), by_launcher=self._launcher.forwards_signals)
        launched.drain(STACKS_S, self._handle)
        launched.stop(self._handle)

    def _hung(self, text: str) -> Ending:
        if self._complete:
            return Ending(status="ok", reason=f"the ranks did not end after their last case: {text}")
        return Ending(status="hung", reason=f"no progress for {self._watchdog.timeout:g} s: {text}")

    def _judge(self, returncode: int) -> Ending:
        """How a launch ended whose launcher has left."""
        refused = [words.text for words in self._words if words.bad_input]
        if refused:
            return Ending(status="refused", reason=refused[0])
        if returncode == 0 and self._end is False:
            return Ending(status="cut", reason="the time limit ended the launch before its last case")
        if returncode == 0 and self._complete:
            return Ending(status="ok")
        pids, hosts = self._watchdog.pids, self._watchdog.hosts
        _, text = blame_exit(list(self.stderr), self._words, returncode, pids, hosts)
        if self._complete:
            return Ending(status="ok", reason=f"the ranks did not leave cleanly after their last case: {text}")
        return Ending(status="failed", reason=text)

    @property
    def _complete(self) -> bool:
        return all(planned.case.key in self._recorded for planned in self._plan.cases)

    def _handle(self, event: Event) -> None:
        if event.source == "stdout":
            frame = parse_frame(event.line)
            if frame is not None:
                self._watchdog.progress(time.monotonic())
                self._frame(frame)
            elif event.line.strip():  # Hydra says here which process has died
                self.stderr.append(event.line)
        elif event.source == "stderr":
            self._stderr_line(event.line)

    def _frame(self, frame: Mapping[str, Any]) -> None:
        kind = frame["frame"]
        if kind == "session":
            for rank in frame["session"]["ranks"]:
                self._watchdog.introduce(rank["rank"], rank["host"], rank["pid"])
            self._listener.on_session(frame["session"])
        elif kind == "case":
            self._case(int(frame["index"]))
        elif kind == "record":
            record = read_record(frame["record"])
            if self.current is not None and self._plan.cases[self.current].case.key == record.case.key:
                self.current = None
            self._recorded.add(record.case.key)
            self._listener.on_record(record)
        elif kind == "end":
            self._end = bool(frame["finished"])

    def _case(self, index: int) -> None:
        case = self._plan.cases[index].case
        self.current = index
        # Gloo's threads sleep while they wait, so CPU time says nothing about who is idle.
        self._watchdog.case(time.monotonic(), polls=case.backend == "mpi")
        self._listener.on_case(index)

    def _stderr_line(self, line: str) -> None:
        foreign, message = split_line(line)
        if isinstance(message, Heartbeat):
            self._watchdog.heartbeat(message, time.monotonic())
        elif isinstance(message, LastWords):
            self._words.append(message)
            self._doomed_at = self._doomed_at or time.monotonic() + DOOMED_S
        if foreign.strip():
            self.stderr.append(foreign)
