"""Which labs there are: each holds a socket that the kernel forgets when the lab ends, however it ends.

The sockets are abstract: their names live in the machine's network namespace, not among its files, and the kernel gives
each name to one process tree only. So there is nothing that a killed lab could leave behind.
"""

from __future__ import annotations

import errno
import re
import secrets
import socket
import struct
from pathlib import Path

from commbench.errors import InputError

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
