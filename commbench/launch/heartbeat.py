"""The heartbeat of a rank: a thread that reports progress and, on request, the stacks of all
threads.
"""

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
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

import psutil

from commbench.engine.timing.loops import Progress
from commbench.launch.events import Heartbeat, RankError, Stack
from commbench.launch.signals import DEADLY, SignalFeed, die_of

#: Most frames of a thread that are reported.
DEEPEST = 40
#: Outermost frames, the same on every rank.
_OUTERMOST = ("commbench/launch/", "mpi4py/run.py", "mpi4py/__main__.py", "<frozen runpy>")
#: The directory that holds the package.
_HOME = Path(__file__).parents[2]
_DUMPED = re.compile(r'^\s*File "(.+)", line (\d+) in (.+)$')
_DUMPED_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")


def stacks_of_threads() -> dict[str, list[str]]:
    """Return the stack of each thread but the calling one, by the thread's name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = {}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented, only named so
        if ident != threading.get_ident():
            stacks[names.get(ident, f"thread {ident}")] = _texts(traceback.walk_stack(frame))
    return stacks


def stack_of_error(trace: TracebackType | None) -> list[str]:
    """Return the frames in which an error was raised, the innermost first."""
    return _texts(reversed(list(traceback.walk_tb(trace))))


def _texts(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    texts = []
    for frame, line in frames:
        texts.append(_text(frame.f_code.co_filename, line, frame.f_code.co_name))
    return _without_outermost(texts)


def stack_in(lines: Iterable[str]) -> list[str]:
    """Return the stack that `faulthandler` has printed: of the current thread, else of the last
    one, the main thread.

    Empty if nothing was printed.
    """
    frames: list[str] = []
    decided = False
    for line in lines:
        if head := _DUMPED_THREAD.match(line.strip()):
            if decided:
                break
            decided, frames = head[1] == "Current thread", []
        elif frame := _DUMPED.match(line):
            frames.append(_text(frame[1], int(frame[2]), frame[3]))
    return _without_outermost(frames)


def _without_outermost(stack: list[str]) -> list[str]:
    """Return a stack without the outermost frames that all ranks share, and at most `DEEPEST`
    frames.
    """
    inner = [frame for frame in stack if not frame.startswith(_OUTERMOST)]
    return (inner or stack)[:DEEPEST]


def _text(path: str, line: int, function: str) -> str:
    return f"{_short(path)}:{line} in {function}"


@cache
def _short(path: str) -> str:
    """Return a path relative to the directory from which Python imported it.

    An editable installation may have its directory not in ``sys.path``.
    """
    longest = ""
    for folder in (*sys.path, str(_HOME)):
        root = folder.rstrip("/") + "/"
        if folder and path.startswith(root) and len(root) > len(longest):
            longest = root
    if not longest and path.startswith("/"):  # a file that was loaded by its path
        return Path(path).name
    return path[len(longest) :]


INTERVAL_S = 0.5
#: A heartbeat that is later than this shows that the process did not run.
STALL_S = 0.5
#: Ranks have at least this many seconds to come together: all of them may read libraries from a
#: slow disk at once.
STARTUP_TIMEOUT_S = 60.0
#: A rank ends itself this many seconds after its repetition hung, because the conductor is out of
#: reach. Between repetitions it may wait for ranks that make progress, so it waits at least the
#: time limit once more.
ABANDONED_S = 10.0
#: If this thread hangs, too, the interpreter ends the process this many seconds later.
LAST_RESORT_S = 5.0
#: Launchers' daemons that serve one launch only; on a host that is cut off only its ranks can end
#: them.
_DAEMONS = frozenset({"prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_proxy"})
#: Threads that serve the launch; their stacks do not show where it hangs.
HELPERS = frozenset({"heartbeat", "conductor"})


class Heart:
    """Beats every half second, and answers signals although the main thread may be stuck in a
    library.

    At SIGUSR1 it reports the stacks of all threads. At SIGTERM and SIGHUP it does so before the
    rank ends, so that ranks which a launcher ends after another one has died report what they were
    waiting in.

    Args:
        rank: this rank's number.
        startup_s: the least time without progress that is too long before the first repetition, in
            seconds.
        leave_with_parent: end the rank when the process that has started it is gone.
        signals: the signals that the rank answers; None: none.
    """

    def __init__(
        self,
        rank: int,
        *,
        startup_s: float = STARTUP_TIMEOUT_S,
        leave_with_parent: bool = False,
        signals: SignalFeed | None = None,
    ) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        self.progress = Progress()
        """Written by the timed loops."""
        self.case = -1
        self._timeout_s = self._startup_s = startup_s
        self._signals = signals
        self._parent = os.getppid() if leave_with_parent else None
        self._position = (-1, -1)
        self._moved_at = time.monotonic()
        self._stalled = False
        self._stopped = threading.Event()

    def report(self, event: Heartbeat | Stack | RankError) -> None:
        """Take note of a heartbeat, a stack or an error; also called from the heart's thread, as
        `on_signal` and `on_stall`.
        """

    def on_signal(self, number: signal.Signals) -> None:
        """React to a signal before the heart does."""

    def on_stall(self) -> None:
        """React, once, to too long a time without progress; a rank that is still alive
        `ABANDONED_S` later ends itself.
        """

    def start(self) -> None:
        """Begin to beat."""
        threading.Thread(target=self._beat_on, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Beat no more, and disarm the net."""
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def enter(self, index: int, text: str) -> None:
        """Note that the case number ``index``, named ``text``, begins; -1 and no name: the rank
        starts again.
        """
        self.case = index
        self.progress.case = text

    def limit(self, timeout_s: float) -> None:
        """Let a time without progress be too long from now on, in seconds."""
        self._timeout_s = timeout_s
        # the next look takes what it sees for progress, and arms the net again
        self._position = (-1, -1)

    @property
    def limit_s(self) -> float:
        """The present limit of seconds without progress; compiling counts as start-up."""
        if self.case < 0 or not self.progress.total:
            return max(self._timeout_s, self._startup_s)
        return self._timeout_s

    def state(self) -> Heartbeat:
        """Return the next heartbeat."""
        entered, left = (int(count) for count in self.progress.counters)
        cpu_ms = time.process_time_ns() // 1_000_000
        return Heartbeat(
            rank=self.rank,
            host=self.host,
            pid=os.getpid(),
            entered=entered,
            left=left,
            cpu_ms=cpu_ms,
            case=self.case,
        )

    def report_stacks(self) -> None:
        """Report the stack of every thread of the rank."""
        beat = self.state()
        is_inside = beat.entered > beat.left
        for name, frames in stacks_of_threads().items():
            if name not in HELPERS:
                self.report(
                    Stack(
                        rank=self.rank, host=self.host, thread=name, stack=frames, inside=is_inside
                    )
                )

    def _beat_on(self) -> None:
        while not self._stopped.is_set():
            beat = self.state()
            self.report(beat)
            self._look_for_stall(beat)
            if self._parent not in {None, os.getppid()} and not self._stopped.is_set():
                os._exit(1)
            before = time.monotonic(), time.process_time()
            signals = []
            if self._signals:
                signals = self._signals.wait(INTERVAL_S)
            else:
                self._stopped.wait(INTERVAL_S)
            self._note_stall(*before)
            for number in signals:
                self.on_signal(number)
                if number == signal.SIGUSR1 or number in DEADLY:
                    self.report_stacks()
                if number in DEADLY:
                    die_of(number)

    def _note_stall(self, begun: float, cpu_s: float) -> None:
        """Note a stall if the wait since ``begun`` took much too long and the process used little
        CPU time meanwhile.

        A library that holds the interpreter's lock delays this thread, too, but it uses CPU time.
        """
        waited_s = time.monotonic() - begun
        stalled_s = waited_s - INTERVAL_S
        if stalled_s > STALL_S and time.process_time() - cpu_s < waited_s / 2:
            lasted_s = stalled_s + INTERVAL_S / 2
            self.progress.add_stall(time.time() - lasted_s, lasted_s)

    def _look_for_stall(self, beat: Heartbeat) -> None:
        now, limit_s = time.monotonic(), self.limit_s
        if beat.position != self._position:
            self._position, self._moved_at, self._stalled = beat.position, now, False
            if not self._stopped.is_set():
                faulthandler.dump_traceback_later(
                    2 * limit_s + ABANDONED_S + LAST_RESORT_S, exit=True
                )
        elif now - self._moved_at > limit_s:
            if not self._stalled:
                self._stalled = True
                self.on_stall()
            patience_s = ABANDONED_S if beat.entered > beat.left else max(limit_s, ABANDONED_S)
            if now - self._moved_at > limit_s + patience_s and not self._stopped.is_set():
                _leave_abandoned()


def _leave_abandoned() -> None:
    """End this rank of a launch that nobody has ended, and the launcher's daemon on this host."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(os.getppid())
        if parent.name() in _DAEMONS:
            parent.terminate()
    os._exit(1)
