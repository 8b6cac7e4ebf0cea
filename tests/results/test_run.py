"""Tests of a whole run from the command line on one to four real ranks."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import read_info, read_launches, read_rows
from fields import fields_of
from launching import finished, succeeded

from commbench.engine.records import Row, columns_of

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("forks")]


#: The operations of both backends.
OPERATIONS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"),
    *("gather", "scatter", "barrier", "latency", "sendrecv", "iall_reduce", "iall_gather"),
)


@pytest.fixture
def folder(tmp_path):
    """Return the directory of a run, which is not made yet."""
    return tmp_path / "r"


def run(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``commbench run`` in ``cwd`` and return its outcome."""
    environment = {
        **os.environ,
        "OMPI_MCA_btl": "^ofi",
        "NCCL_AUTH_TOKEN": "hush-hush",
        "OMPI_MY_PASSWORD": "hush-hush",
    }
    command = (sys.executable, "-m", "commbench", "run", *line.split())
    return finished(*command, cwd=cwd, env=environment, seconds=180)


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a run's table."""
    with (folder / "collectives.csv").open(encoding="utf-8") as file:
        assert list(columns_of(Row)) == csv.DictReader(file).fieldnames
    return read_rows(folder)


@pytest.fixture(autouse=True)
def libraries():
    """Skip without mpi4py, torch and numba."""
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    pytest.importorskip("torch", reason="needs torch")


@pytest.mark.parametrize(
    "ranks", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 3, 4))]
)
def test_every_operation_is_measured_and_verified_on_both_backends(tmp_path, folder, ranks):
    """Measure all operations on MPI and Gloo; every row is ok and verified, or gives a reason.

    Measure nothing when the complete run is repeated, and store no secret.
    """
    operations = ",".join(OPERATIONS)
    arguments = f"-c {operations} --sizes 8,4K -n {ranks} --oversubscribe --launches 1 --out r"
    done = run(arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(folder)
    unsupported = {row["operation"] for row in rows if row["status"] == "unsupported"}
    assert ({"latency", "sendrecv"} if ranks == 1 else set()) == unsupported
    is_busy = len(os.sched_getaffinity(0)) < ranks
    for row in rows:
        if row["operation"] in unsupported:
            continue
        assert "ok" == row["status"]
        assert "0" == row["wrong"]
        assert str(ranks) == row["world_size"]
        low, time, high = (float(row[f"time_us{end}"]) for end in ("_ci_low", "", "_ci_high"))
        assert 0 < low <= time <= high
        assert float(row["harness_us"]) > 0
        assert (row["backend"] == "gloo") == bool(row["framework_us"])
        assert row["transport"]
        assert ("oversubscribed" in row["flags"]) == is_busy
    with (folder / "overlap.csv").open(encoding="utf-8") as file:
        overlaps = list(csv.DictReader(file))
    assert {("mpi", "iall_reduce"), ("gloo", "iall_gather")} < set(
        fields_of(overlaps, "backend", "operation")
    )
    for line in overlaps:
        assert 0 <= float(line["overlap_percent"]) <= 100
        assert float(line["pure_us"]) > 0
    lines = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    probes = {
        (line["case"]["backend"], len(line["probes_us"]))
        for line in lines
        if line.get("status") == "ok"  # further visits state what differs
    }
    assert {("gloo", 0), ("mpi", 2 if ranks > 1 and not is_busy else 0)} == probes
    samples = (folder / "samples.jsonl").read_bytes()
    assert run(arguments, cwd=tmp_path).returncode == 0
    assert samples == (folder / "samples.jsonl").read_bytes()
    assert not [file for file in (folder).iterdir() if "hush-hush" in file.read_text()]


def test_ranks_that_a_person_starts_do_the_same(tmp_path, folder, mpirun):
    """Add a launch with each mpirun, and print the table on rank 0 only."""
    arguments = "run -c all_reduce --sizes 8 --backend mpi --sync dissemination --out r"
    environment = {**os.environ, **mpirun.environment(), "OMPI_MCA_btl": "^ofi"}
    for _ in range(2):
        command = mpirun.command(2, ["-m", "commbench", *arguments.split()])
        printed = succeeded(*command, cwd=tmp_path, env=environment, seconds=180)
        assert 1 == printed.count(f"Results: {folder}")
    (row,) = rows_of(folder)
    assert ([0, 1], "ok") == (read_launches(folder), row["status"])
    launches = read_info(folder)["launches"]
    assert [("collectives", 0), ("collectives", 1)] == fields_of(launches, "stage", "launch")
