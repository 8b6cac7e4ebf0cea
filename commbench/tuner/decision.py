"""The decision: which settings to confirm, and whether to change DDP's settings, by which numbers.

`commbench.tuner.conclusion` puts a decision into words.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from commbench.ddp.plan.cases import CONFIRM, LOCAL, SWEEP, TrainingCase, baseline_of
from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding
from commbench.hooks.registry import HOOKS
from commbench.results.info import RunInfo, first_env, is_live
from commbench.results.recommendation import (
    EFFECTS,
    LearningEffect,
    Verdict,
    Withheld,
    effect_of,
)
from commbench.results.trained import (
    FEWEST_LIVE_LAUNCHES,
    EqualLosses,
    Group,
    Speedup,
    Trained,
    baseline_case,
    common_launches,
    equal_losses,
    groups_of,
    paired_losses,
    paired_sample_ms,
    pairs_blocks,
    speedup_of,
    trained,
)
from commbench.stats import Interval
from commbench.tuner.learning import PairedLosses, accuracy_warning, withheld
from commbench.tuner.rules import judge, level_of, look_of_launches, look_of_rounds, winners

#: Never recommended: instruments only measure, and `LOCAL` exchanges no gradients.
INSTRUMENTS = frozenset({LOCAL, *(name for name, spec in HOOKS.items() if spec.is_instrument)})


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The baseline, or a setting that was compared with it."""

    trained: Trained
    ratio: float = math.nan
    """The speedup over the baseline."""
    effect: LearningEffect = "none"
    withheld: Withheld = ""
    """Why it may not be recommended, however fast it is."""
    speedup: Speedup | None = None
    """Over the baseline, with its interval, if the launches of the decision are fresh."""
    verdict: Verdict = "inconclusive"
    """On its speed alone."""
    losses: PairedLosses = ()
    """In each launch that has its loss and the baseline's; none of the baseline."""

    @property
    def case(self) -> TrainingCase:
        """The setting."""
        return self.trained.case


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A setting that cannot be compared, or may not be for its accuracy."""

    case: TrainingCase
    why: Finding
    is_costly: bool = False
    """Whether it may lose more accuracy than allowed."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The settings of one group in one phase beside their baseline.

    The verdict is ``change`` if the interval of an alternative's speedup, paired by launch, lies
    wholly above the margin of 2 %. It is ``keep`` if no alternative's interval reaches above the
    margin. The intervals have the level of `level_of`. Without new launches the verdict is
    inconclusive, because the best of many equal settings looks faster by chance.
    """

    baseline: Judged
    """Without launches if it failed or was not trained."""
    alternatives: Sequence[Judged] = ()
    """The fastest first."""
    left_out: Sequence[LeftOut]
    """The baseline if it failed; else the other settings that are no alternatives."""
    is_confirmation: bool
    """Whether it rests on new launches."""

    @property
    def has_baseline(self) -> bool:
        """Whether the baseline trained."""
        return len(self.baseline.trained.records) > 0

    @property
    def usable(self) -> list[Judged]:
        """The alternatives that may be recommended."""
        return [each for each in self.alternatives if not each.withheld]

    @property
    def verdict(self) -> Verdict:
        """Whether to change the setting."""
        if self.is_confirmation and self.alternatives and not self.usable:
            return "keep"
        return self.leader.verdict

    @property
    def leader(self) -> Judged:
        """The alternative that the verdict concerns; the baseline without any."""
        return self._leading(self.usable)

    @property
    def best(self) -> Judged:
        """The fastest that may be recommended; the baseline if none is faster."""
        return self._if_faster(self.leader)

    @property
    def safe_leader(self) -> Judged:
        """As `leader`, among those that leave learning unchanged."""
        return self._leading([each for each in self.alternatives if each.effect == "none"])

    @property
    def safe(self) -> Judged:
        """As `best`, among those that leave learning unchanged."""
        return self._if_faster(self.safe_leader)

    @property
    def altering(self) -> list[Judged]:
        """The fastest in new launches of each other effect on learning, the weakest first."""
        if not self.is_confirmation:
            return []
        fastest = self.fastest_by_effect()
        return [fastest[effect] for effect in EFFECTS[1:] if effect in fastest]

    def fastest_by_effect(self) -> dict[LearningEffect, Judged]:
        """Return the fastest alternative of each effect on learning."""
        fastest: dict[LearningEffect, Judged] = {}
        for each in self.alternatives:
            fastest.setdefault(each.effect, each)
        return fastest

    @property
    def plain(self) -> list[Judged]:
        """The alternatives without compression."""
        return [each for each in self.alternatives if each.case.is_plain]

    def _leading(self, alternatives: Sequence[Judged]) -> Judged:
        """Return the fastest of those that decide."""
        for verdict in ("change", "inconclusive", "keep"):
            for each in alternatives:
                if each.verdict == verdict:
                    return each
        return self.baseline

    def _if_faster(self, judged: Judged) -> Judged:
        if judged.ratio > 1:
            return judged
        return self.baseline


def decide(records: Sequence[TrainingRecord], info: RunInfo) -> Decision | None:
    """Return the decision on one environment, from new launches if there are any.

    None if nothing was trained with DDP.
    """
    return decision_of(records, CONFIRM, info) or decision_of(records, SWEEP, info)


def decision_of(records: Iterable[TrainingRecord], phase: str, info: RunInfo) -> Decision | None:
    """Return the decision from one phase, in the group with the most ranks, and there with the
    first batch of ``info["batches"]``, else the smallest.

    Left out are settings that failed, whose ranks disagree, whose steps were all skipped, or whose
    loss, parameters or gradients are not finite while the baseline's are. So are settings that lose
    more accuracy than ``info["max_accuracy_loss"]`` allows (`commbench.tuner.learning`).

    None if nothing was trained with DDP.
    """
    trained_by_key = trained(records, phase)
    groups = groups_of(trained_by_key)
    if not groups:
        return None
    members = groups[_first_group(groups, info)]
    case = baseline_case([member.case for member in members], info)
    is_confirmation = phase == CONFIRM
    base = trained_by_key.get(case.key)
    if base is None or not base.is_ok:
        why = Finding("unfit_untrained")
        if base is not None:
            why = _stated(base, "unfit_unknown")
        untrained = Judged(trained=Trained(case=case, records=()))
        left_out = [LeftOut(case=case, why=why)]
        return Decision(baseline=untrained, left_out=left_out, is_confirmation=is_confirmation)
    fit, left_out = [], []
    others = [each for each in members if each is not base and each.case.hook not in INSTRUMENTS]
    losses = equal_losses([base, *(other for other in others if other.is_ok)])
    for other in others:
        paired = paired_losses(other, base, losses)
        reason = _unfit(other, base, paired, info, is_decision=is_confirmation)
        if reason is None:
            fit.append((other, paired))
        else:
            left_out.append(reason)
    judged = [
        _judged(other, base, paired, len(fit), info, is_confirmation=is_confirmation)
        for other, paired in fit
    ]
    judged.sort(key=attrgetter("ratio"), reverse=True)
    same = None
    if is_confirmation:
        interval = Interval(low=1.0, high=1.0, level=level_of(1))
        same = Speedup(ratio=1.0, launches=0, interval=interval)
    return Decision(
        baseline=Judged(trained=base, ratio=1.0, speedup=same),
        alternatives=judged,
        left_out=left_out,
        is_confirmation=is_confirmation,
    )


def _judged(
    candidate: Trained,
    base: Trained,
    losses: PairedLosses,
    alternatives: int,
    info: RunInfo,
    *,
    is_confirmation: bool,
) -> Judged:
    look = 0
    if pairs_blocks(candidate, base):
        look = look_of_rounds(len(timed.block_lengths) for timed in candidate.timed.values())
    elif is_confirmation:
        first_look = info.get("first_look")
        if is_live(info):  # whoever adds launches one by one looks after each
            first_look = FEWEST_LIVE_LAUNCHES
        look = look_of_launches(len(common_launches(candidate, base)), first_look)
    speedup = speedup_of(candidate, base, level=level_of(alternatives, look))
    ratio = math.nan
    if speedup is not None:
        ratio = speedup.ratio
    if not is_confirmation:
        speedup = None
    return Judged(
        trained=candidate,
        ratio=ratio,
        effect=effect_of(candidate.case, base.case),
        withheld=withheld(candidate.case, base.case, info),
        speedup=speedup,
        verdict=judge(speedup),
        losses=losses,
    )


def _first_group(groups: Iterable[Group], info: RunInfo) -> Group:
    """Return the group with the most ranks and there the first batch of ``info["batches"]``, else
    the smallest.

    Of several environments, the first.
    """
    first = next(iter(info.get("batches", ())), None)

    def order(group: Group) -> tuple[Any, ...]:
        workload, backend, world_size, batch, env = group
        return -world_size, batch != first, batch, env != first_env(info), workload, backend

    return min(groups, key=order)


def _unfit(
    candidate: Trained,
    base: Trained,
    losses: PairedLosses,
    info: RunInfo,
    *,
    is_decision: bool,
) -> LeftOut | None:
    """Return why a setting is left out; None if it is not."""
    timed = list(candidate.timed.values())
    allowed = info.get("max_accuracy_loss")
    why: Finding | None = None
    is_costly = False
    if not candidate.is_ok:
        why = _stated(candidate, "unfit_untimed")
    elif not paired_sample_ms(candidate, base)[0]:
        why = Finding("unfit_unpaired")
    elif any(record.ranks_agree is False for record in timed):
        why = Finding("parameters_differ")
    elif sum(record.skipped_steps for record in timed) >= sum(map(steps_of, timed)):
        why = Finding("unfit_skipped")
    elif any(map(_diverged, losses)):
        why = Finding("unfit_diverged")
    elif _has_lost(candidate) and not _has_lost(base):
        why = Finding("unfit_parameters")
    elif _has_lost_gradients(candidate, base):
        why = Finding("unfit_gradients")
    elif allowed is not None:
        why = accuracy_warning(candidate, base, losses, allowed, is_decision=is_decision)
        is_costly = True
    if why is None:
        return None
    return LeftOut(case=candidate.case, why=why, is_costly=is_costly)


def steps_of(record: TrainingRecord) -> int:
    """Return the optimiser steps of all blocks, including untimed steps."""
    if record.total_steps:
        return record.total_steps
    blocks = len(record.block_lengths)
    if record.block_at:  # blocks of different lengths
        return len(record.step_ms) + record.discarded * blocks
    return record.block_steps * blocks or len(record.step_ms)


def _diverged(pair: tuple[EqualLosses, EqualLosses]) -> bool:
    """Return whether a setting's loss is not finite while the baseline's is."""
    own, theirs = pair
    return math.isfinite(theirs.steps) and not math.isfinite(own.steps)


def _has_lost(each: Trained) -> bool:
    """Return whether parameters were not finite at the end of a training."""
    return any(record.parameters_finite is False for record in each.timed.values())


def _has_lost_gradients(candidate: Trained, base: Trained) -> bool:
    """Return whether a setting's exchanged gradients are not finite while the baseline's are.

    Gradients that are scaled may overflow in a step that is skipped, so another precision is not
    judged.
    """
    if candidate.case.precision != base.case.precision:
        return False
    for launch in common_launches(candidate, base):
        error = candidate.timed[launch].grad_rel_error
        if error is None and base.timed[launch].grad_rel_error is not None:
            return True
    return False


def _stated(failed: Trained, without: str) -> Finding:
    """Return the reason of a failure, or a code where it has none."""
    reason = failed.outcome.get("reason", "")
    if not reason:
        return Finding(without)
    return Finding.stated(reason.rstrip("."))


def finalists(records: Sequence[TrainingRecord], info: RunInfo) -> list[TrainingCase]:
    """Return the settings of one environment to confirm in new launches: the baseline, and the
    `winners` of the sweep as `decision_of` reads it.

    Once begun, they do not change. The fastest without compression is added if it is faster than
    the baseline, because it may alter learning by its precision.

    Args:
        records: of the run.
        info: contents of ``run.json``.

    Returns:
        Each once, with the phase ``confirm``, the baseline first; empty if the baseline failed.
    """
    begun = list(dict.fromkeys(record.case for record in records if record.case.phase == CONFIRM))
    if begun:
        baseline = baseline_of(begun)
        return sorted(begun, key=lambda case: case != baseline)
    decision = decision_of(records, SWEEP, info)
    if decision is None or not decision.has_baseline:
        return []
    baseline = decision.baseline.case
    ratios = {each.case: each.ratio for each in decision.alternatives}
    withheld_cases = [each.case for each in decision.alternatives if each.withheld]
    chosen = [baseline, *winners(ratios, baseline, withheld_cases)]
    if decision.plain and decision.plain[0].ratio > 1:
        chosen.append(decision.plain[0].case)
    return [dataclasses.replace(case, phase=CONFIRM) for case in dict.fromkeys(chosen)]
