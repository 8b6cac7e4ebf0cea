"""What a run shows at the terminal: a progress bar where there is one, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.segment import Segment

from commbench.launch.display import Display
from commbench.results.record_types import AnyRecord
from commbench.results.tables import visible
from commbench.units import format_duration

#: Columns when nobody says how wide the output may be (a log file).
PLAIN_WIDTH = 110
#: Nothing in a text is markup: names such as ``[red]`` or ``:smile:`` are shown as they are.
LITERAL: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}


def make_console(stream: TextIO | None = None, *, plain: bool = False, width: int = PLAIN_WIDTH) -> Console:
    """A console on ``stream`` (stdout); in a file or a pipe it writes plain text, so many columns wide.

    ``plain``: also elsewhere, for ranks, whose launcher shows them a terminal that is not the person's.
    """
    stream = stream or sys.stdout
    if plain or not stream.isatty():
        return SafeConsole(file=stream, width=width, force_terminal=False, color_system=None, **LITERAL)
    return SafeConsole(file=stream, **LITERAL)


class SafeConsole(Console):
    """A console that shows control characters in what it prints, and obeys none: names and reasons are others'."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with control characters in texts as escapes."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def make_display(console: Console) -> Display:
    """The display that suits where output goes."""
    return BarDisplay(console) if console.is_terminal else LineDisplay(console)


class LineDisplay:
    """A line when a launch begins and when it ends: what a log file should hold."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._launch = ""
        self._eta_s = 0.0
        self._place = (0, 0)

    def launch_started(self, launch: int, launches: int, stage: str = "") -> None:
        """Say which launch begins."""
        self._place, self._eta_s = (0, 0), 0.0
        self._launch = f"{stage + ' ' if stage else ''}launch {launch + 1} of {launches}"

    def case(self, done: int, total: int, text: str, eta_s: float) -> None:  # noqa: ARG002 - one line a launch
        """Remember how far the run is."""
        self._place, self._eta_s = (done, total), eta_s

    def record(self, record: AnyRecord) -> None:
        """Count what is finished, and say what cannot be shown later: a case that failed."""
        done, total = self._place
        self._place = (min(done + (record.status not in {"failed", "hung"}), total), total)
        if record.status in {"failed", "hung", "wrong"}:
            self._console.print(f"  {record.status}: {record.case}: {record.reason}", markup=False)

    def warning(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(f"warning: {text}", markup=False)

    def output(self, lines: Sequence[str]) -> None:
        """Print what the ranks said last."""
        for line in lines:
            self._console.print(f"  | {line}", markup=False)

    def launch_finished(self, seconds: float) -> None:
        """Say how long it took and how far the run is."""
        done, total = self._place
        left = f", about {format_duration(self._eta_s)} left" if done < total else ""
        place = f", {done} of {total} measurements{left}" if total else ", nothing was measured"
        self._console.print(f"{self._launch or 'launch'}: {format_duration(seconds)}{place}", markup=False)


class BarDisplay(LineDisplay):
    """A progress bar: what is running, how much is left, when it will end."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def launch_started(self, launch: int, launches: int, stage: str = "") -> None:
        """Show that ranks are being started."""
        super().launch_started(launch, launches, stage)
        self._update(f"{self._launch}: starting ranks")

    def case(self, done: int, total: int, text: str, eta_s: float) -> None:
        """Move the bar."""
        super().case(done, total, text, eta_s)
        ends = time.strftime("%H:%M:%S", time.localtime(time.time() + eta_s))
        self._update(f"{self._launch}: {text}", done, total, f"{format_duration(eta_s)} left, ends {ends}")

    def launch_finished(self, seconds: float) -> None:  # noqa: ARG002 - the bar has shown it
        """Take the bar away: what follows may be the result."""
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _update(self, text: str, done: int | None = None, total: int | None = None, left: str = "") -> None:
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
            self._task = self._bar.add_task(text, total=self._place[1] or None, completed=self._place[0], left=left)
            self._bar.start()
        self._bar.update(self._task, description=text, completed=done, total=total, left=left)
