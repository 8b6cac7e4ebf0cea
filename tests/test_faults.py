"""Tests of what clusters do to a run: a host loses its network or cannot be reached, memory is full."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import marked_environment

from commbench.cases import Sweep
from commbench.store import load_run

LAB = (sys.executable, "-m", "commbench", "lab", "run")


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """No test may leave a process behind."""
    yield from marked_environment(monkeypatch)


@pytest.mark.lab
@pytest.mark.mpi
@pytest.mark.parametrize("backend", ["mpi", pytest.param("gloo", marks=pytest.mark.slow)])
def test_a_host_that_loses_its_network_is_named(tmp_path: Path, backend: str) -> None:
    """End in time, leave nothing on any host, keep what was measured, and resume when the network is back."""
    out = tmp_path / "run"
    script = Path(__file__).parent / "ranks" / "cut_link.py"
    command = [*LAB, "--hosts", "3", "--rate", "none", "--", sys.executable, str(script), str(out), backend, "host2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert 0 == done.returncode, done.stdout + done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    assert (3, [], True) == (ended["code"], ended["left"], ended["gone"]), ended
    assert ended["seconds"] < 5 + 15
    assert "no progress for 5 s: host host2 (rank 2) has not been heard of for " in ended["reason"]
    culprit = ended["launches"][-1]["culprit"]
    assert (2, "host2") == (culprit["rank"], culprit["host"])
    assert [0, 1] == sorted(rank for group in culprit["others"] for rank in group["ranks"])
    assert ["ok", "ok", "ok", "hung"] == ended["kept"]
    assert 0 == ended["again"]
    ok = sorted((record.case.key, record.launch) for record in load_run(out).records if record.status == "ok")
    cases = Sweep(backends=[backend], sizes=[8, 1024, 65536], operations=["all_reduce", "broadcast"]).cases(3)
    assert sorted((case.key, launch) for case in cases for launch in range(2)) == ok
