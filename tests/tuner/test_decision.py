"""Tests of what is confirmed and recommended, some with simulated launches."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from deciding import BASE, FIVE, FP16, TOPK, confirmed, decide, fresh, sweep
from effort import repetitions, slack
from fields import fields_of
from training_builders import (
    launches_of,
    make_training_case,
    make_training_launches,
    make_training_record,
)

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.terms import schedule
from commbench.results.recommendation import Recommendation
from commbench.results.trained import Speedup
from commbench.results.verdict import recommendation_findings, snippets, verdict_findings
from commbench.stats import MARGIN, median, student_interval
from commbench.tuner.conclusion import recommend
from commbench.tuner.decision import finalists
from commbench.tuner.learning import withheld
from commbench.tuner.rules import judge, level_of
from commbench.tuner.snippet import keep_snippet, snippet_of


def found(recommendation: Recommendation) -> tuple[str, str, str]:
    """Return the verdict, and the hook and bucket size of the best setting."""
    best = recommendation.best
    return recommendation.verdict, best.hook, best.bucket_cap_mb


# ---------------------------------------------------------------------------------- what to confirm


@pytest.mark.parametrize(
    ("step_ms", "info", "expected"),
    [
        ({"five": 18, "fp16": 17, "topk": 12}, {}, [FIVE, FP16, TOPK]),
        ({"five": 18, "fp16": 19, "topk": 12}, {}, [FIVE, TOPK]),
        ({"five": 21, "fp16": 22, "topk": 12}, {"named_hooks": []}, [TOPK, FIVE]),
        ({"five": 12, "fp16": 17}, {}, [FIVE]),
        ({"five": 30, "fp16": 21, "topk": 25}, {}, [FP16]),
        ({"passthrough": 1, "fp16": 19}, {}, [FP16]),
        ({}, {}, []),
    ],
)
def test_the_fastest_of_each_effect_on_learning_are_confirmed(step_ms, info, expected):
    """Confirm the baseline, the fastest of each effect if faster, and the fastest allowed one."""
    records = [*sweep(**step_ms), *launches_of(1, BASE.local())]
    baseline, *others = finalists(records, info)
    assert confirmed(BASE) == baseline
    assert sorted(map(confirmed, expected), key=str) == sorted(others, key=str)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "hung", "reason": "stuck"},
        {"status": "failed", "reason": "no memory"},
        {"ranks_agree": False},
        {"skipped_steps": 22},
        {"losses": [2.0, float("nan")]},
        {"grad_rel_error": None},
        {"parameters_finite": False},
        {"launch": 9},
    ],
)
def test_broken_cases_never_win(changes):
    """Exclude cases that failed, disagreed, skipped all steps, diverged or lack the baseline."""
    good = {"losses": [2.0, 1.9], "grad_rel_error": 0.1}
    records = [make_training_record(BASE, **good), make_training_record(FP16, step_ms=19, **good)]
    broken = make_training_record(TOPK, **{"step_ms": 5, **good, **changes})
    assert [confirmed(BASE), confirmed(FP16)] == finalists([*records, broken], {})
    assert confirmed(TOPK) in finalists(
        [*records, make_training_record(TOPK, step_ms=5, **good)], {}
    )


def test_group_with_most_ranks_decides():
    """Recommend for the most ranks, and there for the first or smallest batch."""
    records = [
        make_training_record(make_training_case(hook, world_size=ranks, batch_per_rank=batch))
        for hook in ("none", "fp16")
        for ranks in (2, 4)
        for batch in (64, 16)
    ]
    assert {(4, 16)} == set(fields_of(finalists(records, {}), "world_size", "batch_per_rank"))
    named = finalists(records, {"batches": [64, 16]})
    assert {(4, 64)} == set(fields_of(named, "world_size", "batch_per_rank"))


def test_nothing_follows_from_nothing():
    """Confirm nothing if the default failed, and recommend nothing without steps with DDP."""
    broken = make_training_record(BASE, status="failed", reason="no memory")
    assert [] == finalists([broken, make_training_record(FP16)], {})
    for records in ([], launches_of(10, BASE.local())):
        assert [] == finalists(records, {})
        assert recommend(records, {}) is None


# -------------------------------------------------------------------------- what may be recommended


@pytest.mark.parametrize(
    ("named", "info", "expected"),
    [
        ([], {}, ("not_allowed", "not_allowed")),
        (["fp16"], {}, ("", "not_allowed")),
        (["fp16", "topk:0.01"], {}, ("", "not_validated")),
        (["fp16", "topk:0.02"], {"accepts_loss": True}, ("", "not_allowed")),
        (["topk:0.01"], {"accepts_loss": True}, ("not_allowed", "")),
        (["topk:0.01"], {"max_accuracy_loss": 0.1}, ("not_allowed", "")),
        (None, {}, ("", "")),
    ],
)
def test_hooks_need_a_name_and_lossy_ones_a_proof(named, info, expected):
    """Withhold FP16 unless it is named, and top-k unless it is named and its accuracy shown or its
    loss accepted.
    """
    entries = {**info, "named_hooks": named}
    assert expected == tuple(withheld(case, BASE, entries) for case in (FP16, TOPK))
    assert "" == withheld(FIVE, BASE, entries)


#: Each effect on learning is faster than the weaker ones.
FASTER = (*sweep(five=16, fp16=14, topk=10), *fresh((FIVE, 16), (FP16, 14), (TOPK, 10)))


def test_a_withheld_setting_does_not_decide():
    """Recommend the safe setting, and state what FP16 and top-k gain and what it takes to have them
    recommended.
    """
    recommendation = decide(FASTER, named_hooks=["topk:0.01"], accepts_loss=False)
    assert ("change", "none", "5") == found(recommendation)
    assert snippet_of(FIVE) == recommendation.snippet
    half, lossy = recommendation.altering
    assert [("half precision", "not_allowed", ""), ("lossy", "not_validated", "")] == fields_of(
        (half, lossy), "effect", "withheld", "snippet"
    )
    assert (20 / 14, 2.0, 1.4) == pytest.approx((half.speedup, lossy.speedup, lossy.speedup_half))
    withheld_codes = ["withheld_half_precision_not_allowed", "withheld_lossy_not_validated"]
    assert ["setting_change", "reason", *withheld_codes] == fields_of(
        verdict_findings(recommendation), "code"
    )
    assert "fastest_over_half" in set(fields_of(recommendation_findings(recommendation), "code"))


def test_each_allowed_effect_has_its_lines_to_paste():
    """List the lines of the safe setting, then of FP16, then of the fastest."""
    recommendation = decide(FASTER, named_hooks=["fp16", "topk:0.01"], accepts_loss=True)
    assert ("change", "topk", "5") == found(recommendation)
    assert [snippet_of(FIVE), snippet_of(FP16), snippet_of(TOPK)] == [
        text for _, text in snippets(recommendation)
    ]
    assert (
        Recommendation.from_json(json.loads(json.dumps(recommendation.to_json()))) == recommendation
    )


def test_the_default_is_kept_if_nothing_may_be_recommended():
    """Keep the default if all alternatives are withheld, and say so."""
    recommendation = decide([*sweep(topk=10), *fresh((TOPK, 10))], named_hooks=[])
    assert ("keep", "none", "default") == found(recommendation)
    assert (6, keep_snippet()) == (recommendation.launches, recommendation.snippet)


# ------------------------------------------------------------------------------------- the decision


def test_clear_gain_is_a_change():
    """Recommend a setting faster beyond the margin, with its evidence and the steps with DDP."""
    records = [*sweep(five=16), *fresh((FIVE, 16)), *launches_of(5, BASE.local())]
    recommendation = decide(records)
    assert ("change", "none", "5") == found(recommendation)
    evidence = (recommendation.launches, recommendation.workload, recommendation.world_size)
    assert (6, "mlp", 2) == evidence
    assert (6 + 12) * 22 == recommendation.measured_steps
    assert 1.25 == pytest.approx(recommendation.speedup)
    assert (1.25, 1.25) == pytest.approx(recommendation.speedup_ci)
    steps_ms = (recommendation.best.step_ms, recommendation.baseline.step_ms)
    assert (16, 20) == pytest.approx(steps_ms, rel=1e-2)
    assert recommendation.best == recommendation.best_uncompressed
    assert snippet_of(FIVE) == recommendation.snippet


def by_launch(case: TrainingCase, *factors: float) -> list[TrainingRecord]:
    """Return confirmation launches of 20 ms with these factors."""
    return make_training_launches([20 * factor for factor in factors], confirmed(case))


WIDE = (0.9, 0.92, 0.95, 0.99, 1.02, 1.05)


@pytest.mark.parametrize(
    ("records", "verdict", "best"),
    [
        (fresh((FIVE, 20.02)), "keep", BASE),
        (fresh((FIVE, 19.95)), "keep", FIVE),
        (fresh((FIVE, 30)), "keep", BASE),
        (fresh((FIVE, 20 / 1.015)), "keep", FIVE),
        (fresh((FIVE, 20 / 1.025)), "change", FIVE),
        ([*fresh(), *by_launch(FIVE, *WIDE)], "inconclusive", FIVE),
        ([*by_launch(BASE, 1), *by_launch(FIVE, 0.5)], "inconclusive", FIVE),
        ([*fresh((FIVE, 16)), *by_launch(TOPK, 0.4, 0.5, 0.6, 0.7, 1, 1.1)], "change", FIVE),
        ([*fresh((FIVE, 20)), *by_launch(TOPK, *WIDE)], "inconclusive", TOPK),
    ],
)
def test_the_interval_decides(records, verdict, best):
    """Change for a sure gain beyond the margin, before a larger one that is not sure; keep the
    default if no alternative may exceed the margin; one launch decides nothing.
    """
    recommendation = decide([*sweep(five=19, topk=18), *records])
    assert (verdict, best.hook, best.bucket_cap_mb) == found(recommendation)
    assert (keep_snippet() == recommendation.snippet) == (verdict != "change")


def test_nothing_is_decided_without_fresh_launches():
    """Claim no speedup without confirmation."""
    recommendation = decide(sweep(five=16, topk=10))
    assert ("inconclusive", "topk", "5") == found(recommendation)
    claims = (recommendation.speedup, recommendation.speedup_ci, recommendation.launches)
    assert (None, None, 0) == claims
    assert "none" == recommendation.best_uncompressed.hook
    assert 10 == pytest.approx(recommendation.best.step_ms, rel=1e-2)
    assert keep_snippet() == recommendation.snippet


def test_two_launches_after_a_first_look_have_an_interval():
    """Assume log-normal launches if they are too few for the level, and state their number."""
    ratios = [1.30, 1.31, 1.32, 1.33, 1.31, 1.32]
    launches = [*by_launch(BASE, *[1] * 6), *by_launch(FIVE, *(1 / ratio for ratio in ratios))]
    later = decide([*sweep(five=19), *launches], first_look=4)
    assert ("change", 0.975, 6) == (later.verdict, later.level, later.launches)
    assert later.warnings


def test_two_alternatives_are_judged_as_seldom_wrongly_as_one():
    """Widen both intervals of two alternatives."""
    just = [1 / ratio for ratio in (1.025, 1.03, 1.05, 1.10, 1.14, 1.15)]
    alone = [*sweep(five=18), *by_launch(BASE, *[1] * 6), *by_launch(FIVE, *just)]
    one, two = decide(alone), decide([*alone, *sweep(topk=12), *by_launch(TOPK, *[1] * 6)])
    assert ("change", 0.95) == (one.verdict, one.level)
    assert ("inconclusive", 0.975) == (two.verdict, two.level)
    assert two.speedup_ci[0] < one.speedup_ci[0]


def test_planned_launches_come_before_further_ones():
    """Propose further launches only after all planned ones."""
    records = [*sweep(five=19), *by_launch(BASE, 1, 1, 1), *by_launch(FIVE, 0.9, 1.05, 0.95)]
    assert decide(records).further_launches
    for waiting in ({"first_look": 4}, {"status": "partial"}):
        recommendation = decide(records, **waiting)
        assert ("inconclusive", "") == (recommendation.verdict, recommendation.further_launches)


BROKEN = {"status": "failed", "reason": "Rank 1 stopped."}


@pytest.mark.parametrize(
    ("records", "words", "snippet"),
    [
        (sweep(), "", keep_snippet()),
        (
            [*sweep(topk=10), *fresh(), make_training_record(confirmed(TOPK), **BROKEN)],
            BROKEN["reason"][:-1],
            keep_snippet(),
        ),
        (
            [*launches_of(10, confirmed(FIVE)), make_training_record(confirmed(BASE), **BROKEN)],
            BROKEN["reason"][:-1],
            "",
        ),
    ],
    ids=["the default alone", "alternative failed", "default failed"],
)
def test_a_setting_alone_decides_nothing(records, words, snippet):
    """Return inconclusive if only the default succeeded, or if it failed."""
    recommendation = decide(records)
    assert ("inconclusive", "none", "default") == found(recommendation)
    assert snippet == recommendation.snippet
    assert words in recommendation.reason
    assert (snippet == "") == (recommendation.baseline.step_ms is None)


# ----------------------------------------------------------------------------------- honest numbers


def simulate(
    gains: Sequence[float], seed: int, *, hooks: Sequence[str] = ("none",) * 12, own: float = 0.015
) -> Recommendation:
    """Return the recommendation of a simulated quick run: 3 launches of a sweep, 6 of 2 blocks for
    confirmation.

    Noise: 4 % between launches, ``own`` between configurations of a launch, 4 % between steps, of
    which 3 % are disturbed, and a drift of about 6 % within a launch.
    """
    generator = np.random.default_rng(seed)
    gain_of = {}
    for number, (hook, gain) in enumerate(zip(hooks, gains, strict=True)):
        gain_of[make_training_case(hook, str(number or "default"))] = gain
    records = []

    def train(cases: Sequence[TrainingCase], launch: int, blocks: int) -> None:
        order = schedule(cases, int(generator.integers(1 << 30)), launch, blocks)
        launch_ms = 30 * np.exp(generator.normal(0, 0.04))
        cases_ms = launch_ms * np.exp(generator.normal(0, own, len(cases)))
        drift = generator.normal(0, 0.06) * np.linspace(-0.5, 0.5, len(order))
        drift = np.exp(drift + 0.01 * np.cumsum(generator.normal(0, 1, len(order))))
        steps_ms = {}
        for index, factor in zip(order, drift, strict=True):
            times = np.exp(generator.normal(0, 0.04, 20))
            times *= np.where(generator.random(20) < 0.03, generator.uniform(1.3, 3, 20), 1)
            gain = gain_of[dataclasses.replace(cases[index], phase="sweep")]
            steps_ms.setdefault(index, []).extend(times * cases_ms[index] * factor / gain)
        for index, times in steps_ms.items():
            lengths = [20] * (len(times) // 20)
            records.append(
                TrainingRecord(
                    case=cases[index], launch=launch, step_ms=times, block_lengths=lengths
                )
            )

    for launch in range(3):
        train([*gain_of], launch, blocks=1)
    chosen = finalists(records, {})
    for launch in range(6):
        train(chosen, launch, blocks=2)
    return decide(records)


@pytest.mark.parametrize(
    ("own", "hooks"), [(0.005, ("none",) * 12), (0.04, ("none",) * 4 + ("fp16",) * 8)]
)
def test_twelve_equals_call_for_no_change(own, hooks):
    """Recommend a change among twelve equal settings in at most 5 % of runs."""
    verdicts = Counter(
        simulate([1.0] * 12, seed, own=own, hooks=hooks).verdict for seed in range(repetitions(100))
    )
    assert repetitions(100) * (0.05 + slack(0.05, 100)) >= verdicts["change"]


def test_gain_of_a_tenth_is_found():
    """Recommend the one configuration that is 10 % faster in at least 80 % of quick runs."""
    gains = [1.0] * 12
    gains[7] = 1.1
    runs = repetitions(60)
    ends = Counter(found(simulate(gains, 1000 + seed)) for seed in range(runs))
    right = ends["change", "none", "7"]
    assert (0.8 - slack(0.8, 60)) * runs <= right
    assert right == sum(count for (verdict, _, _), count in ends.items() if verdict == "change")


@pytest.mark.parametrize("gain", [1.0, 1 + MARGIN])
@pytest.mark.parametrize("looks", [(4, 4), (6, 6), (10, 20)])
def test_a_second_look_rarely_misleads(gain, looks):
    """Call for a change in at most 5 % of decisions that gain the margin at most, over all
    looks.
    """
    generator = np.random.default_rng(5)
    runs = 1000
    changes = 0
    for _ in range(runs):
        ratios = gain * np.exp(0.03 * generator.standard_normal(sum(looks)))
        for look in range(len(looks)):
            seen = ratios[: sum(looks[: look + 1])]
            interval = student_interval(seen, level_of(1, look))
            verdict = judge(Speedup(ratio=median(seen), launches=len(seen), interval=interval))
            if verdict != "inconclusive":
                break
        changes += verdict == "change"
    assert changes <= 0.05 * runs
