"""Tests of the watchdog: exact hangs with an injected clock, and real texts of launchers."""

from collections.abc import Iterable

import pytest

from commbench.launch.watchdog import GAP_S, Hang, Watchdog, blame_exit
from commbench.launch.wire import Heartbeat, LastWords

TIMEOUT = 10.0
#: Two ranks that poll burn so much CPU between two heartbeats, in ms.
POLLING = 500


class Play:
    """A launch of ``ranks`` ranks with heartbeats each half second, in made-up time."""

    def __init__(self, ranks: int, **options: object) -> None:
        self.now = 0.0
        self.states: dict[int, str] = {}
        self.counts = dict.fromkeys(range(ranks), (0, 0, -1))
        self.cpu_ms = dict.fromkeys(range(ranks), 0)
        self.watchdog = Watchdog(
            ranks,
            TIMEOUT,
            now=0.0,
            state_of=lambda _host, pid: self.states.get(pid - 100),
            **options,  # type: ignore[arg-type]
        )

    def beat(self, rank: int, cpu_ms: int = POLLING) -> None:
        """Let one rank be heard."""
        entered, left, case = self.counts[rank]
        self.cpu_ms[rank] += cpu_ms
        heartbeat = Heartbeat(
            rank=rank, host=f"n{rank}", pid=100 + rank, entered=entered, left=left, cpu_ms=self.cpu_ms[rank], case=case
        )
        self.watchdog.heartbeat(heartbeat, self.now)

    def go_on(self, seconds: float, *, silent: Iterable[int] = (), idle: Iterable[int] = ()) -> Hang | None:
        """Let time pass; return the first hang that is noticed."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for rank in self.counts:
                if rank not in set(silent):
                    self.beat(rank, 1 if rank in set(idle) else POLLING)
            hang = self.watchdog.stuck(self.now)
            if hang:
                return hang
        return None


def test_progress_of_any_rank_keeps_it_quiet() -> None:
    """See no hang as long as one counter moves."""
    play = Play(2)
    for step in range(10):
        play.counts[1] = (step, step, 0)
        assert play.go_on(TIMEOUT - 1) is None


def test_a_hang_is_noticed_once_the_timeout_is_over() -> None:
    """Wait for the whole timeout, and not much longer."""
    play = Play(2)
    assert play.go_on(TIMEOUT) is None
    assert play.go_on(1.5) is not None


def test_frames_and_cases_are_progress() -> None:
    """Count what rank 0 reports as progress."""
    play = Play(2)
    play.go_on(TIMEOUT - 1)
    play.watchdog.progress(play.now)
    assert play.go_on(TIMEOUT - 1) is None
    play.watchdog.case(play.now)
    assert play.go_on(TIMEOUT - 1) is None


def test_starting_may_take_longer_than_a_case() -> None:
    """Use the start-up timeout before the first case and the case timeout after."""
    play = Play(2, startup_timeout=60)
    assert play.go_on(50) is None
    play.watchdog.case(play.now)
    assert play.go_on(TIMEOUT + 1) is not None


def test_the_silent_rank_is_to_blame() -> None:
    """Blame the rank that is not heard, although another is further behind."""
    play = Play(3)
    play.counts[2] = (5, 5, 0)
    play.go_on(1)
    play.counts[0] = (4, 4, 0)
    hang = play.go_on(30, silent=[2])
    assert Hang(rank=2, host="n2", text="rank 2 on host n2 is silent") == hang


def test_a_rank_never_heard_is_to_blame() -> None:
    """Blame a rank whose host has not come up."""
    hang = Play(2).go_on(30, silent=[1])
    assert Hang(rank=1, host="", text="rank 1 is silent since the start") == hang


def test_a_rank_known_otherwise_has_a_host_before_its_first_heartbeat() -> None:
    """Use what the session says of its ranks."""
    play = Play(2)
    play.watchdog.introduce(1, "n1", 101)
    hang = play.go_on(30, silent=[1])
    assert Hang(rank=1, host="n1", text="rank 1 on host n1 is silent since the start") == hang


def test_a_silent_host_names_all_its_ranks() -> None:
    """Name the others that are as silent."""
    play = Play(4)
    play.go_on(1)
    hang = play.go_on(30, silent=[2, 3])
    assert hang is not None
    assert "rank 2 on host n2 is silent (as is rank 3)" == hang.text


def test_a_stopped_process_is_to_blame_even_if_all_are_equally_far() -> None:
    """Believe the process state before anything else."""
    play = Play(2)
    play.go_on(1)
    play.states[0] = "T"
    hang = play.go_on(30)
    assert Hang(rank=0, host="n0", text="rank 0 on host n0 is stopped") == hang


def test_the_rank_furthest_behind_is_to_blame() -> None:
    """Blame who has entered fewest repetitions, not who waits for it."""
    play = Play(3)
    play.counts = {0: (8, 7, 2), 1: (7, 7, 2), 2: (8, 7, 2)}
    hang = play.go_on(30)
    assert Hang(rank=1, host="n1", text="rank 1 on host n1 is furthest behind") == hang


def test_an_earlier_case_is_further_behind_than_a_smaller_count() -> None:
    """Compare the case first."""
    play = Play(2)
    play.counts = {0: (9, 9, 1), 1: (8, 7, 2)}
    hang = play.go_on(30)
    assert hang is not None
    assert 0 == hang.rank


def test_among_equals_the_idle_one_is_to_blame() -> None:
    """Tell by CPU time since the last progress who does not poll."""
    play = Play(3)
    play.go_on(1)
    hang = play.go_on(30, idle=[1])
    assert Hang(rank=1, host="n1", text="rank 1 on host n1 is idle while the others wait for it") == hang


@pytest.mark.parametrize(("idle", "polls"), [([], True), ([1], False)], ids=["all poll", "waiting sleeps"])
def test_nobody_is_blamed_without_evidence(idle: list[int], polls: bool) -> None:
    """Say so where CPU times are equal, or mean nothing because a library sleeps while it waits."""
    play = Play(2)
    play.watchdog.case(0.0, polls=polls)
    hang = play.go_on(30, idle=idle)
    assert hang is not None
    assert (None, "all ranks are alive and equally far; none can be told to be the cause") == (hang.rank, hang.text)


def test_a_launch_that_is_never_heard_is_hung() -> None:
    """Name no rank where none has come up."""
    hang = Play(2).go_on(30, silent=[0, 1])
    assert hang is not None
    assert hang.rank is None
    assert "no rank has been heard of" in hang.text


def test_time_in_which_the_conductor_was_stopped_does_not_count() -> None:
    """Notice no hang when the conductor itself has been away, however long."""
    play = Play(2)
    play.go_on(1)
    play.now += 20 * GAP_S
    assert play.watchdog.stuck(play.now) is None
    assert play.go_on(TIMEOUT - 2) is None
    assert play.go_on(3) is not None


def test_processes_are_known_by_rank() -> None:
    """Remember the process of every rank that was heard."""
    play = Play(2)
    play.go_on(1)
    assert {0: 100, 1: 101} == play.watchdog.pids


# ------------------------------------------------------------------------------------------- how a launch has ended

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
        (OPENMPI_SIGNAL, "rank 1 on host n1 was killed by signal 9 (killed); the system may have run out of memory"),
        (OPENMPI_SIGNAL.replace("9", "11"), "rank 1 on host n1 was killed by signal 11 (segmentation fault)"),
        (OPENMPI_ABORT, "rank 1 aborted MPI"),
        (TORCHRUN.format(code=7), "rank 1 left with exit status 7"),
        (TORCHRUN.format(code=-9), "rank 1 was killed by signal 9 (killed); the system may have run out of memory"),
        (MPICH, "rank 1 on host n1 was killed by signal 9 (killed); the system may have run out of memory"),
        (SRUN, "rank 1 on host n1 was killed by signal 9 (killed); the system may have run out of memory"),
        (SRUN.replace("Killed", "Segmentation fault (core dumped)", 1), SEGFAULT),
        (SRUN.replace("Killed", "Exited with exit code 7", 1).replace(": Killed", ": Terminated"), SRUN_EXIT),
    ],
)
def test_the_launcher_names_the_rank(stderr: str, expected: str) -> None:
    """Read the messages of real launchers."""
    assert (1, expected) == blame_exit(stderr.splitlines(), [], 1, {1: 4146})


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


def test_the_rank_at_the_other_end_is_to_blame_and_not_the_one_that_lost_it() -> None:
    """See through mpirun, which blames the first to notice that a rank on another host is gone."""
    lines = OPENMPI_PEER.splitlines()
    text = "rank 1 on host n1 has died: others lost their connection to it"
    assert (1, text) == blame_exit(lines, [], 14, hosts={0: "n0", 1: "n1"})
    assert (None, text.replace("rank 1", "a rank")) == blame_exit(lines, [], 14, hosts={0: "n0", 1: "n1", 2: "n1"})
    assert 1 == blame_exit([*lines, *OPENMPI_SIGNAL.splitlines()], [], 14)[0]


def test_torchrun_may_notice_the_victim_first() -> None:
    """Blame the killed rank in the list of failures, not the one whose error torchrun calls the root cause."""
    entry = "  rank      : {} (local_rank: {}) \n  exitcode  : {} (pid: 4146)\n"
    failures = f"Failures:\n{entry.format(1, 1, -9)}Root Cause (first observed failure):\n{entry.format(0, 0, 1)}"
    victim = words(0, "RuntimeError: Read error [127.0.0.1]:34704: Connection reset by peer.")
    assert 1 == blame_exit(failures.splitlines(), [victim], 1)[0]
    assert 0 == blame_exit(failures.splitlines(), [words(0, "ValueError: boom")], 1)[0]
    terminated = failures.replace("-9", "-15")
    assert 0 == blame_exit(terminated.splitlines(), [], 1)[0]


def words(rank: int, text: str) -> LastWords:
    """What a rank said."""
    return LastWords(rank=rank, host=f"n{rank}", case=0, text=text)


def test_what_a_rank_says_is_better_than_an_exit_status() -> None:
    """Quote the rank that raised."""
    blamed = blame_exit(OPENMPI_ABORT.splitlines(), [words(1, "ValueError: boom")], 1)
    assert (1, "rank 1 on host n1 raised ValueError: boom") == blamed


def test_a_killed_rank_is_to_blame_before_the_partners_that_complain() -> None:
    """See through the victim's error, which comes first."""
    victim = words(0, "RuntimeError: Connection closed by peer [127.0.0.1]:4711")
    assert 1 == blame_exit(OPENMPI_SIGNAL.splitlines(), [victim], 137)[0]


def test_a_rank_that_lost_its_partner_is_not_to_blame_for_another_error() -> None:
    """Prefer the error that is not about a lost connection, and an exit status to a victim."""
    victim = words(0, "RuntimeError: Broken pipe")
    assert 1 == blame_exit([], [victim, words(1, "MemoryError: ")], 1)[0]
    assert 1 == blame_exit(OPENMPI_EXIT.splitlines(), [victim], 7)[0]
    assert 0 == blame_exit([], [victim], 1)[0]


def test_an_unknown_end_quotes_the_last_line() -> None:
    """Say what is known where no rank can be named."""
    expected = (None, "the launcher ended with exit status 66: prterun was unable to find the executable")
    assert expected == blame_exit(["prterun was unable to find the executable", "------"], [], 66)
    assert (None, "the launcher ended with exit status 3") == blame_exit([], [], 3)
