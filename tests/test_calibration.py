"""Sharing a core, fitted to steps of known sharing and to steps that tell nothing about it."""

import pytest
from training_builders import make_bucket, make_training_case, make_training_record

from commbench.prediction.calibration import USUAL_CONTENTION, Observation, Setting, Sharing, fit_sharing, settings_of
from commbench.prediction.timeline import BucketWork, overlapped


def make_work(*ready_ms: float, comm_ms: float = 30.0) -> list[BucketWork]:
    """Return buckets that are ready at these times."""
    return [
        BucketWork(size_bytes=1, ready_ms=time, encode_ms=0.5, comm_ms=comm_ms, decode_ms=0.5, latency_ms=1.0)
        for time in ready_ms
    ]


def observe(work: list[BucketWork], truth: Sharing) -> Observation:
    """Return a step of 50 ms beside a backward pass of 100 ms that goes as ``truth`` says."""
    timeline = overlapped(truth.slowed(work), 100, servers=2, contention=truth.contention)
    return Observation(
        work=work, backward_ms=100, servers=2, others_ms=50, step_ms=50 + timeline.end_ms + truth.rest_ms
    )


@pytest.mark.parametrize("truth", [Sharing(contention=0.2), Sharing(contention=0.8), Sharing(slowdown=1.4)])
def test_a_known_sharing_is_found(truth: Sharing) -> None:
    """Find both numbers from three settings in which they act differently."""
    works = [make_work(10, 30, 60), make_work(95), make_work(5, 10, comm_ms=10)]
    found = fit_sharing([observe(work, truth) for work in works])
    assert found.contention == pytest.approx(truth.contention, abs=0.15)
    assert found.slowdown == pytest.approx(truth.slowdown, rel=0.1)


def test_one_setting_is_met_nearly_exactly() -> None:
    """Leave an error of less than 0.5 % where there is only one step to meet."""
    observation = observe(make_work(10, 40, 80), Sharing(contention=0.1, slowdown=1.4))
    assert abs(observation.error(fit_sharing([observation]))) < 0.005


def test_what_cannot_be_explained_is_the_rest() -> None:
    """Meet steps that are far longer than sharing can make them, and add as much to every other step."""
    observation = observe(make_work(10, 40, 80, comm_ms=2), Sharing(rest_ms=70))
    found = fit_sharing([observation])
    assert observation.error(found) == pytest.approx(0, abs=1e-9)
    assert 50 < found.rest_ms < 75


def test_a_step_that_tells_nothing_leaves_the_usual() -> None:
    """Keep to the usual contention where a single bucket is sent after the backward pass."""
    found = fit_sharing([observe(make_work(100), Sharing(contention=0.0))])
    assert found.contention == pytest.approx(USUAL_CONTENTION, abs=0.05)
    assert found.slowdown == pytest.approx(1.0, abs=0.01)


def test_settings_are_medians_over_launches() -> None:
    """Take medians of steps and parts over launches, and copying from the pass-through hook's division."""
    case = make_training_case()
    buckets = [make_bucket(1_000_000, compress_ms=0.1), make_bucket(3_000_000, compress_ms=0.3)]
    records = [
        make_training_record(case, launch=launch, step_ms=step, buckets=buckets if launch < 2 else [])
        for launch, step in enumerate([20.0, 30.0, 100.0])
    ]
    (setting,) = settings_of(records)
    assert setting.step_ms == pytest.approx(30)
    assert setting.backward_ms == pytest.approx(18)
    assert setting.copy_ms_per_byte == pytest.approx(2 * 0.4 / 4_000_000)
    assert 0.0 == Setting(case=case, records=records[2:]).copy_ms_per_byte
