"""Tests of the benchmark that slows an emulated link by a known factor."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from labs import mark  # noqa: F401 - a fixture
from launching import HERE

BENCHMARKS = HERE.parent / "benchmarks"


@pytest.fixture
def planted(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """Return the module benchmarks/planted.py."""
    return load_benchmark("planted")


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
    assert any("emulated: " in text for text in facts["differences"]["b"])
    assert 1 + 2 * 2 == len((tmp_path / "out" / "comparisons.csv").read_text().splitlines())
