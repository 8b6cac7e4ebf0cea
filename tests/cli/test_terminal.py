"""Tests of what a run shows at the terminal."""

import io

import pytest
from builders import make_record

from commbench.cli.terminal import LineDisplay, make_console
from commbench.launch.events import CaseFinished, CaseProgress, LaunchFinished, LaunchStarted


@pytest.mark.parametrize(
    ("stage", "name"), [("", "launch 2 of 3"), ("confirm", "confirm launch 2 of 3")]
)
def test_a_log_names_launches_and_stages(stage: str, name: str) -> None:
    """Write one line per launch, with its stage if there are several, and one per failure."""
    stream = io.StringIO()
    display = LineDisplay(make_console(stream))
    display.on(LaunchStarted(launch=1, launches=3, stage=stage))
    display.on(CaseProgress(done=4, total=9, case="a case", eta_s=12.0))
    display.on(CaseFinished(record=make_record(status="failed", reason="rank 1 raised")))
    display.on(CaseFinished(record=make_record()))
    display.on(LaunchFinished(seconds=5.0))
    failed, finished = stream.getvalue().splitlines()
    assert "  failed: mpi all_reduce 1 KiB float32 sum: rank 1 raised" == failed
    assert finished.startswith(f"{name}: 5")
    assert "5 of 9 measurements" in finished


def test_a_launch_that_measured_nothing_says_so() -> None:
    """Count the cases of each launch from zero."""
    stream = io.StringIO()
    display = LineDisplay(make_console(stream))
    for launch in range(2):
        display.on(LaunchStarted(launch=launch, launches=2))
        if not launch:
            display.on(CaseProgress(done=8, total=9, case="a case", eta_s=12.0))
            display.on(CaseFinished(record=make_record()))
        display.on(LaunchFinished(seconds=5.0))
    first, second = stream.getvalue().splitlines()
    assert "9 of 9 measurements" in first
    assert second.endswith("nothing was measured")
