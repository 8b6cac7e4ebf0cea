"""Tests of --max-accuracy-loss: which settings it excludes, and the messages."""

from collections.abc import Sequence
from typing import Any

import pytest
from test_decision import BASE, FIVE, FP16, TOPK, confirmed, decide
from training_builders import EVEN, make_training_case, make_training_launches

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding
from commbench.results.recommendation import Recommendation
from commbench.results.trained import Trained, equal_losses
from commbench.tuner.learning import accuracy_warning

ALLOWED = 0.01


def trained(case: TrainingCase, ends: Sequence[float], metric: str = "accuracy") -> Trained:
    """Return a configuration with the final metric, or loss, of each launch."""
    launches = make_training_launches([20.0] * len(ends), case)
    for record, end in zip(launches, ends, strict=True):
        learnt = (
            {"metric_name": metric, "metrics": [(5, 0.1), (20, end)]}
            if metric
            else {"losses": [end] * 20}
        )
        record.__dict__.update(learnt)
    return Trained(case=case, records=launches)


def warning(
    case: TrainingCase,
    ends: Sequence[float],
    base: Sequence[float],
    *,
    is_decision: bool,
    **named: Any,
) -> Finding | None:
    """Return the reason against a configuration for a limit of 0.01."""
    one, baseline = trained(case, ends, **named), trained(BASE, base, **named)
    return accuracy_warning(
        one, baseline, equal_losses([one, baseline]), ALLOWED, is_decision=is_decision
    )


@pytest.mark.parametrize(
    ("metric", "worse", "better"), [("accuracy", 0.88, 0.92), ("loss", 0.92, 0.88)]
)
def test_metric_has_a_direction(metric: str, worse: float, better: float) -> None:
    """Exclude a higher loss or a lower metric beyond the limit."""
    said = warning(TOPK, [worse] * 3, [0.9] * 3, is_decision=False, metric=metric)
    assert said is not None
    assert 0.02 == pytest.approx(said.numbers["worst"])
    assert None is warning(TOPK, [better] * 3, [0.9] * 3, is_decision=False, metric=metric)


@pytest.mark.parametrize(("metric", "scale"), [("accuracy", 1.0), ("perplexity", 5000.0)])
def test_launches_are_paired(metric: str, scale: float) -> None:
    """Compare with the baseline of the same launch."""
    base = [scale * value for value in (0.5, 0.7, 0.9, 0.6, 0.8, 0.75)]
    own = [value - 0.005 for value in base]
    assert None is warning(TOPK, own, base, is_decision=True, metric=metric)
    assert None is not warning(
        TOPK, [value - 0.02 for value in base], base, is_decision=True, metric=metric
    )


def test_seeking_asks_for_the_median_and_deciding_for_a_bound() -> None:
    """Confirm by the median, and recommend by a bound."""
    base, own = [0.9] * 6, [0.9, 0.9, 0.9, 0.9, 0.9, 0.87]
    assert None is warning(TOPK, own, base, is_decision=False)
    said = warning(TOPK, own, base, is_decision=True)
    assert said is not None
    assert ("accuracy_may_be_lower", 0.03) == (said.code, pytest.approx(said.numbers["worst"]))


@pytest.mark.parametrize(("launches", "passes"), [(1, False), (2, False), (5, True), (6, True)])
def test_few_launches_bound_little(launches: int, passes: bool) -> None:
    """Recommend nothing on one launch, or on two that differ."""
    base = [0.9] * launches
    own = [0.9 - 0.002 * (launch % 2) for launch in range(launches)]
    assert passes == (warning(TOPK, own, base, is_decision=True) is None)
    assert None is warning(TOPK, own, base, is_decision=False)


def test_loss_counts_as_a_share() -> None:
    """Compare the loss after equal steps relative to the baseline's without a metric."""
    assert None is warning(TOPK, [2.01] * 6, [2.0] * 6, is_decision=True, metric="")
    said = warning(TOPK, [2.04] * 6, [2.0] * 6, is_decision=True, metric="")
    assert said is not None
    assert ("accuracy_may_be_costlier", 2.0) == (said.code, pytest.approx(said.numbers["worst"]))


@pytest.mark.parametrize(
    "changes", [{"hook": "fp16"}, {"precision": "amp-bf16"}, {"accumulation": 2}]
)
def test_unseen_learning_is_not_trusted(changes: dict[str, Any]) -> None:
    """Exclude settings that change learning without evidence."""
    case = make_training_case(**changes)
    one, base = (
        Trained(case=of, records=make_training_launches([20.0] * 6, of)) for of in (case, BASE)
    )
    assert accuracy_warning(one, base, {}, ALLOWED, is_decision=False)


# ------------------------------------------------------------------------------- the recommendation


def launches(
    case: TrainingCase, step_ms: float, end: float, worst: float | None = None
) -> list[TrainingRecord]:
    """Return six launches with final accuracy ``end``, and ``worst`` in the last one."""
    made = make_training_launches(
        [step_ms * factor for factor in EVEN], case, metric_name="accuracy"
    )
    for record in made:
        record.__dict__["metrics"] = [
            (20, worst if worst is not None and record.launch == 5 else end)
        ]
    return made


def recommended(**info: Any) -> Recommendation:
    """Return the recommendation if top-k is fastest but once inaccurate, and fp16 is inaccurate."""
    both = ((BASE, 20.0, 0.9), (FIVE, 17.0, 0.9), (TOPK, 10.0, 0.895), (FP16, 12.0, 0.8))
    sought = [record for case, step_ms, end in both for record in launches(case, step_ms, end)]
    fresh = [
        record
        for case, step_ms, end in both[:2]
        for record in launches(confirmed(case), step_ms, end)
    ]
    return decide([*sought, *fresh, *launches(confirmed(TOPK), 10.0, 0.895, worst=0.88)], **info)


def test_limit_turns_the_recommendation() -> None:
    """Recommend the fastest setting within the limit, and state why faster ones were excluded."""
    assert "topk" == recommended().best.hook
    assert "topk" == recommended(max_accuracy_loss=0.03).best.hook
    recommendation = recommended(max_accuracy_loss=0.01)
    assert ("none", "5", "change") == (
        recommendation.best.hook,
        recommendation.best.bucket_cap_mb,
        recommendation.verdict,
    )
    half, lossy = recommendation.too_costly
    assert ("0.1" in half, "0.02" in lossy) == (True, True)
    assert recommendation == Recommendation.from_json(recommendation.to_json())
