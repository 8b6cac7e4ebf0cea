"""Tests of the benchmark that compares predictions and the tuner with a full sweep."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from labs import mark  # noqa: F401 - a fixture
from launching import HERE

BENCHMARKS = HERE.parent / "benchmarks"


@pytest.fixture
def findings(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """Return the module benchmarks/model_findings.py."""
    return load_benchmark("model_findings")


@pytest.fixture
def validate_model(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """Return the module benchmarks/validate_model.py."""
    return load_benchmark("validate_model")


def judged(findings: ModuleType, **changes: Any) -> Any:
    """Return a scenario that met all aims."""
    fields = {
        "scenario": "mlp@1gbit",
        "settings": 18,
        "default_ms": 300.0,
        "communication": 0.7,
        "best": "topk:0.01 5",
        "gain": 1.0,
        "gain_ci": (0.9, 1.1),
        "fresh_gain_ci": None,
        "choice": "topk:0.01 5",
        "verdict": "change",
        "regret": 0.0,
        "regret_ci": None,
        "regret_fair": 0.01,
        "outcome": "within",
        "steps": 100,
        "exhaustive_steps": 400,
        "step_error": 0.05,
        "worst_step_error": 0.1,
        "speedup_error": 0.05,
        "interleaved_error": None,
        "rank_correlation": 0.9,
    }
    return findings.Judged(**{**fields, **changes})


def outcomes(results: Any) -> list[bool]:
    """Return whether each aim is met."""
    return [aim.met for aim in results.aims]


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, [True, True, False]),
        ({"regret": 0.3, "outcome": "slower"}, [False, True, False]),
        ({"regret": 0.3, "outcome": "too noisy"}, [False, True, False]),
        ({"regret": 0.05, "outcome": "not shown"}, [True, True, False]),
        ({"steps": 101}, [True, False, False]),
        ({"gain_ci": (-0.1, 0.2), "verdict": "keep"}, [True, True, True]),
        ({"gain_ci": None, "verdict": "inconclusive"}, [True, True, False]),
        ({"gain_ci": (0.01, 0.2), "verdict": "change"}, [True, True, False]),
        (
            {"gain_ci": (0.01, 0.2), "fresh_gain_ci": (0.03, 0.2), "verdict": "change"},
            [True, True, True],
        ),
    ],
)
def test_one_bad_scenario_fails(
    findings: ModuleType, changes: dict[str, Any], met: list[bool]
) -> None:
    """Require choice and cost of every scenario, and one that keeps the default."""
    good = judged(
        findings, **({"gain_ci": None, "verdict": "keep"} if "gain_ci" in changes else {})
    )
    results = findings.Findings(judged=[good, judged(findings, **changes)])
    assert met == outcomes(results)


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("mark")
def test_a_scenario_is_measured_and_judged(tmp_path: Path) -> None:
    """Sweep, tune and judge one scenario; a second call measures nothing."""
    pytest.importorskip("torch")
    pytest.importorskip("mpi4py")
    command = [
        sys.executable,
        str(BENCHMARKS / "validate_model.py"),
        "--quick",
        "--parts",
        "scenarios",
    ]
    command += ["--scenarios", "mlp@1gbit", "--out", str(tmp_path / "v")]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
        assert done.returncode in {0, 1}, done.stdout + done.stderr
        facts = json.loads((tmp_path / "v" / "validation.json").read_text())
        assert (done.returncode == 0) == facts["met"]
        assert len(facts["runs"]) in {3, 4}
        ((scenario,), runs) = facts["scenarios"], facts["runs"]
        assert 6 == scenario["settings"]
        assert {"commbench", "lab"} < set(runs[0]["command"])
    header, *lines = (tmp_path / "v" / "validation.csv").read_text().splitlines()
    assert header.startswith("part,where,what,quantity,predicted,measured")
    assert {"held_out", "interleaved"} <= {line.rpartition(",")[2] for line in lines}
