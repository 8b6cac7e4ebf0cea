"""Signals that are meant for a command in an emulated cluster: caught here, and passed on to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Signals that are passed on to the command.
PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: Signals that a key makes; the terminal sends them to the command, too.
FROM_KEYS = frozenset({signal.SIGINT, signal.SIGQUIT})


def is_foreground() -> bool:
    """Whether the terminal's keys send signals to this process, and so to its children in the same group."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def blocked(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Hold signals back; a child that is started meanwhile never gets them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def caught(numbers: Iterable[signal.Signals]) -> Iterator[socket.socket]:
    """Catch signals, but for ignored ones, as bytes on a socket: none is lost, whenever it comes.

    Python allows that in its main thread only; in another one signals stay as they are.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        if threading.current_thread() is not threading.main_thread():
            yield reader
            return
        writer.setblocking(False)  # noqa: FBT003 - its only parameter
        taken = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        previous = signal.set_wakeup_fd(writer.fileno())
        before = {number: signal.signal(number, lambda *_: None) for number in taken}
        try:
            yield reader
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous)
