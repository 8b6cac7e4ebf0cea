"""The protocol of events from ranks to the conductor: one line each, on rank 0's stdout or on each
rank's stderr.

A line is ``@commbench NAME {fields as JSON}``. Rank 0 writes measurements to a private copy of
stdout, so that no library can write between these lines. All ranks write short lines to stderr,
which the launcher forwards from all hosts. Foreign and incomplete lines are passed through and
never an error. In the other direction, rank 0's stdin carries the plan and then, if the run is to
end early, `FINISH`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from commbench.launch.events import (
    CaseFinished,
    CasesEnded,
    CaseStarted,
    Event,
    Heartbeat,
    RankError,
    RankEvent,
    SessionStarted,
    Stack,
)
from commbench.results.files import as_plain
from commbench.results.record_types import read_record

MARK = "@commbench "
#: Tells rank 0 that the case that has begun is the last.
FINISH = "finish"
#: Most characters of an error's message.
LONGEST_TEXT = 600
#: A line below this, in bytes, is written in one piece (PIPE_BUF).
LONGEST_LINE = 4096

_TYPES: Mapping[str, type[RankEvent]] = {
    "session": SessionStarted,
    "case": CaseStarted,
    "record": CaseFinished,
    "end": CasesEnded,
    "heartbeat": Heartbeat,
    "error": RankError,
    "stack": Stack,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def format_short(event: RankEvent) -> str:
    """Return the line for an event, with its message or stack cut to the size that a pipe takes in
    one piece.
    """
    fields = dict(vars(event))
    if isinstance(event, RankError):
        fields["message"] = event.message[:LONGEST_TEXT]
    line = _line(event, fields, is_ascii=False)
    while len(line.encode(errors="replace")) >= LONGEST_LINE and fields.get("stack"):
        fields["stack"] = fields["stack"][:-1]
        line = _line(event, fields, is_ascii=False)
    return line


def _line(event: RankEvent, fields: Mapping[str, object], *, is_ascii: bool) -> str:
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=is_ascii, default=as_plain)
    return f"{MARK}{_NAMES[type(event)]} {body}\n"


def split_line(line: str) -> tuple[str, RankEvent | None]:
    """Divide a line into the foreign text before the mark and the event.

    None if there is no whole event.
    """
    foreign, mark, rest = line.partition(MARK)
    name, _, body = rest.partition(" ")
    if not mark or name not in _TYPES:
        return line, None
    try:
        fields, _ = json.JSONDecoder().raw_decode(body)  # other text may follow on the same line
        if name == "record":
            fields["record"] = read_record(fields["record"])
        return foreign, _TYPES[name](**fields)
    except (ValueError, TypeError, KeyError):
        return line, None


def say(event: RankEvent) -> None:
    """Write an event to stderr in one piece; ignore that the reader has gone."""
    with contextlib.suppress(OSError):
        os.write(2, format_short(event).encode(errors="replace"))


def claim_stdout() -> TextIO:
    """Reserve stdout for events: return a private copy of it, and redirect descriptor 1 to
    stderr.
    """
    sys.stdout.flush()
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


class EventWriter:
    """Rank 0's listener: writes each event to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stream.write("\n")  # an import may have left half a line there

    def on(self, event: Event) -> None:
        """Write an event that a rank reports."""
        if not isinstance(event, RankEvent):
            return
        fields = dict(vars(event))
        if isinstance(event, CaseFinished):
            fields["record"] = event.record.to_json()
        self._stream.write(_line(event, fields, is_ascii=True))
        self._stream.flush()
