"""The contents of ``recommendation.json``: a decision in words, with what to paste."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commbench.analysis.env import compare_training_envs
from commbench.ddp.plan.cases import CONFIRM, SWEEP, TrainingCase, baseline_name, setting_name
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import copied
from commbench.findings import Finding, Numbers
from commbench.results.info import RunInfo, first_env, is_live
from commbench.results.recommendation import (
    AlteringChoice,
    Choice,
    Cost,
    Recommendation,
    SafeChoice,
    Search,
    Verdict,
    confirmation_extent,
    setting_of,
)
from commbench.results.trained import Speedup, median_known, speedup_of
from commbench.results.training_summary import flags_of
from commbench.schema import JsonMapping
from commbench.stats import DEFAULT_LEVEL, MARGIN, bounds_of, fewest_launches
from commbench.stats.ratios import MOST_LAUNCHES, Scatter, further_launches, margin_errors_of
from commbench.tuner.decision import Decision, Judged, LeftOut, decide, decision_of, steps_of
from commbench.tuner.learning import cost_of
from commbench.tuner.rules import level_of
from commbench.tuner.snippet import env_snippet, keep_snippet, live_snippet, snippet_of
from commbench.words import Estimate

#: Flags that limit a conclusion.
_LIMITS = ("bimodal_launches", "oversubscribed", "emulated", "shared_gpu", "throttled")


def recommend(records: Iterable[TrainingRecord], info: RunInfo) -> Recommendation | None:
    """Return whether to change DDP's settings, as `commbench.tuner.decision` decides it.

    None if nothing was trained with DDP.

    Args:
        records: of the run, all phases.
        info: contents of ``run.json``. Used are the entries that the decision uses, ``launches``,
            ``oversubscribed``, ``environment``, ``ranks_per_gpu``, and ``first_look``, the number
            of new launches at the first look; more launches make a second look.
    """
    records = list(records)
    env, env_reason = _chosen_env(records, info)
    records = [record for record in records if record.case.env == env]
    decision = decide(records, info)
    if decision is None:
        return None
    said = _Conclusion(decision=decision, sought=decision_of(records, SWEEP, info), info=info)
    reported = decision.leader
    if not decision.usable and decision.alternatives:
        reported = decision.alternatives[0]
    speedup = reported.speedup or Speedup(ratio=reported.ratio, launches=0)
    level = level_of(1)
    if speedup.interval:
        level = speedup.interval.level
    best = _choice(decision.best)
    return Recommendation(
        **copied(Recommendation, decision.baseline.case),
        baseline=_choice(decision.baseline),
        best=best,
        best_uncompressed=said.uncompressed(),
        speedup=best.speedup,
        speedup_ci=best.speedup_ci,
        verdict=decision.verdict,
        level=level,
        reason=str(said.reason(speedup)),
        snippet=said.snippet_after(decision.verdict, decision.best),
        measured_steps=measured_steps(records),
        launches=speedup.launches,
        blocks=speedup.blocks,
        live=is_live(info),
        safe=said.safe(),
        altering=tuple(said.altering(each, level) for each in decision.altering),
        alternatives=tuple(map(_choice, decision.alternatives)),
        cost=said.cost(decision.best),
        warnings=tuple(map(str, said.warnings(speedup, level))),
        max_accuracy_loss=info.get("max_accuracy_loss"),
        accuracy_failed=tuple(map(str, said.accuracy_failed())),
        search=_search_of(records, info),
        env_reason=env_reason,
        further_launches=said.launch_advice(speedup.ratios, level),
    )


def _search_of(records: Sequence[TrainingRecord], info: RunInfo) -> Search | None:
    """Return how a tuning selected its choice; None for a sweep and for a person's training."""
    keys = info.get("candidates")
    if not keys:
        return None
    measured: dict[str, set[TrainingCase]] = {SWEEP: set(), CONFIRM: set()}
    for record in records:
        if record.status == "ok":
            case = dataclasses.replace(record.case, phase=SWEEP)
            measured[record.case.phase].add(case)
    settings = {TrainingCase.from_key(key) for key in keys[1:]}  # the default is first
    confirmed = settings & measured[CONFIRM]
    in_rounds = settings & measured[SWEEP] - confirmed
    untried = settings - confirmed - in_rounds
    return Search(
        settings=len(settings),
        confirmed=len(confirmed),
        in_rounds=len(in_rounds),
        untried=len(untried),
    )


def _chosen_env(records: Sequence[TrainingRecord], info: RunInfo) -> tuple[str, str]:
    """Return the environment to recommend settings for, and why; both empty if none was varied.

    It is the first one, unless new launches show another one to be faster.
    """
    first = first_env(info)
    comparison = compare_training_envs(records, info)
    if comparison is None:
        return first, ""
    if not comparison.is_confirmation:
        return first, str(Finding("env_unconfirmed", first))
    if comparison.best:
        first = comparison.best.env
    return first, str(comparison.finding)


@dataclass(frozen=True, kw_only=True)
class _Conclusion:
    """What a decision says."""

    decision: Decision
    sought: Decision | None
    """The decision of the sweep."""
    info: RunInfo

    def uncompressed(self) -> Choice:
        """Return the fastest without compression; of the sweep, if none was confirmed."""
        decision = self.decision
        plain = decision.plain
        if not plain and self.sought:
            plain = self.sought.plain
        if plain and plain[0].ratio > 1:
            return _choice(plain[0])
        return _choice(decision.baseline)

    def safe(self) -> SafeChoice:
        """Return the fastest setting that leaves learning unchanged, judged on its own."""
        safe, verdict = self.decision.safe, self.decision.safe_leader.verdict
        snippet = self.snippet_after(verdict, safe)
        return SafeChoice(**vars(_choice(safe)), verdict=verdict, snippet=snippet)

    def altering(self, judged: Judged, level: float) -> AlteringChoice:
        """Return the fastest setting of an effect on learning, judged on its own."""
        snippet = ""
        if judged.verdict == "change" and not judged.withheld:
            snippet = self.snippet(judged)
        ratio, bounds = None, None
        half = self.decision.fastest_by_effect().get("half precision")
        if half and judged.effect == "lossy":
            over_half = speedup_of(judged.trained, half.trained, level=level)
            ratio, bounds = _bounded(over_half)
        return AlteringChoice(
            **vars(_choice(judged)),
            effect=judged.effect,
            verdict=judged.verdict,
            withheld=judged.withheld,
            snippet=snippet,
            speedup_half=ratio,
            speedup_half_ci=bounds,
            cost=self.cost(judged),
        )

    def cost(self, judged: Judged) -> Cost | None:
        """Return what a setting changes in learning; None of the baseline, or without a loss."""
        return cost_of(judged.trained, self.decision.baseline.trained, judged.losses)

    def snippet_after(self, verdict: Verdict, best: Judged) -> str:
        """Return the code that a verdict calls for."""
        if verdict == "change":
            return self.snippet(best)
        return self.snippet(self.decision.baseline)

    def snippet(self, judged: Judged) -> str:
        """Return the code that trains as a setting.

        It sets the variables of the environment if new launches decided for them.
        """
        if not self.decision.has_baseline:
            return ""
        own, case = self.decision.baseline.case, judged.case
        if is_live(self.info):
            code = live_snippet(case, own, framework=self.info.get("framework", ""))
        elif judged is self.decision.baseline:
            code = keep_snippet(unused_parameters=own.unused_parameters)
        else:
            code = snippet_of(case, device=next(iter(judged.trained.timed.values())).device)
        if own.env in {"", *self.info.get("env", ())[:1]}:
            return code
        return env_snippet(own.env) + code

    def launch_advice(self, ratios: Sequence[float], level: float) -> str:
        """Return what would decide, in words, see the function `launch_advice`."""
        decision, info = self.decision, self.info
        is_open = (
            decision.is_confirmation and decision.verdict == "inconclusive" and decision.usable
        )
        if not is_open or is_live(info):
            return ""
        if info.get("status") == "partial" or len(ratios) < (info.get("first_look") or 0):
            return ""  # planned launches come first
        advice = launch_advice(ratios, info.get("launches", ()), level=level)
        if advice is None:
            return ""
        return advice.in_full

    def reason(self, speedup: Speedup) -> Finding:
        """Return what was compared, the gain and its interval.

        Args:
            speedup: of the leader over the baseline; without launches if these are not fresh.
        """
        decision, name = self.decision, ""
        numbers: Numbers = {
            "baseline": baseline_name(is_live=is_live(self.info)),
            "launches": speedup.launches,
            "blocks": speedup.blocks,
            "extent": confirmation_extent(
                speedup.launches, speedup.blocks, is_live=is_live(self.info)
            ),
            "margin": MARGIN,
        }
        if decision.left_out:
            numbers["cause"] = str(decision.left_out[0].why)
        if decision.usable:
            name = setting_name(decision.leader.case, decision.baseline.case)
        interval = speedup.interval
        if interval is not None:
            numbers["speedup"] = Estimate(speedup.ratio, interval.low, interval.high)
            numbers["level"] = interval.level
        return Finding(self._reason_code(speedup), name, numbers)

    def _reason_code(self, speedup: Speedup) -> str:
        decision = self.decision
        code = f"reason_{decision.verdict}"
        if not decision.has_baseline:
            code = "reason_baseline_failed"
        elif not decision.usable and decision.alternatives:
            code = "reason_all_withheld"
        elif not decision.usable and decision.left_out:
            code = "reason_none_because"
        elif not decision.usable:
            code = "reason_none"
        elif not decision.is_confirmation and is_live(self.info):
            code = "reason_unconfirmed_live"
        elif not decision.is_confirmation:
            code = "reason_unconfirmed"
        elif speedup.interval is None and speedup.blocks:
            code = "reason_one_block"
        elif speedup.interval is None:
            code = "reason_one_launch"
        return code

    def accuracy_failed(self) -> list[Finding]:
        """Return what sweep and new launches leave out for its accuracy."""
        left_out: list[LeftOut] = []
        if self.sought:
            left_out += self.sought.left_out
        if self.decision.is_confirmation:
            left_out += self.decision.left_out
        return [_left_out("accuracy_failed", each) for each in left_out if each.is_costly]

    def warnings(self, speedup: Speedup, level: float) -> list[Finding]:
        """Return the limits of the conclusion, each a clause."""
        numbers = {"launches": speedup.launches, "blocks": speedup.blocks}
        fewest = fewest_launches(level)
        codes = []
        if speedup.blocks:
            codes.append("limit_launches")
            if speedup.blocks < fewest:
                codes.append("limit_few_blocks")
        elif 1 < speedup.launches < fewest:
            codes.append("limit_few_fresh_launches")
            if is_live(self.info):
                codes = ["limit_few_launches"]
        flags = flags_of(self.decision.baseline.trained, self.info)
        flags |= flags_of(self.decision.best.trained, self.info)
        codes += [f"limit_{flag}" for flag in _LIMITS if flag in flags]
        findings = [Finding(code, numbers=numbers) for code in codes]
        if self.decision.is_confirmation and self.decision.has_baseline:
            for each in self.decision.left_out:
                if not each.is_costly:
                    findings.append(_left_out("limit_left_out", each))
        return findings


def measured_steps(records: Iterable[TrainingRecord]) -> int:
    """Return the optimiser steps with DDP in all stages, from the blocks of the records."""
    return sum(steps_of(record) for record in records if record.case.uses_ddp)


def launch_advice(
    ratios: Sequence[float], entries: Iterable[JsonMapping], *, level: float = DEFAULT_LEVEL
) -> Finding | None:
    """Return the launches that would decide whether a gain exceeds the margin of 2 %; None if
    unknown.

    For the estimate see `commbench.stats.ratios`.

    Args:
        ratios: the speedup in each new launch so far.
        entries: ``launches`` of run.json, for the time of a new launch.
        level: of the deciding interval.
    """
    if len(ratios) < 2 or min(ratios) <= 0:  # one launch has no spread
        return None
    logs = [math.log(ratio) for ratio in ratios]
    spread, distance = statistics.stdev(logs), abs(statistics.median(logs) - math.log1p(MARGIN))
    effort = further_launches(
        Scatter(spread=spread, freedom=len(logs) - 1, launches=len(logs)),
        distance,
        margin=MARGIN,
        margin_errors=margin_errors_of(level),
        fewest=fewest_launches(level),
    )
    numbers = {"margin": MARGIN}
    if effort.forecast == "near":
        return Finding(code="decide_near", numbers=numbers)
    if effort.forecast == "noisy":
        numbers |= {"spread": 100 * math.expm1(spread), "most": MOST_LAUNCHES}
        return Finding(code="decide_noisy", numbers=numbers)
    code, high = "decide_between", effort.high
    if high is None:
        code, high = "decide_at_least", effort.low
    elif high == effort.low:
        code = "decide_about"
    numbers |= {"low": effort.low, "high": high, "launches": len(ratios) + high}
    seconds = []
    for entry in entries:
        if entry.get("stage") == CONFIRM and entry.get("status") == "ok":
            seconds.append(entry.get("seconds", 0.0))
    details = []
    if seconds:
        time = {"seconds": high * statistics.median(seconds)}
        details.append(Finding(code="decide_time", numbers=time))
    return Finding(code=code, numbers=numbers, details=tuple(details))


def _left_out(code: str, left_out: LeftOut) -> Finding:
    """Return that a setting is left out, as a clause."""
    return Finding(code, setting_name(left_out.case), {"cause": str(left_out.why)})


def _choice(judged: Judged) -> Choice:
    """Return a setting with its step time and speedup."""
    speedup, bounds = _bounded(judged.speedup)
    return Choice(
        **setting_of(judged.case),
        step_ms=median_known(judged.trained.steps_ms.values()),
        speedup=speedup,
        speedup_ci=bounds,
    )


def _bounded(speedup: Speedup | None) -> tuple[float | None, tuple[float, float] | None]:
    """Return a speedup and the bounds of its interval."""
    if speedup is None:
        return None, None
    return speedup.ratio, bounds_of(speedup.interval)
