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
from commbench.findings import Finding
from commbench.results.recommendation import Recommendation
from commbench.results.verdict import recommendation_findings, snippets


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


def test_compression_states_its_cost():
    """Return the difference in loss after equal steps and equal time, and in the metric."""
    cost = compressed().cost
    assert (40, "accuracy") == (cost.steps, cost.metric_name)
    assert 2.038 == pytest.approx(cost.loss_equal_steps.baseline, abs=1e-3)
    assert 2.135 == pytest.approx(cost.loss_equal_steps.best, abs=1e-3)
    assert 0.096 == pytest.approx(cost.loss_equal_steps.difference, abs=1e-3)
    assert 0 > cost.loss_equal_time.difference
    assert -0.05 == pytest.approx(cost.metric.difference)


def said_by(recommendation: Recommendation) -> dict[str, Finding]:
    """Return what a recommendation says, by code."""
    headline, *others = recommendation_findings(recommendation)
    return {finding.code: finding for finding in (headline, *headline.details, *others)}


def test_a_compressed_best_states_its_cost():
    """State verdict, gain, and the cost in loss and accuracy."""
    said = said_by(compressed())
    headline = said["setting_change_altering"]
    assert "mlp on 2 ranks" == headline.subject
    assert "topk:0.01 with 5 MiB buckets" == headline.numbers["setting"]
    assert "2.000 [2.000, 2.000] times" in str(said["reason"])
    assert 40 == said["learning_loss"].numbers["steps"]
    assert pytest.approx(0.096, abs=1e-3) == said["learning_loss"].numbers["loss_difference"][0]
    assert 0.7 == said["learning_metric"].numbers["value"]
    assert 0.75 == said["learning_metric"].numbers["value_baseline"]
    assert "learning_no_more" not in said
    assert "learning_no_more" in said_by(compressed(loss=2.99, step_ms=18))


def test_the_gain_without_compression_is_stated():
    """State the gain without compression with its interval, and unknown accuracy."""
    said = said_by(decide([*sweep(five=18, topk=12), *fresh((FIVE, 18), (TOPK, 12))]))
    assert "5 MiB buckets" == said["fastest_safe"].subject
    assert [pytest.approx(20 / 18)] * 3 == list(said["fastest_safe"].numbers["speedup"])
    assert "learning_unmeasured" in said


def test_conclusion_leads_with_what_leaves_learning_as_it_is():
    """List the setting without effect on learning first, although compression is faster."""
    recommendation = decide([*sweep(five=15, topk=10), *fresh((FIVE, 15), (TOPK, 10))])
    safe = recommendation.safe
    assert ("change", "5") == (safe.verdict, safe.bucket_cap_mb)
    assert pytest.approx(20 / 15) == safe.speedup
    headline = next(recommendation_findings(recommendation))
    assert ("setting_change_either", "5 MiB buckets") == (headline.code, headline.numbers["safe"])
    (_, safe_lines), (_, best_lines) = snippets(recommendation)
    assert "bucket_cap_mb=5" in safe_lines
    assert "TopK" not in safe_lines
    assert "TopK" in best_lines


@pytest.mark.parametrize(
    ("backend", "info", "warning"),
    [
        ("gloo", {"oversubscribed": True}, "more ranks than cores"),
        ("gloo", {"environment": {"emulated": {"rate": "1gbit"}}}, "emulated"),
        ("nccl", {"ranks_per_gpu": 2}, "shared a GPU"),
        ("gloo", {"ranks_per_gpu": 2}, ""),
    ],
)
def test_warnings_are_listed(backend, info, warning):
    """List the warnings of the run's conditions, if there are any."""
    records = [
        dataclasses.replace(record, case=dataclasses.replace(record.case, backend=backend))
        for record in (*sweep(five=16), *fresh((FIVE, 16)))
    ]
    warnings = decide(records, **info).warnings
    assert bool(warning) == len(warnings)
    assert all(warning in each for each in warnings)


@pytest.mark.parametrize("flags", [["throttled"], []])
def test_a_gpu_that_was_slowed_down_in_a_fresh_launch_is_a_warning(flags):
    """Warn of a slowed GPU in a confirmation launch."""
    recommendation = decide([*sweep(topk=10.0), *fresh((TOPK, 10.0), flags=flags)])
    assert bool(flags) == ("a GPU was slowed down" in recommendation.warnings)


def test_what_broke_in_fresh_launches_is_a_warning():
    """Name the candidate that failed in confirmation, with the reason."""
    broken = launches_of(5, confirmed(TOPK), ranks_agree=False)
    recommendation = decide([*sweep(five=16, topk=5), *fresh((FIVE, 16)), *broken])
    assert ("change", "none") == (recommendation.verdict, recommendation.best.hook)
    [warning] = recommendation.warnings
    assert "topk:0.01 with 5 MiB buckets" in warning
    assert "different parameters" in warning


def test_loss_that_is_no_number_is_left_out():
    """Write no NaN if the default diverges in a launch."""
    records = [
        *learning(BASE, [2.0, float("nan")], step_ms=20),
        *learning(TOPK, [2.0, 1.9], step_ms=10),
    ]
    recommendation = decide([*sweep(topk=10), *records])
    assert ("change", None) == (recommendation.verdict, recommendation.cost)
    json.dumps(recommendation.to_json(), allow_nan=False)


def test_fresh_launches_are_those_with_both():
    """Count only confirmation launches with both settings."""
    alternative = make_training_launches([15.0] * 4, confirmed(FIVE))
    recommendation = decide([*sweep(five=15), *fresh(), *alternative])
    assert 4 == recommendation.launches
    assert "In 4 confirmation launches" in recommendation.reason


def test_few_and_bimodal_launches_are_warnings():
    """Warn of few launches and of bimodal medians."""
    few = [
        *make_training_launches([20, 20.1, 20.2], confirmed(BASE)),
        *make_training_launches([15] * 3, confirmed(FIVE)),
    ]
    assert any(
        "only 3 confirmation launches" in each for each in decide([*sweep(five=15), *few]).warnings
    )
    bimodal = make_training_launches([10, 10.1, 10.2, 15, 15.1, 15.2], confirmed(FIVE))
    warnings = decide([*sweep(five=10), *fresh(), *bimodal]).warnings
    assert any("bimodal" in each for each in warnings)


def test_file_holds_the_contract():
    """Write every documented field, and read it back, with or without a speedup."""
    recommendation = compressed()
    data = json.loads(json.dumps(recommendation.to_json()))
    promised = "schema workload world_size baseline best best_uncompressed speedup speedup_ci"
    promised += " verdict reason snippet measured_steps safe"
    assert set(promised.split()) <= data.keys()
    assert 2 == data["schema"]
    best = {"bucket_cap_mb": "5", "hook": "topk", "density": 0.01, "precision": "fp32"}
    assert best.items() <= data["best"].items()
    for name in ("baseline", "best", "best_uncompressed"):
        assert {"step_ms", "accumulation", *best} <= data[name].keys()
    assert 2 == len(data["speedup_ci"])
    later = {**data, "later": 1, "best": {**data["best"], "later": 1}}
    assert recommendation == Recommendation.from_json(data) == Recommendation.from_json(later)
    undecided = decide(sweep(topk=10))
    assert undecided == Recommendation.from_json(json.loads(json.dumps(undecided.to_json())))
