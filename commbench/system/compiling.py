"""numba's compiler with its cache on disk, where an installation or a home cannot be written too.

numba's decorators are untyped. This module is imported where numba is needed, as it imports numba.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config, njit


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Return the function as machine code that holds no lock, for its first call to compile or to
    load.

    The cache lies beside the function's file or in the home directory; if neither can be written,
    in a directory of this user's own for temporary files. Without one, each process compiles.
    """
    try:
        return njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # there is no place for the cache
        config.CACHE_DIR = _own_directory()
    try:
        return njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:
        return njit(nogil=True, **options)(function)


def _own_directory() -> str:
    """Return a directory that only this user can write, as a cache is code; empty without one."""
    try:
        path = Path(tempfile.gettempdir(), f"commbench-{os.getuid()}")
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return ""
    others_may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not others_may_write:
        return str(path)
    return ""
