"""Tests of the command compare: argument forms, output formats, exit codes."""

import csv
import html
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import KIB, make_case, make_info, make_launches
from fields import fields_of
from networks import write_run as write_records
from pages import Reader
from training_builders import launches_of, make_training_case, make_training_info

from commbench.cli.compare import compare as compare_command
from commbench.errors import InputError
from commbench.report.comparison import COMPARISON_COLUMNS

SIZES = (8, KIB, 64 * KIB)
compare = compare_command.__wrapped__


def write_run(path: Path, seed: int, slower: dict[int, float] | None = None, **info: Any) -> Path:
    """Write a run of three sizes.

    Multiply the times of the sizes in ``slower`` by their factors.
    """
    generator = np.random.default_rng(seed)
    records = []
    for size in SIZES:
        factor = 10.0 * (slower or {}).get(size, 1.0)
        times_us = factor * np.exp(0.005 * generator.standard_normal(10))
        records += make_launches(list(times_us), make_case(message_bytes=size))
    return write_records(path, records, **make_info(**info))


@pytest.fixture
def good(tmp_path):
    """Return a directory of five baselines."""
    for number in range(5):
        write_run(tmp_path / "good" / f"run{number}", number)
    return tmp_path / "good"


@pytest.fixture
def new(tmp_path):
    """Return a run in which 1 KiB takes 10 % longer."""
    return write_run(tmp_path / "new", 9, {KIB: 1.1})


def test_all_forms_mean_the_same(good, new, capsys):
    """Accept a directory of runs, a list of runs, and repeated --baseline options."""
    runs = sorted(good.iterdir())
    outputs = []
    for positional, options in (
        ([good, new], []),
        ([*runs, new], []),
        ([new], [good]),
        ([new], runs),
    ):
        assert 5 == compare(list(positional), list(options))
        outputs.append(capsys.readouterr().out)
    assert 1 == len(set(outputs))
    assert outputs[0].startswith("1 of 3 cases slower: mpi all_reduce 1 KiB float32 sum +10")
    assert 5 == outputs[0].count("\nA: ")


@pytest.mark.parametrize(
    ("threshold", "words"),
    [
        ("2%", "2 %: mpi all_reduce 1 KiB"),
        ("0.05", "5 %: mpi all_reduce 1 KiB"),
        ("20%", r"20 %.* \+\d+\.\d %"),
    ],
)
def test_the_threshold_decides(
    good,
    new,
    capsys,
    threshold,
    words,
):
    """Exit with 5 only if an interval lies wholly beyond the threshold.

    End log and page with the cases beyond it, or with the detectable difference.
    """
    code = compare([good, new], threshold=threshold, out=new / "x.html")
    assert (code == 5) == ("KiB" in words)
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.search(words, last)
    page = html.unescape((new / "x.html").read_text())
    assert last in page.replace("\N{NO-BREAK SPACE}", " ")


def test_a_run_named_twice_is_one_baseline(good, new, capsys):
    """Count a linked or repeated run once."""
    compare([good, new])
    expected = capsys.readouterr().out
    compare([good, good / "run1", new])
    assert expected == capsys.readouterr().out
    (good / "run9").symlink_to(good / "run1")
    compare([good, new])
    assert expected == capsys.readouterr().out


def test_runs_that_cannot_be_compared_are_refused(good, new, tmp_path):
    """Refuse the run itself, a folder to judge, and other conditions without --force."""
    other = write_run(tmp_path / "other", 1, nodes=2)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for runs in ([good, good / "run1"], [new, good], [new, other], [loop, new]):
        with pytest.raises(InputError):
            compare(runs)
    assert 0 == compare([new, other], force=True)


def test_csv_has_a_line_a_case(good, new, capsys):
    """Write ratio, interval, verdict and regression of each case as CSV."""
    assert 5 == compare([good, new], output_format="csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(COMPARISON_COLUMNS) == list(rows[0])
    slow = rows[1]
    assert ("collective", "slower", "true", "5", "50", "10") == tuple(
        slow[name]
        for name in ("kind", "verdict", "regression", "baselines", "launches_a", "launches_b")
    )
    assert 1.02 < float(slow["ratio_ci_low"]) < float(slow["ratio"]) < float(slow["ratio_ci_high"])
    assert ["false", "false"] == [rows[0]["regression"], rows[2]["regression"]]


def test_a_file_takes_the_format_of_its_name(good, new, tmp_path, capsys):
    """Choose the file's format by its suffix, and still print the table."""
    for name, begins in (
        ("x.html", "<!DOCTYPE html>"),
        ("x.csv", "schema,"),
        ("x.json", "{"),
        ("x.txt", "1 of 3 cases"),
    ):
        assert 5 == compare([good, new], out=tmp_path / name)
        assert (tmp_path / name).read_text().startswith(begins)
        assert capsys.readouterr().out.startswith("1 of 3 cases slower")


def test_the_page_is_self_contained_and_escaped(tmp_path):
    """Write a page without external files and scripts of others, and escape the text of runs."""
    evil = write_run(tmp_path / "<script>alert(1)<script>", 1, git_commit="<b>x</b>")
    other = write_run(tmp_path / "b", 2, {KIB: 0.8}, git_commit="<img src=x>")
    assert 0 == compare([evil, other], out=tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    page = Reader(text)
    assert ([], []) == (page.faults, page.open)
    assert all(link.startswith("#") for link in page.links)
    assert {"b", "img"}.isdisjoint(tag for tag, _, _ in page.attributes)
    assert not re.search("<(b|img)[ >]|url\\(", text)
    assert 1 == text.count("<script>")
    assert "<b>x</b> vs <img src=x>" in page.text
    assert "brackets are the intervals that decided" in page.text
    assert "intervals over launches" not in page.text


def test_lost_cases_are_regressions(tmp_path, new, capsys):
    """Exit with 5 if a case measured in A failed in B, at any threshold."""
    records = []
    for size in SIZES:
        case = make_case(message_bytes=size)
        records += make_launches([10.0] * 10, case, status="failed", reason="no")
    write_records(tmp_path / "b", records, **make_info())
    assert 5 == compare([new, tmp_path / "b"], threshold="50%", out=tmp_path / "x.csv")
    assert " 3 cases lost: ok in A and not in B." in capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert [("ok in A, failed in B", "true")] * 3 == fields_of(rows, "verdict", "regression")


def test_training_runs_are_compared(tmp_path, capsys):
    """Compare training steps with the verdicts and exit codes of collectives."""
    for name, step_ms in (("a", 20.0), ("b", 24.0)):
        records = launches_of(step_ms, make_training_case())
        write_records(tmp_path / name, training=records, **make_training_info())
    assert 5 == compare([tmp_path / "a", tmp_path / "b"])
    assert "1 of 1 case slower: mlp, default buckets" in capsys.readouterr().out
