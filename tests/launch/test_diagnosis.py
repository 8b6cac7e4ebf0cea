"""Tests of the diagnosis of a failed launch, on real texts of launchers."""

import os
from pathlib import Path

import pytest

from commbench.findings import Finding
from commbench.launch.diagnosis import Diagnosis, MemoryKills, diagnose_exit
from commbench.launch.events import RankError

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
SEGFAULT = "rank 1 on host n1 was killed by signal 11 (segmentation fault)"
SRUN_EXIT = "rank 1 on host n1 left with exit status 7"


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (OPENMPI_EXIT, "rank 1 left with exit status 7"),
        (
            OPENMPI_SIGNAL,
            (
                "rank 1 on host n1 was killed by signal 9 (killed); the system may have run out of"
                " memory"
            ),
        ),
        (
            OPENMPI_SIGNAL.replace("9", "11"),
            "rank 1 on host n1 was killed by signal 11 (segmentation fault)",
        ),
        (OPENMPI_ABORT, "rank 1 left with exit status 1"),
        (TORCHRUN.format(code=7), "rank 1 left with exit status 7"),
        (
            TORCHRUN.format(code=-9),
            "rank 1 was killed by signal 9 (killed); the system may have run out of memory",
        ),
        (
            MPICH,
            (
                "rank 1 on host n1 was killed by signal 9 (killed); the system may have run out of"
                " memory"
            ),
        ),
        (
            SRUN,
            (
                "rank 1 on host n1 was killed by signal 9 (killed); the system may have run out of"
                " memory"
            ),
        ),
        (SRUN.replace("Killed", "Segmentation fault (core dumped)", 1), SEGFAULT),
        (
            SRUN.replace("Killed", "Exited with exit code 7", 1).replace(
                ": Killed", ": Terminated"
            ),
            SRUN_EXIT,
        ),
    ],
)
def test_the_launcher_names_the_rank(stderr: str, expected: str) -> None:
    """Find the rank and the reason in messages of real launchers."""
    diagnosis = diagnose_exit(stderr.splitlines(), [], 1, {1: ("n1", 4146)})
    assert (1, expected) == (diagnosis.rank, str(diagnosis.reason))
    assert str(diagnosis.reason).endswith(diagnosis.state)


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
def test_hydra_names_a_process_of_a_host(
    processes: dict[int, tuple[str, int]], rank: int | None
) -> None:
    """Find the rank of a process id only if host and id are unique."""
    assert rank == diagnose_exit(MPICH.splitlines(), [], 1, processes).rank


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


def test_the_rank_that_closed_a_socket_failed_not_the_rank_that_found_it_closed() -> None:
    """Name the only rank that reports no lost connection; of several name none."""
    lines = OPENMPI_SOCKET.splitlines()
    diagnosis = diagnose_exit(lines, [], 14, {0: ("n0", 1), 1: ("n1", 2)})
    assert (1, "n1", "rank 1 on host n1 has died: others lost their connection to it") == (
        diagnosis.rank,
        diagnosis.host,
        str(diagnosis.reason),
    )
    diagnosis = diagnose_exit(lines, [], 14, {0: ("n0", 1), 1: ("n1", 2), 2: ("n1", 3)})
    assert (None, "", "a rank has died: others lost their connection to it") == (
        diagnosis.rank,
        diagnosis.host,
        str(diagnosis.reason),
    )
    assert 1 == diagnose_exit([*lines, *OPENMPI_SIGNAL.splitlines()], [], 14).rank


def test_the_rank_at_the_other_end_failed_not_the_rank_that_lost_it() -> None:
    """Name the lost rank, not the rank that reported the loss."""
    lines = OPENMPI_PEER.splitlines()
    text = "rank 1 on host n1 has died: others lost their connection to it"
    diagnosis = diagnose_exit(lines, [], 14, {0: ("n0", 1), 1: ("n1", 2)})
    assert (1, text) == (diagnosis.rank, str(diagnosis.reason))
    diagnosis = diagnose_exit(lines, [], 14, {0: ("n0", 1), 1: ("n1", 2), 2: ("n1", 3)})
    assert (None, text.replace("rank 1", "a rank")) == (diagnosis.rank, str(diagnosis.reason))
    assert 1 == diagnose_exit([*lines, *OPENMPI_SIGNAL.splitlines()], [], 14).rank


def test_torchrun_may_notice_the_victim_first() -> None:
    """Name the killed rank in the list of failures, not the one that torchrun calls the root
    cause.
    """
    entry = "  rank      : {} (local_rank: {}) \n  exitcode  : {} (pid: 4146)\n"
    failures = (
        f"Failures:\n{entry.format(1, 1, -9)}Root Cause (first observed"
        f" failure):\n{entry.format(0, 0, 1)}"
    )
    victim = error(0, "RuntimeError: Read error [127.0.0.1]:34704: Connection reset by peer.")
    assert 1 == diagnose_exit(failures.splitlines(), [victim], 1).rank
    assert 0 == diagnose_exit(failures.splitlines(), [error(0, "ValueError: boom")], 1).rank
    terminated = failures.replace("-9", "-15")
    assert 0 == diagnose_exit(terminated.splitlines(), [], 1).rank


def error(rank: int, text: str) -> RankError:
    """Return the error report of a rank from ``type: message``."""
    kind, _, message = text.partition(": ")
    return RankError(rank=rank, host=f"n{rank}", case=0, error=kind, message=message)


def test_the_error_of_a_rank_comes_before_an_exit_status() -> None:
    """Prefer the error that a rank raised to an exit status."""
    diagnosis = diagnose_exit(OPENMPI_ABORT.splitlines(), [error(1, "ValueError: boom")], 1)
    reason = Finding(
        code="rank_raised", subject="rank 1 on host n1", numbers={"error": "ValueError: boom"}
    )
    assert Diagnosis(rank=1, host="n1", state="raised ValueError: boom", reason=reason) == diagnosis


def test_a_killed_rank_comes_before_partners_that_raise() -> None:
    """Prefer a killed rank to a partner's connection error."""
    victim = error(0, "RuntimeError: Connection closed by peer [127.0.0.1]:4711")
    assert 1 == diagnose_exit(OPENMPI_SIGNAL.splitlines(), [victim], 137).rank


def test_a_lost_connection_comes_after_another_error() -> None:
    """Prefer another error or an exit status to a lost connection."""
    victim = error(0, "RuntimeError: Broken pipe")
    assert 1 == diagnose_exit([], [victim, error(1, "MemoryError: ")], 1).rank
    assert 1 == diagnose_exit(OPENMPI_EXIT.splitlines(), [victim], 7).rank
    assert 0 == diagnose_exit([], [victim], 1).rank


def test_an_unknown_end_quotes_the_last_line() -> None:
    """Quote the exit status and the last line if no rank can be named."""
    reason = "the launcher ended with exit status 66: prterun was unable to find the program"
    assert reason == str(
        diagnose_exit(["prterun was unable to find the program", "------"], [], 66).reason
    )
    assert "the launcher ended with exit status 3" == str(diagnose_exit([], [], 3).reason)


OPENMPI_LOST = """
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-host0-107@0,0] on node host0
  Remote daemon: [prterun-host0-107@0,2] on node host2
"""
SILENT = Diagnosis(
    rank=2,
    host="host2",
    state="is silent",
    reason=Finding.stated("host host2 (rank 2) is silent"),
    is_lost=True,
)


def test_a_silent_rank_comes_before_partners_that_raise() -> None:
    """Prefer a rank without heartbeats to partners that lost it, but not to another error."""
    victim = error(0, "RuntimeError: Connection closed by peer")
    assert SILENT == diagnose_exit(OPENMPI_EXIT.splitlines(), [victim], 1, silent=SILENT)
    assert 1 == diagnose_exit([], [error(1, "ValueError: boom")], 1, silent=SILENT).rank


def test_a_host_whose_daemon_is_lost_is_named() -> None:
    """Name the host whose daemon mpirun lost, and its rank if known."""
    assert SILENT == diagnose_exit(OPENMPI_LOST.splitlines(), [], 1, silent=SILENT)
    diagnosis = diagnose_exit(OPENMPI_LOST.splitlines(), [], 1)
    assert ("host2", "mpirun has lost its daemon on host host2") == (
        diagnosis.host,
        str(diagnosis.reason),
    )


@pytest.mark.parametrize(
    ("before", "after", "hint"), [(3, 4, ", by the kernel for"), (3, 3, ", not for lack of")]
)
def test_a_kill_for_lack_of_memory_is_distinguished_from_others(
    tmp_path: Path, before: int, after: int, hint: str
) -> None:
    """Use this host's kernel counter of memory kills; name no cause on other hosts."""
    vmstat = tmp_path / "vmstat"
    vmstat.write_text(f"pgfault 7\noom_kill {before}\n")
    memory = MemoryKills(vmstat)
    vmstat.write_text(f"pgfault 9\noom_kill {after}\n")
    host, output = os.uname().nodename, OPENMPI_SIGNAL
    diagnosis = diagnose_exit(
        output.replace("n1", host).splitlines(), [], 1, is_out_of_memory=memory.is_out_of_memory
    )
    assert hint in str(diagnosis.reason)
    diagnosis = diagnose_exit(output.splitlines(), [], 1, is_out_of_memory=memory.is_out_of_memory)
    assert str(diagnosis.reason).endswith("; the system may have run out of memory")


def test_a_kernel_that_does_not_count_leaves_it_open(tmp_path: Path) -> None:
    """Return None if the kernel does not count memory kills."""
    assert MemoryKills(tmp_path / "absent").is_out_of_memory("") is None
    (tmp_path / "vmstat").write_text("pgfault 7\n")
    assert MemoryKills(tmp_path / "vmstat").is_out_of_memory("") is None


def test_an_exit_is_explained_where_the_launcher_says_more() -> None:
    """Add the cause of an exit status if the launcher's output shows it."""
    lines = [*OPENMPI_EXIT.splitlines(), "/usr/bin/python: No module named commbench"]
    expected = (
        "rank 1 left with exit status 7: commbench is not installed for the Python that the ranks"
        " run; "
    )
    assert str(diagnose_exit(lines, [], 7).reason).startswith(expected)
