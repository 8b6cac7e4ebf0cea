"""Learns of every DDP model that a process makes.

It is loaded while torch is being imported, so it imports nothing of torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class _Tracking:
    """Whether DDP objects that are made now belong to the script."""

    is_on = True


@contextlib.contextmanager
def untracked() -> Iterator[None]:
    """Make DDP objects that are not the script's own."""
    _Tracking.is_on = False
    try:
        yield
    finally:
        _Tracking.is_on = True
