"""Instructions of rank 0 to all ranks, and messages of commbench during a training."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from commbench.results.recommendation import Recommendation


class Order(IntEnum):
    """What all ranks do next."""

    BLOCK = 0
    """Train a block with a setting."""
    END = 1
    """Keep a setting; tuning is over."""
    STOP = 2
    """Keep a setting and end the process."""


class Instruction(NamedTuple):
    """An order, the number of a setting, and the length of the block."""

    order: Order
    setting: int = 0
    steps: int = 0
    """Steps; passes where rank 0 hands it to the others."""
    period: int = 1
    """Passes of a step."""
    recommendation: Recommendation | None = None
    """The conclusion, with the last instruction."""


def say(text: str) -> None:
    """Print a line on stderr, if anybody reads it."""
    try:
        sys.stderr.write(f"commbench: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # the training has closed or replaced stderr
        pass
