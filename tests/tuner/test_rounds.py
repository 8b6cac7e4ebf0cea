"""Tests of which settings are measured next, with given predictions and launches."""

import math
from collections.abc import Mapping, Sequence

import pytest
from training_builders import make_training_case, make_training_record

from commbench.analysis.prediction.steps import StepPrediction
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.tuner.choice import Standing, can_gain

BASE = make_training_case()
#: By hook, a number each: milliseconds predicted; the default takes 100.
PREDICTED = {
    ("none", "5"): 99.0,
    ("none", "25"): 97.0,
    ("fp16", "5"): 80.0,
    ("fp16", "25"): 78.0,
    ("topk:0.01", "5"): 90.0,
}


def predict(
    steps_ms: Mapping[tuple[str, str], float], overlapped_ms: float = 50.0
) -> dict[TrainingCase, StepPrediction]:
    """Return predictions, and that of the default."""

    def one(case: TrainingCase, step_ms: float) -> StepPrediction:
        bounds = {
            "overlapped_ms": overlapped_ms,
            "serial_ms": 2 * step_ms,
            "exposed_comm_ms": 1.0,
            "buckets": (),
        }
        return StepPrediction(case=case, step_ms=step_ms, **bounds)  # type: ignore[arg-type]

    cases = {make_training_case(hook, cap): step_ms for (hook, cap), step_ms in steps_ms.items()}
    return {case: one(case, step_ms) for case, step_ms in {BASE: 100.0, **cases}.items()}


def measure(
    steps_ms: Mapping[tuple[str, str], Sequence[float]], base_ms: float = 100.0
) -> list[TrainingRecord]:
    """Return records of launches, each with the default."""
    launches = max(map(len, steps_ms.values()), default=0)
    records = [
        make_training_record(BASE, launch=launch, step_ms=base_ms) for launch in range(launches)
    ]
    return records + [
        make_training_record(make_training_case(hook, cap), launch=launch, step_ms=ms)
        for (hook, cap), of_case in steps_ms.items()
        for launch, ms in enumerate(of_case)
    ]


def stand(
    predicted: Mapping[tuple[str, str], float] = PREDICTED,
    measured: Mapping[tuple[str, str], Sequence[float]] | None = None,
) -> Standing:
    """Return the posterior of the settings."""
    return Standing.of(predict(predicted), measure(measured or {}), BASE)


def names(cases: Sequence[TrainingCase]) -> list[tuple[str, str]]:
    """Return hook and bucket size."""
    return [(case.hook_name, case.bucket_cap_mb) for case in cases]


def test_measurements_outweigh_predictions_the_more_there_are() -> None:
    """Move from predictions to measurements as these increase."""
    moved = []
    for launches in (1, 2, 8):
        (one,) = [
            e for e in stand(measured={("fp16", "5"): [95.0] * launches}).estimates if e.by_launch
        ]
        moved.append((one.log_ratio - math.log(0.80)) / (math.log(0.95) - math.log(0.80)))
    assert 0.8 < moved[0] < moved[1] < moved[2] < 1.0


def test_a_disturbed_default_is_one_miss_and_shifts_all() -> None:
    """Attribute a common shift to the default, and keep the order."""
    others = {name: [ms * 1.4] for name, ms in PREDICTED.items() if name != ("fp16", "25")}
    standing = stand(measured=others)
    assert standing.model_error < 0.2  # 0.28 if every setting had missed by itself
    assert names([one.case for one in stand().estimates]) == names(
        [one.case for one in standing.estimates]
    )
    unmeasured = standing.estimates[0]
    assert not unmeasured.by_launch
    assert (
        math.log(0.78) + 0.7 * math.log(1.4) < unmeasured.log_ratio < math.log(0.78) + math.log(1.4)
    )


def test_effects_on_a_whole_launch_cancel() -> None:
    """Compare with the default of the same launch."""
    slow = measure({("fp16", "5"): [160.0]}, base_ms=200.0)
    (one,) = [e for e in Standing.of(predict(PREDICTED), slow, BASE).estimates if e.by_launch]
    assert math.log(0.8) == pytest.approx(one.log_ratio)


def test_the_promising_are_the_best_of_every_hook() -> None:
    """Choose the fastest, the fastest without compression, then settings within the model's
    error.
    """
    standing = stand()
    must = [("fp16", "25"), ("none", "25"), ("topk:0.01", "5")]
    assert must == names(standing.promising(3))
    assert must[:2] == names(standing.promising(2))
    assert [*must, ("fp16", "5")] == names(standing.promising(8))
    assert [] == Standing(estimates=(), model_error=0.1, launch_spread=0.1).promising(3)


def test_a_hook_that_calibrated_badly_gets_its_chance() -> None:
    """Measure a hook with one disturbed block before further sizes of the leader."""
    near = {("topk:0.01", cap): 50.0 + i / 10 for i, cap in enumerate(("5", "6", "25"))}
    standing = stand({**near, ("none", "25"): 97.0, ("fp16", "25"): 145.0})
    assert [("topk:0.01", "5"), ("none", "25"), ("fp16", "25"), ("topk:0.01", "6")] == names(
        standing.promising(4)
    )


def test_a_hook_far_behind_is_not_measured() -> None:
    """Exclude hooks that noise cannot explain and that gain nothing."""
    near = {("topk:0.01", cap): 30.0 + i / 10 for i, cap in enumerate(("5", "6", "25"))}
    standing = stand({**near, ("none", "25"): 99.0, ("fp16", "25"): 95.0})
    assert [*near] == names(standing.promising(4))
    standing = stand({**near, ("none", "25"): 90.0, ("fp16", "25"): 95.0})
    assert [("topk:0.01", "5"), ("none", "25"), ("topk:0.01", "6")] == names(standing.promising(3))


def test_the_better_half_survives_without_room() -> None:
    """Keep at least the faster half of measured settings."""
    measured = {
        ("fp16", "25"): [90.0],
        ("fp16", "5"): [70.0],
        ("none", "25"): [99.0],
        ("topk:0.01", "5"): [85.0],
    }
    previous = [make_training_case(hook, cap) for hook, cap in measured]
    standing = stand(measured=measured)
    assert ("fp16", "5") == names(standing.survivors(previous, 0))[0]
    assert 2 == len(standing.survivors(previous, 0))


def test_losers_are_dropped_only_where_launches_show_it() -> None:
    """Drop settings that several launches show to be slower, not one."""
    previous = [make_training_case(*name) for name in (("fp16", "25"), ("fp16", "5"))]
    close = stand(
        {("fp16", "25"): 80.0, ("fp16", "5"): 80.0}, {("fp16", "25"): [80.0], ("fp16", "5"): [83.0]}
    )
    assert 2 == len(close.survivors(previous, 5))
    shown = {("fp16", "25"): [80.0, 80.4] * 3, ("fp16", "5"): [83.0, 83.4] * 3}
    apart = stand({("fp16", "25"): 80.0, ("fp16", "5"): 80.0}, shown)
    assert [("fp16", "25")] == names(apart.survivors(previous, 5))


def test_a_setting_that_is_now_predicted_to_be_best_joins() -> None:
    """Add an unmeasured setting that is now predicted to be best."""
    previous = [make_training_case(*name) for name in (("topk:0.01", "5"), ("none", "25"))]
    standing = stand(measured={("topk:0.01", "5"): [90.0], ("none", "25"): [130.0]})
    assert [("fp16", "25"), ("topk:0.01", "5")] == names(standing.survivors(previous, 2))
    assert [("topk:0.01", "5")] == names(standing.survivors(previous, 1))
    worse = stand(measured={("topk:0.01", "5"): [60.0], ("none", "25"): [130.0]})
    assert [("topk:0.01", "5")] == names(worse.survivors(previous, 2))


def test_nothing_can_gain_where_even_perfect_overlap_would_not() -> None:
    """Exclude all settings whose lower bound gains less than the margin."""
    assert can_gain(predict(PREDICTED, overlapped_ms=97.0), BASE, 100.0)
    assert not can_gain(predict(PREDICTED, overlapped_ms=98.5), BASE, 100.0)


def test_a_model_that_misses_the_default_excludes_nothing() -> None:
    """Exclude nothing if the model misses the default that it was fitted to."""
    assert can_gain(predict(PREDICTED, overlapped_ms=98.5), BASE, 80.0)
