"""Tests of the experiment of a live tuning on simulated machines: error rates, power, and
length.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from effort import repetitions, slack
from fields import fields_of
from live_builders import make_record
from training_builders import make_training_case

from commbench.ddp.plan.cases import CONFIRM, SWEEP, TrainingCase
from commbench.results.trained import Speedup, speedup_of_rounds
from commbench.stats import MARGIN, median
from commbench.tuner.conclusion import recommend
from commbench.tuner.experiment import (
    FEWEST_STEPS,
    FIRST_STEPS,
    MOST_TRIES,
    OWN_STEPS,
    UNTIMED,
    Block,
    Experiment,
)
from commbench.tuner.rules import LIVE, judge, level_of

#: Steps of a simulated training.
STEPS = 20_000


#: The noise of a machine's steps: the standard deviation ``spread`` of the logarithm of a step; the
#: amplitude ``drift`` of a slow wave; the difference ``state`` of two states, each of which is
#: ``lasting`` steps long on average; and the share ``stalls`` of steps that take 2 to 10 times as
#: long.
Noise = dict[str, float]
QUIET, LOGNORMAL = {"spread": 0.01}, {"spread": 0.05}
NOISES = {
    "quiet": QUIET,
    "lognormal": LOGNORMAL,
    "two states": {"spread": 0.03, "state": 0.15},
    "long states": {"spread": 0.03, "state": 0.15, "lasting": 80},
    "all": {"spread": 0.04, "drift": 0.05, "state": 0.15, "lasting": 40, "stalls": 0.01},
}


def factors(
    seed: int,
    *,
    spread: float,
    drift: float = 0,
    state: float = 0,
    lasting: float = 30,
    stalls: float = 0,
) -> list[float]:
    """Return the factor on each step of a training, see `Noise`."""
    generator = np.random.default_rng(seed)
    logs = spread * generator.standard_normal(STEPS)
    wave = np.arange(STEPS) / generator.uniform(300, 1500) + generator.random()
    logs += drift * np.sin(2 * np.pi * wave)
    logs += state * (np.cumsum(generator.random(STEPS) < 1 / lasting) % 2)
    logs += (generator.random(STEPS) < stalls) * np.log(generator.uniform(2, 10, STEPS))
    return np.exp(logs).tolist()


class Tuning(NamedTuple):
    """A finished simulated tuning."""

    blocks: Sequence[Block]
    ending: str
    level: float
    times_ms: dict[tuple[int, str], list[list[float]]]
    """Timed steps of each block, by setting and phase."""
    found: dict[int, Speedup]
    """The speedup of each finalist."""
    faster: list[int]
    """The finalists that call for a change."""


def steps_of(blocks: Sequence[Block]) -> int:
    """Return all steps of some blocks."""
    return sum(UNTIMED + block.steps for block in blocks)


def screened(tuning: Tuning) -> list[Block]:
    """Return the blocks that screen the settings."""
    return [block for block in tuning.blocks if block.phase == SWEEP]


def make_settings(count: int, *hooked: TrainingCase) -> list[TrainingCase]:
    """Return ``count`` settings without a hook, then those with a hook."""
    return [*(make_training_case(cap=str(cap)) for cap in range(1, count + 1)), *hooked]


def simulate(
    speedups: Sequence[float],
    noise: Noise,
    *,
    seed: int = 0,
    settings: Sequence[TrainingCase] = (),
    **conditions: Any,
) -> Tuning:
    """Tune a training with steps of 100 ms whose settings have these true speedups."""
    experiment = Experiment(settings or make_settings(len(speedups)), seed=seed, **conditions)
    steps_ms = [100 * factor for factor in factors(seed, **noise)]
    made, passed_s = 0, 0.0
    blocks = []
    times_ms = {}
    while block := experiment.next_block(made, passed_s):
        blocks.append(block)
        end = made + UNTIMED + block.steps
        own_ms = [step_ms / speedups[block.setting] for step_ms in steps_ms[made:end]]
        made, passed_s = end, passed_s + sum(own_ms) / 1e3
        experiment.add(block, own_ms[UNTIMED:])
        times_ms.setdefault((block.setting, block.phase), []).append(own_ms[UNTIMED:])
    medians_ms = {}
    for (setting, phase), blocks_ms in times_ms.items():
        if phase == CONFIRM:
            medians_ms[setting] = list(map(median, blocks_ms))
    base_ms = medians_ms.pop(0, [])
    level = getattr(experiment._stage, "level", level_of(1))
    found = {}
    for setting, own_ms in medians_ms.items():
        ratios = [base / own for base, own in zip(base_ms, own_ms, strict=False)]
        if ratios:
            found[setting] = speedup_of_rounds(ratios, level)
    faster = [setting for setting in found if judge(found[setting]) == "change"]
    return Tuning(blocks, experiment.ending, level, times_ms, found, faster)


def simulate_many(speedups: Sequence[float], noise: Noise, runs: int) -> list[Tuning]:
    """Tune ``runs`` trainings with independent noise."""
    return [simulate(speedups, noise, seed=seed) for seed in range(runs)]


# ---------------------------------------------------------------------------- how often it is right


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("speedups", "runs"), [([1.0] * 12, 200), ([1.0, 1 + MARGIN], 600)], ids=["equal", "margin"]
)
def test_no_gain_beyond_the_margin_seldom_calls_for_a_change(speedups, runs, noise):
    """Recommend a change in at most 5 % of tunings despite repeated looks."""
    tunings = simulate_many(speedups, NOISES[noise], repetitions(runs))
    changes = sum(bool(tuning.faster) for tuning in tunings) / len(tunings)
    assert changes <= 0.05 + slack(0.05, runs)


@pytest.mark.parametrize(
    ("gain", "noise", "least"),
    [
        (1.05, "lognormal", 0.9),
        (1.05, "two states", 0.85),
        (1.05, "all", 0.85),
        (1.1, "lognormal", 0.95),
        (1.3, "lognormal", 1.0),
    ],
)
def test_gains_are_found(gain, noise, least):
    """Detect the one faster setting of eight within 2,000 steps."""
    runs = 200
    tunings = simulate_many([1, 1, 1, gain, 1, 1, 1, 1], NOISES[noise], repetitions(runs))
    assert max(steps_of(tuning.blocks) for tuning in tunings) <= OWN_STEPS
    assert sum(tuning.faster == [3] for tuning in tunings) / len(tunings) >= least - slack(
        least, runs
    )


@pytest.mark.parametrize("settings", [6, 10])
def test_a_large_gain_is_decided_within_200_steps(settings):
    """Decide a gain of 1.3 within 200 steps in nine of ten tunings."""
    tunings = simulate_many([1.0, 1.3, *[1.0] * (settings - 2)], LOGNORMAL, repetitions(100))
    quick = 0
    for tuning in tunings:
        is_decided = tuning.ending == "decided" and tuning.faster
        quick += bool(is_decided) and steps_of(tuning.blocks) <= 200
    assert quick >= 0.9 * len(tunings)


def test_intervals_hold_the_true_speedup():
    """Cover the true speedup in 95 of 100 tunings, whatever the number of looks."""
    tunings = simulate_many([1.0, 1.06], NOISES["all"], repetitions(200))
    held = 0
    for tuning in tunings:
        interval = tuning.found[1].interval
        held += interval is not None and interval.low <= 1.06 <= interval.high
    assert held >= 0.95 * len(tunings)


@pytest.mark.parametrize(("max_steps", "seed"), [(150, 0), (150, 1), (None, 2), (None, 3)])
def test_a_recommendation_agrees_with_the_experiment(max_steps, seed):
    """Return the same verdict, level and interval from the records."""
    settings = make_settings(3, make_training_case("fp16", cap="1"))
    tuning = simulate(
        [1.0, 1.06, 1.0, 1.1],
        NOISES["two states"],
        seed=seed,
        settings=settings,
        max_steps=max_steps,
    )
    records = []
    for (setting, phase), blocks_ms in tuning.times_ms.items():
        case = dataclasses.replace(settings[setting], phase=phase)
        records.append(make_record(case, blocks_ms, range(len(blocks_ms))))
    info = {"baseline": settings[0].key, "plan": {"live": True}}
    recommendation = recommend(records, info)
    verdict = "inconclusive"
    if tuning.faster:
        verdict = "change"
    elif {"keep"} == set(map(judge, tuning.found.values())):
        verdict = "keep"
    assert (recommendation.verdict, recommendation.level) == (verdict, tuning.level)
    intervals = fields_of(tuning.found.values(), "interval")
    assert set(fields_of(recommendation.alternatives, "speedup_ci")) == {
        (interval.low, interval.high) for interval in intervals if interval
    }


# --------------------------------------------------------------------------------------- the blocks


def test_every_round_has_the_baseline_and_an_order_of_its_own():
    """Start each shuffled round with a longer block of the baseline."""
    tuning = simulate([1.0] * 4, LOGNORMAL, max_steps=600)
    assert tuning.blocks[0] == Block(0, SWEEP, FIRST_STEPS)
    rounds = {}
    for block in tuning.blocks:
        rounds.setdefault((block.phase, block.round), []).append(block.setting)
    screened = [rounds[SWEEP, number] for number in range(3)]
    confirmed = [order for (phase, _), order in rounds.items() if phase == CONFIRM]
    assert [[0, 1, 2, 3]] * 3 == [sorted(order) for order in screened]
    assert len(set(map(tuple, screened))) > 1
    assert {(0, 1)} == {tuple(sorted(map(bool, order))) for order in confirmed[:-1]}
    assert len(set(map(tuple, confirmed[:-1]))) == 2


def test_a_clearly_slower_setting_is_tried_once():
    """Drop a setting after one round if it is half as fast."""
    tuning = simulate([1.0, 0.5, 1.0, 1.05], LOGNORMAL)
    assert Counter(block.setting for block in tuning.blocks)[1] == 1


# --------------------------------------------------------------------------------------- the limits


@pytest.mark.parametrize("max_steps", [0, 1, 10, 37, 100, 1000])
def test_no_limit_of_steps_is_exceeded(max_steps):
    """End within the limit, with more than half of it for confirmation."""
    tuning = simulate([1.0] * 10, NOISES["all"], max_steps=max_steps)
    assert steps_of(tuning.blocks) <= max_steps
    assert tuning.ending in {"steps", "decided"}
    screening = screened(tuning)
    assert steps_of(screening[2:]) <= 0.4 * max_steps
    if max_steps >= 100:
        assert steps_of(tuning.blocks) > 2 * steps_of(screening) or tuning.ending == "decided"


@pytest.mark.parametrize("time_limit_s", [-1.0, 0.0, 0.5, 5.0, 30.0])
def test_no_limit_of_time_is_exceeded(time_limit_s):
    """End within the time limit, except for the first block."""
    tuning = simulate([1.0] * 10, LOGNORMAL, time_limit_s=time_limit_s)
    assert 0.1 * steps_of(tuning.blocks[1:]) <= 1.1 * max(time_limit_s, 0)
    assert tuning.ending == "time"
    screening = screened(tuning)
    assert 0.1 * steps_of(screening[2:]) <= 0.45 * max(time_limit_s, 0)


def test_the_last_look_ends_a_tuning():
    """End inconclusive after the last look, although steps and time remain."""
    tuning = simulate([1.0, 1.02], LOGNORMAL, max_steps=STEPS)
    assert tuning.ending == "undecided"
    assert tuning.found[1].blocks == LIVE.looks[-1]


# --------------------------------------------------------------------------- settings that are safe


def test_the_best_of_each_effect_on_learning_is_confirmed():
    """Confirm three settings if each stronger effect is faster, and only the fastest of each, at
    the level of their number.
    """
    hooked = [make_training_case(hook, cap="1") for hook in ("fp16", "bf16", "topk:0.01")]
    settings = make_settings(3, *hooked)
    tuning = simulate([1.0, 1.15, 1.0, 1.3, 1.2, 2.0], QUIET, settings=settings)
    assert {1, 3, 5} == tuning.found.keys() == set(tuning.faster)
    assert tuning.level == level_of(3) == pytest.approx(1 - 0.05 / 3)
    assert LIVE.looks[0] == tuning.found[5].blocks
    slow_fp16 = simulate([1.0, 1.3, 1.0, 1.15, 1.1, 2.0], QUIET, settings=settings)
    assert {1, 5} == slow_fp16.found.keys()


@pytest.mark.parametrize("withheld", [[], [2]])
def test_the_fastest_that_may_be_recommended_ends_the_confirmation(withheld):
    """Give the other settings one more look, although they are near the margin; go on for the best
    setting that may be recommended, although a withheld one is decided.
    """
    settings = make_settings(2, make_training_case("topk:0.01", cap="1"))
    speedups = [1.0, 1.025, 1.5]
    tuning = simulate(speedups, LOGNORMAL, settings=settings, withheld=withheld)
    rounds = [tuning.found[setting].blocks for setting in (1, 2)]
    assert withheld or tuning.ending == "decided"
    assert LIVE.looks[0] == rounds[1]
    assert (LIVE.looks[1] == rounds[0]) == (not withheld)
    assert LIVE.looks[1] <= rounds[0]


# ----------------------------------------------------------------------- blocks that cannot be used


def begin(count: int = 4) -> tuple[Experiment, Block]:
    """Return an experiment after its first block, and the second block."""
    experiment = Experiment(make_settings(count), seed=1)
    first = experiment.next_block(0, 0)
    experiment.add(first, [100.0] * first.steps)
    return experiment, next_of(experiment)


def next_of(experiment: Experiment) -> Block:
    """Return the next block, which there is."""
    return experiment.next_block(20, 0)


@pytest.mark.parametrize("steps_ms", [[], [100.0]])
def test_a_disturbed_block_is_repeated(steps_ms):
    """Repeat a block with fewer than half valid steps, a few times."""
    experiment, block = begin()
    experiment.add(block, steps_ms)
    assert experiment.next_block(15, 0) == block
    experiment.add(block, [100.0, 100.0])
    block = next_of(experiment)
    for _ in range(MOST_TRIES):
        assert next_of(experiment) == block
        experiment.add(block, [])
    assert next_of(experiment).setting != block.setting


def test_a_slow_first_block_does_not_shorten_the_others():
    """Fit the length of blocks to the fastest block of the baseline, from the next round on."""
    experiment, block = begin(2)
    assert FEWEST_STEPS == block.steps
    for _ in range(3):
        experiment.add(block, [10.0] * block.steps)
        block = next_of(experiment)
    assert block.steps > 5 * FEWEST_STEPS


def test_a_baseline_that_is_always_disturbed_ends_the_tuning():
    """End the tuning if the baseline is always disturbed."""
    experiment = Experiment(make_settings(3), seed=1)
    for _ in range(MOST_TRIES):
        block = experiment.next_block(0, 0)
        assert block == Block(0, SWEEP, FIRST_STEPS)
        experiment.add(block, [])
    assert experiment.next_block(0, 0) is None
    assert experiment.ending == "disturbed"


def test_settings_disturbed_once_each_are_kept():
    """Count the disturbed blocks of each setting apart, with blocks that begin ahead."""
    settings = MOST_TRIES + 2
    experiment = Experiment(make_settings(settings), seed=1)
    measured = set()
    disturbed = set()
    block = experiment.next_block(0, 0)
    while len(measured) < settings:
        following = experiment.next_block(0, 0, is_ahead=True)
        times = [100.0] * block.steps
        if block.setting and block.setting not in disturbed:
            disturbed.add(block.setting)
            times = []
        else:
            measured.add(block.setting)
        experiment.add(block, times)
        block = following or experiment.next_block(0, 0)
    assert disturbed == set(range(1, settings))


def test_a_setting_left_out_never_returns():
    """Ignore a dropped setting's block, and never try it again."""
    experiment, block = begin()
    experiment.leave_out(block.setting)
    experiment.add(block, [1.0] * block.steps)
    tried = set()
    while following := experiment.next_block(20, 0):
        tried.add(following.setting)
        experiment.add(following, [100.0] * following.steps)
    assert tried == {0, 1, 2, 3} - {block.setting}
    assert experiment.ending == "decided"


def test_a_tuning_without_alternatives_ends():
    """End without comparison if there is no alternative, or all are dropped."""
    experiment = Experiment(make_settings(1), seed=0)
    assert (experiment.next_block(0, 0), experiment.ending) == (None, "nothing")
    experiment, _ = begin()
    for setting in (1, 2, 3):
        experiment.leave_out(setting)
    assert (experiment.next_block(20, 0), experiment.ending) == (None, "nothing")
    experiment, block = begin(2)
    while block.phase != CONFIRM:
        experiment.add(block, [100.0] * block.steps)
        block = experiment.next_block(20, 0) or block
    experiment.leave_out(1)
    assert (experiment.next_block(20, 0), experiment.ending) == (None, "nothing")
