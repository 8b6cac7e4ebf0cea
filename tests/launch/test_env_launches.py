"""Tests of launches under several environments, with simulated ranks and with MPI."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conducting import run
from launching import ScriptLauncher, make_request, marked_environment

from commbench.analysis.env import collective_envs, variable_findings
from commbench.collectives.cases import Sweep
from commbench.results import load_run

SECOND_LINK = Path(__file__).parents[2] / "benchmarks" / "launch" / "second_link.sh"
ENVS = ("A=1", "A=1 (again)", "A=2", "A=default")
CASES = Sweep(backends=["mpi"], sizes=[8, 1024], env=["A=1,2,default"]).cases(2)
REQUEST = make_request(CASES, launches=5)
#: Ranks that take twice as long under A=2, and state the variable that they were given.
SLOWER = """
from commbench.system.env import variables_of
from commbench.results.info import VariableValues
host = {"hostname": "n0", "cpu_model": "abacus", "timer_tick_s": 1e-8}
writer.on(SessionStarted(facts={"environment": {"hosts": [host], "versions": {}, "variables": {}},
    "ranks": [{"rank": r, "host": "n0", "pid": 1, "cpus": [r]} for r in (0, 1)],
    "libraries": {}, "mpi_init_s": 0.1, "shared_clock": True, "oversubscribed": False,
    "launch_variables": {n: VariableValues(ranks=[value], nccl=[]) for n, value in variables_of(plan.env).items()}}))
for i in range(len(plan.cases)):
    time = (2.0 if "A=2" in plan.env else 1.0) * (1 + 0.002 * plan.launch)
    measured(i, times_us=[time] * 3, group="0-1", group_size=2, wrong=0)
end()
"""


pytestmark = pytest.mark.usefixtures("forks")


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail if a test leaves a process behind."""
    yield from marked_environment(monkeypatch)


@pytest.fixture(scope="module")
def whole(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Measure all environments in five launches.

    Return the run's directory and the environments of its starts.
    """
    path, launcher = tmp_path_factory.mktemp("runs") / "whole", ScriptLauncher(SLOWER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked_python)
        assert 0 == run(path, launcher, REQUEST)[0]
    return path, launcher.envs


def test_a_start_of_ranks_has_one_environment_in_shuffled_order(
    whole: tuple[Path, list[str]],
) -> None:
    """Start ranks once for each environment of a launch, in an order that differs between
    launches.
    """
    path, envs = whole
    rounds = [envs[start : start + 4] for start in range(0, 20, 4)]
    assert all(sorted(ENVS) == sorted(order) for order in rounds)
    assert len({tuple(order) for order in rounds}) > 1
    assert envs == [launch["env"] for launch in load_run(path).info["launches"]]


def test_an_interrupted_run_measures_only_missing_environments(tmp_path: Path) -> None:
    """Complete a run by the environments that it lacks."""
    failing = ScriptLauncher("if plan.launch == 1 and plan.env == 'A=2': sys.exit(1)\n" + SLOWER)
    request = make_request(CASES, launches=2)
    assert 3 == run(tmp_path, failing, request, fail_fast=True)[0]
    lacking = sorted(
        {(case.env, launch) for case in CASES for launch in (0, 1)}
        - {(record.case.env, record.launch) for record in load_run(tmp_path).records}
    )
    assert ("A=2", 1) in lacking
    launcher = ScriptLauncher(SLOWER)
    assert 0 == run(tmp_path, launcher, request)[0]
    assert [env for env, _ in lacking] == sorted(launcher.envs)
    assert 2 * len(CASES) == len(
        {(record.case.key, record.launch) for record in load_run(tmp_path).records}
    )


def test_an_environment_without_ranks_is_left_out(tmp_path: Path) -> None:
    """Keep the cases of a value that ranks do not start with as failed, and measure the other
    values.
    """
    launcher = ScriptLauncher("if plan.env == 'A=2': sys.exit(1)\n" + SLOWER)
    code, info, display = run(tmp_path, launcher, make_request(CASES, launches=2))
    assert (3, "partial") == (code, info["status"])
    assert 1 == launcher.envs.count("A=2")
    statuses = {row.env: row.status for row in load_run(tmp_path).rows}
    assert {"A=1": "ok", "A=1 (again)": "ok", "A=2": "failed", "A=default": "ok"} == statuses
    (warning,) = display.warnings
    assert "without A=2" in warning
    assert 0 == run(tmp_path, SLOWER, make_request(CASES, launches=2))[0]


def test_a_value_that_ranks_refuse_does_not_end_the_run(tmp_path: Path) -> None:
    """Keep the cases of a refused value as failed with the ranks' sentence, if another value has
    worked.
    """
    refusal = (
        "if plan.env == 'A=2': fail(0, '', 'There is no A 2.', is_bad_input=True); sys.exit(1)\n"
    )
    code, _, _ = run(tmp_path, refusal + SLOWER, make_request(CASES, launches=1))
    assert 3 == code
    assert {"There is no A 2"} == {
        row.reason for row in load_run(tmp_path).rows if row.env == "A=2"
    }


def test_the_slower_environment_is_named_beside_an_even_control(
    whole: tuple[Path, list[str]],
) -> None:
    """Judge A=2 slower and nothing else different; state that the ranks had the variable."""
    measured_run = load_run(whole[0])
    comparison = collective_envs(measured_run)
    assert comparison is not None
    assert comparison.is_sound
    verdicts = {ratio.env: str(ratio.comparison.verdict) for ratio in comparison.ratios}
    assert "slower" == verdicts["A=2"]
    assert "slower" not in {verdicts[env] for env in ENVS[1:] if env != "A=2"}
    assert "env_none" == comparison.finding.code
    (variables,) = variable_findings(measured_run.info)
    assert {"right": 20, "starts": 20, "names": ("A",)} == variables.numbers


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(300)
def test_the_faster_of_two_links_is_found(tmp_path: Path) -> None:
    """Find the interface of twice the rate on hosts with two links, and no such difference in the
    control.
    """
    words = [
        "run",
        "--backend",
        "gloo",
        "-c",
        "all_reduce",
        "--sizes",
        "4M",
        "--launches",
        "3",
        "--out",
        str(tmp_path),
    ]
    commbench = [sys.executable, "-m", "commbench"]
    command = [*commbench, *words, "--env", "GLOO_SOCKET_IFNAME=eth0,eth1"]
    lab = [
        *commbench,
        "lab",
        "run",
        "--hosts",
        "2",
        "--rate",
        "200mbit",
        "--",
        "bash",
        str(SECOND_LINK),
        "400mbit",
    ]
    done = subprocess.run(
        [*lab, *command], capture_output=True, text=True, timeout=280, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    times = {row.env.partition("=")[2]: row.time_us or 0.0 for row in load_run(tmp_path).rows}
    assert 0.6 < times["eth0 (again)"] / times["eth0"] < 1.6
    assert 0.3 < times["eth1"] / times["eth0"] < 0.75


def test_a_suite_of_one_value_measures_its_control() -> None:
    """Measure a single value twice."""
    envs = {case.env for case in Sweep(backends=["mpi"], sizes=[8], env=["A=1"]).cases(2)}
    assert {"A=1", "A=1 (again)"} == envs
