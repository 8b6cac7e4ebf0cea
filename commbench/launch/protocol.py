"""What travels from ranks to the conductor: frames on rank 0's stdout, other messages on each stderr.

A frame is one JSON object a line on a private copy of stdout, so that no library can write between frames. Messages on
stderr are short lines that begin with ``@commbench``; the launcher forwards them from all hosts. Whatever else arrives,
torn or foreign, is handed on and never an error. The other way goes rank 0's stdin: the plan, then perhaps `FINISH`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TextIO

from commbench.results.record_types import AnyCase, AnyRecord

MARK = "@commbench "
#: How every frame begins, also one that was torn.
FRAME_HEAD = '{"frame":'
#: What the conductor tells rank 0 when the case that is being measured is to be the last.
FINISH = "finish"
#: Longest text of last words, in characters.
LONGEST_TEXT = 600
#: A line below this, in bytes, is written in one piece (PIPE_BUF).
LONGEST_LINE = 4096


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A rank is alive, and how far it has come."""

    kind: ClassVar[str] = "heartbeat"

    rank: int
    host: str
    pid: int
    entered: int
    """Repetitions begun since the rank started."""
    left: int
    """Repetitions finished since the rank started."""
    cpu_ms: int
    """CPU time of the process."""
    case: int
    """Number of the case within the launch, of training that of the block; -1 before the first."""


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """Why a rank ends itself."""

    kind: ClassVar[str] = "error"

    rank: int
    host: str
    case: int
    text: str
    bad_input: bool = False
    """Whether what was asked for cannot be done, rather than something having gone wrong."""
    stack: Sequence[str] = field(default_factory=list)
    """Where, as `Stack.stack`."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Where a thread of a rank is, told when it is asked for or when the rank is ended."""

    kind: ClassVar[str] = "stack"

    rank: int
    host: str
    thread: str
    """Its name; that of the main thread is `MAIN`."""
    stack: Sequence[str]
    """Frames as ``path:line in function``, the innermost first; outer ones are left out where they are too many."""
    inside: bool = False
    """Whether the rank has begun a repetition and not finished it."""


#: Name of a process's main thread.
MAIN = "MainThread"

Message = Heartbeat | LastWords | Stack
_KINDS: Mapping[str, type[Message]] = {"heartbeat": Heartbeat, "error": LastWords, "stack": Stack}


def format_message(message: Message) -> str:
    """The line, with its end, that carries a message; a long text or stack is cut."""
    fields = dataclasses.asdict(message)
    if isinstance(message, LastWords):
        fields["text"] = message.text[:LONGEST_TEXT]
    while len((line := _line(message.kind, fields)).encode(errors="replace")) >= LONGEST_LINE and fields.get("stack"):
        fields["stack"] = fields["stack"][:-1]
    return line


def _line(kind: str, fields: Mapping[str, object]) -> str:
    return f"{MARK}{kind} {json.dumps(fields, separators=(',', ':'), ensure_ascii=False)}\n"


def say(message: Message) -> None:
    """Write a message to stderr in one piece; a reader that has gone is no concern of ours."""
    with contextlib.suppress(OSError):
        os.write(2, format_message(message).encode(errors="replace"))


def split_line(line: str) -> tuple[str, Message | None]:
    """Divide a line of stderr into foreign text before the mark and the message; None where there is none."""
    foreign, mark, rest = line.partition(MARK)
    kind, _, body = rest.partition(" ")
    if not mark or kind not in _KINDS:
        return line, None
    try:
        fields, _ = json.JSONDecoder().raw_decode(body)  # other text may follow on the same line
        return foreign, _KINDS[kind](**fields)
    except (ValueError, TypeError):
        return line, None


def parse_frame(line: str) -> dict[str, Any] | None:
    """The frame that a line of rank 0's stdout holds; None for anything else."""
    if not line.startswith(FRAME_HEAD):
        return None
    try:
        frame = json.loads(line)
    except ValueError:
        return None
    return frame if isinstance(frame, dict) else None


def claim_stdout() -> TextIO:
    """Keep stdout for frames: return a private copy of it and let descriptor 1 lead to stderr."""
    sys.stdout.flush()
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


class FrameSink:
    """Rank 0's end of the wire: hands everything it is told to the conductor."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stream.write("\n")  # an import may have left half a line there

    def session(self, facts: Mapping[str, object]) -> None:
        """State the conditions of the launch, once, when all ranks have come together."""
        self._send("session", session=facts)

    def case(self, index: int, case: AnyCase) -> None:
        """State which case begins."""
        self._send("case", index=index, text=str(case))

    def record(self, record: AnyRecord) -> None:
        """Hand over a finished case."""
        self._send("record", record=record.to_json())

    def end(self, *, finished: bool) -> None:
        """State that no more cases follow; ``finished`` is False where time ran out before the last."""
        self._send("end", finished=finished)

    def _send(self, kind: str, **content: object) -> None:
        self._stream.write(json.dumps({"frame": kind, **content}, separators=(",", ":"), default=_plain) + "\n")
        self._stream.flush()


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever json does not know
    """Numpy's numbers and arrays as Python's, the rest as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
