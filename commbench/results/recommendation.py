"""The conclusion of a training run: a `Recommendation`, which is a file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from commbench.ddp.plan.cases import TrainingCase, baseline_name, setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.hooks.options import Effect
from commbench.hooks.registry import find_hook
from commbench.schema import Diverging, JsonMapping, JsonObject, read_as
from commbench.stats import DEFAULT_LEVEL
from commbench.units import counted

Verdict = Literal["change", "keep", "inconclusive"]
#: As of hooks; ``batch``: another accumulation, so a step of the optimiser sees another number of
#: samples.
LearningEffect = Literal["none", "compiled", "buffers", "half precision", "batch", "lossy"]
#: From the weakest to the strongest.
EFFECTS: tuple[LearningEffect, ...] = get_args(LearningEffect)
#: Why a setting that alters learning is not recommended: no option names its hook; its effect on
#: learning was neither shown by ``--max-accuracy-loss`` nor waived by ``--accept-loss``; or nothing
#: prevents that it is.
Withheld = Literal["not_allowed", "not_validated", ""]
Bounds = tuple[float, float]
#: The schema of ``recommendation.json``.
RECOMMENDATION_SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A setting in the terms of ``ddp.csv``, with its step time and speedup."""

    bucket_cap_mb: str
    hook: str
    density: float | None
    precision: str
    accumulation: int
    hook_options: str = ""
    bucket_view: bool = False
    static_graph: bool = False
    unused_parameters: bool = False
    broadcast_buffers: bool = True
    batched_grad_copy: bool = False
    compile: str = ""
    step_ms: float | None = None
    """Median over launches of the median step."""
    speedup: float | None = None
    """The baseline's time per sample over its own, in confirmation launches; None without any."""
    speedup_ci: Bounds | None = None
    """Its 95 % interval, or of the recommendation's ``level``."""

    @property
    def case(self) -> TrainingCase:
        """The setting as a case without a particular workload."""
        return TrainingCase(workload="", world_size=1, batch_per_rank=1, **setting_of(self))


@dataclass(frozen=True, kw_only=True)
class SafeChoice(Choice):
    """The fastest setting that leaves gradients the same: only its buckets differ from the
    baseline's.
    """

    verdict: Verdict
    """The verdict on it alone."""
    snippet: str
    """Code to paste."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A quantity of the best setting compared with the baseline's, paired by launch."""

    baseline: Diverging
    """Median over launches."""
    best: Diverging
    difference: Diverging
    """Median over launches of the best's minus the baseline's."""
    difference_ci: tuple[Diverging, Diverging] | None = None
    """Its 95 % interval; None below 6 launches."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The effect of the best setting on accuracy."""

    steps: int
    """Steps that both made, at least."""
    loss_equal_steps: Difference
    """Training loss after the same number of steps."""
    loss_equal_time: Difference
    """Training loss when the fastest of the confirmed settings finished."""
    metric_name: str = ""
    metric: Difference | None = None


@dataclass(frozen=True, kw_only=True)
class AlteringChoice(Choice):
    """The fastest setting of the confirmation launches among those with one effect on accuracy."""

    effect: LearningEffect
    verdict: Verdict
    """The verdict on its speed alone."""
    withheld: Withheld
    """Why it is not recommended, however fast it is; empty if it may be."""
    snippet: str
    """Code to paste if it is a recommended change; else empty."""
    speedup_half: float | None = None
    """Of a lossy setting over the fastest in half precision, in confirmation launches; None without
    both."""
    speedup_half_ci: Bounds | None = None
    """Its interval of the recommendation's ``level``."""
    cost: Cost | None = None
    """What it changes in learning; None if the workload has no loss."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How a tuning selected its choice; the default is not counted."""

    settings: int
    """All that were considered."""
    confirmed: int
    """Measured in confirmation launches."""
    in_rounds: int
    """Measured in the rounds of the search only."""
    untried: int = 0
    """Not measured."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The contents of ``recommendation.json``: whether a setting other than DDP's default pays."""

    workload: str
    world_size: int
    backend: str = ""
    batch_per_rank: int | None = None
    baseline: Choice
    best: Choice
    """The fastest setting of the confirmation launches that may be recommended; the baseline if
    none was faster."""
    best_uncompressed: Choice
    """The fastest setting with uncompressed gradients."""
    speedup: float | None
    """Of ``best`` over ``baseline``, in confirmation launches only."""
    speedup_ci: Bounds | None
    """Its interval over launches, of level ``level`` as all others."""
    verdict: Verdict
    """``change``: the interval of ``best`` lies above the margin of 2 %; ``keep``: no interval
    in confirmation launches reaches above it. Only settings that may be recommended are judged."""
    reason: str
    """One sentence: what was compared, the gain and its interval."""
    snippet: str
    """Code to paste."""
    measured_steps: int
    """Optimiser steps with DDP in all stages, including early steps."""
    level: float = DEFAULT_LEVEL
    """Of the intervals: above 95 % with several alternatives, or after an extension."""
    launches: int = 0
    """Confirmation launches behind the verdict."""
    blocks: int = 0
    """Pairs of confirmation blocks behind the verdict of a live tuning with fewer than 4 launches;
    else 0."""
    live: bool = False
    """Whether a user's own training was tuned; the baseline is then the script's own setting."""
    safe: SafeChoice
    """The fastest setting that leaves gradients the same; the baseline if none was faster."""
    altering: tuple[AlteringChoice, ...] = ()
    """The fastest setting of each other effect on accuracy: half precision first, lossy last."""
    alternatives: tuple[Choice, ...] = ()
    """All confirmed settings beside the baseline, the fastest first."""
    cost: Cost | None = None
    """Of ``best``; None if that is the baseline or the workload has no loss."""
    warnings: tuple[str, ...] = ()
    """Limits of the conclusion, each a clause."""
    max_accuracy_loss: float | None = None
    """Largest accuracy loss of a recommended setting; None: not judged."""
    accuracy_failed: tuple[str, ...] = ()
    """Settings that may lose more, each with the reason."""
    search: Search | None = None
    """How a tuning selected it; None for a sweep, which measures all."""
    env: str = ""
    """The environment that the settings are of, see `commbench.system.env`; empty if none was
    varied."""
    env_reason: str = ""
    """A sentence on the choice of ``env``."""
    further_launches: str = ""
    """A sentence on the launches that would decide; empty if decided or unknown."""

    @property
    def baseline_name(self) -> str:
        """The baseline, in words."""
        return baseline_name(is_live=self.live)

    def named(self, choice: Choice) -> str:
        """Return a setting in words; switches that the baseline has too are left out."""
        return setting_name(choice, self.baseline)

    @property
    def has_baseline(self) -> bool:
        """Whether the baseline trained; without it nothing can be recommended."""
        return self.baseline.step_ms is not None

    @property
    def is_compared(self) -> bool:
        """Whether any setting was compared with the default in confirmation launches."""
        return self.launches > 0 or self.verdict != "inconclusive"

    def to_json(self) -> JsonObject:
        """Return the object of ``recommendation.json``, without its paragraph."""
        return {"schema": RECOMMENDATION_SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: JsonMapping) -> Recommendation:
        """Return the recommendation of `to_json`; unknown fields are ignored.

        Raises:
            InputError: the data are something else.
        """
        read = read_as(cls, data)
        choices = [read.baseline, read.best, read.best_uncompressed, read.safe]
        for choice in (*choices, *read.alternatives, *read.altering):
            choice.case.checked()
        return read


def confirmation_extent(launches: int, blocks: int, *, is_live: bool) -> str:
    """Return how often a speedup was measured again: ``6 confirmation launches``, ``8
    confirmation blocks of 1 launch``.
    """
    if blocks:
        return f"{counted(blocks, 'confirmation block')} of {counted(launches, 'launch')}"
    if is_live:
        return f"the confirmation blocks of {counted(launches, 'launch')}"
    return counted(launches, "confirmation launch")


def alters_learning(choice: Choice | TrainingCase, baseline: Choice | TrainingCase) -> bool:
    """Return whether a setting changes gradients or their number; another bucket size does not."""
    return effect_of(choice, baseline) != "none"


def effect_of(choice: Choice | TrainingCase, baseline: Choice | TrainingCase) -> LearningEffect:
    """Return the strongest effect on accuracy of what differs from the baseline."""
    effect: Effect = "none"
    if choice.hook != baseline.hook:
        effect = find_hook(choice.hook).effect
    if effect == "lossy":
        return effect
    if choice.accumulation != baseline.accumulation:
        return "batch"
    if choice.precision != baseline.precision or effect != "none":
        return "half precision"
    if choice.broadcast_buffers != baseline.broadcast_buffers:
        return "buffers"
    if choice.compile != baseline.compile:
        return "compiled"
    return "none"


_SETTING = tuple(
    f.name for f in dataclasses.fields(Choice) if f.name in TrainingCase.__dataclass_fields__
)


def setting_of(of: TrainingCase | Choice | TrainingRow) -> JsonObject:
    """Return the fields that identify a setting."""
    return {name: getattr(of, name) for name in _SETTING}
