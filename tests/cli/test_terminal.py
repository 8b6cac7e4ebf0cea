"""Tests of what a run shows at the terminal."""

import errno
import io
from collections.abc import Callable

from builders import make_record

from commbench.cli.terminal import PROGRESS_S, Display, make_console
from commbench.launch.events import CaseFinished, CaseProgress, LaunchFinished, LaunchStarted


def lines_of(tell: Callable[[Display], None], step_s: float = 0.0) -> list[str]:
    """Return what a display prints while time advances by ``step_s`` at each look."""
    stream = io.StringIO()
    now_s = iter(range(10**6))
    display = Display(make_console(stream), clock=lambda: step_s * next(now_s))
    tell(display)
    display.close()
    return stream.getvalue().splitlines()


def launch(display: Display, number: int, *, stage: str = "", has_cases: bool = True) -> None:
    """Tell a display of one launch of three."""
    display.on(LaunchStarted(launch=number, launches=3, stage=stage))
    if has_cases:
        display.on(CaseProgress(done=4, total=9, case="a case", eta_s=12.0))
        display.on(CaseFinished(record=make_record()))
    display.on(LaunchFinished(seconds=5.0, eta_s=7.0))


def test_a_log_has_a_line_for_each_stage():
    """Sum the launches of a stage and their time."""

    def tell(display: Display) -> None:
        for stage in ("collectives", "confirm"):
            launch(display, 0, stage=stage)
            launch(display, 1, stage=stage)

    first, second = lines_of(tell)
    assert ["collectives", "2", "launches", "10", "s"] == first.split()
    assert second.endswith("2 launches    10 s")


def test_a_long_stage_tells_its_progress():
    """Tell how far a stage has come once a minute, with the time left as this launch has shown."""
    progress, _ = lines_of(lambda display: launch(display, 1), step_s=PROGRESS_S)
    assert "launch 2 of 3: 5 of 9 measurements, about 7 s left" in progress


def test_a_failure_is_told_at_once():
    """Print a failed case, and a launch that measured nothing."""

    def tell(display: Display) -> None:
        display.on(CaseFinished(record=make_record(status="failed", reason="rank 1 raised")))
        launch(display, 0, has_cases=False)

    failed, empty, _ = lines_of(tell)
    assert "  failed: mpi all_reduce 1 KiB float32 sum: rank 1 raised" == failed
    assert empty.endswith("nothing was measured")


class Full(io.StringIO):
    """A stream to a full disk."""

    def write(self, _: str) -> int:
        """Raise the error."""
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_on_a_full_disk_ends_no_run():
    """Ignore errors of the log, also at the end."""
    display = Display(make_console(Full()))
    launch(display, 0, has_cases=False)
    display.close()
