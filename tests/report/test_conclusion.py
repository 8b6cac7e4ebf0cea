"""Tests of formatting, writing and reading a recommendation."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from deciding import BASE, FIVE, TOPK, confirmed, decide, fresh, sweep
from training_builders import launches_of, make_training_launches

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError
from commbench.results.recommendation import Recommendation, paragraph, setting_of, snippets


def learning(case: TrainingCase, losses: Sequence[float], **changes: Any) -> list[TrainingRecord]:
    """Return six confirmation launches with these losses."""
    return launches_of(changes.pop("step_ms"), confirmed(case), losses=list(losses), **changes)


def compressed(loss: float = 2.1, step_ms: float = 10.0) -> Recommendation:
    """Return a recommendation of top-k with final loss ``loss``; the default's is 2."""
    down = np.linspace(3.0, 2.0, 40)
    metrics = {"metric_name": "accuracy", "metrics": [(40, 0.75)]}
    records = [
        *learning(BASE, down, step_ms=20, **metrics),
        *learning(
            TOPK, np.linspace(3.0, loss, 40), step_ms=step_ms, **{**metrics, "metrics": [(40, 0.7)]}
        ),
    ]
    return decide([*sweep(topk=10), *records])


def test_compression_states_its_cost() -> None:
    """Return the difference in loss after equal steps and equal time, and in the metric."""
    cost = compressed().cost
    assert cost is not None
    assert (40, "accuracy") == (cost.steps, cost.metric_name)
    assert (2.038, 2.135) == (
        pytest.approx(cost.loss_equal_steps.baseline, abs=1e-3),
        pytest.approx(cost.loss_equal_steps.best, abs=1e-3),
    )
    assert 0.096 == pytest.approx(cost.loss_equal_steps.difference, abs=1e-3)
    assert 0 > cost.loss_equal_time.difference
    assert cost.metric is not None
    assert -0.05 == pytest.approx(cost.metric.difference)


def test_paragraph_of_a_compressed_best() -> None:
    """State verdict, gain, the gain without compression, and the cost in accuracy."""
    text = paragraph(compressed())
    for part in (
        (
            "mlp on 2 ranks: keep the default, or change to topk:0.01 with 5 MiB buckets, which"
            " alters learning."
        ),
        "2.000 times as fast as the default",
        "No setting that leaves learning as it is was faster than the default.",
        "After 40 steps its training loss is 2.135 against 2.038 (paired by launch: +0.096",
        "accuracy is 0.7 against 0.75 (paired: -0.05",
        "40 steps are too few to judge the effect on learning.",
    ):
        assert part in text
    assert "learnt no more" not in text


def test_paragraph_says_when_speed_does_not_pay() -> None:
    """State that a faster configuration learns no more in the same time."""
    assert "in equal time topk:0.01 with 5 MiB buckets learnt no more" in paragraph(
        compressed(loss=2.99, step_ms=18)
    )


def test_paragraph_of_an_uncompressed_best() -> None:
    """Omit accuracy if only the bucket size changes."""
    records = [*learning(BASE, [2.0] * 10, step_ms=20), *learning(FIVE, [2.01] * 10, step_ms=15)]
    text = paragraph(decide([*sweep(five=15), *records]))
    assert "change to 5 MiB buckets" in text
    assert "loss" not in text
    assert "Without compression" not in text


def test_paragraph_names_the_uncompressed_gain() -> None:
    """State the gain without compression with its interval, and unknown accuracy."""
    text = paragraph(decide([*sweep(five=18, topk=12), *fresh((FIVE, 18), (TOPK, 12))]))
    assert (
        "Of those that leave learning as it is the fastest is 5 MiB buckets, 1.111 times as fast as"
        " the default [1.111, 1.111]." in text
    )
    assert "What this does to learning was not measured" in text


def test_conclusion_leads_with_what_leaves_learning_as_it_is() -> None:
    """List the setting without effect on learning first, although compression is faster."""
    recommendation = decide([*sweep(five=15, topk=10), *fresh((FIVE, 15), (TOPK, 10))])
    assert recommendation.safe is not None
    assert ("change", "5", 20 / 15) == (
        recommendation.safe.verdict,
        recommendation.safe.bucket_cap_mb,
        pytest.approx(recommendation.safe.speedup),
    )
    start = (
        "mlp on 2 ranks: change to 5 MiB buckets, which leaves learning as it is, or change to"
        " topk:0.01 with 5 MiB"
    )
    assert paragraph(recommendation).startswith(start)
    (_, safe), (_, best) = snippets(recommendation)
    assert "bucket_cap_mb=5" in safe
    assert "TopK" not in safe
    assert "TopK" in best


def test_a_file_without_a_safe_setting_is_read() -> None:
    """Read a file of an earlier version without safe setting."""
    data = json.loads(json.dumps(compressed().to_json()))
    del data["safe"], data["blocks"], data["live"]
    recommendation = Recommendation.from_json(data)
    assert recommendation.safe is None
    assert "change to topk:0.01 with 5 MiB buckets." in paragraph(recommendation)
    assert "Without compression nothing faster" in paragraph(recommendation)
    assert 1 == len(snippets(recommendation))


@pytest.mark.parametrize(
    ("info", "warning"),
    [
        ({"oversubscribed": True}, "more ranks than cores"),
        ({"environment": {"emulated": {"rate": "1gbit"}}}, "emulated"),
    ],
)
def test_warnings_are_listed(info: dict[str, Any], warning: str) -> None:
    """List the warnings in the paragraph."""
    records = [*sweep(five=16), *fresh((FIVE, 16))]
    assert warning in paragraph(decide(records, **info))
    assert "Warnings" not in paragraph(decide(records))


@pytest.mark.parametrize(("backend", "is_flagged"), [("nccl", True), ("gloo", False)])
def test_a_shared_gpu_is_a_warning(backend: str, *, is_flagged: bool) -> None:
    """Warn that ranks shared a GPU."""
    records = [*sweep(five=16), *fresh((FIVE, 16))]
    placed = [
        dataclasses.replace(r, case=dataclasses.replace(r.case, backend=backend)) for r in records
    ]
    assert is_flagged == ("ranks shared a GPU" in paragraph(decide(placed, ranks_per_gpu=2)))


@pytest.mark.parametrize("flags", [["throttled"], []])
def test_a_gpu_that_was_slowed_down_in_a_fresh_launch_is_a_warning(flags: list[str]) -> None:
    """Warn of a slowed GPU in a confirmation launch."""
    recommendation = decide([*sweep(topk=10.0), *fresh((TOPK, 10.0), flags=flags)])
    assert bool(flags) == ("a GPU was slowed down" in recommendation.warnings)


def test_what_broke_in_fresh_launches_is_a_warning() -> None:
    """Name the candidate that failed in confirmation, with the reason."""
    broken = launches_of(5, confirmed(TOPK), ranks_agree=False)
    recommendation = decide([*sweep(five=16, topk=5), *fresh((FIVE, 16)), *broken])
    assert ("change", "none") == (recommendation.verdict, recommendation.best.hook)
    expected = (
        "topk:0.01 with 5 MiB buckets is left out because its ranks ended with different parameters"
    )
    assert (expected,) == recommendation.warnings


def test_loss_that_is_no_number_is_left_out() -> None:
    """Write no NaN if the default diverges in a launch."""
    records = [
        *learning(BASE, [2.0, float("nan")], step_ms=20),
        *learning(TOPK, [2.0, 1.9], step_ms=10),
    ]
    recommendation = decide([*sweep(topk=10), *records])
    assert ("change", None) == (recommendation.verdict, recommendation.cost)
    json.dumps(recommendation.to_json(), allow_nan=False)


def test_fresh_launches_are_those_with_both() -> None:
    """Count only confirmation launches with both settings."""
    alternative = make_training_launches([15.0] * 4, confirmed(FIVE))
    recommendation = decide([*sweep(five=15), *fresh(), *alternative])
    assert 4 == recommendation.launches
    assert "In 4 fresh launches" in recommendation.reason


def test_few_and_bimodal_launches_are_warnings() -> None:
    """Warn of few launches and of bimodal medians."""
    few = [
        *make_training_launches([20, 20.1, 20.2], confirmed(BASE)),
        *make_training_launches([15] * 3, confirmed(FIVE)),
    ]
    assert "only 3 fresh launches" in paragraph(decide([*sweep(five=15), *few]))
    bimodal = make_training_launches([10, 10.1, 10.2, 15, 15.1, 15.2], confirmed(FIVE))
    assert "bimodal" in paragraph(decide([*sweep(five=10), *fresh(), *bimodal]))


def test_file_holds_the_contract() -> None:
    """Write every documented field, and read it back."""
    recommendation = compressed()
    data = json.loads(json.dumps(recommendation.to_json()))
    promised = {
        "schema",
        "workload",
        "world_size",
        "baseline",
        "best",
        "best_uncompressed",
        "speedup",
        "speedup_ci",
    }
    promised |= {"verdict", "reason", "snippet", "measured_steps", "safe"}
    assert promised <= data.keys()
    assert 1 == data["schema"]
    setting = {
        "bucket_cap_mb": "5",
        "hook": "topk",
        "density": 0.01,
        "precision": "fp32",
        "accumulation": 1,
    }
    assert setting.items() <= data["best"].items()
    for one in (data["baseline"], data["best"], data["best_uncompressed"]):
        assert {"step_ms", *setting} <= one.keys()
    assert 2 == len(data["speedup_ci"])
    assert recommendation == Recommendation.from_json(data)
    assert recommendation == Recommendation.from_json(
        {**data, "later": 1, "best": {**data["best"], "later": 1}}
    )
    assert paragraph(recommendation) == data["paragraph"]


def test_undecided_file_is_read_back() -> None:
    """Write and read a recommendation without speedup."""
    recommendation = decide(sweep(topk=10))
    assert recommendation == Recommendation.from_json(
        json.loads(json.dumps(recommendation.to_json()))
    )


def test_setting_has_what_a_user_chooses() -> None:
    """Include every field of a case except where and when it runs."""
    missing = {f.name for f in dataclasses.fields(TrainingCase)} - setting_of(BASE).keys()
    assert {"workload", "world_size", "batch_per_rank", "backend", "env", "phase"} == missing


def test_a_foreign_recommendation_is_refused() -> None:
    """Refuse an edited file with the reason."""
    with pytest.raises(InputError, match="not one of commbench"):
        Recommendation.from_json({"verdict": "keep"})
