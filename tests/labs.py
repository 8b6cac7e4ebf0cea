"""Emulated clusters for tests, and checks that they leave nothing behind."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import MARK, find_marked, wait_until

from commbench.launch.lab.plan import DIRECTORY

LAB = (sys.executable, "-m", "commbench", "lab")
SECONDS = 120
#: What a program in the lab uses to start a shell line on another host.
ON = "$COMMBENCH_SSH"
#: Measures flows between hosts, from any host.
FLOWS = (sys.executable, str(Path(__file__).parent / "ranks" / "flows.py"))


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark all processes started; fail if a process, link or lab directory remains."""
    links = psutil.net_if_addrs().keys()
    token = uuid.uuid4().hex
    monkeypatch.setenv(MARK, token)
    yield token
    assert wait_until(lambda: not find_marked(token)), find_marked(token)
    assert links == psutil.net_if_addrs().keys()
    assert not is_left()


def is_left() -> bool:
    """Return whether the directory of labs exists without a running lab."""
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
    *command: str,
    hosts: int = 2,
    rate: str = "none",
    flags: tuple[str, ...] = (),
    **options: object,
) -> "subprocess.Popen[str]":
    """Start a lab that runs the command."""
    arguments = [*LAB, "run", "--hosts", str(hosts), "--rate", rate, *flags, "--", *command]
    streams = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **options,
    }
    return subprocess.Popen(arguments, text=True, **streams)  # type: ignore[call-overload,no-any-return]


def finish(process: "subprocess.Popen[str]") -> str:
    """Return the output of a lab that must succeed."""
    output, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, output + errors
    return output


def sh(line: str, **options: Any) -> str:
    """Run a shell line on the first host of a lab; return its output."""
    return finish(start("sh", "-c", line, **options))


def rates(*rounds: str, **options: Any) -> list[list[float]]:
    """Return the rates in Mbit/s of each round's flows, such as ``host0:host1 host0:host2``, that
    send at once.
    """
    line = "; ".join(" ".join([*FLOWS, flows]) for flows in rounds)
    return [json.loads(text) for text in sh(line, **options).splitlines()]


def wait_for_line(process: "subprocess.Popen[str]", expected: str) -> None:
    """Wait until a lab's command has written a line."""
    assert process.stdout is not None
    assert expected == process.stdout.readline().strip()


#: Says when it is there, then counts signals until it is told to end.
COUNTER = """
import signal, sys
awaited = {signal.SIGINT, signal.SIGUSR1, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
seen = 0
print("there", flush=True)
while signal.sigwait(awaited) != signal.SIGTERM:
    seen += 1
    print("seen", seen, flush=True)
sys.exit(10 + seen)
"""


def heed_interrupts() -> None:
    """Restore SIGINT, which a shell's background jobs ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def assert_signals_arrive(process: "subprocess.Popen[str]") -> None:
    """Send signals to `COUNTER`: it receives each once and chooses the exit code."""
    wait_for_line(process, "there")
    for count, number in enumerate((signal.SIGINT, signal.SIGUSR1), start=1):
        process.send_signal(number)
        wait_for_line(process, f"seen {count}")
    process.terminate()
    process.communicate(timeout=SECONDS)
    assert 12 == process.returncode


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
        **streams,  # type: ignore[call-overload]
    )
    os.close(theirs)
    return process, ours
