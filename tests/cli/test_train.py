"""Tests of ``commbench train`` from end to end: real ranks, configurations that do harm, resuming,
bad input.
"""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import read_info, read_recommendation
from fields import fields_of
from launching import HERE, assert_code, finished

from commbench.results import load_run

pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("forks")]

WORKLOADS = HERE / "ranks" / "train_workloads.py"
HARM = "COMMBENCH_TEST_HARM"
FEW = "--steps 5 --launches 1 --confirm-launches 1 --seed 1"


@pytest.fixture
def folder(tmp_path):
    """Return the directory of a run, which is not made yet."""
    return tmp_path / "r"


def words_of(workload: str, options: str) -> list[str]:
    """Return the words of ``commbench train`` with few steps, into the directory ``r``."""
    line = f"train --backend gloo --workload {WORKLOADS}:{workload} {FEW} --out r {options}"
    return ["-m", "commbench", *line.split()]


def start(command: list[str], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command and wait until it exits."""
    return finished(*command, cwd=cwd, env={**os.environ, **variables}, seconds=150)


def train(
    cwd: Path, workload: str, options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Train on two ranks that may share cores."""
    words = words_of(workload, f"{options} -n 2 --oversubscribe")
    return start([sys.executable, *words], cwd, **variables)


def read_csv(file: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with file.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def rows_of(folder: Path) -> dict[str, dict[str, str]]:
    """Return the lines of ``ddp.csv`` with DDP's buckets by hook."""
    rows = read_csv(folder / "ddp.csv")
    return {row["hook"]: row for row in rows if row["bucket_cap_mb"] == "default"}


# ------------------------------------------------------------------------------- harm, and resuming


@pytest.mark.slow
@pytest.mark.usefixtures("mark")
def test_what_kills_hangs_or_raises_costs_its_own_row(tmp_path, folder):
    """Measure the other configurations and exit with 3; the same command then resumes."""
    options = "--hook none,int8,fp16,bf16,topk:0.1 --bucket-cap-mb default --case-timeout 5"
    broken = train(tmp_path, "harmful", options, **{HARM: "1"})
    assert_code(broken, 3)
    rows, info = rows_of(folder), read_info(folder)
    expected = {"none": "ok", "topk": "ok", "int8": "failed", "bf16": "failed", "fp16": "hung"}
    assert expected == {hook: row["status"] for hook, row in rows.items()}
    assert "rank 1" in rows["bf16"]["reason"]
    assert "signal 9" in rows["bf16"]["reason"]
    assert "rank 1" in rows["fp16"]["reason"]
    assert "no such luck" in rows["int8"]["reason"]
    recommended = read_recommendation(folder)
    assert "topk" in set(fields_of(recommended["alternatives"], "hook"))
    assert "partial" == info["status"]

    mended = train(tmp_path, "harmful", options)
    assert_code(mended, 0)
    assert {"ok"} == set(fields_of(rows_of(folder).values(), "status"))
    records = load_run(folder).training_records
    swept = [record.case.hook for record in records if record.case.phase == "sweep"]
    assert {"none", "local", "topk", "int8", "bf16", "fp16"} == set(swept)
    assert "complete" == read_info(folder)["status"]


#: A file that only the second rank cannot import.
UNEVEN = """
import os
if "1" in {os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")}:
    raise OSError("not here")
def hook(state, bucket): ...
"""


@pytest.mark.usefixtures("mark")
def test_hooks_of_a_file_are_swept(tmp_path, folder):
    """Measure the bytes of a hook and of a factory's hook.

    Give one that fails, or that one rank lacks, a reason.
    """
    names = ["none", *(f"file_hooks.py:{name}" for name in ("half", "make_pair", "raising"))]
    shutil.copy(HERE / "ranks" / "file_hooks.py", tmp_path)
    (tmp_path / "uneven.py").write_text(UNEVEN)
    hooks = ",".join([*names, "uneven.py:hook"])
    done = train(tmp_path, "tiny", f"--hook {hooks} --bucket-cap-mb default")
    assert_code(done, 3)
    rows = rows_of(folder)
    plain, half, pair, raising = (rows[name] for name in names)
    uneven = rows["uneven.py:hook"]
    assert ["ok"] * 3 == fields_of((plain, half, pair), "status")
    assert ["failed"] * 2 == fields_of((raising, uneven), "status")
    assert "no luck with 0" in raising["reason"]
    assert "not here" in uneven["reason"]
    sent = [float(row["sent_MB_per_step"]) for row in (plain, half, pair)]
    assert [0.5 * sent[0]] * 2 == pytest.approx(sent[1:], rel=0.1)
    assert "traffic" not in half["flags"]
    recommended = read_recommendation(folder)
    assert {"not_validated"} >= set(fields_of(recommended["altering"], "withheld"))
    assert "none" == recommended["best"]["hook"]


# ----------------------------------------------------------------------- ranks that a person starts


@pytest.mark.usefixtures("mark")
def test_ranks_that_a_person_starts_write_everything_and_add_launches(tmp_path, folder, mpirun):
    """Write all tables with each mpirun, which adds one launch of each stage.

    The workload changes the working directory; the results are where they were asked for.
    """
    words = words_of("moving", "--hook none,fp16 --bucket-cap-mb default")
    for count in (1, 2):
        done = start(mpirun.command(2, words, training=True), tmp_path, **mpirun.environment())
        assert_code(done, 0)
        rows = rows_of(folder)
        assert {"none", "fp16"} == rows.keys()
        assert {("ok", str(count))} == set(fields_of(rows.values(), "status", "launches"))
    entries = fields_of(read_info(folder)["launches"], "launch", "stage")
    assert [(0, "sweep"), (0, "confirm"), (1, "sweep"), (1, "confirm")] == entries
    buckets = read_csv(folder / "buckets.csv")
    sent_mb = {}
    for hook, row in rows.items():
        sizes = [int(each["size_bytes"]) for each in buckets if each["hook"] == hook]
        assert row["bucket_count"] == str(len(sizes))
        assert 4 * 81_710 == sum(sizes)
        assert "true" == row["ranks_agree"]
        assert "0" == row["skipped_steps"]
        assert "2" == row["world_size"]
        sent_mb[hook] = float(row["sent_MB_per_step"])
    assert {"none": 0.327, "fp16": 0.1634} == pytest.approx(sent_mb, rel=0.02)
    recommended = read_recommendation(folder)
    assert 2 == recommended["launches"]
    assert f"{WORKLOADS}:moving" == recommended["workload"]


@pytest.mark.slow
@pytest.mark.usefixtures("mark")
def test_torchrun_trains_without_mpi(tmp_path, folder):
    """Write all tables if torchrun starts the ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = words_of("tiny", "--hook none,powersgd:1 --bucket-cap-mb default")
    done = start([sys.executable, *torchrun, *words], tmp_path, OMP_NUM_THREADS="1")
    assert_code(done, 0)
    assert {"none", "powersgd"} == rows_of(folder).keys()
    assert "torchrun" == read_info(folder)["launcher"]
    assert (folder / "buckets.csv").is_file()
    assert (folder / "recommendation.json").is_file()


def test_unused_parameters_are_looked_for_where_the_model_needs_it(tmp_path):
    """Train every setting with the search if a parameter has no gradient, and say so."""
    done = train(tmp_path, "partly_used", "--hook none --bucket-cap-mb default,0.01")
    assert_code(done, 0)
    assert "idle.weight, idle.bias" in " ".join((done.stdout + done.stderr).split())
    records = load_run(tmp_path / "r").training_records
    assert {"ok"} == set(fields_of(records, "status"))
    assert {True} == {record.case.unused_parameters for record in records if record.case.uses_ddp}


# ---------------------------------------------------------------------------------------- bad input


OWN = """
import torch
from torch import nn
def wrong(): return 7
class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.left_out = nn.Linear(3, 1), nn.Linear(3, 1)
    def forward(self, batch): return self.used(batch)
def half(): return Half(), lambda m, b: m(b).sum(), [torch.ones(2, 3)]
def sparse():
    return nn.Embedding(5, 3, sparse=True), lambda m, b: m(b).sum(), [torch.tensor([1, 2])]
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(
            *("--backend nccl", "needs a GPU"),
            marks=pytest.mark.skipif(
                shutil.which("nvidia-smi") is not None, reason="needs a host without a GPU"
            ),
        ),
        ("--workload failing.py:make", "no_such_module"),
        pytest.param("--workload own.py:wrong", "int", marks=pytest.mark.slow),
        pytest.param("--hook failing.py:hook", "no_such_module", marks=pytest.mark.slow),
        pytest.param("--hook own.py:missing", "missing", marks=pytest.mark.slow),
        pytest.param("--workload own.py:sparse", "weight", marks=pytest.mark.slow),
    ],
)
def test_workloads_that_cannot_be_trained_are_refused(commbench, line, words):
    """Refuse an unusable workload after inspecting it, and write nothing."""
    (commbench.home / "own.py").write_text(OWN)
    (commbench.home / "failing.py").write_text("import no_such_module\n")
    commbench.refuses(f"train -n 2 --oversubscribe {line}", words)


def test_tune_refuses_a_model_with_unused_parameters(commbench):
    """Name the parameters, because no candidate of a tuning looks for them."""
    (commbench.home / "own.py").write_text(OWN)
    line = "tune -n 2 --oversubscribe --workload own.py:half"
    commbench.refuses(line, "left_out.weight, left_out.bias")
