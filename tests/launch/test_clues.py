"""Tests of the clues to why a launch failed, on real texts of launchers."""

import dataclasses
import os

import pytest

from commbench.collectives.cases import Sweep
from commbench.launch.clues import (
    Clue,
    Evidence,
    exit_clues,
    find_crash_report,
    waiting,
    worst,
)
from commbench.launch.events import MAIN, RankError, Stack
from commbench.launch.launcher_output import find_remedy, find_warning

OPENMPI_EXIT = """
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-4057@1,1]
   Exit code:    7
--------------------------------------------------------------------------"""
OPENMPI_SIGNAL = """
prterun noticed that process rank 1 with PID 4069 on node n1 exited on
signal 9 (Killed).
--------------------------------------------------------------------------"""
OPENMPI_UNFINALIZED = """
prterun has exited due to process rank 1 with PID 25037 on node n1 exiting
improperly. There are three reasons this could occur:
---------------------------------------------------------------------------"""
OPENMPI_ABORT = """
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[40907,1],1]
  Errorcode: 1
"""
TORCHRUN = """
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_06:29:32
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 4146)  (SIGKILL)
  error_file: <N/A>
"""
MPICH = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 4146 RUNNING AT n1
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES"""


SRUN = """
srun: error: n1: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=12.0
slurmstepd-n0: error: *** STEP 12.0 ON n0 CANCELLED AT 2026-11-21T20:13:01 ***
srun: error: n0: task 0: Terminated
srun: error: n2: tasks 2-3: Killed
srun: Force Terminated StepId=12.0
"""


def clue_of(text: str, *errors: RankError, **options: object) -> Clue:
    """Return the clue to the end of a launch with this output and these errors."""
    return worst(exit_clues(text.splitlines(), errors, 7, **options))


def error(rank: int, text: str) -> RankError:
    """Return the error report of a rank."""
    return RankError(rank=rank, host=f"n{rank}", case=0, message=text)


@pytest.mark.parametrize(
    ("stderr", "host", "code", "number"),
    [
        (OPENMPI_EXIT, "", "rank_left", 7),
        (OPENMPI_SIGNAL, "n1", "rank_killed_unknown", 9),
        (OPENMPI_SIGNAL.replace("9", "11"), "n1", "rank_killed", 11),
        (OPENMPI_UNFINALIZED, "n1", "rank_left", 0),
        (OPENMPI_ABORT, "", "rank_left", 1),
        (TORCHRUN.format(code=7), "", "rank_left", 7),
        (TORCHRUN.format(code=-9), "", "rank_killed_unknown", 9),
        (MPICH, "n1", "rank_killed_unknown", 9),
        (SRUN, "n1", "rank_killed_unknown", 9),
        (SRUN.replace("Killed", "Segmentation fault (core dumped)", 1), "n1", "rank_killed", 11),
        (
            SRUN.replace("Killed", "Exited with exit code 7", 1).replace("Killed", "Terminated"),
            "n1",
            "rank_left",
            7,
        ),
    ],
)
def test_the_launcher_names_the_rank(stderr, host, code, number):
    """Find the rank and its end in messages of real launchers."""
    clue = clue_of(stderr, processes={1: ("n1", 4146)})
    assert 1 == clue.rank
    assert host == clue.host
    assert code == clue.code
    assert number in clue.numbers.values()
    assert str(clue.reason).endswith(f" {clue.state}")


@pytest.mark.parametrize(
    ("processes", "rank"),
    [
        ({0: ("n0", 4146), 1: ("n1.cluster", 4146), 2: ("n2", 4146)}, 1),
        ({0: ("n0", 4147), 3: ("login-name", 4146)}, 3),
        ({0: ("n0", 4146), 2: ("n2", 4146)}, None),
        ({}, None),
    ],
    ids=["equal numbers", "another name", "either", "nothing known"],
)
def test_hydra_names_a_process_of_a_host(processes, rank):
    """Find the rank of a process id only if host and id are unique."""
    assert rank == clue_of(MPICH, processes=processes).rank


#: Intel MPI kills the rank that stays, and lists ranks by number.
INTEL = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK {rank} PID 4146 RUNNING AT n{rank}
=   KILLED BY SIGNAL: {signal} (a word)
===================================================================================
"""


@pytest.mark.parametrize(
    ("signals", "rank", "number"),
    [({0: 9, 1: 11}, 1, 11), ({0: 11, 1: 9}, 0, 11), ({0: 9, 1: 9}, None, 9), ({1: 9}, 1, 9)],
)
def test_intel_mpi_lists_the_ranks_that_it_killed(signals, rank, number):
    """Name the rank that another signal ended, and none if all were killed alike."""
    blocks = [INTEL.format(rank=each, signal=signals[each]) for each in signals]
    clue = clue_of("".join(blocks))
    assert (rank, number) == (clue.rank, clue.numbers["signal"])


OPENMPI_PEER = """
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

  Local host: n0
  Local PID:  3040
  Peer host:  n1
--------------------------------------------------------------------------
prterun has exited due to process rank 0 with PID 0 on node n0 calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
"""


OPENMPI_SOCKET = """
[n0:00000] *** An error occurred in Socket closed
[n0:00000] *** reported by process [1611137025,0]
[n0:00000] *** on a NULL communicator
[n0:00000] *** Unknown error
[n0:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[n0:00000] ***    and MPI will try to terminate your MPI job as well)
--------------------------------------------------------------------------
prterun has exited due to process rank 0 with PID 0 on node n0 calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
"""
OPENMPI_LOST = """
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-host0-107@0,0] on node host0
  Remote daemon: [prterun-host0-107@0,2] on node host2
"""
SILENT = Clue(
    kind="silent",
    code="host_silent",
    rank=2,
    host="host2",
    numbers={"hosts": ("host2 (rank 2)",), "since": "for 7 s"},
    is_host_lost=True,
)


@pytest.mark.parametrize("text", [OPENMPI_SOCKET, OPENMPI_PEER])
def test_the_rank_at_the_other_end_failed_not_the_rank_that_lost_it(text):
    """Name the only rank that can have closed a connection; of several name none."""
    processes = {0: ("n0", 1), 1: ("n1", 2)}
    clue = clue_of(text, processes=processes)
    assert (1, "n1", "rank_died") == (clue.rank, clue.host, clue.code)
    clue = clue_of(text, processes={**processes, 2: ("n1", 3)})
    assert (None, "rank_died") == (clue.rank, clue.code)
    assert "rank_killed_unknown" == clue_of(text + OPENMPI_SIGNAL).code


ENTRY = "  rank      : {} (local_rank: {}) \n  exitcode  : {} (pid: 4146)\n"
VICTIM = error(0, "RuntimeError: Read error [127.0.0.1]:34704: Connection reset by peer.")
#: torchrun may notice the victim of a killed rank first.
FAILURES = f"Failures:\n{ENTRY.format(1, 1, -9)}Root Cause (first observed failure):\n"
FAILURES += ENTRY.format(0, 0, 1)


@pytest.mark.parametrize(
    ("text", "errors", "rank"),
    [
        (OPENMPI_ABORT, [error(2, "ValueError: boom")], 2),
        (OPENMPI_SIGNAL, [VICTIM], 1),
        ("", [VICTIM, error(1, "MemoryError: ")], 1),
        (OPENMPI_EXIT, [VICTIM], 1),
        (OPENMPI_ABORT.replace("rank 1", "rank 0") + OPENMPI_UNFINALIZED, [VICTIM], 1),
        ("", [VICTIM], 0),
        (FAILURES, [VICTIM], 1),
        (FAILURES, [error(0, "ValueError: boom")], 0),
        (FAILURES.replace("-9", "-15"), [], 0),
    ],
    ids=[
        "an error before an exit",
        "a death before a victim",
        "an error before a victim",
        "an exit before a victim",
        "a rank that left silently before a victim",
        "a victim alone",
        "a death that was noticed late",
        "an error before that",
        "a rank that torchrun ended",
    ],
)
def test_the_cause_comes_before_what_follows_from_it(text, errors, rank):
    """Name the rank that failed, not its partners."""
    assert rank == clue_of(text, *errors).rank


def test_an_unknown_end_quotes_the_last_line():
    """State the exit status, and the last line, if no rank can be named."""
    clue = clue_of("prterun was unable to find the program\n------")
    assert ("launcher_ended_saying", "prterun was unable to find the program") == (
        clue.code,
        clue.numbers["last_line"],
    )
    assert "launcher_ended" == clue_of("").code
    killed = exit_clues(["started"], [], -9)[0]
    assert ("launcher_killed", 9) == (killed.code, killed.numbers["signal"])


def test_a_silent_host_comes_before_partners_that_raise():
    """Prefer a host without heartbeats to partners that lost it, but not to another error."""
    for text, errors in ((OPENMPI_EXIT, [VICTIM]), (OPENMPI_LOST, [])):
        assert SILENT == worst([SILENT, *exit_clues(text.splitlines(), errors, 1)])
    assert 1 == worst([SILENT, *exit_clues([], [error(1, "ValueError: boom")], 1)]).rank
    assert "host2" == clue_of(OPENMPI_LOST).host
    assert "daemon_lost" == clue_of(OPENMPI_LOST).code
    assert "has not been heard of for 7 s" == SILENT.state


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("oom_kill 4", "rank_killed_memory"),
        ("oom_kill 3", "rank_killed_other"),
        ("", "rank_killed_unknown"),
        (None, "rank_killed_unknown"),
    ],
)
def test_a_kill_for_lack_of_memory_is_distinguished_from_others(root, text, code):
    """Use this host's kernel counter of memory kills, if it has one; name no cause elsewhere."""
    if text is not None:
        (root / "proc").mkdir()
        (root / "proc/vmstat").write_text(f"pgfault 7\n{text}\n")
    here = OPENMPI_SIGNAL.replace("n1", os.uname().nodename)
    assert code == clue_of(here, kills_before=3).code
    assert "rank_killed_unknown" == clue_of(OPENMPI_SIGNAL, kills_before=3).code


def test_an_exit_is_explained_where_the_launcher_says_more():
    """Add the cause of an exit status if the launcher's output shows it."""
    more = "\n/usr/bin/python: No module named commbench"
    assert "rank_left_because" == clue_of(OPENMPI_EXIT + more).code
    assert "ranks_not_started" == clue_of(more).code


DAEMON = """
A daemon failed to report back after being spawned. This could
be due to several factors.

  Local host:    vm
  Remote host:   {host}
  Daemon exit status: 255
"""
BOOTSTRAP = "[mpiexec@vm] Error: Unable to run bstrap_proxy on n8 (pid 7, exit code 65280)"
RESOLVE = "ssh: Could not resolve hostname nosuchhost.invalid: Name or service not known\n"
READ_ONLY = """
PMIx detected a call to mkdir was unable to create the desired directory:

  Directory: /ro/ompi.3524
  Error:     Read-only file system

Please check to ensure you have adequate permissions to perform
"""
SLOTS = """
There are not enough slots available in the system to satisfy the 50
slots that were requested by the application:
"""
EXECUTABLE = """
prterun was unable to launch the specified application as it could not
access an executable:

   Executable: /opt/python
   Node: n1
"""
SHM = """
It appears as if there is not enough space for /dev/shm/sm_segment.vm.0.65b90001.1 (the shared-memory backing
file). It is likely that your MPI job will now either abort or experience
performance degradation.
"""
PORT = (
    "The server socket has failed to listen on any local network address. port: 29555, code: -98,"
    " name: EADDRINUSE"
)


@pytest.mark.parametrize(
    ("output", "code", "named"),
    [
        (RESOLVE + DAEMON.format(host="n9"), "host_unresolved", "nosuchhost.invalid"),
        ("ssh: connect to host 10.9.9.9 port 22: Connection refused", "ssh_refused", "10.9.9.9"),
        ("ssh: connect to host n7 port 22: No route to host", "ssh_unreachable", "No route"),
        ("ssh: connect to host n7 port 22: Connection timed out", "ssh_unreachable", "timed out"),
        ("me@n7: Permission denied (publickey,password).", "ssh_denied", "me@n7"),
        ("Host key verification failed.", "ssh_key_unknown", ""),
        (DAEMON.format(host="n7"), "daemon_not_started", "n7"),
        (BOOTSTRAP, "daemon_not_started", "n8"),
        (SLOTS, "slots_missing", ""),
        (EXECUTABLE, "program_missing", "/opt/python"),
        ("/usr/bin/python: No module named mpi4py", "module_missing", "mpi4py"),
        (PORT, "port_in_use", "29555"),
        ("bind: address already in use", "some_port_in_use", ""),
        (SHM, "shared_memory_full", ""),
        (READ_ONLY, "directory_refused", "/ro/ompi.3524"),
        ("write: No space left on device", "disk_full", ""),
        ("[vm:1] PMIX ERROR: PMIX_ERR_FILE_WRITE_FAILURE in file a.c at line 8", "disk_full", ""),
        ("*** An error occurred in MPI_Init_thread", "mpi_init_failed", "OMPI_MCA_"),
        (
            "[W socket.cpp:764] [c10d] The IPv6 network addresses of (n7, 41975) cannot be retrieved",
            "host_unresolved_here",
            "n7",
        ),
        (
            "[vm:15214] pmix_ifinit: unable to find network interfaces.",
            "loopback_down",
            "",
        ),
    ],
)
def test_an_error_of_a_launcher_has_a_remedy(output, code, named):
    """Find out what a launcher complains of, and name it."""
    remedy = find_remedy(output.splitlines())
    assert code == remedy.code
    assert named in str(remedy)


def test_an_output_without_known_errors_has_no_remedy():
    """Find nothing in other output; warn if ranks could not use shared memory."""
    assert find_remedy(["something else"]) is None
    assert find_warning(SHM.splitlines()) is not None
    assert find_warning(["anything"]) is None


# ------------------------------------------------------------------------------------- evidence

CASE = Sweep(backends=["gloo"], sizes=[8]).cases(4)[0]
PROCESSES = {rank: (f"n{rank}", 100 + rank) for rank in range(4)}
STOPPED = Clue(kind="stopped", code="rank_stopped", rank=1, host="n1")
LOOP = "commbench/timing/loops.py:8 in run"


def stack(rank: int, *frames: str, thread: str = MAIN, inside: bool = True) -> Stack:
    """Return a stack report of a rank."""
    return Stack(rank=rank, host=f"n{rank}", thread=thread, stack=list(frames), inside=inside)


def test_a_failed_rank_has_all_evidence():
    """State rank, process, case and state, and group the other ranks by stack."""
    evidence = Evidence()
    for message in (
        stack(0, LOOP),
        stack(2, LOOP),
        stack(3, LOOP, inside=False),
        stack(3, "x.py:1 in y", thread="t"),
    ):
        evidence.add(message)
    failed = evidence.failed_rank(STOPPED, CASE, PROCESSES, [])
    place = "all_reduce of gloo, at run (commbench/timing/loops.py:8)"
    other = f"synchronising or preparing for {place}"
    assert {
        "rank": 1,
        "host": "n1",
        "pid": 101,
        "case": str(CASE),
        "state": "is stopped",
        "stack": [],
        "others": [{"ranks": [0, 2], "in": place}, {"ranks": [3], "in": other}],
    } == failed
    assert f"in {place}: ranks 0, 2. " in waiting(failed)
    assert {0, 2, 3} == evidence.located
    assert [
        "rank 3 on host n3, thread t, most recent call first:",
        "  x.py:1 in y",
    ] == evidence.lines()[-2:]


def test_the_stack_of_the_failed_rank_has_three_sources():
    """Prefer the stack of an error to a requested one, and that to a crash dump."""
    evidence = Evidence()
    dumped = ["Thread 0x0 (most recent call first):", '  File "lib.py", line 7 in spin']
    raised = dataclasses.replace(error(1, "ValueError: boom"), stack=["mine.py:3 in work"])
    for event, frame in (
        (None, "lib.py:7 in spin"),
        (stack(1, LOOP), LOOP),
        (raised, raised.stack[0]),
    ):
        if event:
            evidence.add(event)
        assert [frame] == evidence.failed_rank(STOPPED, CASE, PROCESSES, dumped)["stack"]


def test_without_a_failed_rank_every_rank_is_among_the_others():
    """List every rank among the others if no rank failed; stacks of before do not count."""
    evidence = Evidence()
    evidence.add(stack(0, LOOP))
    unclear = Clue(kind="unclear", code="no_rank_stands_out")
    failed = evidence.failed_rank(unclear, None, PROCESSES, [])
    assert failed["rank"] is None
    assert failed["pid"] is None
    assert "" == failed["case"]
    assert [0] == failed["others"][0]["ranks"]
    evidence.forget_stacks()
    assert [] == evidence.lines()
    assert "" == waiting(evidence.failed_rank(STOPPED, CASE, PROCESSES, []))


def test_what_a_crash_has_printed_begins_with_its_head():
    """Return a crash report from its first line on."""
    assert [] == find_crash_report(["warning"])
    assert ["Fatal Python error: Aborted", "x"] == find_crash_report(
        ["warning", "Fatal Python error: Aborted", "x"]
    )
