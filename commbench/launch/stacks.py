"""Where the threads of a rank are: told by the rank itself, or read from what the interpreter prints of a dying one."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

#: Most frames of a thread that are told.
DEEPEST = 40
#: Whose frames say what a rank waits in.
_TELLING = ("commbench/", "torch/", "mpi4py/")
#: Frames that only wrap what they call.
_WRAPPERS = ("torch/distributed/c10d_logger.py", "torch/utils/")
#: Frames that every rank begins with.
_OUTERMOST = ("commbench/launch/", "mpi4py/run.py", "mpi4py/__main__.py", "<frozen runpy>")
_DUMPED = re.compile(r'^\s*File "(.+)", line (\d+) in (.+)$')
_DUMPED_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")


def stacks_of_threads() -> dict[str, list[str]]:
    """The stack of each thread but the calling one, by the thread's name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, f"thread {ident}"): _frames(frame)
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, only named like that
        if ident != threading.get_ident()
    }


def stack_of_error(trace: TracebackType | None) -> list[str]:
    """Where an error was raised: its frames, the innermost first."""
    frames = [_text(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(trace)]
    return _telling_ones(frames[::-1])


def stack_in(lines: Iterable[str]) -> list[str]:
    """The stack in what `faulthandler` has printed: of the thread that died or was asked, else of the last, the main.

    Empty where nothing was printed.
    """
    found: list[str] = []
    decided = False
    for line in lines:
        if head := _DUMPED_THREAD.match(line.strip()):
            if decided:
                break
            decided, found = head[1] == "Current thread", []
        elif frame := _DUMPED.match(line):
            found.append(_text(frame[1], int(frame[2]), frame[3]))
    return _telling_ones(found)


def waits_in(stack: Sequence[str]) -> str:
    """What a thread is doing, in a few words: its innermost frame of commbench, torch or mpi4py, else its innermost."""
    telling = [frame for frame in stack if frame.startswith(_TELLING) and not frame.startswith(_WRAPPERS)]
    place, _, function = (telling or list(stack) or ["nowhere that is known"])[0].partition(" in ")
    return f"{function} ({place})" if function else place


def group_by_place(places: Mapping[int, str]) -> list[dict[str, object]]:
    """Ranks that are in the same place together: ``[{"ranks": [0, 2], "in": place}, ...]``, the lowest rank first."""
    groups: dict[str, list[int]] = {}
    for rank, place in sorted(places.items()):
        groups.setdefault(place, []).append(rank)
    return [{"ranks": ranks, "in": place} for place, ranks in groups.items()]


def _frames(frame: FrameType | None) -> list[str]:
    found: list[str] = []
    while frame is not None:
        found.append(_text(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return _telling_ones(found)


def _telling_ones(stack: list[str]) -> list[str]:
    """A stack without what every rank begins with, and not too deep."""
    return [frame for frame in stack if not frame.startswith(_OUTERMOST)][:DEEPEST] or stack[:DEEPEST]


def _text(path: str, line: int, function: str) -> str:
    return f"{_short(path)}:{line} in {function}"


@cache
def _short(path: str) -> str:
    """A path below the directory from which Python imported it."""
    roots = [root.rstrip("/") + "/" for root in sys.path if root and path.startswith(root.rstrip("/") + "/")]
    if roots:
        return path[len(max(roots, key=len)) :]
    return Path(path).name if path.startswith("/") else path
