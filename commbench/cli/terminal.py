"""Progress of a run: a line that changes on a terminal, further lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from commbench.launch.events import (
    CaseFinished,
    CaseProgress,
    Event,
    LaunchFinished,
    LaunchStarted,
    Notice,
    RankOutput,
)
from commbench.results.files import json_text
from commbench.results.record_types import AnyRecord
from commbench.results.tables import visible
from commbench.units import counted, format_duration

#: Columns if the width is unknown (a log file).
PLAIN_WIDTH = 110
#: Seconds between two lines on the progress of a stage.
PROGRESS_S = 60.0
#: What a person calls a stage, where that is not its name in ``run.json``.
STAGES: Mapping[str, str] = {"": "", "sweep": "DDP settings", "confirm": "DDP, the fastest again"}
STAGE_WIDTH = 24
_NOTHING = CaseProgress(done=0, total=0, case="", eta_s=0.0)


def make_console(
    stream: TextIO | None = None, *, plain: bool = False, width: int = PLAIN_WIDTH
) -> Console:
    """Return a console on ``stream`` (stdout).

    Into a file or pipe it writes plain text of this width.

    ``plain``: plain text also on a terminal, for ranks, whose launcher gives them a
    pseudo-terminal.
    """
    stream = stream or sys.stdout
    # No text is markup: names such as ``[red]`` or ``:smile:`` are shown unchanged.
    literal = partial(SafeConsole, file=stream, markup=False, emoji=False, highlight=False)
    if plain or not stream.isatty():
        return literal(width=width, force_terminal=False, color_system=None)
    return literal()


def print_json(document: object) -> None:
    """Write a JSON document to stdout."""
    sys.stdout.write(json_text(document))


class SafeConsole(Console):
    """A console that escapes control characters: names and reasons come from outside."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with control characters escaped."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


class Display:
    """What a run shows while it goes on.

    One line when a stage ends, one for each failed case and notice. On a terminal the current case
    stands below; a log has a line once a minute.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._status = console.status("")
        self._printed_s = clock()
        self._launch = LaunchStarted(launch=0, launches=0, stage="")
        self._progress = _NOTHING
        self._lasted_s: list[float] = []
        """Seconds of each launch of the stage."""

    def on(self, event: Event) -> None:
        """Print notices, output of ranks and results of launches; show the progress."""
        with contextlib.suppress(OSError):  # a full disk or a lost terminal ends no run
            match event:
                case LaunchStarted():
                    if event.stage != self._launch.stage:
                        self.close()
                    self._launch, self._progress = event, _NOTHING
                    self._show("starting ranks")
                case CaseProgress():
                    self._progress = event
                    left = format_duration(event.eta_s)
                    self._show(f"{event.done} of {event.total}, {left} left: {event.case}")
                case CaseFinished(record=record):
                    self._finish_case(record)
                case Notice(text=text):
                    self._console.print(f"warning: {text}")
                case RankOutput(lines=lines):
                    for line in lines:
                        self._console.print(f"  | {line}")
                case LaunchFinished():
                    self._finish_launch(event)

    def _show(self, text: str) -> None:
        """Show what goes on, on a terminal."""
        if self._console.is_terminal:
            where = f"{self._launch.stage} {self._name_launch()}: {text}".strip()
            self._status.update(Text(where))  # no markup
            self._status.start()

    def _name_launch(self) -> str:
        return f"launch {self._launch.launch + 1} of {self._launch.launches}"

    def _finish_case(self, record: AnyRecord) -> None:
        """Count a finished case; print one that failed."""
        if record.status not in {"failed", "hung"}:
            done = min(self._progress.done + 1, self._progress.total)
            self._progress = replace(self._progress, done=done)
        if record.status in {"failed", "hung", "wrong"}:
            self._console.print(f"  {record.status}: {record.case}: {record.reason}")

    def _finish_launch(self, finished: LaunchFinished) -> None:
        """Count the launch; print the progress if a minute has passed, or nothing was measured."""
        self._status.stop()
        self._lasted_s.append(finished.seconds)
        progress, name = self._progress, self._name_launch()
        is_due = self._clock() - self._printed_s >= PROGRESS_S and not self._console.is_terminal
        if not progress.total:
            self._print(f"{name}: {format_duration(finished.seconds)}, nothing was measured")
        elif is_due:
            left = ""
            if progress.done < progress.total:
                left = f", about {format_duration(finished.eta_s)} left"
            self._print(f"{name}: {progress.done} of {progress.total} measurements{left}")

    def close(self) -> None:
        """End the stage: print how many launches it took, and how long."""
        with contextlib.suppress(OSError):
            self._status.stop()  # else a terminal would stay without a cursor
            if self._lasted_s:
                launches = counted(len(self._lasted_s), "launch")
                self._print(f"{launches:<12}  {format_duration(sum(self._lasted_s))}")
            self._lasted_s.clear()

    def _print(self, text: str) -> None:
        stage = STAGES.get(self._launch.stage, self._launch.stage)
        self._console.print(f"  {stage:<{STAGE_WIDTH}}{text}")
        self._printed_s = self._clock()
