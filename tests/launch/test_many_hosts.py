"""Tests on an emulated cluster: the conductor, mpirun and torchrun write the files of a local
run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import read_info, read_launches, read_rows
from fields import fields_of
from launching import assert_code, assert_same_form, finished, marked_environment, mpirun
from places import ROOT

from commbench.results import load_run
from commbench.stats.budgets import BUDGETS

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.usefixtures("forks")]

WHAT = "run --collective all_reduce --sizes 8,64K --sync dissemination"
#: The rate of the links, 1gbit, in bits a second.
LINK_BPS = 1e9
#: How a person starts ranks on the hosts of a lab.
BY_HAND = "-n 2 --hostfile $COMMBENCH_HOSTFILE --bind-to none --mca mpi_yield_when_idle 1"


@pytest.fixture(autouse=True)
def mark(monkeypatch):
    """Fail if a test leaves a process behind."""
    pytest.importorskip("torch")
    mpirun()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield from marked_environment(monkeypatch)


def run(line: str, *, is_local: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run a shell line that must succeed, on the first of two emulated hosts; return its output.

    ``commbench``, ``rank`` and ``mpirun`` in it stand for the commands that start these.
    """
    commbench = f"{sys.executable} -m commbench"
    line = re.sub(r"^commbench ", f"{commbench} ", line)
    line = line.replace("RANK ", f"{sys.executable} -m mpi4py -m commbench ")
    line = line.replace("MPIRUN ", f"{mpirun().path} ")
    command = ["sh", "-c", line]
    if not is_local:
        command = [*f"{commbench} lab run --hosts 2 --rate 1gbit --".split(), *command]
    environment = {**os.environ, **mpirun().environment()}
    done = finished(*command, env=environment, seconds=200)
    assert_code(done, 0)
    return done


def read(out: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return run.json and collectives.csv."""
    return read_info(out), read_rows(out)


def test_two_hosts_give_the_files_of_a_local_run(tmp_path):
    """Write files, entries, columns and cases equal to a local run's, with the hosts of a
    hostfile.
    """
    here, there = tmp_path / "here", tmp_path / "there"
    run(f"commbench {WHAT} --launches 1 -n 2 --oversubscribe --out {here}", is_local=True)
    run(f"commbench {WHAT} --launches 1 --interface eth0 --out {there}")
    assert_same_form(here, there)
    info = read(there)[0]
    assert 1 == read(here)[0]["nodes"]
    assert 2 == info["nodes"]
    assert 2 == info["world_size"]
    assert "eth0" == info["environment"]["variables"]["GLOO_SOCKET_IFNAME"]


@pytest.mark.parametrize(
    ("launcher", "line"),
    [
        ("openmpi", f"MPIRUN {BY_HAND} RANK {WHAT} --backend mpi --out OUT"),
        pytest.param(
            "torchrun",
            f"{ROOT}/benchmarks/launch/torchrun.sh {WHAT} --backend gloo",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_persons_own_launcher_adds_launches(tmp_path, launcher, line):
    """Add a launch each time mpirun, or torchrun on each host, starts ranks on both hosts."""
    out = tmp_path / "run"
    line = line.replace("OUT", str(out))
    if launcher == "openmpi":
        run(f"{line} && {line}")
    else:
        rendezvous = "MASTER_ADDR=host0 NNODES=2 NPROC=1 LAUNCHES=2 INTERFACE=eth0"
        shared = f"VENV={sys.prefix} PYTHONPATH={ROOT} OUT={out} {rendezvous}"
        other = f"$COMMBENCH_SSH host1 'cd {ROOT} && {shared} NODE_RANK=1 {line}'"
        run(f"{other} & {shared} NODE_RANK=0 {line} && wait $!")
    info, rows = read(out)
    assert "complete" == info["status"]
    assert launcher == info["launcher"]
    assert 2 == info["nodes"]
    assert ["host0", "host1"] == fields_of(info["ranks"], "host")
    assert [0, 1] == read_launches(out)
    assert {"ok"} == set(fields_of(rows, "status"))


def test_open_mpi_says_nothing_from_within_operations():
    """Use Open MPI's hierarchical component over several hosts without its log lines."""
    options = BY_HAND.replace("-n 2", "-n 4 --map-by ppr:2:node:OVERSUBSCRIBE")
    done = run(f"MPIRUN {options} {sys.executable} -m mpi4py {ROOT}/tests/ranks/silent.py 4")
    assert "coll/han" == done.stdout.strip()
    assert [] == re.findall(".*coll:.*", done.stderr)


#: Makes a host's own name lead to 127.0.1.1, as Debian's installer does, and gives the host a
#: default route.
DEBIAN = """
name=$(hostname)
sed "s/^.* $name$/127.0.1.1 $name/" /etc/hosts > $1/$name && mount --bind $1/$name /etc/hosts
ip route replace default dev eth0
unset GLOO_SOCKET_IFNAME
shift
exec "$@"
"""


@pytest.mark.slow
def test_gloo_finds_other_hosts_where_names_lead_to_the_loopback(tmp_path):
    """Choose the interface of the default route if the host's name resolves to the loopback."""
    out = tmp_path / "run"
    (tmp_path / "debian.sh").write_text(DEBIAN)
    wrapped = f"unshare --mount sh {tmp_path}/debian.sh {tmp_path} RANK {WHAT}"
    run(f"MPIRUN {BY_HAND} {wrapped} --backend gloo --out {out}")
    info, rows = read(out)
    assert ["host0", "host1"] == fields_of(info["ranks"], "host")
    assert {("ok", "tcp/eth0")} == set(fields_of(rows, "status", "transport"))


def test_a_quick_case_takes_seconds_on_a_slow_link(tmp_path):
    """Send fewer messages at once, alike in all launches, and say so; leave small ones alone."""
    case = "--collective bandwidth --sizes 8,4M --backend mpi -n 2 --launches 2"
    run(f"commbench run {case} --out {tmp_path / 'run'}")
    small, large = read_rows(tmp_path / "run")
    assert ("64", False) == (small["window"], "small_window" in small["flags"])
    assert int(large["window"]) < 16
    assert "small_window" in large["flags"]
    records = [each for each in load_run(tmp_path / "run").records if each.case.message_bytes > 8]
    assert 2 == len(records)
    assert 1 == len(set(fields_of(records, "window")))
    for record in records:
        messages = (record.warmups + len(record.times_us)) * record.window
        at_rate_s = messages * record.case.message_bytes * 8 / LINK_BPS
        assert at_rate_s < 2 * BUDGETS["quick"].longest_s
