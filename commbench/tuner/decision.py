"""The decision: which configurations to confirm, whether to change DDP's settings, and with what
evidence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commbench import stats
from commbench.analysis.env import compare_training_envs
from commbench.ddp.plan.cases import CONFIRM, LOCAL, SWEEP, TrainingCase, baseline_name
from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding, Value
from commbench.hooks.registry import HOOKS
from commbench.results.info import RunInfo, is_live
from commbench.results.recommendation import (
    EFFECTS,
    AlteringChoice,
    Choice,
    Cost,
    Difference,
    Recommendation,
    SafeChoice,
    Search,
    Verdict,
    alters_learning,
    effect_of,
    fresh_extent,
    setting_of,
)
from commbench.results.summary import condition_flags, launch_flags
from commbench.results.trained import (
    EqualLosses,
    Group,
    Speedup,
    Trained,
    baseline_case,
    common_launches,
    equal_losses,
    groups_of,
    median,
    paired_losses,
    paired_sample_ms,
    pairs_blocks,
    speedup_of,
    trained,
)
from commbench.stats import MARGIN
from commbench.tuner.effort import launch_advice, measured_steps, steps_of
from commbench.tuner.learning import accuracy_warning, withheld
from commbench.tuner.snippet import env_snippet, keep_snippet, live_snippet, snippet_of
from commbench.words import Estimate

#: Never recommended: instruments only measure, and `LOCAL` exchanges no gradients.
INSTRUMENTS = frozenset({LOCAL, *(name for name, spec in HOOKS.items() if spec.is_instrument)})
#: Two-sided error of the interval of one alternative at the first look. Each further look may err
#: half as often. With a true gain equal to the margin, "change" is concluded in at most 2.5 % of
#: first looks and in less than 5 % of all, however many there are. See `benchmarks/looks.py`.
FIRST_ERROR = 0.05
#: Rounds of fresh blocks after which a live tuning looks. If it ends earlier, a look at its end
#: replaces the next one.
LIVE_LOOKS = (8, 16, 32, 64, 128, 256)


def level_of(alternatives: int, look: int = 0) -> float:
    """Return the level of each alternative's interval at a look, from 0, with Bonferroni's
    correction for the number of alternatives.

    Whichever alternative is fastest, its interval then covers its speedup as often as a single
    alternative's would.
    """
    return 1 - FIRST_ERROR / 2.0**look / max(1, alternatives)


def look_of_launches(launches: int, first_look: int | None) -> int:
    """Return the number of the look after some fresh launches, from 0.

    Each look has at most twice as many launches as the one before.
    """
    if not first_look or launches <= first_look:
        return 0
    return math.ceil(math.log2(launches / first_look))


def look_of_rounds(rounds: Iterable[int]) -> int:
    """Return the number of the look of a live tuning, from 0.

    Args:
        rounds: of fresh blocks in each launch; the looks of earlier launches count.
    """
    looks = 0
    for in_launch in rounds:
        looks += 1 + sum(look < in_launch for look in LIVE_LOOKS)
    return max(0, looks - 1)


def judge(speedup: Speedup | None) -> Verdict:
    """Return the verdict on one alternative's speedup in fresh launches."""
    if speedup is None or speedup.interval is None:
        return "inconclusive"
    if speedup.interval.low > 1 + MARGIN:
        return "change"
    return "keep" if speedup.interval.high <= 1 + MARGIN else "inconclusive"


# ---------------------------------------------------------------------------------- what to confirm


def candidates(records: Iterable[TrainingRecord], info: RunInfo) -> list[TrainingCase]:
    """Return the configurations to confirm in fresh launches: the baseline and the fastest of each
    effect on learning.

    One with a stronger effect must be faster than those with a weaker effect. The fastest without
    compression is added, because it may alter learning by its precision. All must be faster than
    the baseline, except the fastest that may be
    recommended: only a comparison can show that the default is as good. They are chosen from the
    sweep: from the group with the most ranks, and there the first batch of ``info["batches"]``,
    else the smallest.

    Left out are configurations that failed, whose ranks disagree, whose steps were all skipped, or
    whose loss is not finite while the baseline's is. So are configurations that lose more accuracy
    than ``info["max_accuracy_loss"]`` allows (`commbench.tuner.learning`).

    Args:
        records: of the run.
        info: contents of ``run.json``.

    Returns:
        Each once, with the phase ``confirm``, the baseline first; empty if the baseline failed.
    """
    group = _Compared.of(records, SWEEP, info)
    if group is None or group.baseline is None:
        return []
    ranked = sorted(group.alternatives, key=group.ratio, reverse=True)
    faster = [candidate for candidate in ranked if group.ratio(candidate) > 1]
    by_effect = {effect_of(candidate.case, group.case): candidate for candidate in reversed(faster)}
    fastest: list[Trained] = []
    for candidate in (by_effect[effect] for effect in EFFECTS if effect in by_effect):
        fastest += (
            [candidate] if not fastest or group.ratio(candidate) > group.ratio(fastest[-1]) else []
        )
    plain = [candidate for candidate in faster if candidate.case.is_plain]
    usable = [candidate for candidate in ranked if not withheld(candidate.case, group.case, info)]
    to_confirm = [group.baseline, *fastest[:1], *plain[:1], *fastest[1:], *(usable or ranked)[:1]]
    return list(
        dict.fromkeys(
            dataclasses.replace(candidate.case, phase=CONFIRM) for candidate in to_confirm
        )
    )


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """The configurations of one group in one phase, with the reasons why some may not be
    recommended.
    """

    case: TrainingCase
    """The baseline, even if it was not trained."""
    baseline: Trained | None
    """None if it failed."""
    alternatives: Sequence[Trained]
    losses: Mapping[tuple[str, int], EqualLosses]
    unfit: Mapping[TrainingCase, str]
    """Why the other configurations may not be recommended."""
    too_costly: Mapping[TrainingCase, str] = field(default_factory=dict)
    """The part of ``unfit`` that may lose more accuracy than allowed."""

    @classmethod
    def of(cls, records: Iterable[TrainingRecord], phase: str, info: RunInfo) -> _Compared | None:
        trained_by_key = trained(records, phase)
        groups = groups_of(trained_by_key)
        if not groups:
            return None
        members = groups[_first_group(groups, info)]
        case = baseline_case([candidate.case for candidate in members], info)
        base = trained_by_key.get(case.key)
        if base is None or not base.is_ok:
            why = base.outcome.reason if base else str(Finding(code="unfit_untrained"))
            reasons = {case: why}
            return cls(case=case, baseline=None, alternatives=(), losses={}, unfit=reasons)
        others = [
            candidate
            for candidate in members
            if candidate is not base and candidate.case.hook not in INSTRUMENTS
        ]
        losses = equal_losses([candidate for candidate in [base, *others] if candidate.is_ok])
        unfit = {candidate.case: _unfit(candidate, base, losses) for candidate in others}
        allowed = info.get("max_accuracy_loss")
        costly: dict[TrainingCase, str] = {}
        if allowed is not None:
            fit = [candidate for candidate in others if not unfit[candidate.case]]
            decides = phase == CONFIRM
            for candidate in fit:
                warning = accuracy_warning(candidate, base, losses, allowed, is_decision=decides)
                costly[candidate.case] = str(warning or "")
        unfit |= costly
        return cls(
            case=case,
            baseline=base,
            alternatives=[candidate for candidate in others if not unfit[candidate.case]],
            losses=losses,
            unfit={case: reasons for case, reasons in unfit.items() if reasons},
            too_costly={case: reasons for case, reasons in costly.items() if reasons},
        )

    def ratio(self, candidate: Trained) -> float:
        """Return the speedup over the baseline."""
        speedup = speedup_of(candidate, self.baseline) if self.baseline else None
        return speedup.ratio if speedup else math.nan


def _first_group(groups: Iterable[Group], info: RunInfo) -> Group:
    """Return the group with the most ranks and there the first batch of ``info["batches"]``, else
    the smallest.

    Of several environments, the first.
    """
    first = next(iter(info.get("batches") or ()), None)
    first_env = next(iter(info.get("env") or ()), None)

    def order(group: Group) -> tuple[Any, ...]:
        workload, backend, world_size, batch, env = group
        return -world_size, batch != first, batch, env != first_env, workload, backend

    return min(groups, key=order)


def _unfit(candidate: Trained, base: Trained, losses: Mapping[tuple[str, int], EqualLosses]) -> str:
    """Return why a configuration may not be recommended; empty if it may."""
    if not candidate.is_ok:
        return candidate.outcome.reason or str(Finding(code="unfit_untimed"))
    if not paired_sample_ms(candidate, base)[0]:
        return str(Finding(code="unfit_unpaired"))
    timed = list(candidate.timed.values())
    if any(record.ranks_agree is False for record in timed):
        return str(Finding(code="parameters_differ"))
    if sum(record.skipped_steps for record in timed) >= sum(map(steps_of, timed)):
        return str(Finding(code="unfit_skipped"))
    for own, theirs in paired_losses(candidate, base, losses):
        if math.isfinite(theirs.steps) and not math.isfinite(own.steps):
            return str(Finding(code="unfit_diverged"))
    return ""


# ------------------------------------------------------------------------------------- the decision


def recommend(records: Iterable[TrainingRecord], info: RunInfo) -> Recommendation | None:
    """Decide from the fresh launches whether to change DDP's settings.

    None if nothing was trained with DDP.

    The verdict is ``change`` if the interval of an alternative's speedup, paired by launch, lies
    wholly above the margin of 2 %. It is ``keep`` if no alternative's interval reaches above the
    margin. The intervals have the level of `level_of`. Without fresh launches the verdict is
    inconclusive, because the best of many equal settings looks faster by chance; the reason then
    names the fastest of the sweep.

    Args:
        records: of the run, all phases.
        info: contents of ``run.json``. Used are the entries that `candidates` uses, ``launches``,
            ``oversubscribed``, ``environment``, ``ranks_per_gpu``, and ``first_look``, the number
            of fresh launches at the first look; more launches make a second look.
    """
    records = list(records)
    env, env_reason = _chosen_env(records, info)
    records = [record for record in records if record.case.env == env]
    confirmed = _Compared.of(records, CONFIRM, info)
    group = confirmed or _Compared.of(records, SWEEP, info)
    if group is None:
        return None
    decision = _Decision(
        group=group, fresh=confirmed is not None, records=records, info=info
    ).recommendation()
    search = _search_of(records, info)
    return dataclasses.replace(decision, env=env, env_reason=env_reason, search=search)


def _search_of(records: Sequence[TrainingRecord], info: RunInfo) -> Search | None:
    """Return how a tuning selected its choice; None for a sweep and for a person's training."""
    keys = info.get("candidates")
    if not keys:
        return None
    settings = {TrainingCase.from_key(key) for key in keys[1:]}  # the default is first
    measured: dict[str, set[TrainingCase]] = {}
    for phase in (CONFIRM, SWEEP):
        cases = [member.case for member in trained(records, phase).values() if member.is_ok]
        measured[phase] = settings & {dataclasses.replace(case, phase=SWEEP) for case in cases}
    afresh = measured[CONFIRM]
    in_rounds = measured[SWEEP] - afresh
    return Search(
        settings=len(settings),
        afresh=len(afresh),
        in_rounds=len(in_rounds),
        untried=len(settings) - len(afresh) - len(in_rounds),
    )


def _chosen_env(records: Sequence[TrainingRecord], info: RunInfo) -> tuple[str, str]:
    """Return the environment to recommend settings for, and why; both empty if none was varied.

    It is the first one, unless fresh launches show another one to be faster.
    """
    first = next(iter(info.get("env") or ()), "")
    comparison = compare_training_envs(records, info)
    if comparison is None:
        return first, ""
    if not comparison.is_fresh:
        return first, str(Finding(code="env_unconfirmed", subject=first))
    if comparison.best:
        first = comparison.best.env
    return first, str(comparison.finding)


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """The measurements behind a `Recommendation`."""

    group: _Compared
    fresh: bool
    records: Sequence[TrainingRecord]
    info: RunInfo

    def recommendation(self) -> Recommendation:
        """Return the verdict with its evidence."""
        group, case = self.group, self.group.case
        speedups = {candidate.case: self._speedup(candidate) for candidate in group.alternatives}
        ranked = sorted(group.alternatives, key=group.ratio, reverse=True)
        usable = [
            candidate for candidate in ranked if not withheld(candidate.case, case, self.info)
        ]
        verdict, leader = self._verdict(usable, speedups)
        if self.fresh and ranked and not usable:
            verdict = "keep"
        choices = {
            candidate.case: _choice_of(candidate, speedups[candidate.case]) for candidate in ranked
        }
        baseline = self._baseline_choice()
        best = leader if leader is not None and group.ratio(leader) > 1 else None
        plain = next(
            (
                candidate
                for candidate in ranked
                if candidate.case.is_plain and group.ratio(candidate) > 1
            ),
            None,
        )
        best_choice = choices[best.case] if best else baseline
        reported = leader or next(iter(ranked), None)
        judged_speedup = speedups[reported.case] if reported else None
        launches = judged_speedup.launches if judged_speedup else 0
        level = (
            judged_speedup.interval.level
            if judged_speedup and judged_speedup.interval
            else level_of(1)
        )
        snippet = self._snippet(best if verdict == "change" else None)
        return Recommendation(
            workload=case.workload,
            world_size=case.world_size,
            backend=case.backend,
            batch_per_rank=case.batch_per_rank,
            baseline=baseline,
            best=best_choice,
            best_uncompressed=choices[plain.case] if plain else self._plain_of_sweep() or baseline,
            speedup=best_choice.speedup,
            speedup_ci=best_choice.speedup_ci,
            verdict=verdict,
            level=level,
            reason=str(
                self._reason(
                    verdict,
                    choices[leader.case].name_beside(baseline) if leader else "",
                    judged_speedup,
                    level,
                    has_withheld=bool(ranked),
                )
            ),
            snippet=snippet,
            measured_steps=measured_steps(self.records),
            launches=launches,
            blocks=judged_speedup.blocks if judged_speedup else 0,
            is_live=is_live(self.info),
            safe=self._safe(ranked, speedups),
            altering=self._altering(ranked, speedups, level) if self.fresh else (),
            alternatives=tuple(choices.values()),
            cost=_cost_of(best, group) if best else None,
            warnings=self._warnings(best, judged_speedup, level),
            max_accuracy_loss=self.info.get("max_accuracy_loss"),
            too_costly=self._too_costly(),
            launch_advice=self._launch_advice(leader, level) if verdict == "inconclusive" else "",
        )

    def _snippet(self, candidate: Trained | None) -> str:
        """Return the code that trains as ``candidate``; None: as the baseline.

        It sets the variables of the environment if fresh launches decided for them.
        """
        if self.group.baseline is None:
            return ""
        env = self.group.case.env
        if env not in {"", *self.info.get("env", ())[:1]}:
            return env_snippet(env) + self._code(candidate)
        return self._code(candidate)

    def _code(self, candidate: Trained | None) -> str:
        if is_live(self.info):
            framework = self.info.get("framework", "")
            return live_snippet(
                candidate.case if candidate else self.group.case,
                self.group.case,
                framework=framework,
            )
        return (
            snippet_of(candidate.case, device=next(iter(candidate.timed.values())).device)
            if candidate
            else keep_snippet(unused_parameters=self.group.case.unused_parameters)
        )

    def _safe(
        self, ranked: Sequence[Trained], speedups: Mapping[TrainingCase, Speedup | None]
    ) -> SafeChoice:
        """Return the fastest alternative that leaves learning unchanged, judged on its own."""
        safe = [
            candidate
            for candidate in ranked
            if not alters_learning(candidate.case, self.group.case)
        ]
        verdict, leader = self._verdict(safe, speedups)
        best = leader if leader is not None and self.group.ratio(leader) > 1 else None
        choice = _choice_of(best, speedups[best.case]) if best else self._baseline_choice()
        snippet = self._snippet(best if verdict == "change" else None)
        return SafeChoice(**vars(choice), verdict=verdict, snippet=snippet)

    def _altering(
        self,
        ranked: Sequence[Trained],
        speedups: Mapping[TrainingCase, Speedup | None],
        level: float,
    ) -> tuple[AlteringChoice, ...]:
        """Return the fastest alternative of each other effect on learning, each judged on its
        own.
        """
        by_effect = {
            effect_of(candidate.case, self.group.case): candidate for candidate in reversed(ranked)
        }
        half = by_effect.get("half precision")
        choices = []
        for effect in EFFECTS[1:]:
            if effect not in by_effect:
                continue
            candidate = by_effect[effect]
            why_withheld = withheld(candidate.case, self.group.case, self.info)
            verdict = judge(speedups[candidate.case])
            over_half = (
                speedup_of(candidate, half, level=level) if half and effect == "lossy" else None
            )
            interval = over_half.interval if over_half else None
            choices.append(
                AlteringChoice(
                    **vars(_choice_of(candidate, speedups[candidate.case])),
                    effect=effect,
                    verdict=verdict,
                    withheld=why_withheld,
                    snippet=(
                        self._snippet(candidate) if verdict == "change" and not why_withheld else ""
                    ),
                    speedup_half=over_half.ratio if over_half else None,
                    speedup_half_ci=(interval.low, interval.high) if interval else None,
                    cost=_cost_of(candidate, self.group),
                )
            )
        return tuple(choices)

    def _speedup(self, candidate: Trained) -> Speedup | None:
        """Return the speedup in fresh launches, or in the fresh blocks of few; None without any."""
        if not self.fresh or self.group.baseline is None:
            return None
        alternatives = len(self.group.alternatives)
        launches = len(common_launches(candidate, self.group.baseline))
        if pairs_blocks(candidate, self.group.baseline):
            look = look_of_rounds(len(timed.block_lengths) for timed in candidate.timed.values())
        else:
            look = look_of_launches(launches, self.info.get("first_look"))
        level = level_of(alternatives, look)
        return speedup_of(candidate, self.group.baseline, level=level)

    def _plain_of_sweep(self) -> Choice | None:
        """Return the sweep's fastest configuration without a hook, if none was confirmed."""
        if not self.fresh or any(candidate.case.is_plain for candidate in self.group.alternatives):
            return None
        sought = _Compared.of(self.records, SWEEP, self.info)
        if sought is None or sought.baseline is None:
            return None
        base, others = sought.baseline, sought.alternatives
        speedups = {
            candidate.case: speedup_of(candidate, base)
            for candidate in others
            if candidate.case.is_plain
        }
        faster = {
            case: speedup.ratio
            for case, speedup in speedups.items()
            if speedup and speedup.ratio > 1
        }
        best = next(
            (
                candidate
                for candidate in others
                if faster and candidate.case == max(faster, key=faster.__getitem__)
            ),
            None,
        )
        return _choice_of(best, None) if best else None

    def _launch_advice(self, candidate: Trained | None, level: float) -> str:
        """Return what would decide, in words, see `commbench.tuner.effort.launch_advice`."""
        baseline = self.group.baseline
        if not self.fresh or candidate is None or baseline is None or is_live(self.info):
            return ""
        own, base = paired_sample_ms(candidate, baseline)
        ratios = [theirs / ours for ours, theirs in zip(own, base, strict=True) if ours > 0]
        if self.info.get("status") == "partial" or len(ratios) < (self.info.get("first_look") or 0):
            return ""  # planned launches come first
        advice = launch_advice(ratios, MARGIN, self.info.get("launches") or (), level=level)
        return advice.in_full if advice else ""

    def _verdict(
        self, ranked: Sequence[Trained], speedups: Mapping[TrainingCase, Speedup | None]
    ) -> tuple[Verdict, Trained | None]:
        """Return the verdict and the alternative that it concerns: the fastest of those that decide
        it.
        """
        by_verdict: dict[Verdict, list[Trained]] = {"change": [], "inconclusive": [], "keep": []}
        for candidate in ranked:
            by_verdict[judge(speedups[candidate.case])].append(candidate)
        decision: tuple[Verdict, Trained | None] = ("inconclusive", None)
        for verdict in ("keep", "inconclusive", "change"):
            if by_verdict[verdict]:
                decision = verdict, by_verdict[verdict][0]
        return decision

    def _baseline_choice(self) -> Choice:
        """Return the baseline as a choice, with speedup 1."""
        chosen = Choice(**setting_of(self.group.case))
        if self.group.baseline is None:
            return chosen
        step_ms = median(list(self.group.baseline.steps_ms.values()))
        chosen = dataclasses.replace(chosen, step_ms=step_ms)
        return (
            dataclasses.replace(chosen, speedup=1.0, speedup_ci=(1.0, 1.0))
            if self.fresh
            else chosen
        )

    def _reason(
        self,
        verdict: Verdict,
        name: str,
        speedup: Speedup | None,
        level: float,
        *,
        has_withheld: bool,
    ) -> Finding:
        """Return what was compared, the gain and its interval.

        Args:
            verdict: on the setting.
            name: of the setting; empty if there is none.
            speedup: of the setting over the baseline in fresh launches or blocks.
            level: of the interval.
            has_withheld: whether settings were measured that may not be recommended.
        """
        numbers: dict[str, Value] = {"baseline": baseline_name(is_live=is_live(self.info))}
        if self.group.unfit:
            numbers["cause"] = self._why_unfit()
        if self.group.baseline is None:
            code = "reason_baseline_failed"
        elif not name and has_withheld:
            code = "reason_all_withheld"
        elif not name:
            code = "reason_none_because" if self.group.unfit else "reason_none"
        elif not self.fresh:
            code = "reason_unconfirmed"
            numbers |= {"stage": self._stage, "fresh": "launches"}
            if is_live(self.info):
                numbers["fresh"] = "blocks"
        elif speedup is None or speedup.interval is None:
            code = "reason_one_launch"
            numbers["launches"] = speedup.launches if speedup else 0
            if speedup and speedup.blocks:
                code = "reason_one_block"
                numbers["blocks"] = speedup.blocks
        else:
            code = f"reason_{verdict}"
            interval = speedup.interval
            extent = fresh_extent(speedup.launches, speedup.blocks, is_live=is_live(self.info))
            numbers |= {
                "extent": extent,
                "speedup": Estimate(speedup.ratio, interval.low, interval.high),
                "level": level,
                "margin": MARGIN,
            }
        return Finding(code=code, subject=name, numbers=numbers)

    @property
    def _stage(self) -> str:
        """The last measured stage, if nothing was confirmed."""
        return "screening" if is_live(self.info) else "sweep"

    def _why_unfit(self) -> str:
        first = next(iter(self.group.unfit.values()))
        return first.rstrip(".") or str(Finding(code="unfit_unknown"))

    def _too_costly(self) -> tuple[str, ...]:
        """Return the configurations that sweep and fresh launches leave out for their accuracy,
        with reasons.
        """
        sought = _Compared.of(self.records, SWEEP, self.info)
        too_costly: list[tuple[TrainingCase, str]] = []
        if sought:
            too_costly += sought.too_costly.items()
        if self.fresh:
            too_costly += self.group.too_costly.items()
        return tuple(_left_out("too_costly", case, why) for case, why in too_costly)

    def _warnings(
        self, best: Trained | None, speedup: Speedup | None, level: float
    ) -> tuple[str, ...]:
        """Return the limits of the conclusion, each as a clause."""
        launches, blocks = 0, 0
        if speedup:
            launches, blocks = speedup.launches, speedup.blocks
        fewest = stats.fewest_launches(level)
        findings = []
        if blocks:
            findings.append(Finding(code="limit_launches", numbers={"launches": launches}))
        elif 1 < launches < fewest:
            code = "limit_few_launches" if is_live(self.info) else "limit_few_fresh_launches"
            findings.append(Finding(code=code, numbers={"launches": launches}))
        if 0 < blocks < fewest:
            findings.append(Finding(code="limit_few_blocks", numbers={"blocks": blocks}))
        flags = self._flags(best)
        for code, flag in _LIMITS.items():
            if flag in flags:
                findings.append(Finding(code=code))
        return (*map(str, findings), *self._left_out())

    def _flags(self, best: Trained | None) -> set[str]:
        """Return the flags of the run's conditions, and of the baseline's and the best's
        launches.
        """
        flags = condition_flags(self.group.case.backend, self.info)
        if self.info.get("oversubscribed"):
            flags.add("oversubscribed")
        for member in (self.group.baseline, best):
            if member:
                flags |= launch_flags(list(member.steps_ms.values()))
                for record in member.timed.values():
                    flags |= set(record.flags)
        return flags

    def _left_out(self) -> list[str]:
        """Return the configurations of fresh launches that may not be recommended, and why."""
        if not self.fresh or self.group.baseline is None:
            return []
        left_out = []
        for case, why in self.group.unfit.items():
            if case not in self.group.too_costly:
                left_out.append(_left_out("limit_left_out", case, why.rstrip(".")))
        return left_out


#: Limits of a conclusion, by the flags that make them.
_LIMITS = {
    "limit_bimodal_launches": "bimodal_launches",
    "limit_oversubscribed": "oversubscribed",
    "limit_emulated": "emulated",
    "limit_shared_gpu": "shared_gpu",
    "limit_throttled": "throttled",
}


def _left_out(code: str, case: TrainingCase, why: str) -> str:
    """Return that a setting is left out, as a clause."""
    setting = Choice(**setting_of(case)).name
    return str(Finding(code=code, subject=setting, numbers={"cause": why}))


def _cost_of(best: Trained, group: _Compared) -> Cost | None:
    """Return what the best configuration changes in learning, in the launches with both."""
    if group.baseline is None:
        return None
    losses = paired_losses(best, group.baseline, group.losses)
    pairs = [
        pair
        for pair in losses
        if all(math.isfinite(loss.steps) and math.isfinite(loss.time) for loss in pair)
    ]
    if not pairs:
        return None
    launches = sorted(best.timed.keys() & group.baseline.timed.keys())
    metrics = [
        (own.metrics[-1][1], theirs.metrics[-1][1])
        for own, theirs in (
            (best.timed[launch], group.baseline.timed[launch]) for launch in launches
        )
        if len(own.metrics) and len(theirs.metrics)
    ]
    metrics = [pair for pair in metrics if all(map(math.isfinite, pair))]
    return Cost(
        steps=min(own.count for own, _ in pairs),
        loss_equal_steps=_difference([(own.steps, theirs.steps) for own, theirs in pairs]),
        loss_equal_time=_difference([(own.time, theirs.time) for own, theirs in pairs]),
        metric_name=best.timed[launches[-1]].metric_name if metrics else "",
        metric=_difference(metrics) if metrics else None,
    )


def _difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    own, theirs = np.transpose(np.asarray(pairs, dtype=float))
    interval = stats.median_interval(own - theirs)
    return Difference(
        baseline=median(theirs),
        best=median(own),
        difference=median(own - theirs),
        difference_ci=(interval.low, interval.high) if interval else None,
    )


def _choice_of(candidate: Trained, speedup: Speedup | None) -> Choice:
    interval = speedup.interval if speedup else None
    return Choice(
        **setting_of(candidate.case),
        step_ms=median(list(candidate.steps_ms.values())),
        speedup=speedup.ratio if speedup else None,
        speedup_ci=(interval.low, interval.high) if interval else None,
    )
