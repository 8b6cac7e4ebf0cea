"""Tests of the command compare: argument forms, output formats, exit codes."""

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import KIB, make_case, make_info, make_launches
from training_builders import launches_of, make_training_case, make_training_info

from commbench.analysis.comparison import ComparedCase, ComparisonTable
from commbench.analysis.comparison.words import beyond
from commbench.cli.compare import compare
from commbench.errors import InputError
from commbench.launch.tables import write_tables
from commbench.report.comparison.formats import COMPARISON_COLUMNS, comparison_json
from commbench.results import Store
from commbench.stats import Comparison, Interval, Verdict

SIZES = (8, KIB, 64 * KIB)


def write_run(path: Path, seed: int, slower: dict[int, float] | None = None, **info: Any) -> Path:
    """Write a run of three sizes.

    Multiply the times of the sizes in ``slower`` by their factors.
    """
    generator = np.random.default_rng(seed)
    with Store.open(path, make_info(**info)) as store:
        for size in SIZES:
            factor = 10.0 * (slower or {}).get(size, 1.0)
            for record in make_launches(
                list(factor * np.exp(0.005 * generator.standard_normal(10))),
                make_case(message_bytes=size),
            ):
                store.append(record)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Return a directory of five baselines."""
    for number in range(5):
        write_run(tmp_path / "good" / f"run{number}", number)
    return tmp_path / "good"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Return a run in which 1 KiB takes 10 % longer."""
    return write_run(tmp_path / "new", 9, {KIB: 1.1})


def test_all_forms_mean_the_same(good: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    ("threshold", "code"),
    [("2%", 5), ("5%", 5), ("5 %", 5), ("0.05", 5), ("20%", 0), ("0.2", 0), ("100%", 0)],
)
def test_the_threshold_decides_the_exit_code(
    good: Path, new: Path, threshold: str, code: int
) -> None:
    """Exit with 5 only if an interval lies wholly beyond the threshold."""
    assert code == compare([good, new], threshold=threshold)


def test_the_table_ends_with_what_decides(
    good: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """End log and page with the cases beyond the threshold, or with the detectable difference."""
    compare([good, new], threshold="5%", out=new / "x.html")
    assert (
        "Beyond 5 %: mpi all_reduce 1 KiB float32 sum." == capsys.readouterr().out.splitlines()[-1]
    )
    assert "Beyond 5 %: mpi all_reduce 1 KiB float32 sum." in (new / "x.html").read_text()
    compare([good, new], threshold="20%", out=new / "x.html")
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"None beyond 20 %; half of the cases would have shown \+\d+\.\d %\.", last)
    assert (
        last.replace("+", "&#43;") in (new / "x.html").read_text()
        or last in (new / "x.html").read_text()
    )


def test_a_run_named_twice_is_one_baseline(
    good: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Count a linked or repeated run once."""
    compare([good, new])
    expected = capsys.readouterr().out
    compare([good, good / "run1", new])
    assert expected == capsys.readouterr().out
    (good / "run9").symlink_to(good / "run1")
    compare([good, new])
    assert expected == capsys.readouterr().out


def test_a_file_obeys_no_escape_sequences(tmp_path: Path) -> None:
    """Escape control characters of runs in text files."""
    runs = [
        write_run(tmp_path / str(seed), seed, git_commit=f"\x1b[31m{seed}\x1b]0;title\x07")
        for seed in (1, 2)
    ]
    compare(runs, out=tmp_path / "x.txt")
    text = (tmp_path / "x.txt").read_text()
    assert "\x1b" not in text
    assert "\\x1b[31m1" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"threshold": "much"}, "--threshold much is no share: write 5% or 0.05"),
        ({"threshold": "5"}, "--threshold 5 would be 500 %: write 5% or 0.05"),
        ({"threshold": "1%"}, "lies below the margin of 2 %"),
        ({"output_format": "xml"}, "Unknown format 'xml'; choose from table, csv, json, html"),
        ({"out": Path("absent/x.html")}, "--out absent/x.html cannot be written"),
        ({"baseline": [Path("good")]}, "With --baseline give one run to be judged, not 2"),
    ],
)
def test_bad_options_are_one_sentence(
    good: Path, new: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], words: str
) -> None:
    """Refuse bad options in one sentence that says what to do."""
    monkeypatch.chdir(good.parent)
    with pytest.raises(InputError) as refused:
        compare([good, new], **arguments)
    assert words in str(refused.value)


def test_runs_that_cannot_be_compared_are_refused(good: Path, new: Path, tmp_path: Path) -> None:
    """Refuse a missing baseline, the run itself, other conditions and disjoint cases."""
    with pytest.raises(InputError, match="There is no run to compare"):
        compare([new])
    with pytest.raises(InputError, match="among its own baselines"):
        compare([good, good / "run1"])
    with pytest.raises(InputError, match="There is no"):
        compare([tmp_path / "absent", new])
    with pytest.raises(InputError, match="holds no run"):
        compare([new, good])
    other = write_run(tmp_path / "other", 1, nodes=2)
    with pytest.raises(InputError, match="nodes: 1 vs 2"):
        compare([new, other])
    assert 0 == compare([new, other], force=True)
    with Store.open(tmp_path / "barrier", make_info()) as store:
        for record in make_launches([1.0, 1.0], make_case("barrier")):
            store.append(record)
    with pytest.raises(InputError, match="no case in common"):
        compare([new, tmp_path / "barrier"])


def test_csv_has_a_line_a_case(good: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_csv_says_which_case_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Write distinct case names, and key columns that join with collectives.csv."""
    for name in ("a", "b"):
        with Store.open(tmp_path / name, make_info()) as store:
            for loop in ("native", "python"):
                for record in make_launches([10.0, 10.1, 10.2], make_case(loop=loop), loop=loop):
                    store.append(record)
            for record in make_launches([5.0, 5.1, 5.2], make_case("barrier")):
                store.append(record)
            write_tables(store)
    compare([tmp_path / "a", tmp_path / "b"], output_format="csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert 3 == len({row["case"] for row in rows})
    assert ["native", "python", "auto"] == [row["loop"] for row in rows]
    with (tmp_path / "b" / "collectives.csv").open() as stream:
        summary = list(csv.DictReader(stream))
    same = (
        "backend",
        "operation",
        "pattern",
        "dtype",
        "redop",
        "root",
        "in_place",
        "message_bytes",
        "buffers",
    )
    for row in (rows[0], rows[2]):
        loops = {row["loop"], "native"}
        assert 1 == sum(
            each["loop"] in loops and all(each[name] == row[name] for name in same)
            for each in summary
        )


def test_regressions_are_named_with_their_groups() -> None:
    """Name the group of each regression in JSON and in the last line."""
    compared = ComparedCase(
        case=make_case(pattern="split:2"),
        group="2-3",
        time_a_us=1.0,
        time_b_us=2.0,
        comparison=Comparison(
            ratio=2.0,
            launches_a=9,
            launches_b=9,
            interval=Interval(low=1.9, high=2.1, level=0.95),
            verdict=Verdict.SLOWER,
        ),
    )
    table = ComparisonTable(
        names_a=("a",), name_b="b", margin=0.02, cases=(replace(compared, group="0-1"), compared)
    )
    expected = [
        f"mpi all_reduce 1 KiB float32 sum pattern split:2 group {group}"
        for group in ("0-1", "2-3")
    ]
    assert expected == json.loads(comparison_json(table, 0.05))["regressions"]
    assert f"Beyond 5 %: {', '.join(expected)}." == beyond(table, 0.05)
    assert beyond(replace(table, cases=6 * table.cases), 0.05).endswith(" and 4 more.")


def test_json_says_all(good: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Write summary, counts, regressions beyond the threshold, conditions and cases as JSON."""
    assert 0 == compare([good, new], output_format="json", threshold="20%", sort=True)
    facts = json.loads(capsys.readouterr().out)
    assert {"slower": 1, "faster": 0} == {
        name: facts["counts"][name] for name in ("slower", "faster")
    }
    assert (5, [], False, 0.2) == (
        len(facts["a"]),
        facts["regressions"],
        facts["forced"],
        facts["threshold"],
    )
    assert "slower" == facts["cases"][0]["verdict"]
    assert facts["complete"] is True
    assert facts["summary"].startswith("1 of 3 cases slower")


def test_a_file_takes_the_format_of_its_name(
    good: Path, new: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


class Page(HTMLParser):
    """Parses a page into tags, links and text."""

    VOID = frozenset({"meta", "rect", "line", "circle"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loads: list[str | None] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the tag and the addresses that it loads."""
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [value for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        """Check that tags close in order."""
        if tag not in self.VOID:
            assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        """Collect the text."""
        self.text += data


def test_the_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    """Write a page without scripts or external files, and escape the text of runs."""
    evil = write_run(tmp_path / "<script>alert(1)<script>", 1, git_commit="<b>x</b>")
    other = write_run(tmp_path / "b", 2, {KIB: 0.8}, git_commit="<img src=x>")
    assert 0 == compare([evil, other], out=tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    page = Page(text)
    assert [] == page.open
    assert all(loaded and loaded.startswith("#") for loaded in page.loads)
    assert {"script", "b", "img"}.isdisjoint(page.tags)
    assert "<b>x</b> vs <img src=x>" in page.text
    assert len(SIZES) == page.tags.count("svg")
    assert "faster" in page.text
    assert "url(" not in text


def test_lost_cases_are_regressions(
    tmp_path: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit with 5 if a case measured in A failed in B, at any threshold."""
    with Store.open(tmp_path / "b", make_info()) as store:
        for size in SIZES:
            for record in make_launches(
                [10.0] * 10, make_case(message_bytes=size), status="failed", reason="no"
            ):
                store.append(record)
    assert 5 == compare([new, tmp_path / "b"], threshold="50%", out=tmp_path / "x.csv")
    assert " 3 cases lost: ok in A and not in B." in capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert [("ok in A, failed in B", "true")] * 3 == [
        (row["verdict"], row["regression"]) for row in rows
    ]


def test_training_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare training steps with the verdicts and exit codes of collectives."""
    for name, step_ms in (("a", 20.0), ("b", 24.0)):
        with Store.open(tmp_path / name, make_training_info()) as store:
            for record in launches_of(step_ms, make_training_case()):
                store.append(record)
    assert 5 == compare([tmp_path / "a", tmp_path / "b"])
    assert "1 of 1 case slower: mlp none, default buckets" in capsys.readouterr().out


def test_a_spreadsheet_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Quote a workload name that a spreadsheet would run as a formula."""
    for name in ("a", "b"):
        with Store.open(tmp_path / name, make_training_info()) as store:
            for record in launches_of(20.0, make_training_case(workload="=HYPERLINK(1)")):
                store.append(record)
    assert 0 == compare([tmp_path / "a", tmp_path / "b"], output_format="csv")
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["case"].startswith("'=HYPERLINK(1) none")
