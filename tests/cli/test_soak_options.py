"""Tests of ``run --soak``: the lengths of launches and visits, and a soak with a stopped
rank.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import NO_OFI, wait_until

from commbench.cli.measure import MOST_SOAK_LAUNCHES, length_of_launch_s


@pytest.mark.parametrize(
    ("soak_s", "launch_s"), [(10, 10), (60, 10), (120, 20), (600, 60), (7200, 72), (24 * 3600, 864)]
)
def test_a_launch_lasts_about_a_minute(soak_s: float, launch_s: float) -> None:
    """Shorten launches of a short soak; lengthen those of a long one, which bounds their number."""
    assert launch_s == length_of_launch_s(soak_s)
    assert soak_s / launch_s <= MOST_SOAK_LAUNCHES


@pytest.mark.mpi
@pytest.mark.slow
def test_a_stopped_rank_and_ctrl_c(tmp_path: Path) -> None:
    """Name a rank that is stopped for 3 s, and keep results at Ctrl-C."""
    pytest.importorskip("mpi4py")
    line = "run -c all_reduce --sizes 1K --backend mpi -n 2 --oversubscribe --soak 40s --out"
    command = [sys.executable, "-m", "commbench", *line.split(), str(tmp_path / "r")]
    samples, info = tmp_path / "r" / "samples.jsonl", tmp_path / "r" / "run.json"
    soak = subprocess.Popen(command, env={**os.environ, **NO_OFI}, stdout=subprocess.DEVNULL)
    assert wait_until(lambda: samples.exists() and len(samples.read_text().splitlines()) > 2, 60)
    pid = next(rank["pid"] for rank in json.loads(info.read_text())["ranks"] if rank["rank"] == 1)
    stopped_s = time.time()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(pid, signal.SIGCONT)
    seen = len(samples.read_text().splitlines())
    assert wait_until(lambda: len(samples.read_text().splitlines()) > seen + 1, 60)
    soak.send_signal(signal.SIGINT)
    assert 130 == soak.wait(60)
    with (tmp_path / "r" / "events.csv").open(encoding="utf-8", newline="") as file:
        events = [row for row in csv.DictReader(file) if float(row["duration_s"]) > 2]
    assert [("spike", "rank", "1")] == [(row["kind"], row["scope"], row["ranks"]) for row in events]
    assert abs(float(events[0]["duration_s"]) - 3) < 1
    assert events[0]["time"][:15] == time.strftime("%Y-%m-%dT%H:%M", time.gmtime(stopped_s))[:15]
