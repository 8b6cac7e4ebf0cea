"""Tests of thread stacks: reported by a rank, or parsed from an interpreter's dump."""

import sys

import pytest
from conducting import CASES, run
from launching import finished, make_request

from commbench.launch import supervisor
from commbench.launch.clues import describe_place
from commbench.launch.heartbeat import stack_in

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
def test_the_thread_that_died_is_read(threads):
    """Parse the crashed thread from a real segmentation fault."""
    script = CRASH.format(harm="signal.raise_signal(signal.SIGSEGV)", threads=threads)
    process = finished(sys.executable, "-c", script)
    assert process.returncode < 0
    assert "dying" == stack_in(process.stderr.splitlines())[0].rpartition(" ")[2]


def test_files_are_named_without_their_directories():
    """Name a file outside ``sys.path`` by its last part; leave a relative path as it is."""
    dump = ["Current thread 0x1 (most recent call first):"]
    dump += [f'  File "{file}", line 3 in f' for file in ("/absent/here/hook.py", "here/hook.py")]
    assert ["hook.py:3 in f", "here/hook.py:3 in f"] == stack_in(dump)


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
def test_what_a_thread_describe_place(stack, expected):
    """Describe a thread by its first meaningful frame, else the innermost."""
    assert expected == describe_place(stack)


#: Both ranks report their stacks on SIGUSR1; rank 1 is silent before.
STACKED = """
import signal
from commbench.launch.events import Stack
def report(*_):
    for rank in (0, 1):
        say(Stack(rank=rank, host="n0", thread="MainThread", stack=["a.py:1 in wait"]))
signal.signal(signal.SIGUSR1, report)
session(); begin(0)
say(Heartbeat(rank=0, host="n0", pid=os.getpid(), entered=1, left=0, cpu_ms=0, case=0))
time.sleep(600)
"""


@pytest.mark.usefixtures("mark")
def test_ranks_of_a_launcher_that_forwards_no_signals_report_their_stacks(tmp_path, monkeypatch):
    """Ask the ranks on this host themselves."""
    monkeypatch.setattr(supervisor, "STACKS_S", 30.0)
    request = make_request(CASES, case_timeout_s=0.5)
    info = run(tmp_path, STACKED, request, fail_fast=True)[1]
    others = info["launches"][0]["failed_rank"]["others"]
    assert [[0]] == [place["ranks"] for place in others]
