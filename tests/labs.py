"""Emulated clusters for tests: starting them, and making sure that they leave nothing behind."""

import fcntl
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import MARK, find_marked, wait_until

from commbench.lab.plan import DIRECTORY

LAB = (sys.executable, "-m", "commbench", "lab")
SECONDS = 120
#: What a program in the lab uses to start a shell line on another host.
ON = "$COMMBENCH_SSH"
#: Measures flows between hosts, from any host.
FLOWS = (sys.executable, str(Path(__file__).parent / "ranks" / "flows.py"))


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark all processes started from here on; when done, no process, link or directory of a lab may be left."""
    links = psutil.net_if_addrs().keys()
    token = uuid.uuid4().hex
    monkeypatch.setenv(MARK, token)
    yield token
    assert wait_until(lambda: not find_marked(token)), find_marked(token)
    assert links == psutil.net_if_addrs().keys()
    assert not is_left()


def is_left() -> bool:
    """Whether the directory of labs is there although no lab lives."""
    try:
        handle = os.open(DIRECTORY, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
    except FileNotFoundError:
        return False
    except BlockingIOError:  # somebody else's lab
        os.close(handle)
        return False
    return True


def start(
    *command: str, hosts: int = 2, rate: str = "none", flags: tuple[str, ...] = (), **options: object
) -> "subprocess.Popen[str]":
    """Start a lab that runs the command."""
    arguments = [*LAB, "run", "--hosts", str(hosts), "--rate", rate, *flags, "--", *command]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(arguments, text=True, **streams)  # type: ignore[call-overload,no-any-return]


def finish(process: "subprocess.Popen[str]") -> str:
    """Return what a lab wrote; it must have gone well."""
    output, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, output + errors
    return output


def sh(line: str, **options: Any) -> str:
    """Run a shell line on the first host of a lab; return what it wrote."""
    return finish(start("sh", "-c", line, **options))


def rates(*rounds: str, **options: Any) -> list[list[float]]:
    """Return the rates in Mbit/s of each round's flows, such as ``host0:host1 host0:host2``, that send at once."""
    line = "; ".join(" ".join([*FLOWS, flows]) for flows in rounds)
    return [json.loads(text) for text in sh(line, **options).splitlines()]


def wait_for_line(process: "subprocess.Popen[str]", expected: str) -> None:
    """Wait until a lab's command has written a line."""
    assert process.stdout is not None
    assert expected == process.stdout.readline().strip()
