"""Tests of the native timed loop, around C functions that are callbacks of this process."""

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from commbench.engine.timing.clocks import GlobalClock, Line
from commbench.engine.timing.loops import Call, Progress, Turns
from commbench.engine.timing.native import NativeTimer, address_of
from commbench.engine.timing.sync import Synchroniser
from commbench.errors import CommbenchError
from commbench.findings import UnsupportedError

#: Numbers of arguments of the MPI functions that the backends call.
ARITIES = (1, 3, 5, 6, 7, 8, 12)


class Recorded:
    """A C function of 64-bit integers that records its arguments and returns ``code``."""

    def __init__(
        self, arity: int, code: int = 0, act: Callable[..., None] = lambda *_: None
    ) -> None:
        self.calls = []
        self._code = code
        self._act = act
        self._pointer = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * arity)(self._note)
        self.address = address_of(self._pointer)

    def _note(self, *arguments: int) -> int:
        self.calls.append(arguments)
        self._act(*arguments)
        return self._code


def make_timer(
    method: str = "none",
    barrier: Any = (),
    broadcast: Any = (),
    instant: Any = None,
    *,
    slack_ns: int = 1_000_000_000,
    clock: GlobalClock | None = None,
) -> tuple[NativeTimer, Progress]:
    """Return a timer with the given control plane, and its progress."""
    progress = Progress()
    control = None  # the native loop meets by the calls it is given
    sync = Synchroniser(control, method, slack_ns=slack_ns, clock=clock or GlobalClock())
    if instant is None:
        instant = np.zeros(1, dtype=np.int64)
    timer = NativeTimer(sync, progress, barrier=barrier, broadcast=broadcast, instant=instant)
    return timer, progress


def call(*functions: Recorded, arguments: tuple[int, ...] = (1,)) -> Call:
    """Return a call of several functions in sequence."""
    return Call(run=lambda: None, rows=[(function.address, *arguments) for function in functions])


@pytest.mark.parametrize("arity", ARITIES)
def test_arguments_arrive_in_order(arity):
    """Pass every argument unchanged, including negative and 64-bit ones."""
    function, arguments = Recorded(arity), tuple((-1) ** i * ((i + 1) << 33) for i in range(arity))
    make_timer()[0].run([call(function, arguments=arguments)], 1, 1)
    assert [arguments] == function.calls


def test_rows_run_in_order():
    """Make the calls of an operation in order, batch after batch."""
    order = []
    first = Recorded(1, act=lambda _: order.append("first"))
    second = Recorded(1, act=lambda _: order.append("second"))
    make_timer()[0].run([call(first, second), call(second)], 1, 2)
    assert 2 * ["first", "second", "second"] == order


def test_stamps_enclose_the_calls():
    """Read the clock before the first and after the last call of each repetition."""
    entered = []
    function = Recorded(1, act=lambda _: entered.append(time.monotonic_ns()))
    stamps = make_timer()[0].run([call(function)], 4, 1)
    assert all(s <= e <= n for s, e, n in zip(stamps.start_ns, entered, stamps.end_ns, strict=True))
    assert bool((stamps.start_ns[1:] >= stamps.end_ns[:-1]).all())


def test_errors_are_reported():
    """Raise with the number of errors after the loop; refuse a call without C functions."""
    function = Recorded(1, code=3)
    with pytest.raises(CommbenchError, match="reported 6 errors"):
        make_timer()[0].run([call(function)], 2, 3)

    with pytest.raises(UnsupportedError, match="--loop python"):
        make_timer()[0].run([Call(run=lambda: None)], 1, 1)


@pytest.mark.parametrize("method", ["barrier", "dissemination"])
def test_ranks_meet_before_every_repetition(method):
    """Synchronise before each repetition and never within a batch."""
    order = []
    meet = Recorded(1, act=lambda _: order.append("meet"))
    work = Recorded(1, act=lambda _: order.append("work"))
    timer, _ = make_timer(method, barrier=[(meet.address, 1)])
    timer.run([call(work)], 2, 2)
    assert 2 * ["meet", "work", "work"] == order


@pytest.mark.parametrize(("ahead_ns", "late"), [(-1, True), (2_000_000, False)])
def test_round_time_notes_late_starts(ahead_ns, late):
    """Start at rank 0's instant, and mark a repetition as late if it had passed."""
    instant = np.zeros(1, dtype=np.int64)
    instants = []

    def tell(_: int) -> None:
        instant[0] = time.monotonic_ns() + ahead_ns
        instants.append(int(instant[0]))

    meet, teller = Recorded(1), Recorded(1, act=tell)
    timer, _ = make_timer("round-time", [(meet.address, 1)], [(teller.address, 1)], instant)
    stamps = timer.run([], 3, 1)
    assert 3 * [late] == stamps.late.tolist()
    assert late or bool((stamps.start_ns >= np.array(instants)).all())


def test_round_time_goes_by_rank_0_s_clock():
    """Start at rank 0's instant on the local clock, and return stamps of rank 0's clock."""
    clock, instant = GlobalClock(), np.zeros(1, dtype=np.int64)
    hour_ns = 3600 * 10**9
    origin_ns = time.monotonic_ns() - 10**12 - hour_ns
    clock.local_line = Line(origin_ns=origin_ns, offset_ns=hour_ns, drift=100e-6)
    clock.line = clock.local_line.invert()
    instants = []

    def tell(_: int) -> None:
        instant[0] = clock.to_global(np.array([time.monotonic_ns() + 2_000_000]))[0]
        instants.append(int(instant[0]))

    teller = Recorded(1, act=tell)
    timer, _ = make_timer("round-time", [], [(teller.address, 1)], instant, clock=clock)
    before = time.monotonic_ns()
    stamps = timer.run([], 3, 1)
    assert time.monotonic_ns() - before >= 3 * 1_900_000
    assert not stamps.late.any()
    waited = stamps.start_ns - np.array(instants)
    assert bool((waited >= -2).all())
    assert bool((waited < 10**9).all())


@pytest.mark.mpi
def test_mpi_calls_on_one_rank(run_ranks):
    """Count repetitions with every start method, and report MPI's error for a negative count."""
    results = run_ranks(1, "native_self.py")
    assert "reported 6 errors" in results.pop("error")
    assert [{"counted": [5, 5], "ordered": True}] * 4 == list(results.values())


def test_sets_of_calls_take_turns():
    """Use the sets in turn, also within a batch, and continue in the next run."""
    function = Recorded(1)
    turns = Turns([[call(function, arguments=(number,))] * 2 for number in range(4)])
    timer, progress = make_timer()
    timer.run(turns, 2, 1)
    timer.run(turns, 3, 2)
    assert [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3] == [
        argument for (argument,) in function.calls
    ]
    assert [5, 5] == progress.counters.tolist()
