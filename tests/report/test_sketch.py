"""Tests of curves in a terminal: point positions, names and width."""

import io
from collections.abc import Sequence

from builders import MIB, STEADY, make_case, make_launches, make_record
from pages import make_run
from rich.console import Console
from training_builders import launches_of, make_training_case, make_training_record

from commbench.report.sketch import HEIGHT, LABEL, MOST_WIDE, sketch
from commbench.results import Run


def lines_of(runs: Sequence[Run], width: int = 80) -> list[str]:
    """Return the lines shown by a terminal of this width."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False)
    for part in sketch(runs):
        console.print(part)
    return stream.getvalue().splitlines()


def canvas(lines: Sequence[str]) -> list[str]:
    """Return the lines of the first chart without their labels."""
    return [line[LABEL + 2 :] for line in lines if "│" in line][:HEIGHT]


def test_bandwidth_rises_from_the_left_below_to_the_right_above() -> None:
    """Place sizes from left to right and the best bandwidth on top, a letter per point."""
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
    """Draw a curve per hook, the default first."""
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
    """Prefix curve names with the run's if there are several."""
    records = [
        record
        for size in (1024, MIB)
        for record in make_launches(STEADY, make_case(message_bytes=size))
    ]
    lines = lines_of([make_run(records, path="results/a"), make_run(records, path="results/b")])
    assert "a a: mpi  b b: mpi" == lines[-1]


def test_runs_of_the_same_name_are_told_apart() -> None:
    """Draw a curve per run, also for equal names in different directories."""
    records = [
        record
        for size in (1024, MIB)
        for record in make_launches(STEADY, make_case(message_bytes=size))
    ]
    training = [
        record
        for cap in ("default", "5")
        for record in launches_of(20.0, make_training_case(cap=cap))
    ]
    runs = [make_run(records, training, path=f"results/{day}/mine") for day in ("monday", "friday")]
    lines = lines_of(runs)
    assert "a monday: mpi  b friday: mpi" in lines
    assert "a monday: none  b friday: none" == lines[-1]
    assert 1 == sum("step in ms over bucket size" in line for line in lines)


def test_cases_that_differ_are_curves_of_their_own() -> None:
    """Draw a curve per data type, place and pattern."""
    records = [
        record
        for size, time_us in ((1024, 10.0), (MIB, 40.0))
        for changes, factor in (({}, 1.0), ({"dtype": "float64"}, 9.0), ({"in_place": False}, 81.0))
        for record in make_launches(
            [factor * time_us] * 6, make_case(message_bytes=size, **changes)
        )
    ]
    lines = lines_of([make_run(records)])
    assert "a float32 out of place  b float32 in place  c float64 in place" in lines
    drawn = "".join(canvas(lines))
    assert [2, 2, 2] == [drawn.count(letter) for letter in "abc"]


def test_what_is_not_drawn_is_said() -> None:
    """Name a ninth curve, failures and bucket lists, which are not drawn."""
    dtypes = (
        "int8",
        "uint8",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
    )
    records = [
        record
        for size in (1024, MIB)
        for dtype in dtypes
        for record in make_launches(STEADY, make_case(message_bytes=size, dtype=dtype))
    ]
    failed = make_record(make_case(message_bytes=4 * MIB), status="failed", reason="Rank 1 died.")
    training = [
        record
        for cap in ("default", "5", "1+5")
        for record in launches_of(20.0, make_training_case(cap=cap))
    ]
    hung = make_training_record(
        make_training_case("fp16", "5"), status="hung", reason="Rank 1 is hung."
    )
    text = " ".join(" ".join(lines_of([make_run([*records, failed], [*training, hung])])).split())
    assert "No result: float32: 1 size failed, Rank 1 died." in text
    assert "Not drawn, as more than 8 lines cannot be told apart: uint8." in text
    assert "No result: fp16 5 hung. Not drawn: 1+5." in text


def test_noise_is_no_trend() -> None:
    """Scale an axis so that one percent stays within a line."""
    records = [
        record
        for size, factor in ((1024, 1.0), (2048, 2.02), (4096, 3.96))
        for record in make_launches([10.0 * factor] * 6, make_case(message_bytes=size))
    ]
    training = [
        record
        for cap, step in (("default", 20.0), ("5", 20.2), ("25", 19.8))
        for record in launches_of(step, make_training_case(cap=cap))
    ]
    for run in (make_run(records), make_run(training=training)):
        assert 2 >= sum(
            "a" in line for line in canvas(lines_of([run]))
        )  # the middle lies between two


def test_chart_fits_the_terminal() -> None:
    """Fit the chart into the terminal and a maximum width."""
    records = [
        record
        for size in (1024, MIB)
        for record in make_launches(STEADY, make_case(message_bytes=size))
    ]
    assert max(map(len, lines_of([make_run(records)], width=50))) <= 50
    assert max(map(len, lines_of([make_run(records)], width=200))) <= MOST_WIDE


def test_nothing_to_draw_is_a_sentence() -> None:
    """Print a sentence if there is no chart."""
    assert lines_of([make_run(make_launches(STEADY))])[0].startswith("Nothing to draw")
