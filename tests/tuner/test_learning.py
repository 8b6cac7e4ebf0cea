"""Tests of --max-accuracy-loss: which settings it excludes, and the messages."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_decision import BASE, FIVE, FP16, TOPK, confirmed, decide
from training_builders import EVEN, make_training_case, make_training_launches, make_training_record

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.results.recommendation import Recommendation
from commbench.results.trained import Trained, equal_losses, paired_losses
from commbench.tuner.learning import accuracy_warning

ALLOWED = 0.01


def trained(case: TrainingCase, ends: Sequence[float], metric: str) -> Trained:
    """Return a configuration with the final metric, or loss, of each launch."""
    launches = []
    for launch, end in enumerate(ends):
        learnt = {"losses": [end] * 20}
        if metric:
            learnt = {"metric_name": metric, "metrics": [(5, 0.1), (20, end)]}
        launches.append(make_training_record(case, launch=launch, **learnt))
    return Trained(case=case, records=launches)


#: Final metrics of six launches.
ENDS = np.array([0.5, 0.7, 0.9, 0.6, 0.8, 0.75])
SEEK, DECIDE = False, True


@pytest.mark.parametrize(
    ("metric", "is_decision", "base", "losses", "found"),
    [
        ("accuracy", SEEK, ENDS, 0.02, ("is_lower", 0.02)),
        ("accuracy", SEEK, ENDS, -0.02, None),
        ("loss", SEEK, ENDS, -0.02, ("is_higher", 0.02)),
        ("loss", SEEK, ENDS, 0.02, None),
        ("accuracy", DECIDE, ENDS, 0.005, None),
        ("accuracy", DECIDE, ENDS, 0.02, ("may_be_lower", 0.02)),
        ("perplexity", DECIDE, 5000 * ENDS, 0.005, None),
        ("perplexity", DECIDE, 5000 * ENDS, 0.02, ("may_be_lower", 0.02)),
        ("accuracy", SEEK, ENDS, [0, 0, 0, 0, 0, 0.03], None),
        ("accuracy", DECIDE, ENDS, [0, 0, 0, 0, 0, 0.03], ("may_be_lower", 0.03)),
        ("accuracy", DECIDE, ENDS[:1], 0, ("unbounded", None)),
        ("accuracy", DECIDE, ENDS[:2], [0, 0.002], ("may_be_lower", None)),
        ("accuracy", SEEK, ENDS[:2], [0, 0.002], None),
        ("accuracy", DECIDE, ENDS[:5], [0, 0.002, 0, 0.002, 0], None),
        ("", DECIDE, np.full(6, 2.0), -0.01, None),
        ("", DECIDE, np.full(6, 2.0), -0.04, ("may_be_costlier", 2.0)),
    ],
)
def test_accuracy_is_judged(metric, is_decision, base, losses, found):
    """Exclude a higher loss or a lower metric beyond the limit: to confirm by the median over
    paired launches, to recommend by a bound. Without a metric the loss counts as a share.
    """
    one, baseline = trained(TOPK, base - losses, metric), trained(BASE, base, metric)
    paired = paired_losses(one, baseline, equal_losses([one, baseline]))
    said = accuracy_warning(one, baseline, paired, ALLOWED, is_decision=is_decision)
    assert (said is None) == (found is None)
    if said and found:
        assert f"accuracy_{found[0]}" == said.code
        assert found[1] is None or found[1] == pytest.approx(said.numbers["worst"])


@pytest.mark.parametrize(
    "changes", [{"hook": "fp16"}, {"precision": "amp-bf16"}, {"accumulation": 2}]
)
def test_unseen_learning_is_not_trusted(changes):
    """Exclude settings that change learning without evidence."""
    case = make_training_case(**changes)
    one, base = (
        Trained(case=of, records=make_training_launches([20.0] * 6, of)) for of in (case, BASE)
    )
    assert accuracy_warning(one, base, [], ALLOWED, is_decision=False)


# ------------------------------------------------------------------------------- the recommendation


def launches(
    case: TrainingCase, step_ms: float, end: float, worst: float | None = None
) -> list[TrainingRecord]:
    """Return six launches with final accuracy ``end``, and ``worst`` in the last one."""
    steps_ms = [step_ms * factor for factor in EVEN]
    learnt = {"metric_name": "accuracy", "metrics": [(20, end)]}
    made = make_training_launches(steps_ms, case, **learnt)
    if worst is not None:
        made[-1] = dataclasses.replace(made[-1], metrics=[(20, worst)])
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


def test_limit_turns_the_recommendation():
    """Recommend the fastest setting within the limit, and state why faster ones were excluded."""
    assert "topk" == recommended().best.hook
    assert "topk" == recommended(max_accuracy_loss=0.03).best.hook
    recommendation = recommended(max_accuracy_loss=0.01)
    assert "none" == recommendation.best.hook
    assert "5" == recommendation.best.bucket_cap_mb
    assert "change" == recommendation.verdict
    half, lossy = recommendation.accuracy_failed
    assert ("0.1" in half, "0.02" in lossy) == (True, True)
    assert recommendation == Recommendation.from_json(recommendation.to_json())
