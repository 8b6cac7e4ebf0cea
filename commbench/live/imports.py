"""Keeps the modules that commbench imports in a training apart from the script's own files.

The folder of the script stands before Python's own directories on the search path. So a
``statistics.py`` beside the script would run when commbench needs Python's module.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder

LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120 - a search path holds texts
#: Python's own directories.
PLACES = (LIBRARY, os.path.join(LIBRARY, "lib-dynload"))  # noqa: PTH118 - as above


class Found(threading.local):
    """Python's modules that this thread has found in the context of `python_first`."""

    origins: dict[str, str | None] | None = None
    """The file of each, by name; None outside the context."""


class Finder:
    """Finds modules of Python in Python's own directories."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the module's spec; None outside the context, or if it is another module."""
        del path, target
        if _found.origins is None or name not in sys.stdlib_module_names:
            return None
        spec = PathFinder.find_spec(name, PLACES)
        if spec is not None:
            _found.origins[name] = spec.origin
        return spec


@contextlib.contextmanager
def python_first() -> Iterator[None]:
    """Return the context in which imports of this thread find Python's own modules first.

    The script's own imports find its files afterwards.
    """
    outer = _found.origins
    origins: dict[str, str | None] = {}
    _found.origins = origins
    try:
        yield
    finally:
        _found.origins = outer
        for name, origin in origins.items():
            with contextlib.suppress(Exception):
                spec = PathFinder.find_spec(name)
                if spec is not None and spec.origin not in {None, origin}:
                    _forget(name)


def _forget(name: str) -> None:
    """Let the next import of a module, or of one inside it, load it."""
    for each in list(sys.modules):
        if each == name or each.startswith(f"{name}."):
            sys.modules.pop(each, None)


_found = Found()
sys.meta_path.insert(0, Finder())
