"""The heartbeat of a rank: a thread that reports progress and, on request, the stacks of all threads."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

from commbench.engine.timing.loops import Progress
from commbench.launch.events import Heartbeat, Stack
from commbench.launch.signals import SignalFeed, die_of

#: Most frames of a thread that are told.
DEEPEST = 40
#: Frames that every rank begins with.
_OUTERMOST = ("commbench/launch/", "mpi4py/run.py", "mpi4py/__main__.py", "<frozen runpy>")
_DUMPED = re.compile(r'^\s*File "(.+)", line (\d+) in (.+)$')
_DUMPED_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")


def stacks_of_threads() -> dict[str, list[str]]:
    """The stack of each thread but the calling one, by the thread's name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, f"thread {ident}"): _frames(frame)
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, only named like that
        if ident != threading.get_ident()
    }


def stack_of_error(trace: TracebackType | None) -> list[str]:
    """Where an error was raised: its frames, the innermost first."""
    frames = [_text(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(trace)]
    return _telling_ones(frames[::-1])


def stack_in(lines: Iterable[str]) -> list[str]:
    """The stack in what `faulthandler` has printed: of the thread that died or was asked, else of the last, the main.

    Empty where nothing was printed.
    """
    found: list[str] = []
    decided = False
    for line in lines:
        if head := _DUMPED_THREAD.match(line.strip()):
            if decided:
                break
            decided, found = head[1] == "Current thread", []
        elif frame := _DUMPED.match(line):
            found.append(_text(frame[1], int(frame[2]), frame[3]))
    return _telling_ones(found)


def _frames(frame: FrameType | None) -> list[str]:
    found: list[str] = []
    while frame is not None:
        found.append(_text(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return _telling_ones(found)


def _telling_ones(stack: list[str]) -> list[str]:
    """A stack without what every rank begins with, and not too deep."""
    return [frame for frame in stack if not frame.startswith(_OUTERMOST)][:DEEPEST] or stack[:DEEPEST]


def _text(path: str, line: int, function: str) -> str:
    return f"{_short(path)}:{line} in {function}"


@cache
def _short(path: str) -> str:
    """A path below the directory from which Python imported it."""
    roots = [root.rstrip("/") + "/" for root in sys.path if root and path.startswith(root.rstrip("/") + "/")]
    if roots:
        return path[len(max(roots, key=len)) :]
    return Path(path).name if path.startswith("/") else path


INTERVAL_S = 0.5
#: Ranks get at least so long to come together: libraries may be read from a slow disk by all of them at once.
STARTUP_TIMEOUT_S = 60.0
#: A rank that nobody has ended so long after its repetition hung ends itself: the conductor is gone or out of reach.
#: Between repetitions it may wait for others that do make progress, so it stays at least the time limit once more.
ABANDONED_S = 10.0
#: And if even this thread hangs, the interpreter ends the process after so much longer.
LAST_RESORT_S = 5.0
#: Signals that end a rank at once.
DEADLY = frozenset({signal.SIGTERM, signal.SIGHUP})
#: Daemons that serve one launch only; on a host that is cut off nobody else ends them.
_DAEMONS = frozenset({"prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_proxy"})
_NAME_LENGTH = 15
#: Threads that serve the launch and say nothing about where it hangs.
HELPERS = frozenset({"heartbeat", "conductor"})


class Heart:
    """Beats every half second, and answers signals although the main thread may be stuck in a library.

    SIGUSR1 makes it tell the stacks of all threads; so do SIGTERM and SIGHUP before they end the rank: a launcher that
    ends the others after one has died lets them say what they were waiting in.

    Args:
        rank: this rank's number.
        progress: what the timed loops write.
        tell: is given each heartbeat and stack; the default tells nobody.
        timeout_s: time without progress after which ``on_stall`` is called, once; where that leaves the rank alive it
            ends itself after `ABANDONED_S` more, in case that nobody else is left to do so.
        startup_timeout_s: at least so long is waited before the first repetition.
        on_stall: called from the heartbeat's thread.
        leave_with_parent: end the rank where the process that has started it is gone, and with it the launch.
        signals: where signals come from; None: this process has its own way with them.
        on_signal: called from the heartbeat's thread with each signal, before anything else is done about it.
    """

    def __init__(
        self,
        rank: int,
        progress: Progress,
        *,
        tell: Callable[[Heartbeat | Stack], None] = lambda _: None,
        timeout_s: float | None = None,
        startup_timeout_s: float = STARTUP_TIMEOUT_S,
        on_stall: Callable[[], None] = lambda: None,
        leave_with_parent: bool = False,
        signals: SignalFeed | None = None,
        on_signal: Callable[[signal.Signals], None] = lambda _: None,
    ) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        self.progress = progress
        self.case = -1
        self._timeout_s = timeout_s
        self._startup_timeout_s = startup_timeout_s
        self._tell = tell
        self._on_stall = on_stall
        self._on_signal = on_signal
        self._signals = signals
        self._parent = os.getppid() if leave_with_parent else None
        self._seen = (-1, -1)
        self._seen_at = time.monotonic()
        self._stalled = False
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to beat."""
        threading.Thread(target=self._beat_on, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Beat no more, and disarm the net."""
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def enter(self, index: int, text: str) -> None:
        """Note that the case number ``index``, named ``text``, begins; -1 and no name: the rank starts anew."""
        self.case = index
        self.progress.case = text

    @property
    def timeout_s(self) -> float | None:
        """Time without progress that is too long, in seconds; a new one counts from now on."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float | None) -> None:
        self._timeout_s = seconds
        self._seen = (-1, -1)  # the next look takes what it sees for progress, and arms the net anew

    @property
    def limit_s(self) -> float | None:
        """How long the rank may make no progress now; what is compiled before the first repetition is starting, too."""
        starting = self.timeout_s is not None and (self.case < 0 or not self.progress.total)
        return max(self.timeout_s or 0.0, self._startup_timeout_s) if starting else self.timeout_s

    def state(self) -> Heartbeat:
        """What the next heartbeat says."""
        entered, left = (int(count) for count in self.progress.counters)
        cpu_ms = time.process_time_ns() // 1_000_000
        return Heartbeat(
            rank=self.rank, host=self.host, pid=os.getpid(), entered=entered, left=left, cpu_ms=cpu_ms, case=self.case
        )

    def tell_stacks(self) -> None:
        """Tell where every thread of the rank is."""
        entered, left = (int(count) for count in self.progress.counters)
        for name, stack in stacks_of_threads().items():
            if name not in HELPERS:
                self._tell(Stack(rank=self.rank, host=self.host, thread=name, stack=stack, inside=entered > left))

    def _beat_on(self) -> None:
        while not self._stopped.is_set():
            beat = self.state()
            self._tell(beat)
            self._look_for_stall(beat)
            if self._parent not in {None, os.getppid()} and not self._stopped.is_set():
                os._exit(1)
            for number in self._wait():
                self._answer(number)

    def _wait(self) -> list[signal.Signals]:
        if self._signals is not None:
            return self._signals.wait(INTERVAL_S)
        self._stopped.wait(INTERVAL_S)
        return []

    def _answer(self, number: signal.Signals) -> None:
        self._on_signal(number)
        if number == signal.SIGUSR1 or number in DEADLY:
            self.tell_stacks()
        if number in DEADLY:
            die_of(number)

    def _look_for_stall(self, beat: Heartbeat) -> None:
        now, limit_s = time.monotonic(), self.limit_s
        seen = (beat.case, beat.entered + beat.left)
        if seen != self._seen:
            self._seen, self._seen_at, self._stalled = seen, now, False
            if limit_s is not None and not self._stopped.is_set():
                faulthandler.dump_traceback_later(2 * limit_s + ABANDONED_S + LAST_RESORT_S, exit=True)
        elif limit_s is not None and now - self._seen_at > limit_s:
            if not self._stalled:
                self._stalled = True
                self._on_stall()
            patience_s = ABANDONED_S if beat.entered > beat.left else max(limit_s, ABANDONED_S)
            if now - self._seen_at > limit_s + patience_s and not self._stopped.is_set():
                _leave_abandoned()


def _leave_abandoned() -> None:
    """End this rank of a launch that nobody has ended, and the launcher's daemon on this host."""
    with contextlib.suppress(OSError):
        parent = os.getppid()
        name = Path(f"/proc/{parent}/comm").read_text(encoding="utf-8").strip()
        if name in {daemon[:_NAME_LENGTH] for daemon in _DAEMONS}:
            os.kill(parent, signal.SIGTERM)
    os._exit(1)
