"""Tests of what is installed: the wheel in an empty environment, the completion, recipes by
form.
"""

import ast
import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fields import fields_of
from launching import assert_code, finished, succeeded
from places import ROOT

LAUNCH = ROOT / "benchmarks" / "launch"
KEPT = ROOT / "results" / "bench_xeon2core_20261128"


def done(*words: str | Path, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a program with nothing of this environment but what pip needs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith("_proxy") or "PIP" in name
    }
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), **kept, **variables}
    return finished(*words, cwd=cwd, env=environment, seconds=None)


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(tmp_path):
    """Install the wheel into an empty environment.

    Read a run, draw its page, and say what measuring needs.
    """
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, ROOT)
    built = done(*pip, cwd=tmp_path)
    assert_code(built, 0)
    (wheel,) = tmp_path.glob("*.whl")
    assert 0 == done(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path).returncode
    python, commbench = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "bin" / "commbench"
    installed = done(
        python, "-m", "pip", "install", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path
    )
    if installed.returncode and "No matching distribution" in installed.stderr:
        pytest.skip("needs an index of packages")
    assert_code(installed, 0)
    drawn = done(commbench, "report", KEPT, "--out", tmp_path / "page", cwd=tmp_path)
    assert ("", 0) == (drawn.stderr, drawn.returncode)
    assert (tmp_path / "page" / "report.html").stat().st_size > 10_000
    refused = done(commbench, "bench", "-n", "2", cwd=tmp_path)
    assert 2 == refused.returncode
    assert "No launcher was found" in refused.stderr
    share = tmp_path / "env" / "share" / "commbench" / "benchmarks"
    assert {"quick.py", "launch", "trainings", "accept_node.expect"} <= set(
        fields_of(share.iterdir(), "name")
    )


@pytest.mark.parametrize(
    ("words", "expected"), [("tr", "train"), ("train --bucket-c", "--bucket-cap-mb")]
)
def test_a_shell_completes_commands_and_options(words, expected):
    """Complete the name of a command, and an option of a command that is not loaded yet."""
    variables = {"COMP_WORDS": f"commbench {words}", "COMP_CWORD": str(1 + words.count(" "))}
    environment = {**os.environ, **variables, "_COMMBENCH_COMPLETE": "complete_bash"}
    program = [
        sys.executable,
        "-c",
        "import sys; sys.argv = ['commbench']; from commbench.cli import main; main()",
    ]
    assert [expected] == succeeded(*program, env=environment).split()


def test_the_recipe_of_spack_has_the_dependencies():
    """Parse the recipe, and find in it what setup.cfg requires."""
    recipe = (LAUNCH / "spack_package.py").read_text()
    ast.parse(recipe)
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    required = settings["options"]["install_requires"].split()
    names = re.search(r"for _name in \((.*?)\):", recipe, re.DOTALL)[1]
    assert set(required) == set(re.findall(r'"([^"]+)"', names))
    assert settings["options"]["python_requires"].strip(">=") in recipe
