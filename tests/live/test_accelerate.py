"""Suites of accelerate that nobody here wrote end alike with and without commbench."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
#: Those that run on CPUs.
SUITES = ("test_script", "test_sync", "test_ops")


def run(words: list[str], directory: Path) -> tuple[int, int]:
    """Return the exit code of a Python command, and how many lines it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env=environment | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, len(done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("mode", ["tune", "watch"])
def test_a_suite_of_accelerate_passes(mode: str, suite: str, tmp_path: Path) -> None:
    """Pass with ``tune --`` and ``watch --`` as without, and print as much."""
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("needs accelerate")
    training = [*TORCHRUN, "-m", f"accelerate.test_utils.scripts.{suite}"]
    attached = ["-m", "commbench", mode, "--out", "run", "--", sys.executable, *training]
    plain = run(training, tmp_path)
    assert plain[0] == 0
    assert run(attached, tmp_path) == plain
