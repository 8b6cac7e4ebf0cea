"""How much work tests do: a quarter by default, all of it with ``--thorough``, as in `make
test-all`.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

#: The part of the simulations and random examples that tests do by default.
DEFAULT_SHARE = 0.25
_is_thorough = False


def configure(config: pytest.Config) -> bool:
    """Read the option from the command line; return whether it was given."""
    global _is_thorough  # noqa: PLW0603 - pytest reads its command line once
    _is_thorough = config.getoption("thorough")
    return _is_thorough


def repetitions(full: int) -> int:
    """Return how many of ``full`` simulations or random examples to run."""
    return full if _is_thorough else max(1, round(DEFAULT_SHARE * full))


def cases(default: Sequence[T], more: Sequence[T]) -> tuple[T, ...]:
    """Return the cases to test: the default ones, and more with ``--thorough``."""
    return (*default, *(more if _is_thorough else ()))


def slack(rate: float, full: int) -> float:
    """Return two standard errors of a share ``rate`` in the simulations run, minus two in all
    ``full``.
    """
    return (
        2 * math.sqrt(rate * (1 - rate)) * (1 / math.sqrt(repetitions(full)) - 1 / math.sqrt(full))
    )
