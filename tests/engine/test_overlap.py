"""Tests of the overlap of non-blocking collectives with computing."""

import time
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from faking import FakeCommunicator, Script, make_session
from measuring import measure
from threads import ThreadControl, run_threads

from commbench.collectives.cases import Sweep
from commbench.engine.observers import Computing, OverlapObserver
from commbench.engine.records import Overlap, Record
from commbench.engine.timing.loops import Call, Repetitions


@pytest.mark.parametrize(
    ("overall", "percent"),
    [
        (100.0, 100.0),  # nothing is added to computing: all is hidden
        (150.0, 50.0),
        (200.0, 0.0),  # one after the other
        (260.0, 0.0),  # they disturb each other: never below zero
        (90.0, 100.0),  # noise: never above a hundred
    ],
)
def test_overlap_follows_the_definition_of_osu(overall, percent):
    """Compute max(0, 100 (1 - (overall - compute) / pure)) for communication and computing of 100
    us each.
    """
    assert Overlap(pure_us=100.0, compute_us=100.0, overall_us=overall).percent == pytest.approx(
        percent
    )


def test_scripted_communication_that_nothing_hides_overlaps_by_nothing():
    """Measure no overlap if the fake backend never overlaps."""
    (case,) = Sweep(operations=("iall_reduce",), sizes="4K", backends=("gloo",)).cases(2)

    def work(control: ThreadControl) -> Record | None:
        communicator = FakeCommunicator(control, script=Script(noise=0.0, tail=0.0))
        return measure(case, communicator, make_session(control, slice_s=0.02), launch=0)

    record = run_threads(2, work)[0]
    assert record.overlap.percent == pytest.approx(0.0, abs=1.0)


def test_computing_lasts_as_long_as_asked():
    """Compute for at least the requested time."""
    begun = time.perf_counter_ns()
    Computing(2_000_000).run()
    assert time.perf_counter_ns() - begun >= 2_000_000


class LateTimer:
    """A timer whose first ``late`` runs are all late; then each call takes 50 us."""

    def __init__(self, late: int) -> None:
        self.late = late
        self.sync = SimpleNamespace(handle_late_starts=lambda: None)

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """Run as a timed loop."""
        assert batch == 1
        self.late -= 1
        starts = np.arange(repetitions, dtype=np.int64) * 1_000_000
        return Repetitions(
            start_ns=starts,
            end_ns=starts + 50_000 * len(calls),
            late=np.full(repetitions, self.late >= 0),
        )


@pytest.mark.parametrize(
    ("late", "expected"), [(0, (100.0, 50.0, 150.0)), (3, (100.0, 50.0, 150.0)), (99, None)]
)
def test_late_starts_are_tried_again(late, expected):
    """Widen the slack if no rank started on time; report no overlap if that never helps."""
    calls = [Call(run=lambda: None)] * 2

    def work(control: ThreadControl) -> Overlap | None:
        timer = LateTimer(late)
        prepared = SimpleNamespace(calls=calls, participants=(0, 1))
        observer = OverlapObserver(prepared, make_session(control, slice_s=0.1), lambda: timer)
        observer.before()
        return observer.after()

    overlap, overlap_of_rank_1 = run_threads(2, work)
    assert overlap_of_rank_1 is None
    assert expected == (overlap and (overlap.pure_us, overlap.compute_us, overlap.overall_us))
