"""Progress of a run in the terminal: a progress bar, or plain lines in a log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment

from commbench.launch.events import (
    CaseFinished,
    CaseProgress,
    Event,
    LaunchFinished,
    LaunchStarted,
    Notice,
    RankOutput,
)
from commbench.results.record_types import AnyRecord
from commbench.results.tables import visible
from commbench.units import counted, format_duration

#: Columns if the width is unknown (a log file).
PLAIN_WIDTH = 110
#: Seconds between two lines on the progress of a stage.
PROGRESS_S = 60.0
#: What a person calls a stage, where that is not its name in ``run.json``.
STAGES: Mapping[str, str] = MappingProxyType(
    {"": "", "sweep": "DDP settings", "confirm": "DDP, the fastest again"}
)
STAGE_WIDTH = 24


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


def make_display(console: Console) -> LineDisplay:
    """Return the display for this output."""
    return BarDisplay(console) if console.is_terminal else LineDisplay(console)


class LineDisplay:
    """A display for logs.

    One line when a stage ends and once a minute before, one for each failed case and notice.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        progress_s: float = PROGRESS_S,
    ) -> None:
        self._console = console
        self._clock = clock
        self._progress_s = progress_s
        self._printed_s = clock()
        self._stage = ""
        self._launch = ""
        self._launches = 0
        self._seconds = 0.0
        self._eta_s = 0.0
        self._progress = (0, 0)

    def on(self, event: Event) -> None:
        """Print notices, output of ranks and results of launches; record the progress."""
        match event:
            case LaunchStarted():
                self.launch_started(event)
            case CaseProgress():
                self.case_started(event)
            case CaseFinished(record=record):
                self._record(record)
            case Notice(text=text):
                self._console.print(f"warning: {text}", markup=False)
            case RankOutput(lines=lines):
                for line in lines:
                    self._console.print(f"  | {line}", markup=False)
            case LaunchFinished(seconds=seconds):
                self.launch_finished(seconds)

    def launch_started(self, event: LaunchStarted) -> None:
        """Record the number of the launch; a new stage ends the one before."""
        if event.stage != self._stage:
            self.close()
            self._stage = event.stage
        self._progress, self._eta_s = (0, 0), 0.0
        self._launch = f"launch {event.launch + 1} of {event.launches}"

    def case_started(self, event: CaseProgress) -> None:
        """Record the progress."""
        self._progress, self._eta_s = (event.done, event.total), event.eta_s

    def _record(self, record: AnyRecord) -> None:
        """Count a finished case; print one that failed."""
        done, total = self._progress
        self._progress = (min(done + (record.status not in {"failed", "hung"}), total), total)
        if record.status in {"failed", "hung", "wrong"}:
            self._console.print(f"  {record.status}: {record.case}: {record.reason}", markup=False)

    def launch_finished(self, seconds: float) -> None:
        """Count the launch; print the progress if a minute has passed, or nothing was measured."""
        self._launches += 1
        self._seconds += seconds
        done, total = self._progress
        if not total:
            self._print(f"{self._launch}: {format_duration(seconds)}, nothing was measured")
        elif self._clock() - self._printed_s >= self._progress_s:
            left = f", about {format_duration(self._eta_s)} left" if done < total else ""
            self._print(f"{self._launch}: {done} of {total} measurements{left}")

    def close(self) -> None:
        """End the stage: print how many launches it took, and how long."""
        if self._launches:
            self._print(
                f"{counted(self._launches, 'launch'):<12}  {format_duration(self._seconds)}"
            )
        self._launches, self._seconds = 0, 0.0

    def _print(self, text: str) -> None:
        stage = STAGES.get(self._stage, self._stage)
        self._console.print(f"  {stage:<{STAGE_WIDTH}}{text}", markup=False)
        self._printed_s = self._clock()


class BarDisplay(LineDisplay):
    """A progress bar: current case, number of cases left, estimated end."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, progress_s=math.inf)  # the bar shows it
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def launch_started(self, event: LaunchStarted) -> None:
        """Show that ranks are starting."""
        super().launch_started(event)
        self._update(f"{self._stage} {self._launch}: starting ranks")

    def case_started(self, event: CaseProgress) -> None:
        """Move the bar."""
        super().case_started(event)
        ends = time.strftime("%H:%M:%S", time.localtime(time.time() + event.eta_s))
        time_left = f"{format_duration(event.eta_s)} left, ends {ends}"
        self._update(
            f"{self._stage} {self._launch}: {event.case}", event.done, event.total, time_left
        )

    def launch_finished(self, seconds: float) -> None:
        """Remove the bar, so that the result can follow."""
        if self._bar:
            self._bar.stop()
            self._bar = None
        super().launch_finished(seconds)

    def _update(
        self, text: str, done: int | None = None, total: int | None = None, left: str = ""
    ) -> None:
        if self._bar is None:
            self._bar = Progress(
                SpinnerColumn(),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.description}", markup=False),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task(
                text, total=self._progress[1] or None, completed=self._progress[0], left=left
            )
            self._bar.start()
        self._bar.update(self._task, description=text, completed=done, total=total, left=left)
