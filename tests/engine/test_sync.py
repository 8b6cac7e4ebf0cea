"""Tests of the start methods that synchronise ranks."""

import time
from collections.abc import Callable

import pytest
from threads import ThreadControl

from commbench.engine.timing.clocks import GlobalClock
from commbench.engine.timing.sync import (
    MAXIMUM_SLACK_NS,
    MINIMUM_SLACK_NS,
    OVERSUBSCRIBED_SLACK_NS,
    Synchroniser,
    choose_method,
)


class Recording(ThreadControl):
    """A rank that records requests and never waits."""

    def __init__(
        self, rank: int = 0, size: int = 2, tell: Callable[[int], int] = lambda value: value
    ) -> None:
        self.rank = rank
        self.size = size
        self.asked = []
        self._tell = tell

    def gather(self, value: object) -> list[object]:
        """Return the answers of all ranks."""
        return [value] * self.size

    def broadcast(self, value: object) -> object:
        """Return the given answer."""
        return value

    def broadcast_int(self, value: int, *, patient: bool = False) -> int:
        """Record the value and return rank 0's."""
        self.asked.append(("tell", patient))
        return self._tell(value)

    def barrier(self, *, patient: bool = False) -> None:
        """Record the barrier."""
        self.asked.append(("meet", patient))

    def exchange(self, target: int, source: int) -> None:
        """Record the partners."""
        self.asked.append((target, source))


def rounds(rank: int, size: int) -> list[tuple[int, int]]:
    """Return the partners of a rank in a dissemination barrier."""
    control = Recording(rank, size)
    assert not Synchroniser(control, "dissemination").align()
    return control.asked


@pytest.mark.parametrize("size", range(1, 34))
def test_dissemination_reaches_everybody(size):
    """Inform every rank of every other in ceil(log2(size)) rounds."""
    partners = [rounds(rank, size) for rank in range(size)]
    assert {(size - 1).bit_length()} == {len(pairs) for pairs in partners}
    informed = [{rank} for rank in range(size)]
    for step in range((size - 1).bit_length()):
        heard = [set(of_rank) for of_rank in informed]
        for rank in range(size):
            target = partners[rank][step][0]
            assert rank == partners[target][step][1]
            heard[target] |= informed[rank]
        informed = heard
    assert all(len(of_rank) == size for of_rank in informed)


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("yielding", [False, True])
def test_nobody_starts_before_the_instant(patient, yielding):
    """Return at the agreed instant or later, polling, yielding or sleeping; mark a repetition as
    late if its instant has passed.
    """
    passed = Recording(tell=lambda _: time.perf_counter_ns() - 1)
    assert Synchroniser(passed, "round-time").align()
    instants = []

    def tell(value: int) -> int:
        instants.append(value)
        return value

    late = Synchroniser(
        Recording(tell=tell),
        "round-time",
        slack_ns=20_000_000,
        yielding=yielding,
        patient=patient,
    ).align()
    returned = time.perf_counter_ns()
    assert late or returned >= instants[0]


class Ahead(GlobalClock):
    """A clock one hour ahead of rank 0's that counts its comparisons."""

    compared = 0

    def to_local(self, instant_ns: int) -> int:
        """Add one hour."""
        return instant_ns + 3600 * 10**9

    def refresh(self) -> None:
        """Count the comparison."""
        self.compared += 1


def test_an_instant_is_of_rank_0_s_clock():
    """Wait for the local time of rank 0's instant, and time broadcasts on rank 0's clock."""

    def tell(_: int) -> int:
        return time.perf_counter_ns() - 3600 * 10**9 + 5_000_000

    sync = Synchroniser(Recording(tell=tell), "round-time", slack_ns=10**9, clock=Ahead())
    before = time.perf_counter_ns()
    assert not sync.align()
    assert 5_000_000 <= time.perf_counter_ns() - before < 10**9


def test_late_starts_widen_the_slack_and_compare_the_clocks_again():
    """Quadruple the slack up to the limit, and compare the clocks each time."""
    clock = Ahead()
    sync = Synchroniser(Recording(), "round-time", slack_ns=1000, clock=clock)
    sync.handle_late_starts()
    assert (4000, 1) == (sync.slack_ns, clock.compared)
    for _ in range(20):
        sync.handle_late_starts()
    assert (MAXIMUM_SLACK_NS, 21) == (sync.slack_ns, clock.compared)


@pytest.mark.parametrize(
    ("yielding", "least"), [(False, MINIMUM_SLACK_NS), (True, OVERSUBSCRIBED_SLACK_NS)]
)
def test_calibration_keeps_the_least_slack(yielding, least):
    """Set the slack to the minimum, or more if broadcasts are slow or ranks share cores."""
    quick = Synchroniser(Recording(), "round-time", yielding=yielding)
    quick.calibrate(MINIMUM_SLACK_NS)
    assert quick.slack_ns >= least

    def slowly(value: int) -> int:
        time.sleep(0.002)
        return value

    slow = Synchroniser(Recording(tell=slowly), "round-time", yielding=yielding)
    slow.calibrate(MINIMUM_SLACK_NS)
    assert slow.slack_ns >= 3 * 2_000_000


@pytest.mark.parametrize(
    ("requested", "shared", "threads", "expected"),
    [
        ("auto", True, False, "round-time"),
        ("auto", False, False, "dissemination"),
        ("auto", True, True, "barrier"),
        ("auto", False, True, "barrier"),
        ("dissemination", True, True, "dissemination"),
        ("round-time", False, False, "round-time"),
    ],
)
def test_the_method_follows_from_clocks_and_threads(requested, shared, threads, expected):
    """Choose the method by clocks and threads, or as requested; only agreed instants span ranks."""
    method = choose_method(requested, shared_clock=shared, own_threads=threads)
    assert expected == method
    assert (expected == "round-time") == Synchroniser(Recording(), method).spans_ranks
