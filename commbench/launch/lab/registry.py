"""The labs that exist: a directory with one socket for each, which the kernel closes when the lab ends.

It is the same for all labs, so that the environment of a program does not differ from lab to lab. Who lives shares a
lock on it, so what killed labs have left is known: the next call removes it.

The sockets are abstract: their names live in the machine's network namespace, not among its files, and the kernel gives
each name to one process tree only. So there is nothing that a killed lab could leave behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from commbench.errors import InputError
from commbench.launch.lab.plan import DIRECTORY


@contextlib.contextmanager
def hold() -> Iterator[int]:
    """Make the directory where there is none; yield a lock on it, which lasts as long as anybody has the descriptor.

    Raises:
        InputError: it cannot be made.
    """
    handle = _lock()
    try:
        yield handle
    finally:
        os.close(handle)
        sweep()


def sweep() -> None:
    """Remove the directory if no lab lives."""
    try:
        handle = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # there is none
        return
    with contextlib.suppress(OSError):  # labs live, or another sweep was faster
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_in_place(handle):
            DIRECTORY.rmdir()
    os.close(handle)


def _lock() -> int:
    while True:
        try:
            DIRECTORY.mkdir(mode=0o755, exist_ok=True)
            handle = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # removed by a lab that has just ended
            continue
        except OSError as error:
            raise InputError(
                f"An emulated cluster needs the directory {DIRECTORY}: {error.strerror}; remove it."
            ) from error
        fcntl.flock(handle, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if _is_in_place(handle):
                return handle
        os.close(handle)  # removed between opening and locking


def _is_in_place(handle: int) -> bool:
    """Whether an open directory is still the one of the name."""
    return os.path.samestat(DIRECTORY.stat(), os.fstat(handle))


#: What a lab is called where nobody says.
DEFAULT_NAME = "lab"
#: What a lab that is up says to whoever calls: its name outlives it by a moment.
ANSWER = b"!"
_PREFIX = "commbench-lab/"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_CREDENTIALS = struct.Struct("3i")
_TIMEOUT_S = 10


def reserve(name: str | None) -> tuple[str, socket.socket]:
    """Take a name, or a fresh one; return it with the socket that stands for it and must be handed to the lab.

    Raises:
        InputError: it is no name, or a lab has it.
    """
    if name is None:
        name = f"run-{secrets.token_hex(4)}"
    if not _NAME.fullmatch(name):
        raise InputError(
            f"The name {name!r} cannot be a lab's; choose up to 40 letters, digits, dots, dashes and underscores."
        )
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"\0{_PREFIX}{name}")
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise InputError(
            f"An emulated cluster called {name!r} is there already; "
            f"end it by `commbench lab down {name}`, or choose another --name."
        ) from error
    return name, listener


def names() -> list[str]:
    """Return the names that are taken, sorted."""
    paths = (line.split()[-1] for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines())
    start = f"@{_PREFIX}"
    return sorted({path.removeprefix(start) for path in paths if path.startswith(start)})


def first_process(name: str) -> int | None:
    """Return the id of a lab's first process; None where there is no lab of that name, or none that is up."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_TIMEOUT_S)
        try:
            caller.connect(f"\0{_PREFIX}{name}")
            if caller.recv(1) != ANSWER:
                return None
        except OSError:
            return None
        said = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(said)
    return pid if uid == 0 else None  # anybody may take a name, but only root makes labs
