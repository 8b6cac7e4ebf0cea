"""Tests of the times of a step from its marks: parts, buckets, and when they are read."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stand_in import SimulatedCuda

from commbench.ddp.step_times import START, StepLog, StepMarks, bucket_stamps, serialise
from commbench.hooks.base import Expected, Stopwatch
from commbench.hooks.step_clock import event_clock

MS = 1_000_000


def bucket(
    index: int = 0, ready: int = 35, start: int = 36, arrived: int = 38, done: int = 39
) -> Stopwatch:
    """Return a bucket of a host's step, in milliseconds."""
    watch = Stopwatch()
    watch.bucket = Expected(index=index, numel=10, dtype=torch.float32, device=torch.device("cpu"))
    times = (ready, ready + 1, start, arrived, done)
    names = ("ready", "encoded_at", "start", "arrived_at", "done")
    for name, value in zip(names, times, strict=True):
        setattr(watch, name, MS * value)
    return watch


def step(buckets: list[Stopwatch] | None = None) -> StepMarks:
    """Return a host's step of two passes in milliseconds: fetch 1, forward 4 or 6, backward 10."""
    passes = [(MS * 1, MS * 5, MS * 15), (MS * 24, MS * 30, MS * 40)]
    return StepMarks(begun=0, passes=passes, updating=MS * 41, ended=MS * 44, buckets=buckets or [])


def test_parts_are_sums_over_passes():
    """Add the parts of all passes; time between them belongs to the whole step only."""
    assert (0.010, 0.020, 0.003, 0.044) == pytest.approx(step().seconds())


def test_buckets_count_from_the_backward_pass():
    """Return stamps since the backward pass began, in the order of sending."""
    buckets = [bucket(1), bucket(0, ready=31, start=32, arrived=34, done=37)]
    stamps = bucket_stamps(buckets, MS * 30, is_serial=False)
    assert [[1, 2, 7, 1, 3], [5, 6, 9, 1, 1]] == (stamps / MS).tolist()


@pytest.mark.parametrize(
    ("issued", "arrived", "starts"),
    [
        ([1, 2, 3], [5, 9, 10], [1, 5, 9]),
        ([1, 6, 20], [5, 9, 25], [1, 6, 20]),
        ([1, 2], [5, 4], [1, 4]),
        ([1, 9], [5, 8], [1, 9]),
    ],
    ids=[
        "queued",
        "apart",
        "arrived before the last by a clock's whim",
        "arrived before it was issued by a clock's whim",
    ],
)
def test_nccl_carries_one_after_the_other(issued, arrived, starts):
    """Start a bucket at the previous one's arrival, between its own issue and arrival."""
    stamps = np.array([[0, start, at + 1, 1, 1] for start, at in zip(issued, arrived, strict=True)])
    expected = stamps.copy()
    expected[:, START] = starts
    for _ in range(2):
        serialise(stamps)
        assert expected.tolist() == stamps.tolist()


def queued(clock: Any) -> StepMarks:
    """Return a step queued on a GPU."""
    begun = clock()
    passes = [(clock(), clock(), clock())]
    return StepMarks(begun=begun, passes=passes, updating=clock(), ended=clock())


def test_a_step_is_read_when_the_next_is_queued():
    """Read a step after the next is queued, and wait for the last one at the end."""
    cuda = SimulatedCuda()
    clock, log = event_clock(0, cuda), StepLog()
    log.add(queued(clock))
    assert (0, []) == (cuda.waits, log.seconds)
    log.add(queued(clock))
    assert 1 == len(log.seconds)
    assert 0 < cuda.waits
    log.finish()
    log.finish()
    assert 2 == len(log.seconds)
    assert [0, 0] == [len(stamps) for stamps in log.buckets]
    assert all(sum(parts[:3]) <= parts[3] + 1e-6 for parts in log.seconds)


def test_a_log_knows_how_collectives_are_carried():
    """Start the second of two buckets issued together at the first's arrival."""
    marked = [bucket(0, start=36, arrived=38, done=38), bucket(1, start=36, arrived=40, done=40)]
    starts = {}
    for is_serial in (False, True):
        log = StepLog(is_serial=is_serial)
        log.add(step(marked))
        log.finish()
        starts[is_serial] = (log.buckets[0][:, START] / MS).tolist()
    assert {False: [6, 6], True: [6, 8]} == starts
