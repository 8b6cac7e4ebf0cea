"""Tests of the watchdog: hangs at exact times of a simulated clock."""

from collections.abc import Iterable, Sequence

import pytest

from commbench.errors import Reason
from commbench.launch.diagnosis import Diagnosis
from commbench.launch.events import Heartbeat
from commbench.launch.watchdog import GAP_S, Watchdog

TIMEOUT = 10.0
#: Two ranks that poll burn so much CPU between two heartbeats, in ms.
POLLING = 500


class Play:
    """Simulates a launch of ``ranks`` ranks with heartbeats every half second."""

    def __init__(self, ranks: int, hosts: Sequence[str] = (), **options: object) -> None:
        self.now = 0.0
        self.hosts = hosts or [f"n{rank}" for rank in range(ranks)]
        self.states: dict[int, str] = {}
        self.counts = dict.fromkeys(range(ranks), (0, 0, -1))
        self.cpu_ms = dict.fromkeys(range(ranks), 0)
        self.watchdog = Watchdog(
            ranks,
            TIMEOUT,
            now=0.0,
            state_of=lambda _host, pid: self.states.get(pid - 100),
            **{"here": "n0", **options},  # type: ignore[arg-type]
        )

    def beat(self, rank: int, cpu_ms: int = POLLING) -> None:
        """Deliver one rank's heartbeat."""
        entered, left, case = self.counts[rank]
        self.cpu_ms[rank] += cpu_ms
        heartbeat = Heartbeat(
            rank=rank,
            host=self.hosts[rank],
            pid=100 + rank,
            entered=entered,
            left=left,
            cpu_ms=self.cpu_ms[rank],
            case=case,
        )
        self.watchdog.heartbeat(heartbeat, self.now)

    def go_on(
        self, seconds: float, *, silent: Iterable[int] = (), idle: Iterable[int] = ()
    ) -> Diagnosis | None:
        """Advance the time; return the first hang detected."""
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
    """Detect no hang while any counter changes."""
    play = Play(2)
    for step in range(10):
        play.counts[1] = (step, step, 0)
        assert play.go_on(TIMEOUT - 1) is None


def test_a_hang_is_noticed_once_the_timeout_is_over() -> None:
    """Detect a hang after the whole timeout and not much later."""
    play = Play(2)
    assert play.go_on(TIMEOUT) is None
    assert play.go_on(1.5) is not None


def test_frames_and_cases_are_progress() -> None:
    """Count events of rank 0 as progress."""
    play = Play(2)
    play.go_on(TIMEOUT - 1)
    play.watchdog.progress(play.now)
    assert play.go_on(TIMEOUT - 1) is None
    play.watchdog.case(play.now)
    assert play.go_on(TIMEOUT - 1) is None


def test_starting_may_take_longer_than_a_case() -> None:
    """Use the start-up timeout before the first repetition and the case timeout afterwards."""
    play = Play(2, startup_timeout=60)
    assert play.go_on(50) is None
    play.watchdog.case(play.now)
    assert play.go_on(50) is None
    play.counts = {0: (1, 0, 0), 1: (1, 0, 0)}
    assert play.go_on(TIMEOUT - 1) is None
    assert play.go_on(3) is not None


def test_a_second_case_is_no_start_any_more() -> None:
    """Use the case timeout from the second case on, also without repetitions seen."""
    play = Play(2, startup_timeout=60)
    play.watchdog.case(play.now)
    play.watchdog.case(play.now)
    assert play.go_on(TIMEOUT + 1) is not None


#: The watchdog looks when the timeout is over, and a heartbeat was some moments before.
SILENT = f"has not been heard of for {TIMEOUT:.0f} s"


def stuck(rank: int, subject: str, state: str, host: str = "") -> Diagnosis:
    """Return the diagnosis of one rank without progress."""
    reason = Reason(code="rank_stuck", subject=subject, parameters={"state": state, "others": ""})
    return Diagnosis(rank=rank, host=host, state=state, reason=reason)


def test_the_silent_rank_has_failed() -> None:
    """Name the rank without heartbeats, with its process state, although another is further
    behind.
    """
    play = Play(3, hosts=["n0"] * 3)
    play.counts[2] = (5, 5, 0)
    play.go_on(1)
    play.counts[0] = (4, 4, 0)
    play.states[2] = "R"
    play.go_on(0.5)
    hang = play.go_on(30, silent=[2])
    state = f"{SILENT} although its process runs"
    assert stuck(2, "rank 2 on host n0", state, host="n0") == hang


def test_a_host_that_is_silent_is_lost() -> None:
    """Name another host without heartbeats as lost."""
    play = Play(4, hosts=["n0", "n0", "n1", "n2"])
    play.go_on(1)
    hang = play.go_on(30, silent=[3])
    assert hang is not None
    assert (3, "n2", SILENT, f"host n2 (rank 3) {SILENT}", True) == (
        hang.rank,
        hang.host,
        hang.state,
        str(hang.reason),
        hang.is_lost,
    )


def test_a_silent_host_names_all_its_ranks() -> None:
    """Name every silent rank and host, but no host with a heard rank."""
    play = Play(6, hosts=["n0", "n1", "n1", "n2", "n3", "n3"])
    play.go_on(1)
    hang = play.go_on(30, silent=[1, 2, 3, 4])
    assert hang is not None
    assert f"hosts n1 (ranks 1, 2), n2 (rank 3) {SILENT}".replace("has", "have") == str(hang.reason)


def test_the_host_that_watches_may_be_the_one_cut_off() -> None:
    """Report that this host may be cut off if no other host is heard."""
    play = Play(3)
    play.go_on(1)
    hang = play.go_on(30, silent=[1, 2])
    assert hang is not None
    assert str(hang.reason).endswith("for 10 s; it may be n0 that has lost its network")


def test_a_rank_without_any_heartbeat_has_failed() -> None:
    """Name a rank that never sent a heartbeat."""
    hang = Play(2).go_on(30, silent=[1])
    state = "has not been heard of since the start"
    assert stuck(1, "rank 1", state) == hang


def test_a_rank_known_otherwise_has_a_host_before_its_first_heartbeat() -> None:
    """Take the host of a rank from the session before its first heartbeat."""
    play = Play(2)
    play.watchdog.introduce(1, "n0", 101)
    hang = play.go_on(30, silent=[1])
    assert hang is not None
    assert "rank 1 on host n0 has not been heard of since the start" == str(hang.reason)


def test_a_stopped_process_has_failed_even_if_all_are_equally_far() -> None:
    """Name a stopped process before any other evidence."""
    play = Play(2)
    play.go_on(1)
    play.states[0] = "T"
    hang = play.go_on(30)
    assert stuck(0, "rank 0 on host n0", "is stopped", host="n0") == hang


def test_the_rank_furthest_behind_has_failed() -> None:
    """Name the rank that entered the fewest repetitions."""
    play = Play(3)
    play.counts = {0: (8, 7, 2), 1: (7, 7, 2), 2: (8, 7, 2)}
    hang = play.go_on(30)
    assert hang is not None
    assert (1, "n1", "rank 1 on host n1 is furthest behind") == (
        hang.rank,
        hang.host,
        str(hang.reason),
    )


def test_an_earlier_case_is_further_behind_than_a_smaller_count() -> None:
    """Compare cases before repetitions."""
    play = Play(2)
    play.counts = {0: (9, 9, 1), 1: (8, 7, 2)}
    hang = play.go_on(30)
    assert hang is not None
    assert 0 == hang.rank


def test_among_equals_the_idle_one_has_failed() -> None:
    """Name the rank with the least CPU time since the last progress."""
    play = Play(3)
    play.go_on(1)
    hang = play.go_on(30, idle=[1])
    assert hang is not None
    assert (1, "rank 1 on host n1 is idle while the others wait for it") == (
        hang.rank,
        str(hang.reason),
    )


@pytest.mark.parametrize(
    ("idle", "polls"), [([], True), ([1], False)], ids=["all poll", "waiting sleeps"]
)
def test_no_rank_is_named_without_evidence(idle: list[int], polls: bool) -> None:
    """Name no rank if CPU times are equal, or if the library sleeps while waiting."""
    play = Play(2)
    play.watchdog.case(0.0, polls=polls)
    hang = play.go_on(30, idle=idle)
    assert hang is not None
    assert (None, "all ranks are alive and equally far; none can be told to be the cause") == (
        hang.rank,
        str(hang.reason),
    )


def test_a_launch_without_any_heartbeat_is_hung() -> None:
    """Detect a hang without any heartbeat, and name no rank."""
    hang = Play(2).go_on(30, silent=[0, 1])
    assert hang is not None
    assert hang.rank is None
    assert "no rank has been heard of" in str(hang.reason)


def test_time_in_which_the_conductor_was_stopped_does_not_count() -> None:
    """Ignore time in which the conductor itself was stopped."""
    play = Play(2)
    play.go_on(1)
    play.now += 20 * GAP_S
    assert play.watchdog.stuck(play.now) is None
    assert play.go_on(TIMEOUT - 2) is None
    assert play.go_on(3) is not None
