"""Tests that Apache Otava finds a planted step change in a history: the form of its files, and the
program itself.
"""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from histories import CHANGED_RUN, make_history

from commbench.interop.exports.history import write_history
from commbench.interop.exports.otava import file_names

ROOT = Path(__file__).parents[2]
#: Otava needs another numpy than commbench, so it has an environment of its own.
PINNED = re.search(r"^# (apache-otava==\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def configuration_of(history: Path) -> dict[str, Any]:
    """Return the parsed configuration beside a history."""
    loaded: dict[str, Any] = yaml.safe_load(
        (history.with_suffix(".otava") / "otava.yaml").read_text()
    )
    return loaded


def test_each_case_is_a_series_of_its_own(tmp_path: Path) -> None:
    """Name for each case a file with the columns of the configuration and a line for each run."""
    file = tmp_path / "history.csv"
    write_history(make_history(0)[:3], file)
    written = configuration_of(file)
    (template,) = written["templates"].values()
    assert 4 == len(written["tests"])
    for case, test in written["tests"].items():
        (metric,) = test["metrics"].values()
        assert {"column": "time_us", "direction": -1} == metric
        with Path(test["file"]).open(newline="") as stream:
            lines = list(csv.DictReader(stream))
        assert {template["time_column"], *template["attributes"], metric["column"]} <= set(lines[0])
        assert ([case] * 3, 3) == (
            [line["case"] for line in lines],
            len({line["run"] for line in lines}),
        )
    assert {"commbench": list(written["tests"])} == written["test_groups"]


def test_names_of_metrics_are_unique(tmp_path: Path) -> None:
    """Use no name of a metric twice, which `otava validate` refuses."""
    file = tmp_path / "history.csv"
    write_history(make_history(0)[:1], file)
    names = [name for test in configuration_of(file)["tests"].values() for name in test["metrics"]]
    assert len(names) == len(set(names))


def test_names_of_files_are_unique_and_short() -> None:
    """Number the files of cases that differ in signs and capitals only, and cut long names."""
    names = file_names(["A=1, b", "a-1, B", "a 1 b", "../../etc", "*", "x" * 400])
    *short, long = names.values()
    assert ["a_1_b.csv", "a_1_b_2.csv", "a_1_b_3.csv", "etc.csv", "case.csv"] == short
    assert 120 > len(long)


# -------------------------------------------------------------------------------------- the program


@pytest.fixture(scope="module")
def otava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the tested version of Otava into an environment and return the program.

    Skip without an index.
    """
    assert PINNED is not None
    environment = tmp_path_factory.mktemp("otava")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", PINNED[1]]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    if "No matching distribution" in installed.stderr:
        pytest.skip("needs an index of packages")
    assert 0 == installed.returncode, installed.stderr
    return environment / "bin" / "otava"


def run_otava(otava: Path, history: Path, *words: str) -> str:
    """Return the output of a command of Otava on a history."""
    configuration = history.with_suffix(".otava") / "otava.yaml"
    command = [otava, *words, "--config-file", configuration]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, check=False, cwd="/"
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def change_points(otava: Path, history: Path) -> Mapping[str, list[int]]:
    """Return the runs at which Otava finds a change, by case."""
    output = run_otava(
        otava, history, "analyze", "commbench", "--magnitude", "0.02", "--output", "json"
    )
    found: dict[str, list[Any]] = {}
    for line in output.splitlines():
        found |= json.loads(line)
    return {
        case: [change["index"] for point in points for change in point["changes"]]
        for case, points in found.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_otava_finds_the_planted_steps_and_few_others(otava: Path, tmp_path: Path) -> None:
    """Find at least 19 of 20 steps of 10 % within one run, and a change in at most 1 of 20 cases
    without one.
    """
    sizes = [8 * number for number in range(1, 41)]
    changed = {f"mpi all_reduce {size} B, 2 ranks, float32" for size in sizes[::2]}
    file = tmp_path / "history.csv"
    write_history(make_history(0, sizes=sizes, changed_sizes=sizes[::2]), file)
    run_otava(otava, file, "validate")
    found = change_points(otava, file)
    assert len(sizes) == len(found)
    hits = [
        case for case in changed if len(found[case]) == 1 and abs(found[case][0] - CHANGED_RUN) <= 1
    ]
    assert 19 <= len(hits), found
    assert 1 >= sum(bool(found[case]) for case in set(found) - changed), found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_otava_names_the_run_of_a_regression(otava: Path, tmp_path: Path) -> None:
    """Report the case, the night of the planted step and both means; report none without a step."""
    history, equal = tmp_path / "history.csv", tmp_path / "equal.csv"
    write_history(make_history(0, changed_sizes=[1024]), history)
    write_history(make_history(0), equal)
    words = ("analyze", "commbench", "--magnitude", "0.02", "--output", "regressions_only")
    report = run_otava(otava, history, *words)
    assert re.search(
        r"^Regressions in mpi all_reduce 1024 B.*\n2026-09-2[012] 03:00:00.*\n.*\+ *\d+\.\d%",
        report,
        re.MULTILINE,
    )
    assert 1 == report.count("Regressions in")
    assert 4 == run_otava(otava, equal, *words).count("No regressions found")
