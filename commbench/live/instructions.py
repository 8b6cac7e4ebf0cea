"""Instructions of rank 0 to all ranks at a block end, and messages of commbench during a
training.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import NamedTuple


class Order(IntEnum):
    """What all ranks do after a block end."""

    BLOCK = 0
    """Train a block with a setting."""
    END = 1
    """Keep a setting; tuning is over."""
    STOP = 2
    """Keep a setting and end the process."""


class Instruction(NamedTuple):
    """An order, the number of a setting, and the steps until the next block end."""

    order: Order
    setting: int = 0
    steps: int = 0


def say(text: str) -> None:
    """Print a line on stderr."""
    print(f"commbench: {text}", file=sys.stderr, flush=True)  # noqa: T201 - ranks have no other way
