"""Tests of the watchdog: hangs at exact times of a simulated clock."""

from collections.abc import Iterable, Sequence

import pytest

from commbench.launch.clues import Clue
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
        self.states = {}
        self.counts = dict.fromkeys(range(ranks), (0, 0, -1))
        self.cpu_ms = dict.fromkeys(range(ranks), 0)
        self.watchdog = Watchdog(
            ranks,
            TIMEOUT,
            begun=0.0,
            state_of=lambda _host, pid: self.states.get(pid - 100, ""),
            **{"here": "n0", "timeout": TIMEOUT, **options},
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
    ) -> Clue | None:
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


def test_progress_of_any_rank_keeps_it_quiet():
    """Detect no hang while any counter changes or rank 0 reports; then after the whole timeout."""
    play = Play(2)
    for step in range(10):
        play.counts[1] = (step, step, 0)
        assert play.go_on(TIMEOUT - 1) is None
    for report in (play.watchdog.progress, play.watchdog.case):
        report(play.now)
        assert play.go_on(TIMEOUT - 1) is None
    assert play.go_on(0.5) is None
    assert play.go_on(1.5) is not None


def test_a_rank_that_has_not_begun_hides_no_silent_one():
    """Name the rank whose heartbeats stopped, not one that never sent any."""
    play = Play(3, ["n0", "n0", "n0"], timeout=60)
    play.beat(1)
    play.go_on(20, silent=[0, 1])
    either, heard = (
        play.watchdog.silent(play.now, counts_unheard=counts_unheard)
        for counts_unheard in (True, False)
    )
    assert (0, 1) == (either.rank, heard.rank)


def test_starting_may_take_longer_than_a_case():
    """Use the start-up timeout before the first repetition and the case timeout afterwards, also
    from the second case on.
    """
    play = Play(2, timeout=60)
    assert play.go_on(50) is None
    play.watchdog.case(play.now)
    assert play.go_on(50) is None
    play.counts = {0: (1, 0, 0), 1: (1, 0, 0)}
    assert play.go_on(TIMEOUT - 1) is None
    assert play.go_on(3) is not None
    play = Play(2, timeout=60)
    for _ in range(2):
        play.watchdog.case(play.now)
    assert play.go_on(TIMEOUT + 1) is not None


@pytest.mark.parametrize(
    ("hosts", "counts", "states", "silent", "idle", "expected"),
    [
        ("n0 n0 n0", {0: (4, 4, 0), 2: (5, 5, 0)}, {2: "running"}, [2], [], (2, "n0", False)),
        ("n0 n0 n1 n2", {}, {}, [3], [], (3, "n2", True)),
        ("n0 n1", {}, {0: "stopped"}, [], [], (0, "n0", False)),
        (
            "n0 n1 n2",
            {0: (8, 7, 2), 1: (7, 7, 2), 2: (8, 7, 2)},
            {},
            [],
            [],
            (1, "n1", False),
        ),
        ("n0 n1", {0: (9, 9, 1), 1: (8, 7, 2)}, {}, [], [], (0, "n0", False)),
        ("n0 n1 n2", {}, {}, [], [1], (1, "n1", False)),
        ("n0 n1", {}, {}, [], [], (None, "", False)),
    ],
    ids=[
        "silent rank",
        "lost host",
        "stopped rank",
        "furthest behind",
        "earlier case",
        "idle rank",
        "no evidence",
    ],
)
def test_the_failed_rank_is_named(
    hosts,
    counts,
    states,
    *,
    silent,
    idle,
    expected,
):
    """Name a silent, stopped, late or idle rank, a lost host, and nobody without evidence."""
    play = Play(len(hosts.split()), hosts=hosts.split())
    play.go_on(1)
    play.counts |= counts
    play.go_on(0.5)
    play.states |= states
    hang = play.go_on(30, silent=silent, idle=idle)
    assert expected == (hang.rank, hang.host, hang.is_host_lost)


@pytest.mark.parametrize(
    ("silent", "texts"),
    [([1, 2, 3, 4], ["n1 (ranks 1, 2)", "n2 (rank 3)"]), ([1, 2, 3, 4, 5], ["it may be n0"])],
)
def test_silent_hosts_are_named(silent, texts):
    """Name each silent host but those with a heard rank, or the host that watches if alone."""
    play = Play(6, hosts=["n0", "n1", "n1", "n2", "n3", "n3"])
    play.go_on(1)
    hang = play.go_on(30, silent=silent)
    for text in texts:
        assert text in str(hang.reason)


@pytest.mark.parametrize(("silent", "rank"), [([1], 1), ([0, 1], None)])
def test_a_rank_without_any_heartbeat_has_failed(silent, rank):
    """Name a rank that never sent a heartbeat, with the host of the session; nobody if none did."""
    play = Play(2)
    play.watchdog.introduce(1, "n0", 101)
    hang = play.go_on(30, silent=silent)
    assert rank == hang.rank
    assert (rank == 1) == ("rank 1 on host n0" in str(hang.reason))


def test_ranks_that_are_all_silent_are_neither_alive_nor_behind():
    """Accuse none of them: how far they are is not known since they were heard last."""
    play = Play(2)
    play.counts[1] = (1, 0, 0)
    play.go_on(1)
    hang = play.go_on(30, silent=[0, 1])
    assert (None, "no_rank_heard") == (hang.rank, hang.code)


def test_no_rank_is_named_where_waiting_sleeps():
    """Name no idle rank if the library sleeps while waiting."""
    play = Play(2)
    play.watchdog.case(0.0, polls=False)
    hang = play.go_on(30, idle=[1])
    assert hang.rank is None


def test_time_in_which_the_conductor_was_stopped_does_not_count():
    """Ignore time in which the conductor itself was stopped."""
    play = Play(2)
    play.go_on(1)
    play.now += 20 * GAP_S
    assert play.watchdog.stuck(play.now) is None
    assert play.go_on(TIMEOUT - 2) is None
    assert play.go_on(3) is not None
