"""Emulated clusters for tests, and checks that they leave nothing behind."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import marked_environment

LAB = ("-m", "commbench", "lab")
SECONDS = 120
#: What a program in the lab uses to start a shell line on another host.
ON = "$COMMBENCH_SSH"
#: Measures flows between hosts, from any host.
FLOWS = (sys.executable, str(Path(__file__).parent / "ranks" / "flows.py"))


@pytest.fixture
def mark(monkeypatch):
    """Mark all processes started; fail if a process or link remains."""
    links = psutil.net_if_addrs().keys()
    yield from marked_environment(monkeypatch)
    assert links == psutil.net_if_addrs().keys()


def begin(*words: str, **options: Any) -> "subprocess.Popen[str]":
    """Start ``commbench lab`` without input; its output is kept."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *LAB, *words], text=True, **{**streams, **options})


def lab(*words: str, code: int = 0, text: str | None = None, **options: Any) -> str:
    """Run ``commbench lab`` to its end; return its stdout, or stderr for an expected error."""
    if text is not None:
        options["stdin"] = subprocess.PIPE
    process = begin(*words, **options)
    output, errors = process.communicate(text, timeout=SECONDS)
    assert code == process.returncode, output + errors
    return errors if code else output


def running(*command: str, hosts: int = 2, rate: str = "none", flags: Any = ()) -> list[str]:
    """Return the words that run a command on the first host of a lab."""
    return ["run", "--hosts", str(hosts), "--rate", rate, *flags, "--", *command]


def rates(*rounds: str, **options: Any) -> list[list[float]]:
    """Return the rates in Mbit/s of each round's flows, such as ``host0:host1 host0:host2``, that
    send at once.
    """
    line = "; ".join(" ".join([*FLOWS, flows]) for flows in rounds)
    output = lab(*running("sh", "-c", line, **options))
    return [json.loads(text) for text in output.splitlines()]


def wait_for_line(process: "subprocess.Popen[str]", expected: str) -> None:
    """Wait until a lab's command has written a line."""
    assert expected == process.stdout.readline().strip()


def heed_interrupts() -> None:
    """Restore SIGINT, which a shell's background jobs ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_in_terminal(*command: str, **options: object) -> "tuple[subprocess.Popen[str], int]":
    """Start a command in a terminal; return it with the terminal's descriptor."""
    ours, theirs = os.openpty()

    def take_terminal() -> None:
        heed_interrupts()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **options}
    process = subprocess.Popen(
        command,
        text=True,
        start_new_session=True,
        preexec_fn=take_terminal,  # noqa: PLW1509 - the tests have one thread here
        **streams,
    )
    os.close(theirs)
    return process, ours
