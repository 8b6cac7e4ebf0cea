"""Tests of calibration: contention, slowdown and unexplained time are fitted to simulated steps."""

import pytest
from training_builders import make_bucket, make_training_case, make_training_record

from commbench.analysis.prediction.calibration import (
    Observation,
    Setting,
    Sharing,
    fit_sharing,
    settings_of,
)
from commbench.analysis.prediction.timeline import BucketWork, overlapped


def make_work(*ready_ms: float, comm_ms: float = 30.0) -> list[BucketWork]:
    """Return buckets that are ready at these times."""
    return [
        BucketWork(
            size_bytes=1,
            ready_ms=time,
            encode_ms=0.5,
            comm_ms=comm_ms,
            decode_ms=0.5,
            latency_ms=1.0,
        )
        for time in ready_ms
    ]


def observe(work: list[BucketWork], truth: Sharing) -> Observation:
    """Return a step simulated with the sharing ``truth``: 50 ms plus a backward pass of 100 ms."""
    timeline = overlapped(truth.slowed(work), 100, servers=2, contention=truth.contention)
    return Observation(
        work=work,
        backward_ms=100,
        servers=2,
        others_ms=50,
        step_ms=50 + timeline.end_ms + truth.unexplained_ms,
    )


def fit_one(observations: list[Observation]) -> Sharing:
    """Return the sharing fitted to steps of one hook."""
    return fit_sharing({"none": observations})["none"]


def test_unexplained_time_is_added_to_every_step() -> None:
    """Attribute the time that sharing cannot explain to unexplained time."""
    observation = observe(make_work(10, 40, 80, comm_ms=2), Sharing(unexplained_ms=70))
    sharing = fit_one([observation])
    assert observation.excess_ms(sharing) == pytest.approx(0, abs=1e-6)
    assert 60 < sharing.unexplained_ms < 75
    assert sharing.slowdown < 1.3


@pytest.mark.parametrize("unexplained_ms", [-30.0, 40.0])
def test_a_hook_that_hardly_communicates_does_not_change_the_slowdown(
    unexplained_ms: float,
) -> None:
    """Fit the slowdown to the hook whose step is mostly communication."""
    dense = [
        observe(make_work(10, 40, 80, comm_ms=comm_ms), Sharing(slowdown=1.2))
        for comm_ms in (50, 150)
    ]
    sparse = [
        observe(
            make_work(10, 40, 80, comm_ms=1), Sharing(slowdown=1.2, unexplained_ms=unexplained_ms)
        )
    ]
    sharing_by_hook = fit_sharing({"none": dense, "topk:0.01": sparse})
    assert (
        sharing_by_hook["none"].slowdown
        == sharing_by_hook["topk:0.01"].slowdown
        == pytest.approx(1.2, rel=0.1)
    )
    assert sharing_by_hook["none"].unexplained_ms == pytest.approx(0, abs=5)
    assert sharing_by_hook["topk:0.01"].unexplained_ms == pytest.approx(unexplained_ms, abs=3)


def test_settings_are_medians_over_launches() -> None:
    """Use medians over launches of steps and parts, and the pass-through hook's division as copy
    time.
    """
    case = make_training_case()
    buckets = [make_bucket(1_000_000, compress_ms=0.1), make_bucket(3_000_000, compress_ms=0.3)]
    records = [
        make_training_record(
            case, launch=launch, step_ms=step, buckets=buckets if launch < 2 else []
        )
        for launch, step in enumerate([20.0, 30.0, 100.0])
    ]
    (setting,) = settings_of(records)
    assert setting.step_ms == pytest.approx(30)
    assert setting.backward_ms == pytest.approx(18)
    assert setting.copy_ms_per_byte == pytest.approx(2 * 0.4 / 4_000_000)
    assert 0.0 == Setting(case=case, records=records[2:]).copy_ms_per_byte
