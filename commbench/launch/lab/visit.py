"""A command on an emulated host: started from outside the lab, its signals passed on, and its end
awaited.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from commbench.errors import InputError
from commbench.launch.lab import agent, visitor
from commbench.launch.lab.plan import DIRECTORY, LabPlan

_VISITOR = (sys.executable, "-I", "-S", visitor.__file__)
_AGENT = tuple(agent.call(DIRECTORY, "exec"))


@dataclass(frozen=True, kw_only=True)
class RunningCommand:
    """A command that runs on an emulated host; ``pid`` is the machine's."""

    host: str
    command: tuple[str, ...]
    pid: int


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started.

    Raises:
        InputError: no command was given, or it was not found.
    """
    if not command:
        raise InputError("No command was given to run in the emulated cluster; write it after --.")
    if shutil.which(command[0]) is None:
        raise InputError(
            f"The command {command[0]!r} was not found; give its path, or add its directory to"
            " PATH."
        )


def visit(
    lab: int, plan: LabPlan, host: str, command: Sequence[str], signals: socket.socket
) -> int:
    """Run a command on a host; when it or this process ends, all descendants of the command end.

    Args:
        lab: the id of the lab's first process.
        plan: the present plan of the lab.
        host: a host's name.
        command: the program and its arguments; it has this process's streams and directory.
        signals: signals to pass on, as bytes.

    Returns:
        The command's exit code; 128 + n if signal n has ended it.

    Raises:
        InputError: it could not be started.
    """
    with contextlib.closing(_Visit(lab, plan, host, command)) as started:
        return started.wait(signals)


class _Visit:
    """A command that is being started, or runs."""

    def __init__(self, lab: int, plan: LabPlan, host: str, command: Sequence[str]) -> None:
        self._connection, inner = socket.socketpair()
        enter = ("nsenter", f"--target={lab}", "--pid", "--mount", "--")
        words = [*enter, *_VISITOR, str(inner.fileno()), str(Path.cwd()), *_AGENT, host, *command]
        environment = plan.environment(os.environ, DIRECTORY)
        with (
            inner,
            blocked(PASSED_ON),
        ):  # Ctrl-C reaches the whole foreground: only the command may act on it
            self._process = subprocess.Popen(words, env=environment, pass_fds=[inner.fileno()])

    def close(self) -> None:
        """End the command if it has not ended."""
        # The visitor ends everything when its end of the connection closes.
        self._connection.close()
        self._process.wait()

    def wait(self, signals: socket.socket) -> int:
        """Pass on the signals that arrive as bytes until the command has ended.

        Return its exit code.

        Raises:
            InputError: it could not be started.
        """
        report = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if signals in ready:
                    self._pass_on(signals.recv(64), started=bool(report))
                if self._connection in ready:
                    if not (received := self._connection.recv(4096)):
                        break
                    report += received
        code = self._process.wait()
        if problem := report.decode().strip():
            raise InputError(problem)
        return code if code >= 0 else 128 - code

    def _pass_on(self, numbers: bytes, *, started: bool) -> None:
        """Send signals to the command, except a key's signal, which the terminal has already sent
        there.
        """
        passed_on = set(PASSED_ON)
        if started and is_foreground():
            passed_on -= FROM_KEYS
        with contextlib.suppress(OSError):  # the command has just ended
            self._connection.sendall(bytes(number for number in numbers if number in passed_on))


def running_commands(lab: int) -> list[RunningCommand]:
    """Return the commands that run in a lab, given the id of its first process."""
    namespace, commands = _pid_namespace(lab), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # the process has just ended
            words = process.cmdline()
            if _is_visitor(words) and _pid_namespace(process.pid) == namespace:
                host, *command = words[len(_VISITOR) + 2 + len(_AGENT) :]
                pids = sorted(child.pid for child in process.children())
                commands += [
                    RunningCommand(host=host, command=tuple(command), pid=pid) for pid in pids[:1]
                ]
    return commands


def _is_visitor(words: Sequence[str]) -> bool:
    return len(words) > len(_VISITOR) and Path(words[3]).name == Path(_VISITOR[3]).name


def _pid_namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/pid").readlink()


# ------------------------------------------------------------------------------------------ signals

#: Signals that are passed on to the command.
PASSED_ON = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
#: Signals that a key sends; the terminal sends them to the command, too.
FROM_KEYS = frozenset({signal.SIGINT, signal.SIGQUIT})


def is_foreground() -> bool:
    """Return whether the terminal's keys send signals to this process, and so to its children in
    the same group.
    """
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def blocked(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals inside; a child that is started inside never gets them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def caught(numbers: Iterable[signal.Signals]) -> Iterator[socket.socket]:
    """Catch signals, except ignored ones, as bytes on a socket, so that none is lost.

    Python allows that in its main thread only; in another thread signals keep their handlers.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        if threading.current_thread() is not threading.main_thread():
            yield reader
            return
        writer.setblocking(False)  # noqa: FBT003 - its only parameter
        handled_signals = [
            number for number in numbers if signal.getsignal(number) != signal.SIG_IGN
        ]
        previous = signal.set_wakeup_fd(writer.fileno())
        before = {number: signal.signal(number, lambda *_: None) for number in handled_signals}
        try:
            yield reader
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous)
