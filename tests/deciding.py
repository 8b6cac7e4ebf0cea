"""Records of a few configurations built by hand, and what is recommended from them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from training_builders import launches_of, make_training_case, make_training_launches

from commbench.ddp.plan.cases import CONFIRM, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.results.recommendation import Recommendation
from commbench.tuner.conclusion import recommend

BASE = make_training_case()
FIVE = make_training_case(cap="5")
FP16 = make_training_case("fp16")
TOPK = make_training_case("topk:0.01", "5")


def confirmed(case: TrainingCase) -> TrainingCase:
    """Return the case in its confirmation launches."""
    return dataclasses.replace(case, phase=CONFIRM)


def sweep(**steps_ms: float) -> list[TrainingRecord]:
    """Return three launches of the baseline (20 ms) and of the cases named."""
    cases = {
        "base": BASE,
        "five": FIVE,
        "fp16": FP16,
        "topk": TOPK,
        "passthrough": make_training_case("passthrough"),
    }
    return [
        record
        for name, step_ms in {"base": 20.0, **steps_ms}.items()
        for record in make_training_launches(
            [step_ms, 1.001 * step_ms, 0.999 * step_ms], cases[name]
        )
    ]


def fresh(*timed: tuple[TrainingCase, float], **changes: Any) -> list[TrainingRecord]:
    """Return six confirmation launches of the baseline (20 ms) and of other cases."""
    return [
        record
        for case, step_ms in ((BASE, 20.0), *timed)
        for record in launches_of(step_ms, confirmed(case), **(changes if case is not BASE else {}))
    ]


def decide(records: Sequence[TrainingRecord], **info: Any) -> Recommendation:
    """Return the recommendation, which there is."""
    return recommend(records, info)
