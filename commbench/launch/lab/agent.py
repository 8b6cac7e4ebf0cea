"""Replaces ssh inside an emulated cluster: starts a program in the namespaces of one of its hosts.

It runs as a script, without site packages, because a launcher starts it once for every host. Usage:

    agent.py PIDS exec HOST PROGRAM ARGUMENT...   PIDS is a JSON file: a process id for each host
    name agent.py PIDS ssh [-OPTION...] HOST WORD...   the words are a line for a shell, as with ssh
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

#: The namespaces of a host; the mount namespace comes last because /proc is read before.
NAMESPACES = ("net", "uts", "ipc", "mnt")
#: Exit status of ssh if it does not reach a host.
UNREACHABLE = 255


def call(directory: Path, form: str) -> list[str]:
    """Return the words that call this script in a lab whose files are in ``directory``.

    The host's name comes next.
    """
    return [sys.executable, "-I", "-S", __file__, str(directory / "pids"), form]


def enter(pid: int) -> None:
    """Move this process, which must have one thread only, into the host that ``pid`` lives on.

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


def become(command: Sequence[str]) -> NoReturn:
    """Turn this process into ``command``, with the signal handling that a program expects to start
    with.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execvp(command[0], list(command))  # noqa: S606 - a list, no shell


def main(arguments: Sequence[str]) -> NoReturn:
    """Start the program that ``arguments`` name; does not return."""
    pids_file, form, *rest = arguments
    if form == "ssh":
        while rest and rest[0].startswith("-"):
            rest = rest[1:]
    name, *words = rest or [""]
    command = words if form == "exec" else ["/bin/sh", "-c", " ".join(words)]
    try:
        enter(json.loads(Path(pids_file).read_text(encoding="utf-8"))[name.rpartition("@")[2]])
        become(command)
    except KeyError:
        sys.exit(_report(f"there is no emulated host {name!r}"))
    except OSError as error:
        sys.exit(_report(f"{command[0]} cannot be started on {name}: {error}"))


def _report(text: str) -> int:
    sys.stderr.write(f"commbench lab: {text}\n")
    return UNREACHABLE


if __name__ == "__main__":
    main(sys.argv[1:])
