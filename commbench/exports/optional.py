"""Packages that only one form of export needs, imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from commbench.errors import InputError


def needed(module: str, *, package: str, style: str) -> Any:  # noqa: ANN401 - a module that need not be installed
    """Import a module of an optional package.

    Args:
        module: its full name.
        package: what pip calls the package.
        style: the value of ``--format`` that needs it.

    Raises:
        InputError: the package is not there.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--format {style} needs {package}, which this Python lacks (no module {error.name}); install it: "
            f"pip install {package}"
        ) from error
