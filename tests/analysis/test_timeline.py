"""Tests of the timeline of a backward pass: against closed forms, and against invariants."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.analysis.prediction.timeline import BucketWork, overlapped, serial


def make_work(ready_ms: float, comm_ms: float, **changes: float) -> BucketWork:
    """Return a bucket of 1 MB without costs except communication."""
    fields = {"size_bytes": 1_000_000, "encode_ms": 0.0, "decode_ms": 0.0}
    return BucketWork(ready_ms=ready_ms, comm_ms=comm_ms, **{**fields, **changes})


def uniform(
    buckets: int, *, backward_ms: float, alpha_ms: float, comm_ms: float
) -> list[BucketWork]:
    """Return equal buckets of evenly ready gradients: ``comm_ms`` in all, ``alpha_ms`` per
    bucket.
    """
    return [
        make_work(
            backward_ms * (i + 1) / buckets, alpha_ms + comm_ms / buckets, latency_ms=alpha_ms
        )
        for i in range(buckets)
    ]


@pytest.mark.parametrize("buckets", [1, 2, 5, 20, 100])
def test_a_slow_network_is_waited_for_from_the_first_bucket_on(buckets: int) -> None:
    """End at B/k + k alpha + beta N if communication never idles."""
    work = uniform(buckets, backward_ms=100, alpha_ms=0.05, comm_ms=200)
    timeline = overlapped(work, 100, servers=1)
    assert timeline.end_ms == pytest.approx(100 / buckets + buckets * 0.05 + 200)
    assert timeline.exposed_ms == pytest.approx(timeline.end_ms - 100)


def test_the_best_bucket_on_a_slow_network_is_the_textbooks() -> None:
    """End earliest at the closed form's N sqrt(alpha / B): 45 buckets, 204 ms."""
    ends = {
        k: (
            overlapped(
                uniform(k, backward_ms=100, alpha_ms=0.05, comm_ms=200), 100, servers=1
            ).end_ms
        )
        for k in range(1, 101)
    }
    best = min(ends, key=lambda k: ends[k])
    assert best == pytest.approx(1 / math.sqrt(0.05 / 100), abs=1)
    assert ends[best] == pytest.approx(204.5, abs=0.1)


def test_two_servers_share_the_link() -> None:
    """Finish four equal buckets in pairs, at twice and four times the time of one alone."""
    timeline = overlapped([make_work(0, 10)] * 4, 0, servers=2)
    assert [bucket.done_ms for bucket in timeline.buckets] == pytest.approx([20, 20, 40, 40])


def test_encoding_delays_every_later_gradient() -> None:
    """Delay later buckets and the end by the first bucket's encoding time."""
    timeline = overlapped(
        [make_work(10, 1, encode_ms=5), make_work(20, 1, encode_ms=2)], 30, servers=1
    )
    assert [(10, 15, 16), (25, 27, 28)] == [
        (b.ready_ms, b.start_ms, b.done_ms) for b in timeline.buckets
    ]
    assert 37 == timeline.end_ms
    assert 0 == timeline.exposed_ms


def test_copies_count_as_ddp_makes_them() -> None:
    """Copy in during the backward pass, and copy out in order after it."""
    work = [
        make_work(10, 30, copy_in_ms=2, copy_out_ms=4),
        make_work(20, 1, copy_in_ms=1, copy_out_ms=3),
    ]
    timeline = overlapped(work, 20, servers=1)
    assert [(12, 12, 42), (23, 42, 43)] == [
        (b.ready_ms, b.start_ms, b.done_ms) for b in timeline.buckets
    ]
    assert 42 + 4 + 3 == timeline.end_ms


@pytest.mark.parametrize(
    ("contention", "expected"),
    # Of 40 ms of backward, 10 pass before the communication of 20 starts.
    [
        (0.0, 40.0),  # it hides wholly
        (0.3, 46.0),  # in 20 ms only 14 are computed
        (0.5, 50.0),
        (1.0, 60.0),  # both get half a core: nothing is gained
    ],
)
def test_communication_takes_its_share_of_the_core(contention: float, expected: float) -> None:
    """Slow computation by the communication's share of the core."""
    timeline = overlapped([make_work(10, 20)], 40, servers=1, contention=contention)
    assert timeline.end_ms == pytest.approx(expected)


def test_serial_adds_up_everything() -> None:
    """Add backward pass, copies, encoding, communication and decoding."""
    work = [
        make_work(10, 5, encode_ms=1, decode_ms=2, copy_in_ms=0.5, copy_out_ms=0.25),
        make_work(30, 7, encode_ms=3, decode_ms=4),
    ]
    timeline = serial(work, 30)
    assert timeline.end_ms == pytest.approx(30 + 5 + 1 + 2 + 0.5 + 0.25 + 7 + 3 + 4)
    assert [10.5, 31.5] == [bucket.ready_ms for bucket in timeline.buckets]
    assert timeline.buckets[0].start_ms == pytest.approx(34.5)


times = st.floats(min_value=0, max_value=50)
buckets = st.builds(
    BucketWork,
    size_bytes=st.just(1),
    ready_ms=times,
    encode_ms=times,
    comm_ms=times,
    decode_ms=times,
    latency_ms=st.floats(min_value=0, max_value=5),
    copy_in_ms=times,
    copy_out_ms=times,
)
works = st.lists(buckets, max_size=6)
shares = st.floats(min_value=0, max_value=1)


@given(works, st.integers(min_value=1, max_value=3), shares)
def test_no_timeline_is_out_of_bounds(
    work: list[BucketWork], servers: int, contention: float
) -> None:
    """End between the computation and the serial timeline, with non-negative exposed time."""
    backward_ms = max([0.0, *(bucket.ready_ms for bucket in work)])
    timeline, most = (
        overlapped(work, backward_ms, servers=servers, contention=contention),
        serial(work, backward_ms),
    )
    computed = backward_ms + sum(bucket.encode_ms + bucket.copy_in_ms for bucket in work)
    assert computed <= timeline.end_ms + 1e-6
    assert timeline.end_ms <= most.end_ms + 1e-6
    assert 0 <= timeline.exposed_ms <= most.exposed_ms + 1e-6


@given(works, st.integers(min_value=1, max_value=3), shares)
def test_buckets_go_in_order(work: list[BucketWork], servers: int, contention: float) -> None:
    """Start buckets in order, each after it is ready, and finish each after its work."""
    timed_buckets = overlapped(work, 50, servers=servers, contention=contention).buckets
    starts = [bucket.start_ms for bucket in timed_buckets]
    assert sorted(starts) == starts
    for bucket, timed in zip(work, timed_buckets, strict=True):
        assert bucket.ready_ms <= timed.ready_ms + 1e-6
        assert timed.ready_ms + bucket.encode_ms <= timed.start_ms + 1e-6
        assert timed.start_ms + bucket.comm_ms + bucket.decode_ms <= timed.done_ms + 1e-6
