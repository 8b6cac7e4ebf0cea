"""Tests of the benchmark that slows an emulated link by a known factor."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from labs import mark  # noqa: F401 - a fixture
from launching import HERE

from commbench.errors import LaunchError

BENCHMARKS = HERE.parent / "benchmarks"


@pytest.fixture
def planted(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """Return the module benchmarks/planted.py."""
    return load_benchmark("planted")


def test_runs_take_turns(planted: ModuleType) -> None:
    """Schedule every launch of every run, each run equally often first."""
    order = planted.turns(6)
    assert {(launch, side) for launch in range(1, 7) for side in planted.SIDES} == set(order)
    assert {2} == set(Counter(side for _, side in order[:: len(planted.SIDES)]).values())


def test_a_launch_that_takes_too_long_is_asked_to_end(planted: ModuleType, tmp_path: Path) -> None:
    """Terminate a launch that exceeds its time limit, after it cleaned up, and report it."""
    program = "trap 'echo cleaned up; kill $!; exit 0' TERM; echo begun; sleep 60 & wait"
    with (tmp_path / "log").open("w") as log:
        assert planted.run_within(["sh", "-c", program], log, 1.0) is None
        assert 3 == planted.run_within([sys.executable, "-c", "raise SystemExit(3)"], log, 30.0)
    assert ["begun", "cleaned up"] == (tmp_path / "log").read_text().split("\n")[:2]


def test_too_long_is_one_sentence(
    planted: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name the launch and its log in one sentence."""
    monkeypatch.setattr(planted, "run_within", lambda *_: None)
    with pytest.raises(LaunchError, match=r"Launch 2 of run b was ended after 300 s; see .*b\.log"):
        planted.measure(tmp_path, "b", 2, "1gbit", "1M")


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("mark")
def test_a_link_that_lost_a_tenth_is_found(tmp_path: Path) -> None:
    """Judge Gloo's all-reduce slower at 900 Mbit/s than at 1 Gbit/s, and the same at equal
    rates.
    """
    pytest.importorskip("torch")
    command = [
        sys.executable,
        str(BENCHMARKS / "planted.py"),
        "--sizes",
        "4M,16M",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    facts = json.loads((tmp_path / "out" / "planted.json").read_text())
    assert {"slower": 2, "faster": 0, "same": 0, "inconclusive": 0} == facts["counts"]["b"]
    assert any(text.startswith("emulated: ") for text in facts["differences"]["b"])
    assert 1 + 2 * 2 == len((tmp_path / "out" / "comparisons.csv").read_text().splitlines())
