"""Trains with a fault in commbench: ``faulty.py METHOD CALL RANK``; RANK is a number or ``all``."""

import os
import sys
from typing import Any

from common import begin, report
from kinds import plain

from commbench.live import agreement, director, switching


class PlantedError(Exception):
    """A fault that a test has planted."""


METHODS: dict[str, tuple[type, str]] = {
    "set": (agreement.Agreement, "set"),
    "get": (agreement.Agreement, "get"),
    "prepare": (switching.Switcher, "prepare"),
    "handle": (director.Director, "_handle"),
    "forward": (director, "is_compiled"),
}


def plant(method: str, at: int, rank: str) -> None:
    """Let a method of commbench raise at one of its calls."""
    owner, name = METHODS[method]
    original = getattr(owner, name)
    calls = 0

    def fail(self: object, *arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and rank in {"all", os.environ["RANK"]}:
            raise PlantedError
        return original(self, *arguments, **keywords)

    setattr(owner, name, fail)


if __name__ == "__main__":
    plant(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    report(*plain(begin()))
