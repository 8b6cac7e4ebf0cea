"""Starts programs in the namespaces of an emulated host, in place of ssh or for `commbench lab`.

It runs as a script, without site packages, because a launcher starts it once for every host. Usage:

    agent.py PIDS ssh [-OPTION...] HOST WORD...   the words are a line for a shell, as with ssh
    agent.py PIDS visit CONNECTION DIRECTORY HOST PROGRAM ARGUMENT...

PIDS is a JSON file: a process id for each host. A visit has the signals that are passed on
blocked. CONNECTION is the number of a socket. Each byte that arrives there is a signal's number;
when the socket closes, everything that the program has started ends. The script answers with one
line once the program is being started: empty, or why it cannot be.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

#: The namespaces of a host; the mount namespace comes last because /proc is read before.
NAMESPACES = ("net", "uts", "ipc", "mnt")
#: Exit status of ssh if it does not reach a host.
UNREACHABLE = 255
#: Makes orphaned descendants children of this process (linux/prctl.h).
_PR_SET_CHILD_SUBREAPER = 36


def call(directory: Path, form: str) -> list[str]:
    """Return the words that call this script in a lab whose files are in ``directory``."""
    return [sys.executable, "-I", "-S", __file__, str(directory / "pids"), form]


def start(pids: str, host: str, command: Sequence[str]) -> NoReturn:
    """Turn this process, which must have one thread only, into ``command`` on a host."""
    try:
        _enter(json.loads(Path(pids).read_text(encoding="utf-8"))[host])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvp(command[0], list(command))  # noqa: S606 - a list, no shell
    except KeyError:
        problem = f"there is no emulated host {host!r}"
    except OSError as error:
        problem = f"{command[0]} cannot be started on {host}: {error}"
    sys.stderr.write(f"commbench lab: {problem}\n")
    sys.stderr.flush()
    os._exit(UNREACHABLE)


def _enter(pid: int) -> None:
    """Move this process into the host that ``pid`` lives on.

    Raises:
        OSError: there is no such process, or the kernel refuses.
    """
    directory = Path.cwd()
    libc = ctypes.CDLL(None, use_errno=True)
    handles = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    for name, handle in zip(NAMESPACES, handles, strict=True):
        if libc.setns(handle, 0):
            raise OSError(ctypes.get_errno(), f"setns to {name}")
        os.close(handle)
    os.chdir(directory)  # entering a mount namespace leads to its root


def visit(pids: str, descriptor: str, directory: str, host: str, *command: str) -> NoReturn:
    """Run a command on a host to its end, then end all its descendants."""
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        os.chdir(directory)  # entering a mount namespace leads to its root
    except OSError as error:
        problem = f"The command cannot be started in {directory}: {error}"
        connection.sendall(f"{problem}; choose another directory.".encode())
        os._exit(2)
    pid = os.fork()
    if not pid:
        start(pids, host, command)
    threading.Thread(target=_follow, args=(connection, pid), daemon=True).start()
    with contextlib.suppress(OSError):  # the connection is closed
        connection.sendall(b"\n")
    ended, status = os.wait()
    while ended != pid:  # orphans
        ended, status = os.wait()
    _end_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        code = 128 - code
    os._exit(code)


def _follow(connection: socket.socket, pid: int) -> None:
    """Pass on the signals that arrive to the command; kill it when the connection closes."""
    with contextlib.suppress(ProcessLookupError):  # the command has just ended
        while number := connection.recv(1):
            os.kill(pid, number[0])
        os.kill(pid, signal.SIGKILL)


def _end_descendants() -> None:
    """Kill all descendants of the command, also in other sessions and on other hosts.

    The kernel makes the children of a process that has ended children of this one.
    """
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):  # no child is left
        while True:
            for pid in children.read_text(encoding="ascii").split():
                os.kill(int(pid), signal.SIGKILL)
            os.wait()


def main(arguments: Sequence[str]) -> NoReturn:
    """Start the program that ``arguments`` name; does not return."""
    pids, form, *rest = arguments
    if form == "visit":
        visit(pids, *rest)
    while rest and rest[0].startswith("-"):
        rest = rest[1:]
    name, *words = rest or [""]
    start(pids, name.rpartition("@")[2], ["/bin/sh", "-c", " ".join(words)])


if __name__ == "__main__":
    main(sys.argv[1:])
