"""Tests of ``commbench tune`` end to end: real ranks, by conductor and torchrun, resuming, bad
input.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import HERE, marked_environment

from commbench.results import load_run
from commbench.tuner.predictions import PREDICTION_COLUMNS

pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("forks")]

WORKLOADS = HERE / "ranks" / "train_workloads.py"
#: A model of 320 KiB, for which 100 MiB buckets are those of the default.
TINY = [
    "--backend",
    "gloo",
    "--workload",
    f"{WORKLOADS}:tiny",
    "--steps",
    "6",
    "--seed",
    "1",
    "--out",
    "r",
]
FEW = [
    *TINY,
    "--allow",
    "none,fp16",
    "--bucket-cap-mb",
    "default,0.1,100",
    "--confirm-launches",
    "1",
]


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail if a test leaves a process behind."""
    yield from marked_environment(monkeypatch)


def start(
    command: list[str], cwd: Path, timeout_s: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run a command and wait until it exits."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def tune(cwd: Path, *words: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    """Run ``commbench tune`` in a process."""
    return start([sys.executable, "-m", "commbench", "tune", *words], cwd, timeout_s)


def info_of(folder: Path) -> dict[str, Any]:
    """Return run.json."""
    info: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return info


def stages_of(folder: Path) -> list[tuple[str, int]]:
    """Return stage and number of each launch."""
    return [(entry["stage"], entry["launch"]) for entry in info_of(folder)["launches"]]


def rounds_of(folder: Path) -> list[tuple[str, int]]:
    """Return the launches of rounds, none if communication does not matter between two local
    ranks.
    """
    return [stage for stage in stages_of(folder) if stage[0].startswith("round")]


def predictions_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of ``predictions.csv``."""
    with (folder / "predictions.csv").open(encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        assert list(PREDICTION_COLUMNS) == reader.fieldnames
        return list(reader)


def test_everything_is_written_and_the_same_command_has_nothing_left_to_do(tmp_path: Path) -> None:
    """Predict every candidate, conclude with the compared settings, and resume into nothing."""
    done = tune(tmp_path, *FEW, "-n", "2", "--oversubscribe")
    assert 0 == done.returncode, done.stdout + done.stderr
    out = tmp_path / "r"
    rounds = rounds_of(out)
    assert [("network", 0), ("network", 1), ("calibrate", 0), *rounds, ("confirm", 0)] == stages_of(
        out
    )
    predictions = predictions_of(out)
    assert 4 == len(predictions)
    assert ("held_out" if rounds else "calibrated") in {row["used"] for row in predictions}
    assert all(float(row["predicted_step_ms"]) > 0 for row in predictions)
    assert {"ddp.csv", "buckets.csv", "model.json", "collectives.csv"} <= {
        file.name for file in out.iterdir()
    }
    recommended = json.loads((out / "recommendation.json").read_text())
    steps = 6 * (4 + 3 * len(rounds))
    assert steps == recommended["measured_steps"]
    assert "inconclusive" == recommended["verdict"]  # one launch decides nothing
    assert "DDP step: " in done.stdout
    assert "1 fresh launch" in done.stdout
    run = load_run(out)
    phases = {"calibrate", "confirm", *(["sweep"] if rounds else [])}
    assert phases == {record.case.phase for record in run.training_records}
    calibrated = [
        r for r in run.training_records if r.case.phase == "calibrate" and r.case.uses_ddp
    ]
    assert all(len(record.buckets) for record in calibrated)

    again = tune(tmp_path, *FEW, "-n", "2", "--oversubscribe")
    assert 0 == again.returncode, again.stdout + again.stderr
    assert "Resuming" in again.stdout
    assert 4 + len(rounds) == len(stages_of(out))
    for words, difference in (
        (["--bucket-cap-mb", "default,0.2"], "candidates"),
        (["--max-accuracy-loss", "0.01"], "max_accuracy_loss is null there and 0.01 here"),
    ):
        other = tune(tmp_path, *FEW, *words, "-n", "2", "--oversubscribe")
        assert 2 == other.returncode
        assert "another plan" in other.stderr
        assert difference in other.stderr


@pytest.mark.slow
def test_rounds_narrow_the_promising_down(tmp_path: Path) -> None:
    """Measure some of many settings in consecutively numbered rounds."""
    many = [
        "--workload",
        "mlp",
        "--allow",
        "none,fp16,bf16,topk",
        "--steps",
        "6",
        "--seed",
        "1",
        "--out",
        "r",
    ]
    done = tune(tmp_path, *many, "-n", "2", "--oversubscribe", timeout_s=280)
    assert 0 == done.returncode, done.stdout + done.stderr
    stages = stages_of(tmp_path / "r")
    assert [("network", 0), ("network", 1), ("calibrate", 0)] == stages[:3]
    assert "confirm" == stages[-1][0]
    used = {row["used"] for row in predictions_of(tmp_path / "r")}
    if rounds_of(tmp_path / "r"):
        assert {"held_out", "not_measured"} <= used


@pytest.mark.slow
def test_torchrun_makes_a_launch_at_a_time(tmp_path: Path) -> None:
    """Print the next launch after each torchrun, and end when nothing is left."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
    ]
    command = [*torchrun, "commbench", "tune", *FEW]
    made, messages = [], []
    for _ in range(4):
        done = start(command, tmp_path)
        assert 0 == done.returncode, done.stdout + done.stderr
        made.append(stages_of(tmp_path / "r"))
        messages.append(done.stderr)
    rounds = rounds_of(tmp_path / "r")
    assert [("network", 0), ("calibrate", 0)] == made[0]
    assert [*made[0], ("network", 1), *rounds, ("confirm", 0)] == made[3]
    last = 1 + len(rounds)
    assert made[last] == made[3] != made[last - 1]
    assert "Not finished: stage network has got 1 of its 2 launches" in messages[0]
    assert ["Not finished" in text for text in messages] == [number < last for number in range(4)]
    assert "complete" == info_of(tmp_path / "r")["status"]


def test_a_dry_run_measures_nothing(tmp_path: Path) -> None:
    """List the planned cases and the number of later ones, without measuring."""
    done = tune(tmp_path, *TINY, "--dry-run", "-n", "2", "--oversubscribe")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "tiny, default buckets" in done.stdout
    assert "gloo all_gather" in done.stdout
    assert "then the best again in" in done.stdout
    assert "Nothing was measured." in done.stdout
    assert not (tmp_path / "r").exists()
