"""Tests of the import command: files, messages, refusals, and reading by other commands."""

import io
import sys
from pathlib import Path

import pytest
from builders import read_info
from fields import fields_of
from places import HERE

from commbench.results import load_run

DATA = HERE / "data" / "imports"


def variants(folder: Path, times: list[str]) -> str:
    """Write one nccl-tests output for each time of the largest message; return their names."""
    text = (DATA / "nccl_tests_all_reduce.txt").read_text()
    folder.mkdir()
    files = [folder / f"{place}.txt" for place in range(len(times))]
    for file, time in zip(files, times, strict=True):
        file.write_text(text.replace("90.12", time))
    return " ".join(map(str, files))


def test_page_of_an_imported_run_says_whose_figures_these_are(commbench):
    """Name the tool first and its definition of time, and claim no measurement of ours."""
    commbench(f"import {DATA}/nccl_tests_all_reduce.txt --out theirs")
    assert 0 == commbench("report theirs").code
    page = (commbench.home / "theirs" / "report.html").read_text()
    assert "To import it again" in page
    assert "To measure it again" not in page
    assert "slowest rank&#39;s median" not in page
    assert 'title="median over launches of the mean over repetitions and ranks"' in page


def test_import_writes_a_run_that_is_reported(commbench):
    """Write the usual files, print assumptions and omissions, and report the rows."""
    done = commbench(f"import {DATA}/osu_old.txt -n 4 --out theirs")
    assert 0 == done.code
    for words in ("8 measurements", "v5.6.2", "64 messages", "0 bytes"):
        assert words in done.out
    folder = commbench.home / "theirs"
    names = set(fields_of(folder.iterdir(), "name"))
    assert {"run.json", "samples.jsonl", "collectives.csv", ".lock"} <= names
    info = read_info(folder)
    assert "import" == info["suite"]
    assert "complete" == info["status"]
    assert 4 == info["world_size"]
    assert "started" not in info  # when it was measured is not stated
    reported = commbench("report theirs")
    assert 0 == reported.code
    assert "OSU Micro-Benchmarks v5.6.2" in reported.out


def test_import_reads_standard_input(commbench, monkeypatch):
    """Read standard input for ``-``."""
    stream = io.TextIOWrapper(io.BytesIO((DATA / "imb.txt").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert 4 == commbench("import - --out theirs").code  # it has a defect
    assert "-" == load_run(commbench.home / "theirs").info["imported"][0]["file"]


def test_compare_tells_imported_runs_apart(commbench):
    """Judge six outputs per side, and exit with 5 for a regression."""
    for name, times in {
        "a": ["90.00", "90.10", "90.20", "89.90", "89.80", "90.05"],
        "b": ["99.00", "99.10", "99.20", "98.90", "98.80", "99.05"],
    }.items():
        commbench(f"import {variants(commbench.home / name, times)} --out results/{name}")
    done = commbench("compare results/a results/b")
    assert 5 == done.code
    assert "1 of 6 cases slower" in done.out


def test_importing_again_adds_nothing(commbench):
    """Leave a run of the same outputs unchanged, and refuse other outputs."""
    for _ in range(2):
        assert 4 == commbench(f"import {DATA}/imb.txt --out theirs").code
    assert 8 == len(load_run(commbench.home / "theirs").records)
    commbench.refuses(f"import {DATA}/param.txt --out theirs", "another plan")


@pytest.mark.parametrize("options", ["-n 8", "-n 4 --dtype int8"])
def test_what_is_said_of_an_output_is_not_mixed(commbench, options):
    """Refuse the same output with another number of ranks or type."""
    assert 0 == commbench(f"import {DATA}/osu_old.txt -n 4 --out theirs").code
    commbench.refuses(f"import {DATA}/osu_old.txt {options} --out theirs", "another plan")


def test_an_import_that_was_cut_short_goes_on(commbench):
    """Complete an interrupted import without duplicates."""
    line = f"import {DATA}/osu_old.txt {DATA}/osu_validated.txt -n 3 --out theirs"
    assert 4 == commbench(line).code  # one validation failed
    samples = commbench.home / "theirs" / "samples.jsonl"
    whole = samples.read_bytes()
    samples.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert 4 == commbench(line).code  # one validation failed
    assert whole == samples.read_bytes()


def test_wrong_values_that_only_the_footer_counts_end_with_4(commbench):
    """Keep the rows, and end as any run with wrong data does."""
    text = (DATA / "nccl_tests_all_reduce.txt").read_text()
    file = commbench.home / "failed.txt"
    file.write_text(text.replace("values : 0 OK", "values : 3 FAILED"))
    done = commbench(f"import {file} --out theirs")
    assert 4 == done.code
    assert "3 wrong values" in done.out
    assert 6 == len(load_run(commbench.home / "theirs").records)
