"""Tests of the continuous-integration example in docs/comparing.md: the script runs, the job is
valid YAML.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from launching import assert_code, finished
from places import ROOT
from test_comparing import KIB, write_run

PAGE = (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8")
#: Takes a run that is there for one that it measures; compares as ever.
STAND_IN = f"""#!/bin/bash
if [ "$1" = run ]; then
    for last; do :; done
    cp -r measured "$last"; exit "$MEASURED_CODE"
fi
exec {sys.executable} -m commbench "$@"
"""


def block(language: str) -> str:
    """Return the page's only code block in the language."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture
def folder(tmp_path):
    """Return a directory with five baselines and a stand-in for the measuring command."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "commbench").write_text(STAND_IN)
    (tmp_path / "bin" / "commbench").chmod(0o755)
    (tmp_path / "results").mkdir()
    for number in range(5):
        write_run(tmp_path / "good" / f"run{number}", number)
    return tmp_path


def run_job(folder: Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run the script as a CI job does."""
    variables = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "COMMBENCH_BASELINES": str(folder / "good"),
        "MEASURED_CODE": str(code),
    }
    return finished("bash", "-c", block("bash"), cwd=folder, env=os.environ | variables)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("factor", "code"),
    [
        pytest.param(1.0, 0, marks=pytest.mark.slow),
        pytest.param(1.03, 0, marks=pytest.mark.slow),
        (1.2, 5),
    ],
)
def test_the_script_ends_as_the_page_says(folder, factor, code):
    """Pass equal runs and small losses, exit with 5 at a large loss, and always write the page."""
    write_run(folder / "measured", 9, {KIB: factor})
    done = run_job(folder)
    assert_code(done, code)
    assert (folder / "comparison.html").exists()


def test_the_script_stops_where_nothing_was_measured(folder):
    """Exit with the code of a failed measurement, and compare nothing."""
    write_run(folder / "measured", 9)
    assert 3 == run_job(folder, code=3).returncode
    assert not (folder / "comparison.html").exists()


def test_the_script_begins_without_baselines(folder):
    """Ask for a first baseline if there is none."""
    write_run(folder / "measured", 9)
    shutil.rmtree(folder / "good")
    done = run_job(folder)
    assert (0, True) == (done.returncode, done.stdout.startswith("No baseline yet"))


@pytest.mark.programs
def test_the_script_hands_on_that_conditions_changed(folder):
    """Exit with 2 and print the refusal if conditions changed."""
    write_run(folder / "measured", 9, nodes=2)
    done = run_job(folder)
    assert (2, True) == (done.returncode, "nodes: 1 vs 2" in done.stderr)


def test_the_job_can_be_read():
    """Declare in the YAML all variables of the script, and always keep the page."""
    (job,) = yaml.safe_load(block("yaml"))["jobs"].values()
    measure, keep = job["steps"][1:]
    taken = set(re.findall(r"\$\{(COMMBENCH_\w+)", block("bash")))
    assert taken == set(measure["env"])
    assert "comparison.html" in keep["with"]["path"]
    assert "always()" == keep["if"]
