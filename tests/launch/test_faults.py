"""Tests of cluster faults: a lost network, an unreachable host, full shared memory."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from builders import read_info
from fields import fields_of
from launching import finished, succeeded
from places import HERE

import commbench
from commbench.results import load_run

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("mark")]


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_a_host_that_loses_its_network_is_named(tmp_path, backend):
    """End in time, leave no process, keep the measurements, and resume when the network is back."""
    out = tmp_path / "run"
    script = HERE / "ranks" / "cut_link.py"
    lab = f"{sys.executable} -m commbench lab run --hosts 3 --rate none --"
    command = f"{lab} {sys.executable} {script} {out} {backend} host2".split()
    ended = json.loads(succeeded(*command, seconds=240).splitlines()[-1])
    assert (3, [], True) == (ended["code"], ended["left"], ended["gone"]), ended
    assert ended["seconds"] < 5 + 15
    assert "no progress for 5 s: host host2 (rank 2) has not been heard of for " in ended["reason"]
    failed_rank = ended["launches"][-1]["failed_rank"]
    assert (2, "host2") == (failed_rank["rank"], failed_rank["host"])
    assert [0, 1] == sorted(rank for group in failed_rank["others"] for rank in group["ranks"])
    *finished, last = ended["kept"]  # the link may be cut as the fourth case ends
    assert "hung" == last
    assert {"ok"} == set(finished)
    assert len(finished) in {3, 4}
    assert 0 == ended["again"]
    records = [record for record in load_run(out).records if record.status == "ok"]
    assert 12 == len(records) == len(set(fields_of(records, "case", "launch")))


def start(tmp_path: Path, hosts: str, before: str = ":") -> tuple[str, dict[str, object]]:
    """Run a sweep on a hostfile's hosts after a shell line in a mount namespace.

    Return output and run.json.
    """
    (tmp_path / "hosts").write_text(hosts)
    run = f"{sys.executable} -m commbench run --backend mpi --collective all_reduce --sizes 8"
    run += f" -n 2 --launches 1 --oversubscribe --out {tmp_path / 'run'}"
    run += f" --hostfile {tmp_path / 'hosts'}" if hosts else ""
    command = ["unshare", "--mount", "sh", "-c", f"{before}; exec {run}"]
    done = finished(*command)
    return f"{done.returncode}\n{done.stdout}{done.stderr}", read_info(tmp_path / "run")


@pytest.mark.usefixtures("forks")
@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        (
            "nosuchhost.invalid",
            "the host name nosuchhost.invalid does not resolve; correct the hostfile",
        ),
        pytest.param(
            "127.0.0.2",
            "host 127.0.0.2 refuses ssh; start its ssh server, or name another host",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["unknown name", "ssh refused"],
)
def test_a_host_that_cannot_be_reached_is_named(tmp_path, host, sentence):
    """Exit with 3 and a sentence, quote the launcher, and leave no process."""
    output, info = start(tmp_path, f"localhost slots=1\n{host} slots=1\n")
    assert output.startswith("3\n"), output
    assert str(info["reason"]).startswith(f"the ranks could not be started: {sentence}"), output
    assert "A daemon failed to report back" in output


@pytest.mark.lab
@pytest.mark.usefixtures("forks")
def test_a_full_memory_file_system_is_a_warning(tmp_path):
    """Measure without shared memory, and warn."""
    shm = "/dev/shm"  # noqa: S108 - the memory of MPI
    output, info = start(
        tmp_path, "", f"mount -t tmpfs -o size=64k tmpfs {shm}; head -c 200000 /dev/zero > {shm}/x"
    )
    assert output.startswith("0\n"), output
    assert "complete" == info["status"]
    assert "warning: Launch 1: /dev/shm is full, so ranks of one host could not" in " ".join(
        output.split()
    )


@pytest.mark.lab
def test_neither_the_installation_nor_the_home_can_be_written(tmp_path):
    """Compile into a directory for temporary files, which only this user can write."""
    package = Path(commbench.__file__).parent
    before = (
        f"mount --bind {package} {package} && mount -o remount,ro,bind {package} &&"
        f" export HOME=/proc TMPDIR={tmp_path} && unset XDG_CACHE_HOME NUMBA_CACHE_DIR"
    )
    output, info = start(tmp_path, "", before)
    assert ("0", "complete") == (output.splitlines()[0], info["status"]), output
    cache = tmp_path / f"commbench-{os.getuid()}"
    assert list(cache.rglob("*.nbc"))
    assert 0o700 == cache.stat().st_mode & 0o777
