"""Sees one command in an emulated cluster through: passes signals on, and ends all that it has started.

It runs as a script, without site packages, in the process and mount namespaces of a lab, with the signals that are
passed on blocked. Usage:

    visitor.py CONNECTION DIRECTORY PROGRAM ARGUMENT...

CONNECTION is the number of a socket: a byte that comes is a signal's number; at its end everything ends. What goes
back is a line when the program has been started: empty, or why it could not be.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

#: Makes processes whose parents have ended children of this one (linux/prctl.h).
_PR_SET_CHILD_SUBREAPER = 36


def follow(connection: socket.socket, pid: int) -> None:
    """Pass on the signals that come to the command; kill it when nobody is there any more to send them."""
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        while number := connection.recv(1):
            os.kill(pid, number[0])
        os.kill(pid, signal.SIGKILL)


def wait_for(pid: int) -> int:
    """Reap processes until the command has ended; return its exit code, 128 + n after signal n."""
    while True:
        ended, status = os.wait()  # also those whose parents have ended before them
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def end_descendants() -> None:
    """Kill all that the command has started and left, whatever sessions and hosts they have moved to."""
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            for pid in _descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.wait()


def _descendants() -> list[int]:
    """Return the ids of all processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:  # it grows meanwhile
        found += children.get(pid, [])
    return found[1:]


def main(arguments: Sequence[str]) -> NoReturn:
    """See a command through; does not return."""
    descriptor, directory, *command = arguments
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        os.chdir(directory)  # entering a mount namespace leads to its root
        pid = subprocess.Popen(command).pid
    except OSError as error:
        connection.sendall(f"The command cannot be started in {directory}: {error}; choose another directory.".encode())
        os._exit(2)
    threading.Thread(target=follow, args=(connection, pid), daemon=True).start()
    with contextlib.suppress(OSError):  # nobody is there any more
        connection.sendall(b"\n")
    code = wait_for(pid)
    end_descendants()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
