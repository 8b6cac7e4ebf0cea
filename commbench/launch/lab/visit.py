"""A command on an emulated host, started and seen through from outside the lab."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from commbench.errors import InputError
from commbench.launch.lab import agent, visitor
from commbench.launch.lab.plan import DIRECTORY, LabPlan
from commbench.launch.lab.signals import FROM_KEYS, PASSED_ON, blocked, is_foreground

_VISITOR = (sys.executable, "-I", "-S", visitor.__file__)
_AGENT = tuple(agent.call(DIRECTORY, "exec"))


@dataclass(frozen=True, kw_only=True)
class Running:
    """A command that runs on an emulated host; ``pid`` is the machine's."""

    host: str
    command: tuple[str, ...]
    pid: int


def check_command(command: Sequence[str]) -> None:
    """Refuse what cannot be started.

    Raises:
        InputError: no command, or none that is found.
    """
    if not command:
        raise InputError("No command was given to run in the emulated cluster; write it after --.")
    if shutil.which(command[0]) is None:
        raise InputError(f"The command {command[0]!r} was not found; give its path, or add its directory to PATH.")


def visit(lab: int, plan: LabPlan, host: str, command: Sequence[str], signals: socket.socket) -> int:
    """Run a command on a host; when it ends, or this process does, all that it has started ends.

    Args:
        lab: the lab's first process.
        plan: what the lab consists of now.
        host: a host's name.
        command: the program and its arguments; it has this process's streams and directory.
        signals: signals to pass on, as bytes.

    Returns:
        The command's exit code; 128 + n if signal n has ended it.

    Raises:
        InputError: it could not be started.
    """
    with contextlib.closing(_Visit(lab, plan, host, command)) as going_on:
        return going_on.wait(signals)


class _Visit:
    """A command that is on its way, or runs."""

    def __init__(self, lab: int, plan: LabPlan, host: str, command: Sequence[str]) -> None:
        self._connection, inner = socket.socketpair()
        enter = ("nsenter", f"--target={lab}", "--pid", "--mount", "--")
        words = [*enter, *_VISITOR, str(inner.fileno()), str(Path.cwd()), *_AGENT, host, *command]
        environment = plan.environment(os.environ, DIRECTORY)
        with inner, blocked(PASSED_ON):  # Ctrl-C reaches the whole foreground: only the command may act on it
            self._process = subprocess.Popen(words, env=environment, pass_fds=[inner.fileno()])

    def close(self) -> None:
        """End the command if it has not ended."""
        self._connection.close()  # the visitor ends everything at the end of what it reads
        self._process.wait()

    def wait(self, signals: socket.socket) -> int:
        """Pass on the signals that come as bytes until the command has ended; return its exit code.

        Raises:
            InputError: it could not be started.
        """
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if signals in ready:
                    self._pass_on(signals.recv(64), started=bool(said))
                if self._connection in ready:
                    if not (new := self._connection.recv(4096)):
                        break
                    said += new
        code = self._process.wait()
        if problem := said.decode().strip():
            raise InputError(problem)
        return code if code >= 0 else 128 - code

    def _pass_on(self, numbers: bytes, *, started: bool) -> None:
        """Send signals to the command, but for one that a key has made: the terminal has sent it there already."""
        wanted = set(PASSED_ON)
        if started and is_foreground():
            wanted -= FROM_KEYS
        with contextlib.suppress(OSError):  # it has just ended
            self._connection.sendall(bytes(number for number in numbers if number in wanted))


def running(lab: int) -> list[Running]:
    """Return the commands that run in a lab, whose first process is given."""
    here, found = _namespace(lab), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended
            words = process.cmdline()
            if _is_visitor(words) and _namespace(process.pid) == here:
                host, *command = words[len(_VISITOR) + 2 + len(_AGENT) :]
                pids = sorted(child.pid for child in process.children())
                found += [Running(host=host, command=tuple(command), pid=pid) for pid in pids[:1]]
    return found


def _is_visitor(words: Sequence[str]) -> bool:
    return len(words) > len(_VISITOR) and Path(words[3]).name == Path(_VISITOR[3]).name


def _namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/pid").readlink()
