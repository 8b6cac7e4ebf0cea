"""Tests of the history of runs: a line for each case and run, never a run twice, never half a
file.
"""

import csv
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import STEADY, make_case, make_info, make_launches, make_record
from commands import Command
from histories import keep, make_history, make_night
from training_builders import make_training_case, make_training_launches

from commbench.errors import InputError
from commbench.interop.exports.common import CASE_LABELS, TRAINING_LABELS
from commbench.interop.exports.history import COLUMNS, collective_name, training_name, write_history
from commbench.results import Run
from commbench.results.files import take_lock

SMALL, LARGE = make_case(message_bytes=8), make_case(message_bytes=1024)


def lines_of(file: Path) -> list[dict[str, str]]:
    """Return the lines of a history."""
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def night(number: int, *, times_us: list[float] = STEADY) -> Run:
    """Return a run of two cases."""
    return make_night(number, [*make_launches(times_us, SMALL), *make_launches(times_us, LARGE)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a history that does not exist yet."""
    return tmp_path / "history.csv"


def test_each_case_of_each_run_is_a_line(file: Path) -> None:
    """Write the header once, and a line for each case and run with its time and interval."""
    write_history([night(0)], file)
    write_history([night(1)], file)
    lines = lines_of(file)
    assert list(COLUMNS) == list(lines[0])
    assert 1 == file.read_text().count("time_us_ci_low")
    cases = [f"mpi all_reduce {size} B, 2 ranks, float32" for size in (8, 1024)]
    assert [(f"night{number:02}", case) for number in (0, 1) for case in cases] == [
        (line["run"], line["case"]) for line in lines
    ]
    row, _ = night(0).rows
    stated = [float(lines[0][name]) for name in ("time_us", "time_us_ci_low", "time_us_ci_high")]
    assert pytest.approx([row.time_us, row.time_us_ci_low, row.time_us_ci_high]) == stated
    assert ("2026-09-01T03:00:00+00:00", "6", "Open MPI 5.0.8", "sm") == tuple(
        lines[0][name] for name in ("time", "launches", "library", "transport")
    )


def test_a_run_counts_once(file: Path) -> None:
    """Keep the file as it is if a run is added again, also from a copy of its directory."""
    write_history([night(0), night(1)], file)
    before = file.read_bytes()
    copy = Run(path=Path("copy"), info=night(0).info, records=night(0).records)
    write_history([copy], file)
    assert before == file.read_bytes()


def test_a_run_with_more_launches_replaces_its_lines(file: Path) -> None:
    """State the launches of the resumed run, and no line of its earlier state."""
    write_history([night(0, times_us=STEADY[:4]), night(1)], file)
    write_history([night(0)], file)
    assert ["6"] * 4 == [line["launches"] for line in lines_of(file)]


def test_lines_are_in_the_order_of_time(file: Path, tmp_path: Path) -> None:
    """Sort runs by their start, in whichever order they are added."""
    write_history([night(2), night(0)], file)
    write_history([night(1)], file)
    write_history([night(0), night(1), night(2)], tmp_path / "sorted.csv")
    assert (tmp_path / "sorted.csv").read_bytes() == file.read_bytes()


def test_cases_without_a_sound_time_have_no_line(file: Path) -> None:
    """Leave out failed, hung and wrong cases."""
    unsound = [
        make_record(LARGE, status="hung", reason="rank 1"),
        *make_launches(STEADY, SMALL, status="wrong"),
    ]
    sound = make_case(message_bytes=64)
    write_history([make_night(0, [*unsound, *make_launches(STEADY, sound)])], file)
    assert ["mpi all_reduce 64 B, 2 ranks, float32"] == [line["case"] for line in lines_of(file)]


def test_training_is_a_case(file: Path) -> None:
    """Write the step of a configuration in microseconds."""
    training = tuple(make_training_launches([20.0] * 6, make_training_case("topk:0.01")))
    write_history(
        [Run(path=Path("a"), info=night(0).info, records=(), training_records=training)], file
    )
    (line,) = lines_of(file)
    assert "mlp gloo topk:0.01, default buckets, 2 ranks, batch 32, fp32" == line["case"]
    assert 20000.0 == float(line["time_us"])


@pytest.mark.parametrize(
    ("make_name", "names"),
    [(collective_name, CASE_LABELS), (training_name, TRAINING_LABELS)],
    ids=["case", "training"],
)
def test_each_label_is_part_of_the_name(
    make_name: Callable[[dict[str, str]], str], names: tuple[str, ...]
) -> None:
    """Give cases that differ in one label two names."""
    labels = dict.fromkeys(names, "7")
    assert len(names) == len(
        {make_name({**labels, name: "9"}) for name in names} - {make_name(labels)}
    )


# ---------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "content",
    [
        b"a,b\n1,2\n",
        b"\xff\xfe\x00",
        b",".join(name.encode() for name in COLUMNS) + b"\nonly,three,cells\n",
        b'"open\n',
    ],
    ids=["columns", "binary", "ragged", "quote"],
)
def test_a_file_that_is_no_history_is_refused(file: Path, content: bytes) -> None:
    """Refuse a file of other columns in one sentence, and change nothing."""
    file.write_bytes(content)
    with pytest.raises(
        InputError, match="is no history of commbench, whose columns are time, run"
    ) as refused:
        write_history([night(0)], file)
    assert 1 == len(str(refused.value).splitlines())
    assert content == file.read_bytes()
    assert [file] == list(file.parent.iterdir())


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (make_night(0, [make_record(status="hung", reason="rank 1")]), "has no case with a time"),
        (
            Run(path=Path("a"), info=make_info(), records=tuple(make_launches(STEADY))),
            "does not state when it began",
        ),
    ],
)
def test_a_run_that_cannot_be_added_is_refused(file: Path, run: Run, sentence: str) -> None:
    """Refuse all runs if one has no time or no start, and write nothing."""
    with pytest.raises(InputError, match=sentence):
        write_history([night(1), run], file)
    assert [] == list(file.parent.iterdir())


@pytest.mark.parametrize("out", [None, "history.txt", "folder"])
def test_a_name_is_needed(out: str | None, tmp_path: Path) -> None:
    """Refuse a missing name, and one that does not end in .csv."""
    with pytest.raises(InputError, match=r"give --out history\.csv"):
        write_history([night(0)], tmp_path / out if out else None)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Refuse a missing directory, and a directory in place of the file."""
    (tmp_path / "folder.csv").mkdir()
    for out in ("missing/history.csv", "folder.csv"):
        with pytest.raises(InputError, match="cannot be used"):
            write_history([night(0)], tmp_path / out)


def test_a_full_disk_leaves_the_file_whole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the earlier content if the disk is full."""
    write_history([night(0)], file)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_history([night(1)], file)
    assert before == file.read_bytes()
    assert {"history.csv", "history.otava"} == {each.name for each in file.parent.iterdir()}


def test_two_exports_at_once_are_refused(file: Path) -> None:
    """Refuse a second export while another one holds the history."""
    write_history([night(0)], file)
    lock = take_lock(file.with_suffix(".otava"))
    try:
        with pytest.raises(InputError, match="is in use by"):
            write_history([night(1)], file)
    finally:
        os.close(lock)


# -------------------------------------------------------------------------------------- the command


def test_the_command_adds_all_runs_of_a_folder(
    file: Path, tmp_path: Path, commbench: Command
) -> None:
    """Add each run of a folder, and say how many runs and cases the history has."""
    for run in make_history(0)[:3]:
        keep(run, tmp_path / "nights")
    done = commbench("export nights nights/night01 --format history --out history.csv")
    assert (0, "Written: history.csv (3 runs, 4 cases), history.otava\n") == (done.code, done.out)
    assert 12 == len(lines_of(file))


def test_the_command_refuses_a_foreign_file(file: Path, tmp_path: Path, commbench: Command) -> None:
    """End with exit code 2 and one sentence, and write nothing."""
    keep(night(0), tmp_path)
    file.write_text("a,b\n1,2\n")
    commbench.refuses(
        "export night00 --format history --out history.csv", "is no history of commbench"
    )
