"""Tests of thread stacks: reported by a rank, or parsed from an interpreter's dump."""

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from commbench.launch.clues import describe_place
from commbench.launch.heartbeat import stack_in, stack_of_error, stacks_of_threads


def test_every_other_thread_is_listed() -> None:
    """List all other threads with their frames."""
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="flow")
    thread.start()
    stacks = stacks_of_threads()
    leave.set()
    thread.join()
    assert threading.current_thread().name not in stacks
    assert stacks["flow"][0].startswith("threading.py:")
    assert stacks["flow"][0].endswith(" in wait")


def test_an_error_is_where_it_was_raised() -> None:
    """List the frames of an error, innermost first."""

    def inner() -> None:
        raise ValueError

    with pytest.raises(ValueError) as raised:  # noqa: PT011 - any will do
        inner()
    stack = stack_of_error(raised.value.__traceback__)
    assert ["inner", "test_an_error_is_where_it_was_raised"] == [
        frame.rpartition(" ")[2] for frame in stack
    ][:2]


#: Dies in one thread while another waits; each function has a telling name.
CRASH = """
import faulthandler, os, signal, threading
faulthandler.enable()
def waiting(): threading.Event().wait()
def dying(): {harm}
{threads}
"""
IN_MAIN = "threading.Thread(target=waiting, daemon=True).start()\ndying()"
IN_THREAD = "threading.Thread(target=dying).start()\nwaiting()"


@pytest.mark.parametrize("threads", [IN_MAIN, IN_THREAD], ids=["main", "other"])
def test_the_thread_that_died_is_read(threads: str) -> None:
    """Parse the crashed thread from a real segmentation fault."""
    script = CRASH.format(harm="signal.raise_signal(signal.SIGSEGV)", threads=threads)
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert process.returncode < 0
    assert "dying" == stack_in(process.stderr.splitlines())[0].rpartition(" ")[2]


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (
            [
                "torch/distributed/distributed_c10d.py:9 in all_reduce",
                "commbench/timing/loops.py:8 in run",
            ],
            "all_reduce (torch/distributed/distributed_c10d.py:9)",
        ),
        (
            [
                "torch/distributed/c10d_logger.py:83 in wrapper",
                "commbench/timing/loops.py:8 in run",
            ],
            "run (commbench/timing/loops.py:8)",
        ),
        (["threading.py:1 in wait", "mine.py:7 in load"], "wait (threading.py:1)"),
        ([], "nowhere that is known"),
    ],
)
def test_what_a_thread_describe_place(stack: Sequence[str], expected: str) -> None:
    """Describe a thread by its first meaningful frame, else the innermost."""
    assert expected == describe_place(stack)
