"""Run on the first host of a lab: cut the last host's link in a sweep, resume the run, print both
outcomes as JSON.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))
from builders import read_records
from launching import Recorder, make_request, open_store, wait_until

from commbench.collectives.cases import Sweep
from commbench.launch.conductor import conduct
from commbench.launch.launchers.base import Placement
from commbench.launch.launchers.choice import choose_launcher
from commbench.launch.process import TOKEN
from commbench.results.plan import single_stage

LAB = Path("/run/commbench-lab")
#: Names Open MPI's stand-in for ssh.
AGENT = "PRTE_MCA_plm_ssh_agent"
#: What stands in for ssh, in a session of its own and without the mark by which the conductor finds
#: processes: those of another host are out of its reach.
FAR = f'#!/bin/sh\nexec env -u {TOKEN} setsid {LAB}/agent "$@"\n'


def set_link(host: str, state: str) -> None:
    """Set the link of a host up or down."""
    pid = json.loads((LAB / "pids").read_text())[host]
    subprocess.run(
        ["nsenter", f"--target={pid}", "--net", "ip", "link", "set", "eth0", state], check=True
    )


def find_on(host: str) -> list[str]:
    """Return the command lines of the processes on a host, except the one that holds its
    namespace.
    """
    holder = json.loads((LAB / "pids").read_text())[host]
    namespace = Path(f"/proc/{holder}/ns/net").readlink()
    command_lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            is_there = Path(f"/proc/{process.pid}/ns/net").readlink() == namespace
            if is_there and process.pid != holder and process.status() != psutil.STATUS_ZOMBIE:
                command_lines.append(" ".join(process.cmdline())[:200])
    return command_lines


def main(out: Path, backend: str, host: str) -> None:
    """Cut the link at the fourth case and print the outcome."""
    (LAB / "far").write_text(FAR)
    (LAB / "far").chmod(0o755)
    os.environ[AGENT] = str(LAB / "far")
    cases = Sweep(
        backends=[backend], sizes=[8, 1024, 65536], operations=["all_reduce", "broadcast"]
    ).cases(3)
    request = make_request(cases, ranks=3, case_timeout_s=5.0)
    launcher = choose_launcher(placement=Placement(oversubscribe=True))
    cut_at = 0.0

    def cut() -> None:
        nonlocal cut_at
        set_link(host, "down")
        cut_at = time.monotonic()

    display = Recorder(cut, when=4)
    with open_store(out, request) as store:
        code = conduct(single_stage(request), store, launcher, display)
    seconds = time.monotonic() - cut_at
    statuses = [record.status for record in read_records(out)]
    gone = wait_until(lambda: not find_on(host), 5 + 15 - seconds)
    remaining = find_on(host)
    info = json.loads((out / "run.json").read_text())
    set_link(host, "up")
    with open_store(out, request) as store:
        again = conduct(single_stage(request), store, launcher, Recorder())
    ended = {
        "code": code,
        "seconds": seconds,
        "kept": statuses,
        "gone": gone,
        "left": remaining,
        "again": again,
    }
    sys.stdout.write(
        json.dumps({**ended, "reason": info["reason"], "launches": info["launches"]}) + "\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
