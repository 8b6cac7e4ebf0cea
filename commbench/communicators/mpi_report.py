"""What Open MPI says while it starts and makes communicators, caught before it reaches the terminal."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

#: Asks Open MPI which collective components a new communicator gets; where a person has asked, all is left to her.
VERBOSE = "OMPI_MCA_coll_base_verbose"
LEVEL = "9"
#: Which operations ``coll/han`` has in every version of Open MPI 5; others fall to a component of lower priority.
_HAN = frozenset({"all_reduce", "all_gather", "barrier", "broadcast", "gather", "reduce", "scatter"})
_HAS = {"han": _HAN, "tuned": _HAN | {"all_to_all", "reduce_scatter"}}
_OURS = re.compile(r"^\[[^\]]*\] (coll:|.*disqualifying myself)")


class Captured:
    """What was written."""

    text = ""


@contextmanager
def captured(descriptor: int) -> Iterator[Captured]:
    """Collect what libraries write to a file descriptor, 1 or 2."""
    found = Captured()
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.flush()
    saved = os.dup(descriptor)
    with tempfile.TemporaryFile() as scratch:
        os.dup2(scratch.fileno(), descriptor)
        try:
            yield found
        finally:
            stream.flush()
            os.dup2(saved, descriptor)
            os.close(saved)
            scratch.seek(0)
            found.text = scratch.read().decode(errors="replace")


def with_component(make: Callable[[], T]) -> tuple[T, str]:
    """Make a communicator: it, and the collective component that Open MPI prefers in it, empty where it does not say.

    What anything else says on stderr meanwhile, a heartbeat perhaps, is passed on.
    """
    if os.environ.get(VERBOSE) != LEVEL:
        return make(), ""
    with captured(2) as report:
        made = make()
    pass_on(report.text)
    return made, parse_component(report.text)


def pass_on(report: str) -> None:
    """Write what is not an answer to our question to stderr."""
    foreign = "".join(line for line in report.splitlines(keepends=True) if not _OURS.match(line))
    if foreign:
        os.write(2, foreign.encode(errors="replace"))


def parse_component(report: str) -> str:
    """The enabled component of the highest priority, e.g. ``han``; empty where the report names none."""
    enabled = re.findall(r"selecting\s+(\w+), priority\s+(\d+), Enabled", report)
    return max(enabled, key=lambda found: int(found[1]))[0] if enabled else ""


def algorithm_of(component: str, operation: str) -> str:
    """What carries a collective, e.g. ``coll/han``; empty where the preferred component may not have it."""
    return f"coll/{component}" if operation in _HAS.get(component, ()) else ""
