"""Runs one command in an emulated cluster: passes signals on to it, and ends all its descendants.

It runs as a script, without site packages, in the process and mount namespaces of a lab, with the
signals that are passed on blocked. Usage:

    visitor.py CONNECTION DIRECTORY PROGRAM ARGUMENT...

CONNECTION is the number of a socket. Each byte that arrives is a signal's number. When the socket
closes, everything ends. The script answers with one line after the start: empty, or why the program
could not be started.
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

#: Makes orphaned descendants children of this process (linux/prctl.h).
_PR_SET_CHILD_SUBREAPER = 36


def follow(connection: socket.socket, pid: int) -> None:
    """Pass on the signals that arrive to the command; kill it when the connection closes."""
    with contextlib.suppress(ProcessLookupError):  # the command has just ended
        while number := connection.recv(1):
            os.kill(pid, number[0])
        os.kill(pid, signal.SIGKILL)


def wait_for(pid: int) -> int:
    """Reap processes until the command has ended; return its exit code, 128 + n after signal n."""
    while True:
        ended, status = os.wait()  # orphans, too
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def end_descendants() -> None:
    """Kill all descendants of the command, also in other sessions and on other hosts."""
    with contextlib.suppress(ChildProcessError):  # no child is left
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
    pids = [os.getpid()]
    for pid in pids:  # the list grows inside the loop
        pids += children.get(pid, [])
    return pids[1:]


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a command to its end; does not return."""
    descriptor, directory, *command = arguments
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        os.chdir(directory)  # entering a mount namespace leads to its root
        pid = subprocess.Popen(command).pid
    except OSError as error:
        connection.sendall(
            f"The command cannot be started in {directory}: {error};"
            " choose another directory.".encode()
        )
        os._exit(2)
    threading.Thread(target=follow, args=(connection, pid), daemon=True).start()
    with contextlib.suppress(OSError):  # the connection is closed
        connection.sendall(b"\n")
    code = wait_for(pid)
    end_descendants()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
