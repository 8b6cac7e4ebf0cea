"""Tests of the import command: files, messages, refusals, and reading by other commands."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from commbench import cli
from commbench.results import load_run

DATA = Path(__file__).parents[1] / "data" / "imports"


class Commbench:
    """Runs a command line within this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        self._monkeypatch.setattr(sys, "argv", ["commbench", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = self._capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def commbench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Commbench:
    """Return the command line in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return Commbench(monkeypatch, capsys)


def variants(folder: Path, times: list[str]) -> list[Path]:
    """Write one nccl-tests output for each time of the largest message."""
    text = (DATA / "nccl_tests_all_reduce.txt").read_text()
    files = [folder / f"{place}.txt" for place in range(len(times))]
    for file, time in zip(files, times, strict=True):
        file.write_text(text.replace("90.12", time))
    return files


def test_page_of_an_imported_run_says_whose_figures_these_are(commbench: Commbench) -> None:
    """Name the tool first and its definition of time, and claim no measurement of ours."""
    commbench("import", DATA / "nccl_tests_all_reduce.txt", "--out", "theirs")
    assert 0 == commbench("report", "theirs")[0]
    page = re.sub(r"<[^>]*>", " ", Path("theirs/report.html").read_text())
    assert "measured by" in page
    assert "Imported by this command" in page
    assert "Measured by this command" not in page
    assert "slowest rank&#39;s median" not in page
    meaning = "mean over repetitions and ranks"
    assert f"A time is the median over launches of the {meaning}" in page
    assert f"{meaning[0].upper()}{meaning[1:]} (lower is better)" in page
    assert (
        f'title="median over launches of the {meaning}"' in Path("theirs/report.html").read_text()
    )


def test_import_writes_a_run_that_is_reported(commbench: Commbench) -> None:
    """Write the usual files, print assumptions and omissions, and report the rows."""
    code, out, _ = commbench("import", DATA / "osu_old.txt", "-n", 4, "--out", "theirs")
    assert 0 == code
    assert "8 measurements of OSU Micro-Benchmarks v5.6.2." in out
    assert "Assumed: 64 messages were in flight" in out
    assert "messages of 0 bytes cannot be imported." in out
    assert {"run.json", "samples.jsonl", "collectives.csv", ".lock"} <= {
        path.name for path in Path("theirs").iterdir()
    }
    info = json.loads(Path("theirs/run.json").read_text())
    assert ("import", "complete", 4) == (info["suite"], info["status"], info["world_size"])
    assert "started" not in info  # when it was measured is not stated
    code, out, _ = commbench("report", "theirs")
    assert 0 == code
    assert re.search(r"! All \d+ rows are figures of another tool", out)
    assert "Measured by OSU Micro-Benchmarks v5.6.2, imported from" in out


def test_import_reads_standard_input(commbench: Commbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read standard input for ``-``."""
    stream = io.TextIOWrapper(io.BytesIO((DATA / "imb.txt").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert 0 == commbench("import", "-", "--out", "theirs")[0]
    assert "-" == load_run("theirs").info["imported"][0]["file"]


def test_compare_tells_imported_runs_apart(commbench: Commbench, tmp_path: Path) -> None:
    """Judge six outputs per side, and exit with 5 for a regression."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    commbench(
        "import",
        *variants(tmp_path / "a", ["90.00", "90.10", "90.20", "89.90", "89.80", "90.05"]),
        "--out",
        "A",
    )
    commbench(
        "import",
        *variants(tmp_path / "b", ["99.00", "99.10", "99.20", "98.90", "98.80", "99.05"]),
        "--out",
        "B",
    )
    code, out, _ = commbench("compare", "A", "B")
    assert 5 == code
    assert "1 of 6 cases slower" in out


def test_predict_reads_imported_runs(commbench: Commbench) -> None:
    """Predict from an imported run, or print one sentence on what it lacks."""
    commbench("import", DATA / "nccl_tests_all_reduce.txt", "--out", "theirs")
    code, _, err = commbench("predict", "theirs", "--world-size", "8")
    assert code in {0, 2}
    assert "Traceback" not in err


def test_importing_again_adds_nothing(commbench: Commbench) -> None:
    """Leave a run of the same outputs unchanged, and refuse other outputs."""
    for _ in range(2):
        assert 0 == commbench("import", DATA / "imb.txt", "--out", "theirs")[0]
    assert 8 == len(load_run("theirs").records)
    code, _, err = commbench("import", DATA / "param.txt", "--out", "theirs")
    assert (2, True) == (code, "holds a run with another plan" in err)


@pytest.mark.parametrize("words", [["-n", "8"], ["-n", "4", "--dtype", "int8"]])
def test_what_is_said_of_an_output_is_not_mixed(commbench: Commbench, words: list[str]) -> None:
    """Refuse the same output with another number of ranks or type."""
    assert 0 == commbench("import", DATA / "osu_old.txt", "-n", 4, "--out", "theirs")[0]
    before = Path("theirs/samples.jsonl").read_bytes()
    code, _, err = commbench("import", DATA / "osu_old.txt", *words, "--out", "theirs")
    assert (2, True) == (code, "holds a run with another plan (measurements)" in err)
    assert before == Path("theirs/samples.jsonl").read_bytes()


def test_an_import_that_was_cut_short_goes_on(commbench: Commbench) -> None:
    """Complete an interrupted import without duplicates."""
    files = [DATA / "osu_old.txt", DATA / "osu_validated.txt"]
    assert 0 == commbench("import", *files, "-n", 3, "--out", "theirs")[0]
    whole = Path("theirs/samples.jsonl").read_bytes()
    Path("theirs/samples.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert 0 == commbench("import", *files, "-n", 3, "--out", "theirs")[0]
    assert whole == Path("theirs/samples.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing.txt"], "nothing.txt cannot be read (No such file or directory)"),
        ([str(DATA)], "is a directory; name the files in it"),
        (
            [__file__],
            "is no output of nccl-tests, OSU Micro-Benchmarks, Intel MPI Benchmarks or PARAM",
        ),
        ([str(DATA / "osu_validated.txt")], "say so with -n"),
        ([str(DATA / "imb.txt"), "-n", "0"], "-n 0 is no number of ranks"),
        ([str(DATA / "imb.txt"), "--tool", "x"], "Unknown tool 'x'"),
        ([str(DATA / "imb.txt"), "--dtype", "x"], "Unknown dtype 'x'"),
        ([str(DATA / "imb.txt"), "--operation", "x"], "Unknown operation 'x'"),
        (
            [str(DATA / "param.txt"), "--backend", "x"],
            "Unknown backend 'x'; choose from nccl, gloo, mpi",
        ),
    ],
)
def test_bad_input_writes_nothing(
    commbench: Commbench, tmp_path: Path, words: list[str], sentence: str
) -> None:
    """Exit with 2 and one sentence, and write nothing."""
    code, out, err = commbench("import", *words, "--out", "theirs")
    assert (2, "") == (code, out)
    assert sentence in err
    assert 1 == err.count("\n")
    assert [] == list(tmp_path.iterdir())
