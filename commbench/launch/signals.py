"""Signals to this process: the conductor notes them until it looks.

A rank's thread reads them at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

import psutil

#: Seconds between two looks for a signal.
LOOK_S = 0.25
#: Signals that end a process at once.
DEADLY = (signal.SIGTERM, signal.SIGHUP)
#: Signals that a terminal's keys send to the whole group in its foreground.
FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
#: Signals that are passed on to a command, and that end a run: schedulers announce an end by
#: SIGUSR1 or SIGUSR2, too.
PASSED_ON = (*FROM_KEYS, *DEADLY, signal.SIGUSR1, signal.SIGUSR2)
_Handler = Callable[[int, FrameType | None], object]


class Interrupts:
    """Notes the signals of `PASSED_ON`, which then do not end the process.

    The first SIGINT asks for an end after the case that has begun; another signal, or another
    SIGINT, for an end at once.
    """

    def __init__(self) -> None:
        self.number = 0
        """The first signal that has come; 0: none."""
        self.now = False
        """Whether to end at once."""

    def noting(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which signals are noted."""
        return _handling(_heeded(PASSED_ON), self.note)

    def note(self, number: int, _frame: FrameType | None = None) -> None:
        """Note a signal."""
        self.now = bool(self.number) or number != signal.SIGINT
        self.number = self.number or number

    def must_end(self, *, has_case: bool) -> bool:
        """Return whether a signal ends the launch at once; ``has_case``: a case has begun."""
        return self.now or (self.number > 0 and not has_case)

    def pause(self, seconds: float) -> None:
        """Wait until a signal comes, or until the seconds are over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.number:
            time.sleep(LOOK_S)


def _heeded(numbers: Iterable[signal.Signals]) -> set[signal.Signals]:
    """Return the signals without those that this process ignores, as SIGHUP under nohup.

    SIGINT stays: a script's job in the background ignores it.
    """
    heeded = set()
    for number in numbers:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            heeded.add(number)
    return heeded


@contextlib.contextmanager
def _handling(numbers: Iterable[signal.Signals], handler: _Handler) -> Iterator[None]:
    """Handle signals; none outside the main thread."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def passing_on(
    handler: _Handler,
) -> contextlib.AbstractContextManager[None]:
    """Return the context in which the signals of `PASSED_ON` are handled.

    One that this process ignores stays ignored, in the command too.
    """
    heeded = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    return _handling(heeded, handler)


@contextlib.contextmanager
def deferring() -> Iterator[None]:
    """Return the context at whose end the program's own Python handlers learn of signals.

    Python calls them between any two statements. One that raises would leave out all that follow.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, _Handler] = {}
    is_over = False
    with contextlib.ExitStack() as late:

        def note(number: int, frame: FrameType | None) -> None:
            if is_over:
                handlers[number](number, frame)
            else:
                late.callback(handlers[number], number, frame)

        try:
            _replace(handlers, note)
        except BaseException as error:  # noqa: BLE001 - of a handler; raised at the end
            late.callback(_raise, error)
            _replace(handlers, note)
        try:
            yield
        finally:
            is_over = True
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _replace(handlers: dict[int, _Handler], other: _Handler) -> None:
    """Put another handler in place of each one in Python, which ``handlers`` gets."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not other:
            handlers[number] = handler
            signal.signal(number, other)


def _raise(error: BaseException) -> None:
    raise error


def foreground_group() -> int | None:
    """Return the process group to which the terminal sends its signals; None without a terminal."""
    try:
        with Path("/dev/tty").open("rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno())
    except OSError:
        return None


def leave_by_exit() -> None:
    """Let the signals of `PASSED_ON` but SIGINT end this process and its children, until
    `Interrupts` or a `SignalFeed` takes over.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        for (
            child
        ) in psutil.Process().children():  # a child that is just being started would stay otherwise
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        sys.exit(128 + number)

    for number in _heeded(PASSED_ON) - {signal.SIGINT}:
        signal.signal(number, leave)


class SignalFeed:
    """Catches signals for any thread that waits for them: the main thread may be stuck inside a
    library.

    Created in the main thread. Signal masks do not serve: threads that libraries have started
    before have none.

    Args:
        numbers: the caught signals.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = _heeded(numbers)
        self._reader, writer = os.pipe()
        for descriptor in (self._reader, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)
        os.register_at_fork(after_in_child=self._forget)

    def wait(self, seconds: float) -> list[signal.Signals]:
        """Return the signals that come within ``seconds``, as soon as the first comes."""
        ready, _, _ = select.select([self._reader], [], [], seconds)
        numbers = os.read(self._reader, 64) if ready else b""
        return [signal.Signals(number) for number in numbers if number in self._numbers]

    def _forget(self) -> None:
        """Stop handling signals in a forked child: they belong to the parent."""
        signal.set_wakeup_fd(-1)
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)


def die_of(number: int) -> None:
    """End this process, from any thread, as the signal does if it is not caught."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(number, None)  # SIG_DFL
    os.kill(os.getpid(), number)
