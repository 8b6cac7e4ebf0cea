"""Tests of ``commbench tune`` end to end: real ranks, by conductor and torchrun, resuming, bad
input.
"""

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
pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("forks", "mark")]

WORKLOADS = HERE / "ranks" / "train_workloads.py"
#: A model of 320 KiB, for which 100 MiB buckets are those of the default.
FEW = (
    f"--backend gloo --workload {WORKLOADS}:tiny --steps 6 --seed 1 --out r --allow none,fp16"
    " --bucket-cap-mb default,0.1,100 --confirm-launches 1"
).split()


def start(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a Python module and wait until it exits."""
    return finished(sys.executable, "-m", *words, cwd=cwd, seconds=200)


def tune(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the tuning on two ranks in a process, with some other options."""
    return start("commbench", "tune", *FEW, *words, "-n", "2", "--oversubscribe", cwd=cwd)


def stages_of(folder: Path) -> list[tuple[str, int]]:
    """Return stage and number of each launch."""
    return fields_of(read_info(folder)["launches"], "stage", "launch")


def test_everything_is_written_and_the_same_command_has_nothing_left_to_do(tmp_path):
    """Search among the candidates, conclude with the compared settings, and resume into nothing."""
    done = tune(tmp_path)
    assert_code(done, 0)
    out = tmp_path / "r"
    assert [("search", 0), ("confirm", 0)] == stages_of(out)
    assert {"ddp.csv", "buckets.csv"} <= set(fields_of(out.iterdir(), "name"))
    recommended = read_recommendation(out)
    assert "inconclusive" == recommended["verdict"]  # one launch decides nothing
    search = recommended["search"]
    assert search["settings"] == search["confirmed"] + search["in_rounds"] + search["untried"] == 3
    assert "1 confirmation launch" in done.stdout
    records = load_run(out).training_records
    assert recommended["measured_steps"] == sum(
        record.total_steps for record in records if record.case.uses_ddp
    )
    swept = {r.case.hook_name: r for r in records if r.case.phase == "sweep"}
    assert {"none", "fp16", "local"} <= swept.keys()
    assert all(len(record.rounds) == len(record.block_lengths) for record in swept.values())
    assert all(record.ranks_agree for record in records if record.case.uses_ddp)

    again = tune(tmp_path)
    assert_code(again, 0)
    assert "Resuming" in again.stdout
    assert 2 == len(stages_of(out))
    for words, difference in (
        (["--bucket-cap-mb", "default,0.2"], "candidates"),
        (["--max-accuracy-loss", "0.01"], "max_accuracy_loss is null there and 0.01 here"),
    ):
        other = tune(tmp_path, *words)
        assert 2 == other.returncode
        assert "another plan" in other.stderr
        assert difference in other.stderr


@pytest.mark.slow
def test_torchrun_makes_a_launch_at_a_time(tmp_path):
    """Print the next launch after each torchrun, and end when nothing is left."""
    torchrun = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "commbench",
        "tune",
    ]
    made, messages = [], []
    for _ in range(2):
        done = start(*torchrun, *FEW, cwd=tmp_path)
        assert_code(done, 0)
        made.append(stages_of(tmp_path / "r"))
        messages.append(done.stderr)
    assert [("search", 0)] == made[0]
    assert [("search", 0), ("confirm", 0)] == made[1]
    assert ["Not finished" in text for text in messages] == [True, False]
    assert "complete" == read_info(tmp_path / "r")["status"]
