"""Tests of reading torn, edited or foreign runs: one sentence each, and never a wrong figure."""

import functools
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import make_info, make_launches, make_record
from effort import repetitions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept import RESULTS, sample_lines

from commbench.analysis.comparison import compare
from commbench.analysis.prediction.network import network_model
from commbench.analysis.stragglers import straggler_findings
from commbench.cli.presentation import print_run, print_unfinished
from commbench.cli.terminal import make_console
from commbench.errors import InputError
from commbench.interop.exports.common import dated_s
from commbench.interop.exports.measures import samples_of
from commbench.interop.exports.openmetrics import render_openmetrics
from commbench.interop.exports.trackers import trials_of
from commbench.report.comparison import render_comparison
from commbench.report.page.contents import make_page
from commbench.results import Run, Store, load_run
from commbench.results.tables import table_csv

KEPT = ("links_1gbit", "matrix_slow_host", "patterns_1gbit", "train_switches_tiny")
#: What is put in the place of a value.
VALUES = (
    *(None, True, "", "x", "\x1b[31m=1", [], {}, [[]], [None], {"a": 1}, ["x"], [-1.0], [0.0]),
    *(0, -1, 1.5, 10**6, 10**30, 10**400, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
)


@pytest.fixture
def mine(tmp_path):
    """Return the directory of a run, which is not made yet."""
    return tmp_path / "mine"


def make_run(path: Path) -> Path:
    """Write a run of one case in two launches."""
    with Store.open(path, make_info()) as store:
        for record in make_launches([10.0, 11.0]):
            store.append(record)
    return path


def use(run: Run, other: Run) -> None:
    """Build every table, report and comparison of a run."""
    for table in (run.collectives, run.overlap, run.ddp, run.buckets, run.pairs):
        table_csv(table)
    straggler_findings(run).to_json()
    if (model := network_model(run)).curves:
        model.to_json()
    console = make_console(io.StringIO())
    for style in ("table", "nccl-tests", "osu", "csv"):
        print_run(run, style, console)
    print_unfinished(run, console)
    make_page([run], [])
    render_openmetrics(samples_of(run), benchmark="x")
    trials_of(run)
    dated_s(run.info)
    console.print(render_comparison(compare(run, other)))
    console.print(render_comparison(compare(other, run)))


def is_read_or_refused(read: Callable[[], object]) -> bool:
    """Return whether reading works; only a sentence of our own may refuse it."""
    try:
        read()
    except InputError as error:
        assert str(error).strip()  # noqa: PT017 - either outcome is right
        return False
    return True


# ----------------------------------------------------------------------------------------- run.json


@pytest.mark.parametrize(
    "content", [b"", b"  \n", b'{"schema": 1, "run', b"\0\xff", b"[" * 100_000]
)
def test_torn_run_json_says_what_can_still_be_done(mine, content):
    """Name the torn file and how to recover the measurements."""
    path = make_run(mine)
    (path / "run.json").write_bytes(content)
    with pytest.raises(
        InputError,
        match=r'run\.json .*\{"schema": 3\} .*samples\.jsonl',
    ):
        load_run(path)
    (path / "run.json").write_text('{"schema": 3}')
    assert 2 == load_run(path).rows[0].launches


@pytest.mark.parametrize("content", ["[]", "{}", '{"schema": true}', '{"schema": 4}'])
def test_foreign_run_json_is_refused(mine, content):
    """Refuse JSON that is not a run, or that of a newer version."""
    path = make_run(mine)
    (path / "run.json").write_text(content)
    with pytest.raises(InputError, match="schema"):
        load_run(path)
    with pytest.raises(InputError, match="schema"):
        Store.open(path, make_info())


@pytest.mark.parametrize(
    ("entry", "value", "place"),
    [
        ("world_size", "2", "world_size"),
        ("launches", [{"seconds": "7"}], r"launches\[0\].seconds"),
        (
            "environment",
            {"hosts": [{"load_average": "low"}]},
            r"environment.hosts\[0\].load_average",
        ),
        ("ranks", [{"rank": 0}], r"ranks\[0\] .*host"),
        ("ranks", [{"rank": 0, "host": "a"}] * 2, "rank"),
    ],
)
def test_entries_of_other_types_are_named(mine, entry, value, place):
    """Name the entry of a wrong type."""
    path = make_run(mine)
    (path / "run.json").write_text(json.dumps(make_info(**{entry: value})))
    with pytest.raises(InputError, match=place):
        load_run(path)


# ------------------------------------------------------------------------------------ samples.jsonl


CASE = make_record().to_json()["case"]
PAIRS = {
    "source": [0],
    "target": [1],
    "time_us": [1.0],
    "time_us_p95": [1.0],
    "repetitions": [1],
    "wrong": [None],
}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"times_us": ["10.0"]}, "times_us"),
        ({"status": "fine"}, "status"),
        ({"reason": None}, "reason"),
        ({"case": {}}, "case .*backend, dtype, message_bytes, operation"),
        ({"pairs": {"source": [0], "target": [1]}}, "pairs"),
        ({"pairs": {**PAIRS, "target": [1, 2]}}, ""),
        ({"pairs": {**PAIRS, "source": ["a"]}}, ""),
        ({"groups": [{}]}, r"groups\[0\] .*group, group_size, message_bytes"),
        ({"kind": None}, "kind"),
        ({"case": CASE | {"operation": "all_sum"}}, "all_sum"),
        ({"case": CASE | {"dtype": "float8"}}, "float8"),
        ({"case": CASE | {"pattern": "star"}}, "star"),
        ({"case": CASE | {"pattern": "fan-in"}}, "fan-in"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(mine, changes, place):
    """Name the line and the field of a wrong type, or the value that this version does not know."""
    path = make_run(mine)
    with (path / "samples.jsonl").open("a") as stream:
        stream.write(json.dumps({**make_record(launch=2).to_json(), **changes}) + "\n")
    with pytest.raises(InputError, match=f"line 3 .*{place}"):
        load_run(path)


@pytest.mark.parametrize(
    "line", [b"3", b"\0" * 100, b"\xff\xfe", b'{"case": NaN}', b"[" * 100_000, b"x" * 10**7, b""]
)
def test_foreign_lines_are_named_and_a_torn_last_line_is_not(mine, line):
    """Refuse a foreign line between records, but drop a torn last line."""
    path = make_run(mine)
    good = (path / "samples.jsonl").read_bytes()
    (path / "samples.jsonl").write_bytes(line + b"\n" + good)
    with pytest.raises(InputError, match=r"line 1 (is damaged|cannot be used)"):
        load_run(path)
    (path / "samples.jsonl").write_bytes(good + line)
    assert 2 == len(load_run(path).records)


# -------------------------------------------------------------------------------------- other files


@pytest.mark.parametrize("name", ["run.json", "samples.jsonl", "recommendation.json"])
def test_directories_and_loops_in_place_of_files(mine, name):
    """Refuse a directory or a link loop in place of a file."""
    path = make_run(mine)
    (path / name).unlink(missing_ok=True)
    (path / name).mkdir()
    with pytest.raises(InputError, match=name):
        load_run(path)
    (path / name).rmdir()
    (path / name).symlink_to(path / name)
    with pytest.raises(InputError):
        load_run(path)


# --------------------------------------------------------------------------------------------- fuzz


@functools.cache
def kept(name: str) -> tuple[str, tuple[str, ...], str | None]:
    """Return the files of a kept run, with a few of its samples."""
    path = next(RESULTS.glob(f"{name}_xeon2core_*"))
    lines = sample_lines(path)
    few = lines if len(lines) <= 60 else lines[:30] + lines[-30:]
    recommendation = path / "recommendation.json"
    return (
        (path / "run.json").read_text(),
        tuple(few),
        recommendation.read_text() if recommendation.exists() else None,
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value within JSON, to the first three entries of long lists."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:3])
        if isinstance(value, list)
        else ()
    )
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def change(value: Any, draw: random.Random) -> None:
    """Delete, replace or insert one value within JSON."""
    *above, last = draw.choice(list(places(value)))
    holder = functools.reduce(lambda inner, key: inner[key], above, value)
    what = draw.choice(("delete", "replace", "insert"))
    if what == "delete":
        del holder[last]
    elif what == "replace" or isinstance(holder, dict):
        holder[last] = draw.choice(VALUES)
    else:
        holder.insert(last, draw.choice(VALUES))


def write_changed(path: Path, name: str, draw: random.Random) -> None:
    """Write a kept run with one file changed in one to three places."""
    info, lines, recommendation = kept(name)
    files = {"run.json": [json.loads(info)], "samples.jsonl": [json.loads(line) for line in lines]}
    files |= {"recommendation.json": [json.loads(recommendation)]} if recommendation else {}
    chosen = draw.choice(list(files))
    for _ in range(draw.randint(1, 3)):
        change(draw.choice(files[chosen]), draw)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for file, values in files.items():
        (path / file).write_text("".join(json.dumps(value) + "\n" for value in values))


@functools.cache
def original(name: str) -> Run:
    """Return a kept run unchanged."""
    info, lines, _ = kept(name)
    with tempfile.TemporaryDirectory() as path:
        Path(path, "run.json").write_text(info)
        Path(path, "samples.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return load_run(path)


@pytest.mark.kept
@settings(
    max_examples=repetitions(150), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(KEPT), seed=st.integers(0, 2**32))
def test_edited_runs_are_read_or_refused(mine, capsys, name, seed):
    """Read a run edited at random, or refuse it in one sentence."""
    write_changed(mine, name, random.Random(seed))
    is_read_or_refused(lambda: use(load_run(mine), original(name)))
    capsys.readouterr()
