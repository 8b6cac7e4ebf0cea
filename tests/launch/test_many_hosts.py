"""Tests on an emulated cluster: the conductor, mpirun and torchrun write the files of a local
run.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import read_launches, read_rows
from launching import marked_environment, mpirun

from commbench.results import load_run
from commbench.stats.budgets import BUDGETS

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.usefixtures("forks")]

ROOT = Path(__file__).parents[2]
WHAT = ("run", "--collective", "all_reduce", "--sizes", "8,64K", "--sync", "dissemination")
NAMES = ("backend", "operation", "message_bytes", "status")


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail if a test leaves a process behind."""
    pytest.importorskip("torch")
    mpirun()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield from marked_environment(monkeypatch)


def run(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that must succeed; return its output."""
    environment = {**os.environ, **mpirun().environment(), **variables}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done


def run_in_lab(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on the first of two emulated hosts."""
    return run(
        *commbench(), "lab", "run", "--hosts", "2", "--rate", "1gbit", "--", *command, **variables
    )


def commbench() -> list[str]:
    """Return the prefix of a commbench command."""
    return [sys.executable, "-m", "commbench"]


def read(out: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return run.json and collectives.csv."""
    rows = read_rows(out)
    return json.loads((out / "run.json").read_text()), rows


def test_two_hosts_give_the_files_of_a_local_run(tmp_path: Path) -> None:
    """Write files, entries, columns and cases equal to a local run's, with the hosts of a
    hostfile.
    """
    local_run, lab_run = tmp_path / "here", tmp_path / "there"
    run(
        *commbench(),
        *WHAT,
        "--launches",
        "1",
        "-n",
        "2",
        "--oversubscribe",
        "--out",
        str(local_run),
    )
    run_in_lab(*commbench(), *WHAT, "--launches", "1", "--interface", "eth0", "--out", str(lab_run))
    assert {file.name for file in local_run.iterdir()} == {file.name for file in lab_run.iterdir()}
    (local_info, local_rows), (lab_info, lab_rows) = read(local_run), read(lab_run)
    assert local_info.keys() == lab_info.keys()
    assert (1, 2, 2) == (local_info["nodes"], lab_info["nodes"], lab_info["world_size"])
    assert local_rows[0].keys() == lab_rows[0].keys()
    assert [[row[name] for name in NAMES] for row in local_rows] == [
        [row[name] for name in NAMES] for row in lab_rows
    ]
    assert {("mpi", "ok"), ("gloo", "ok")} == {(row["backend"], row["status"]) for row in lab_rows}
    assert "eth0" == lab_info["environment"]["variables"]["GLOO_SOCKET_IFNAME"]


def test_a_persons_own_mpirun_with_a_hostfile_adds_launches(tmp_path: Path) -> None:
    """Add a launch per mpirun with ranks on both hosts."""
    out = tmp_path / "run"
    rank = f"{sys.executable} -m mpi4py -m commbench {' '.join(WHAT)} --backend mpi --out {out}"
    options = "--bind-to none --mca mpi_yield_when_idle 1"
    line = f"{mpirun().mpirun} -n 2 --hostfile $COMMBENCH_HOSTFILE {options} {rank}"
    run_in_lab("sh", "-c", f"{line} && {line}")
    info, rows = read(out)
    assert ("complete", "openmpi", 2) == (info["status"], info["launcher"], info["nodes"])
    assert ["host0", "host1"] == [place["host"] for place in info["ranks"]]
    assert ([0, 1], ["ok", "ok"]) == (read_launches(out), [row["status"] for row in rows])


def test_open_mpi_says_nothing_from_within_operations() -> None:
    """Use Open MPI's hierarchical component over several hosts without its log lines."""
    rank = f"{sys.executable} -m mpi4py {ROOT}/tests/ranks/silent.py 4"
    options = "-n 4 --map-by ppr:2:node:OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1"
    done = run_in_lab(
        "sh", "-c", f"{mpirun().mpirun} --hostfile $COMMBENCH_HOSTFILE {options} {rank}"
    )
    assert ("coll/han", "") == (
        done.stdout.strip(),
        "\n".join(re.findall(".*coll:.*", done.stderr)),
    )


@pytest.mark.slow
def test_torchrun_on_every_host_adds_launches(tmp_path: Path) -> None:
    """Add a launch each time torchrun runs on both hosts."""
    out = tmp_path / "run"
    script = f"{ROOT}/benchmarks/launch/torchrun.sh {' '.join(WHAT)} --backend gloo"
    rendezvous = "MASTER_ADDR=host0 NNODES=2 NPROC=1 LAUNCHES=2 INTERFACE=eth0"
    shared = f"VENV={sys.prefix} PYTHONPATH={ROOT} OUT={out} {rendezvous}"
    other = f"$COMMBENCH_SSH host1 'cd {ROOT} && {shared} NODE_RANK=1 {script}'"
    run_in_lab("sh", "-c", f"{other} & {shared} NODE_RANK=0 {script} && wait $!")
    info, rows = read(out)
    assert ("complete", "torchrun", 2) == (info["status"], info["launcher"], info["nodes"])
    assert ([0, 1], ["ok", "ok"]) == (read_launches(out), [row["status"] for row in rows])
    assert 4 == len(load_run(out).records)


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
def test_gloo_finds_other_hosts_where_names_lead_to_the_loopback(tmp_path: Path) -> None:
    """Choose the interface of the default route if the host's name resolves to the loopback."""
    out = tmp_path / "run"
    (tmp_path / "debian.sh").write_text(DEBIAN)
    rank = f"{sys.executable} -m mpi4py -m commbench {' '.join(WHAT)} --backend gloo --out {out}"
    wrapped = f"unshare --mount sh {tmp_path}/debian.sh {tmp_path} {rank}"
    run_in_lab(
        "sh",
        "-c",
        f"{mpirun().mpirun} -n 2 --hostfile $COMMBENCH_HOSTFILE --bind-to none {wrapped}",
    )
    info, rows = read(out)
    assert ["host0", "host1"] == [place["host"] for place in info["ranks"]]
    assert {("ok", "tcp/eth0")} == {(row["status"], row["transport"]) for row in rows}


def test_a_quick_case_takes_seconds_on_a_slow_link(tmp_path: Path) -> None:
    """Send fewer messages at once, alike in all launches, and say so; leave small ones alone."""
    out = tmp_path / "run"
    case = ("--collective", "bandwidth", "--sizes", "8,4M", "--backend", "mpi", "-n", "2")
    run_in_lab(*commbench(), "run", *case, "--launches", "2", "--out", str(out))
    small, large = read_rows(out)
    assert ("64", False) == (small["window"], "small_window" in small["flags"])
    assert (int(large["window"]) < 16, True) == (True, "small_window" in large["flags"])
    records = [record for record in load_run(out).records if record.case.message_bytes > 8]
    assert 2 == len(records)
    assert 1 == len({record.window for record in records})
    for record in records:
        assert record.measuring_s + record.other_s < 2 * BUDGETS["quick"].longest_s
