"""Tests of curves in a terminal: where points lie, what is named, and how wide it is."""

import io
from collections.abc import Sequence

from builders import MIB, STEADY, make_case, make_launches
from rich.console import Console
from test_page import make_run
from training_builders import launches_of, make_training_case

from commbench.report.sketch import HEIGHT, LABEL, MOST_WIDE, sketch
from commbench.store import Run


def lines_of(runs: Sequence[Run], width: int = 80) -> list[str]:
    """Return what a terminal of this width shows."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False)
    for part in sketch(runs):
        console.print(part)
    return stream.getvalue().splitlines()


def canvas(lines: Sequence[str]) -> list[str]:
    """Return the lines of the first chart without their labels."""
    return [line[LABEL + 2 :] for line in lines if "│" in line][:HEIGHT]


def test_bandwidth_rises_from_the_left_below_to_the_right_above() -> None:
    """Put the smallest size at the left end and the best bandwidth on top, a letter on each point."""
    records = [
        record
        for size, time_us in ((1024, 10.0), (32 * 1024, 20.0), (MIB, 40.0))
        for record in make_launches([time_us] * 6, make_case(message_bytes=size))
    ]
    lines = lines_of([make_run(records)])
    assert "all_reduce: busbw in GB/s over message size" in lines
    drawn = canvas(lines)
    assert ("a", "a") == (drawn[-1][0], drawn[0][-1])
    assert 3 == "".join(drawn).count("a")
    assert "26.2" in lines[2]
    assert any("1 KiB" in line and "32 KiB" in line and line.endswith("1 MiB") for line in lines)
    assert "a mpi" in lines[-1]


def test_step_over_bucket_size_begins_with_the_default() -> None:
    """Draw a curve for each hook, DDP's default first."""
    training = [
        record
        for hook, base in (("none", 30.0), ("fp16", 20.0))
        for cap, step in (("default", base), ("5", base - 5), ("25", base - 2))
        for record in launches_of(step, make_training_case(hook, cap))
    ]
    lines = lines_of([make_run(training=training)])
    labels = next(line for line in lines if "default" in line and "25" in line)
    assert ["default", "5", "25"] == labels.split()
    assert "a none" in lines[-1]
    assert "b fp16" in lines[-1]
    assert canvas(lines)[0].startswith("a")


def test_several_runs_are_named() -> None:
    """Begin the names of curves with the run's, where there are several."""
    records = [record for size in (1024, MIB) for record in make_launches(STEADY, make_case(message_bytes=size))]
    lines = lines_of([make_run(records, path="results/a"), make_run(records, path="results/b")])
    assert "a a mpi  b b mpi" == lines[-1]


def test_chart_fits_the_terminal() -> None:
    """Be no wider than the terminal, and no wider than the eye likes."""
    records = [record for size in (1024, MIB) for record in make_launches(STEADY, make_case(message_bytes=size))]
    assert max(map(len, lines_of([make_run(records)], width=50))) <= 50
    assert max(map(len, lines_of([make_run(records)], width=200))) <= MOST_WIDE


def test_nothing_to_draw_is_a_sentence() -> None:
    """Say why there is no chart."""
    assert lines_of([make_run(make_launches(STEADY))])[0].startswith("Nothing to draw")
