"""Tests of ``commbench check``: exit codes, the table, JSON, files of expectations, bad input, and
measuring.
"""

import json
import os
import sys

import pytest
from kept import RESULTS
from launching import mpirun, succeeded

LINKS = RESULTS / "links_1gbit_xeon2core_20261128"
ROOT = RESULTS.parent


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("bandwidth@16M:busbw>=0.8*link", 0),
        ("bandwidth@16M:busbw>=0.99*link", 5),
        ("bandwidth@16M[backend=gloo]:busbw>=0.11959GB/s", 3),
        ("bandwidth@8:busbw>=0.1GB/s", 3),
    ],
)
def test_the_exit_code_is_the_outcome(commbench, text, code):
    """Exit with 0 if met, 5 if not met, 3 if not shown or not tested."""
    before = commbench.files()
    done = commbench(f"check {LINKS} --expect {text}")
    assert (code, "") == (done.code, done.err)
    assert before == commbench.files()


def test_the_table_counts_and_gives_reasons(commbench):
    """Name the rows that are not met, the reason for one that is not tested, and the counts
    last.
    """
    out = commbench(
        f"check {LINKS} --expect bandwidth@16M:busbw>=0.99*link --expect bandwidth@8:time<=1s"
    ).out
    assert "bandwidth 8 B: not tested. The run has no such row." in out
    assert "2 expectations: 1 not tested, 1 not met." == out.splitlines()[-1]


def test_json_is_one_document(commbench):
    """Print value, interval, bound and outcome of each row."""
    done = commbench(f"check {LINKS} --expect bandwidth@16M[backend=mpi]:busbw>=0.8*link --json")
    document = json.loads(done.out)
    assert 0 == done.code
    assert "met" == document["outcome"]
    assert 0 == document["exit_code"]
    [expectation] = document["expectations"]
    [row] = expectation["rows"]
    assert "GB/s" == expectation["unit"]
    assert "met" == row["outcome"]
    assert "mpi bandwidth 16 MiB" == row["case"]
    low, high = row["ci"]
    assert row["bound"] < low < row["value"] < high


def test_the_page_has_the_answers(commbench):
    """Draw a section with the outcome of each row."""
    done = commbench(f"report {LINKS} --expect bandwidth@16M:busbw>=0.99*link --out page")
    html = (commbench.home / "page" / "report.html").read_text(encoding="utf-8")
    assert 0 == done.code
    assert "Expectations" in html
    assert "1 expectation: 1 not met." in html


@pytest.mark.parametrize("name", ["accept_node", "accept_cluster"])
def test_files_of_expectations_are_understood(commbench, name):
    """Read the files of benchmarks/, with their comments."""
    done = commbench(f"check {LINKS} --expect {ROOT}/benchmarks/{name}.expect")
    assert done.code in {0, 3, 5}
    assert "wrong = 0" in done.out


@pytest.mark.parametrize(
    ("text", "cases"),
    [
        (
            "latency@8,1K[backend=mpi]:time<=3us",
            ["mpi latency 8 B float32", "mpi latency 1 KiB float32"],
        ),
        (
            "reduce@8[backend=mpi,root=1,in_place=False,cadence=pipelined]:time<=3us",
            ["mpi reduce 8 B float32 sum out of place root 1 pipelined"],
        ),
    ],
)
def test_a_dry_run_lists_the_cases(commbench, text, cases):
    """Plan just the cases of the expectations."""
    out = commbench(f"check --expect {text} --dry-run -n 2 --oversubscribe").out
    assert cases == out.splitlines()[: len(cases)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_of_expectations_may_have_any_name_and_a_mark_of_windows(commbench, encoding):
    """Read a file whose path looks like an expectation, and that begins with a byte order mark."""
    file = commbench.home / "date=today" / "accept.expect"
    file.parent.mkdir()
    file.write_text("bandwidth@16M: time <= 100s\n", encoding=encoding)
    assert 0 == commbench(f"check {LINKS} --expect date=today/accept.expect").code


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (3, 0), (4, 4), (130, 130)])
def test_wrong_data_and_signals_outrank_the_answers(commbench, stub, ended, code):
    """End with the code of the measurement if it found wrong data or was interrupted."""
    (commbench.home / "run").symlink_to(LINKS)
    stub("commbench.cli.check._measure", ended)
    assert code == commbench("check --expect bandwidth@16M:busbw>=0.8*link --out run").code


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_it_measures_and_judges(tmp_path):
    """Measure two ranks over MPI; shared memory meets the transport, and no result is wrong."""
    environment = {**os.environ, **mpirun().environment(), "PYTHONPATH": str(ROOT)}
    expected = ["--expect", "latency@8[backend=mpi]: transport = sm", "--expect", "wrong = 0"]
    options = f"-n 2 --oversubscribe --budget quick --json --out {tmp_path}/run"
    command = [sys.executable, "-m", "commbench", "check", *expected, *options.split()]
    assert "met" == json.loads(succeeded(*command, env=environment))["outcome"]
    assert (tmp_path / "run" / "collectives.csv").exists()
