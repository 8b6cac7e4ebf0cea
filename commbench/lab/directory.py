"""The empty directory over which every emulated cluster mounts files of its own.

It is the same for all labs, so that the environment of a program does not differ from lab to lab. Who lives shares a
lock on it, so what killed labs have left is known: the next call removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from commbench.errors import InputError
from commbench.lab.plan import DIRECTORY


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
