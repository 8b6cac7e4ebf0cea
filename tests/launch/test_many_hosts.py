"""Tests on an emulated cluster: the conductor and a person's own mpirun and torchrun give the files of a local run."""

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import marked_environment, mpirun

from commbench.results import load_run

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.usefixtures("forks")]

ROOT = Path(__file__).parents[2]
WHAT = ("run", "--collective", "all_reduce", "--sizes", "8,64K", "--sync", "dissemination")
NAMES = ("backend", "operation", "message_bytes", "status")


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """No test may leave a process behind."""
    pytest.importorskip("torch")
    mpirun()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield from marked_environment(monkeypatch)


def run(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, which must be a good one; return what it wrote."""
    environment = {**os.environ, **mpirun().environment(), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done


def run_in_lab(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on the first of two emulated hosts."""
    return run(*commbench(), "lab", "run", "--hosts", "2", "--rate", "1gbit", "--", *command, **variables)


def commbench() -> list[str]:
    """Return the command without its arguments."""
    return [sys.executable, "-m", "commbench"]


def read(out: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """(run.json, collectives.csv)."""
    rows = list(csv.DictReader((out / "collectives.csv").read_text().splitlines()))
    return json.loads((out / "run.json").read_text()), rows


def test_two_hosts_give_the_files_of_a_local_run(tmp_path: Path) -> None:
    """Let the conductor find the hosts by the hostfile: the same files, entries, columns and cases as on one."""
    here, there = tmp_path / "here", tmp_path / "there"
    run(*commbench(), *WHAT, "--launches", "1", "-n", "2", "--oversubscribe", "--out", str(here))
    run_in_lab(*commbench(), *WHAT, "--launches", "1", "--interface", "eth0", "--out", str(there))
    assert {file.name for file in here.iterdir()} == {file.name for file in there.iterdir()}
    (one, local), (two, rows) = read(here), read(there)
    assert one.keys() == two.keys()
    assert (1, 2, 2) == (one["nodes"], two["nodes"], two["world_size"])
    assert local[0].keys() == rows[0].keys()
    assert [[row[name] for name in NAMES] for row in local] == [[row[name] for name in NAMES] for row in rows]
    assert {("mpi", "ok"), ("gloo", "ok")} == {(row["backend"], row["status"]) for row in rows}
    assert "eth0" == two["environment"]["variables"]["GLOO_SOCKET_IFNAME"]


def test_a_persons_own_mpirun_with_a_hostfile_adds_launches(tmp_path: Path) -> None:
    """Start ranks on both hosts twice: rank 0 writes the run."""
    out = tmp_path / "run"
    rank = f"{sys.executable} -m mpi4py -m commbench {' '.join(WHAT)} --backend mpi --out {out}"
    options = "--bind-to none --mca mpi_yield_when_idle 1"
    line = f"{mpirun().mpirun} -n 2 --hostfile $COMMBENCH_HOSTFILE {options} {rank}"
    run_in_lab("sh", "-c", f"{line} && {line}")
    info, rows = read(out)
    assert ("complete", "openmpi", 2) == (info["status"], info["launcher"], info["nodes"])
    assert ["host0", "host1"] == [place["host"] for place in info["ranks"]]
    assert [("ok", "2"), ("ok", "2")] == [(row["status"], row["launches"]) for row in rows]


def test_open_mpi_says_nothing_from_within_operations() -> None:
    """Know the component that carries operations over several hosts, and let it write no line in each of them."""
    rank = f"{sys.executable} -m mpi4py {ROOT}/tests/ranks/silent.py 4"
    options = "-n 4 --map-by ppr:2:node:OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1"
    done = run_in_lab("sh", "-c", f"{mpirun().mpirun} --hostfile $COMMBENCH_HOSTFILE {options} {rank}")
    assert ("coll/han", "") == (done.stdout.strip(), "\n".join(re.findall(".*coll:.*", done.stderr)))


@pytest.mark.slow
def test_torchrun_on_every_host_adds_launches(tmp_path: Path) -> None:
    """Start the script on both hosts at once: each call adds a launch over the link."""
    out = tmp_path / "run"
    script = f"{ROOT}/benchmarks/launch/torchrun.sh {' '.join(WHAT)} --backend gloo"
    where = "MASTER_ADDR=host0 NNODES=2 NPROC=1 LAUNCHES=2 INTERFACE=eth0"
    shared = f"VENV={sys.prefix} PYTHONPATH={ROOT} OUT={out} {where}"
    other = f"$COMMBENCH_SSH host1 'cd {ROOT} && {shared} NODE_RANK=1 {script}'"
    run_in_lab("sh", "-c", f"{other} & {shared} NODE_RANK=0 {script} && wait $!")
    info, rows = read(out)
    assert ("complete", "torchrun", 2) == (info["status"], info["launcher"], info["nodes"])
    assert [("ok", "2"), ("ok", "2")] == [(row["status"], row["launches"]) for row in rows]
    assert 4 == len(load_run(out).records)


#: Makes a host's own name lead to 127.0.1.1, as Debian's installer does, and gives the host a default route.
DEBIAN = """
name=$(hostname)
sed "s/^.* $name$/127.0.1.1 $name/" /etc/hosts > $1/$name && mount --bind $1/$name /etc/hosts
ip route replace default dev eth0
unset GLOO_SOCKET_IFNAME
shift
exec "$@"
"""


@pytest.mark.slow
def test_gloo_finds_other_hosts_where_names_lead_to_the_loopback(tmp_path: Path) -> None:
    """Meet by the default route where every host's own name leads to itself only."""
    out = tmp_path / "run"
    (tmp_path / "debian.sh").write_text(DEBIAN)
    rank = f"{sys.executable} -m mpi4py -m commbench {' '.join(WHAT)} --backend gloo --out {out}"
    wrapped = f"unshare --mount sh {tmp_path}/debian.sh {tmp_path} {rank}"
    run_in_lab("sh", "-c", f"{mpirun().mpirun} -n 2 --hostfile $COMMBENCH_HOSTFILE --bind-to none {wrapped}")
    info, rows = read(out)
    assert ["host0", "host1"] == [place["host"] for place in info["ranks"]]
    assert {("ok", "tcp/eth0")} == {(row["status"], row["transport"]) for row in rows}
