"""Tests of the script for a machine with one GPU: on this machine's CPUs, and with stand-ins for
programs that record their arguments.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from commands import parse
from launching import has_ended, wait_until
from places import ROOT

SCRIPT = ROOT / "benchmarks" / "launch" / "one_gpu.sh"
#: The stand-in for python3: finds a GPU, records its arguments; fails or hangs on request.
PROGRAM = """#!/bin/bash
[[ $* == *is_available* || $1 == - ]] && exit 0
printf '%q ' "$@" >>"$CALLED"
echo >>"$CALLED"
[[ -n ${BREAKS-} && "$*" == *"$BREAKS"* ]] && exit 7
[[ -n ${HANGS-} && "$*" == *"$HANGS"* ]] || exit 0
echo $$ >"$CALLED.pid"
exec sleep 100
"""


class OneGpu:
    """The script in a directory whose environment holds a stand-in for python3."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.called = folder, folder / "called"
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        (programs / "python3").write_text(PROGRAM)
        (programs / "python3").chmod(0o755)

    def start(self, mode: str, **variables: str) -> "subprocess.Popen[str]":
        """Start the script, with its results in ``results`` and its archive in ``out``."""
        environment = {"PATH": "/usr/bin:/bin", "CALLED": str(self.called), "OUT": "out"}
        environment |= {"RESULTS": "results", **variables}
        return subprocess.Popen(
            ["bash", str(SCRIPT), mode], cwd=self.folder, env=environment, text=True
        )

    def ended(self) -> dict[str, str]:
        """Return how each step ended, without times."""
        return ended_steps(self.folder / "results")

    def packed(self, mode: str) -> set[str]:
        """Return the names of the archived files."""
        return archived(self.folder / "out" / f"one_gpu_{mode}.tgz")


def ended_steps(results: Path) -> dict[str, str]:
    """Return how each step of steps.txt ended, without times."""
    lines = (results / "steps.txt").read_text().splitlines()
    steps = [line.partition(": ") for line in lines]
    return {name: re.split(" after|,", ending)[0] for name, _, ending in steps}


def archived(archive: Path) -> set[str]:
    """Return the names of the files in an archive."""
    with tarfile.open(archive) as members:
        return {Path(member.name).as_posix() for member in members if member.isfile()}


def test_the_deadline_holds(tmp_path):
    """Cut the step that hangs, skip what there is no time for, archive the rest."""
    script = OneGpu(tmp_path)
    assert 1 == script.start("full", HANGS="collectives", SECONDS_LEFT="13").wait(60)
    ended = script.ended()
    assert ("exit 124", "skipped") == (ended["rows_2"], ended["bench"])
    assert {"steps.txt", "preflight.log"} <= script.packed("full")


@pytest.mark.mpi
@pytest.mark.slow
def test_smoke_takes_each_step_on_cpus(tmp_path):
    """Measure, train, tune and watch on CPUs within 145 s."""
    variables = {"VENV": sys.prefix, "RESULTS": str(tmp_path / "results"), "OUT": str(tmp_path)}
    subprocess.run(
        ["bash", str(SCRIPT), "smoke"],
        cwd=ROOT,
        env={**os.environ, **variables, "SECONDS_LEFT": "145"},
        timeout=175,
        check=False,
    )
    steps = ended_steps(tmp_path / "results")
    assert "needs a GPU" == steps.pop("hooks")
    assert {"exit 0"} == set(steps.values())
    kept = {"rows_2/collectives.csv", "train/ddp.csv", "tune/run.json", "watch/run.json"}
    assert kept <= archived(tmp_path / "one_gpu_smoke.tgz")


def test_a_failure_ends_no_other_step(tmp_path):
    """Take all steps, then exit with 1 if one failed."""
    script = OneGpu(tmp_path)
    assert 1 == script.start("smoke", BREAKS="all_to_all").wait(60)
    ended = script.ended()
    assert ("exit 7", "exit 0") == (ended.pop("rows_2"), ended["watch"])
    assert "exit 7" not in ended.values()


def test_a_signal_ends_it_at_once(tmp_path):
    """Exit with the signal's code, leave nothing running, and pack all output so far."""
    script = OneGpu(tmp_path)
    running = script.start("smoke", HANGS="all_to_all")
    hanging = tmp_path / "called.pid"
    assert wait_until(lambda: hanging.exists() and hanging.read_text().endswith("\n"))
    running.terminate()
    assert 143 == running.wait(30)
    assert has_ended(int(hanging.read_text()))
    assert {"steps.txt", "preflight.log", "rows_2.log"} <= script.packed("smoke")
    assert {"preflight", "hooks"} == set(script.ended())


def test_an_unknown_mode_is_refused(tmp_path):
    """Name the modes, and run nothing."""
    script = OneGpu(tmp_path)
    assert 2 == script.start("nonsense").wait(20)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("mode", ["smoke", "full"])
def test_all_programs_and_tests_exist(tmp_path, mode):
    """Parse every command line of commbench, and find every program and every test file."""
    script = OneGpu(tmp_path)
    script.start(mode).wait(120)
    calls = [shlex.split(line) for line in script.called.read_text().splitlines()]
    ours = [words[2:] for words in calls if words[:2] == ["-m", "commbench"]]
    assert {"env", "run", "train", "tune"} <= {words[0] for words in ours}
    for words in ours:
        parse(words)
    files = [word for words in calls for word in words if re.fullmatch(r"\w+/\S+\.py", word)]
    assert [] == [file for file in files if not (ROOT / file).is_file()]
