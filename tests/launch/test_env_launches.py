"""Tests of launches under several environments, with simulated ranks and with MPI."""

import sys

import pytest
from conducting import run
from fields import fields_of
from launching import ScriptLauncher, make_request, succeeded
from places import ROOT

from commbench.collectives.cases import Sweep
from commbench.results import load_run

SECOND_LINK = ROOT / "benchmarks" / "launch" / "second_link.sh"
ENVS = ("A=1", "A=1 (again)", "A=2", "A=default")
CASES = Sweep(backends=["mpi"], sizes=[8, 1024], env=["A=1,2,default"]).cases(2)
#: Ranks that state the variable that they were given.
PLAYED = """
from commbench.system.env import variables_of
from commbench.results.info import VariableValues
host = {"hostname": "n0", "cpu_model": "abacus", "timer_tick_s": 1e-8}
variables = {}
for name, value in variables_of(plan.env).items():
    variables[name] = VariableValues(ranks=[value], nccl=[])
writer.on(SessionStarted(facts={"environment": {"hosts": [host], "versions": {}, "variables": {}},
    "ranks": [{"rank": r, "host": "n0", "pid": 1, "cpus": [r]} for r in (0, 1)],
    "libraries": {}, "mpi_init_s": 0.1, "shared_clock": True, "oversubscribed": False},
    variables=variables))
for i in range(len(plan.cases)):
    measured(i, group="0-1", group_size=2, wrong=0)
end()
"""


pytestmark = pytest.mark.usefixtures("forks", "mark")


def test_a_start_of_ranks_has_one_environment_in_shuffled_order(tmp_path):
    """Start ranks once for each environment of a launch, in an order that differs between
    launches, and enter what the ranks had.
    """
    launcher = ScriptLauncher(PLAYED)
    _, info, _ = run(tmp_path, launcher, make_request(CASES, launches=3))
    rounds = [tuple(launcher.envs[start : start + 4]) for start in (0, 4, 8)]
    assert [sorted(ENVS)] * 3 == [sorted(order) for order in rounds]
    assert len(set(rounds)) > 1
    assert launcher.envs == fields_of(info["launches"], "env")
    values = {launch["env"]: launch["variables"]["A"]["ranks"] for launch in info["launches"]}
    assert {"A=1": ["1"], "A=1 (again)": ["1"], "A=2": ["2"], "A=default": [None]} == values


@pytest.mark.parametrize(
    ("refusal", "launches", "reason"),
    [
        ("sys.exit(1)", 2, "the launcher ended with exit status 1"),
        ("fail(0, 'There is no A 2.', is_bad_input=True); sys.exit(1)", 1, "There is no A 2"),
    ],
)
def test_an_environment_without_ranks_is_left_out(tmp_path, refusal, launches, reason):
    """Keep the cases of a value that ranks do not start with, or refuse, as failed, and measure the
    other values; measure only what is missing on resume.
    """
    request = make_request(CASES, launches=launches)
    launcher = ScriptLauncher(f"if plan.env == 'A=2': {refusal}\n{PLAYED}")
    code, info, display = run(tmp_path, launcher, request)
    assert (3, "partial") == (code, info["status"])
    assert 1 == launcher.envs.count("A=2")
    rows = {row.env: (row.status, row.reason) for row in load_run(tmp_path).rows}
    assert dict.fromkeys(ENVS, ("ok", "")) | {"A=2": ("failed", reason)} == rows
    assert "without A=2" in display.warnings[0]
    launcher = ScriptLauncher(PLAYED)
    assert 0 == run(tmp_path, launcher, request)[0]
    assert launches * ["A=2"] == launcher.envs


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(300)
def test_the_faster_of_two_links_is_found(tmp_path):
    """Find the interface of twice the rate on hosts with two links, and no such difference in the
    control.
    """
    commbench = f"{sys.executable} -m commbench"
    words = f"run --backend gloo -c all_reduce --sizes 4M --launches 3 --out {tmp_path}"
    line = f"{commbench} lab run --hosts 2 --rate 200mbit -- bash {SECOND_LINK} 400mbit"
    line += f" {commbench} {words} --env GLOO_SOCKET_IFNAME=eth0,eth1"
    succeeded(*line.split(), seconds=280)
    times = {row.env.partition("=")[2]: row.time_us or 0.0 for row in load_run(tmp_path).rows}
    assert 0.6 < times["eth0 (again)"] / times["eth0"] < 1.6
    assert 0.3 < times["eth1"] / times["eth0"] < 0.75
