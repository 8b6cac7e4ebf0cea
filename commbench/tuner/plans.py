"""The launches of ``train`` and of ``tune --workload``: all settings, or a search among them, and
then the best against the baseline in new launches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from commbench.ddp.plan.cases import CONFIRM, DEFAULT_CAP, TrainingCase, TrainingSweep
from commbench.ddp.plan.layout import (
    candidate_caps,
    case_bucket_bytes,
    group_by_layout,
    unique_layouts,
)
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.terms import Terms
from commbench.ddp.plan.workload import WorkloadFacts, named
from commbench.hooks.registry import find_file_hooks
from commbench.results.info import RunInfo
from commbench.results.plan import RunRequest, Stage, dry_run_estimate
from commbench.results.record_types import AnyRecord, training_records
from commbench.stats import median
from commbench.stats.budgets import Budget, TrainingBudget
from commbench.tuner.decision import decide, finalists
from commbench.tuner.learning import withheld
from commbench.tuner.rules import TRAIN, USUALLY_CONFIRMED, Schedule

#: Duration of a block over that of its timed steps on the baseline: early steps, setup and
#: diagnosis.
OVERHEAD = 2.5


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A request to compare settings, and the stages that carry it out.

    Every stage follows only from the records of the stages before it. So a run that is resumed, or
    made launch by launch under mpirun, reaches the same settings.
    """

    sweep: TrainingSweep
    """The settings."""
    facts: WorkloadFacts
    """Of the workload at its own or the first batch."""
    ranks: int
    seed: int
    budget: TrainingBudget
    schedule: Schedule = TRAIN
    max_accuracy_loss: float | None = None
    """Largest accuracy loss of a recommended setting, see `commbench.tuner.learning`; None: not
    judged."""
    permission: RunInfo = field(default_factory=RunInfo)
    """Entries ``named_hooks`` and ``accepts_loss`` of run.json; by default any hook may be
    recommended."""
    steps: int | None = None
    """Steps of every block; None: see `commbench.ddp.plan.terms.Terms`."""
    threads: int | None = None
    case_timeout_s: float = 60.0
    time_limit_s: float | None = None
    """Of the whole run, in seconds from its start."""
    begins_s: float = 0.0
    """Start of the first stage in the run, in seconds, if there is a time limit."""

    @cached_property
    def cases(self) -> list[TrainingCase]:
        """All settings, the baseline first, steps without DDP last."""
        return self.sweep.cases(ranks=self.ranks, batch=self.facts.batch_size)

    @cached_property
    def same_layout(self) -> Mapping[TrainingCase, TrainingCase]:
        """Settings that are not measured, by the one that has the same buckets."""
        chosen = group_by_layout([case for case in self.cases if case.uses_ddp], self.facts)
        return {case: kept for case, kept in chosen.items() if case != kept}

    @property
    def measured(self) -> list[TrainingCase]:
        """The settings that the first stage trains or chooses from, in the order of ``cases``."""
        return [case for case in self.cases if case not in self.same_layout]

    @property
    def info(self) -> RunInfo:
        """Entries of run.json: model facts, predicted buckets, first batch, what may be
        recommended.
        """
        layouts = {}
        for case in self.measured:
            if case.uses_ddp:
                layouts[case.key] = case_bucket_bytes(case, self.facts)
        info: RunInfo = {
            "facts": dataclasses.asdict(self.facts),
            "layouts": layouts,
            "same_layout": {case.key: kept.key for case, kept in self.same_layout.items()},
            "first_look": self.budget.confirm_launches,
            "max_accuracy_loss": self.max_accuracy_loss,
            **self.permission,
            "batches": [self.cases[0].batch_per_rank],
        }
        if self.schedule.searches:
            info["candidates"] = list(layouts)
        return info

    @property
    def left_out(self) -> list[str]:
        """Sentences on the settings that are not measured."""
        sentences = []
        if unused := self.facts.unused:
            sentences.append(
                f"{named(unused)} got no gradient in a backward pass: every setting is trained with"
                " find_unused_parameters=True, without which DDP fails."
            )
        if self.same_layout:
            names = "; ".join(
                f"{case} as {kept.bucket_cap_mb}" for case, kept in self.same_layout.items()
            )
            sentences.append(f"DDP makes the same buckets for {names}.")
        return sentences

    def estimate_s(self) -> float:
        """Return the most seconds of the first stage and the confirmation, if steps take as long as
        the baseline's and the first look decides.
        """
        first = self.first_request()
        envs = len(first.envs)
        fresh = self._request(CONFIRM, self.cases[:1], blocks=self.budget.confirm_blocks)
        first_slices, launches = first.slices(first.cases), first.budget.launches
        first_s = dry_run_estimate(first_slices, first.budget, launches, starts=envs)
        slices, launches = USUALLY_CONFIRMED * envs, self.budget.confirm_launches
        return first_s + dry_run_estimate(slices, fresh.budget, launches, starts=envs)

    def stages(self) -> list[Stage]:
        """Return the first stage, and the confirmation up to each look."""
        looks = range(len(self.schedule.looks))
        confirmations = [partial(self.confirm_request, look=look) for look in looks]
        return [lambda _: self.first_request(), *confirmations]

    def first_request(self) -> RunRequest:
        """Return the request for all settings in the budget's launches, or for the launch that
        searches among them.
        """
        budget, share, limit_s = self.budget, self.schedule.share, self.time_limit_s
        if limit_s is not None:
            limit_s = self.begins_s + share * (limit_s - self.begins_s)
        if self.schedule.searches:
            search_s = budget.search_s
            if limit_s is not None:
                search_s = min(search_s, limit_s)
            request = self._request(
                "search", self.measured, search_s=search_s, withheld=self._withheld_hooks()
            )
            return dataclasses.replace(request, time_limit_s=limit_s)
        request = self._request("sweep", self.measured, budget.launches)
        aim_s = budget.aim_s
        if aim_s is not None:
            aim_s = share * aim_s * len(request.envs)
        return dataclasses.replace(request, time_limit_s=limit_s, aim_s=aim_s)

    def confirm_request(self, records: Sequence[AnyRecord], look: int = 0) -> RunRequest | None:
        """Return the request for the new launches up to a look: of the baseline and the winners of
        each environment, in turns.

        None if there is nothing to compare, or if the look before has decided.
        """
        trainings = training_records(records)
        looks = [0]
        for times in self.schedule.looks:
            looks.append(times * self.budget.confirm_launches)
        if look and not self._is_open(trainings, looks[look]):
            return None
        cases = []
        for env in self.first_request().envs:
            cases += finalists([r for r in trainings if r.case.env == env], self.info)
        if len(cases) < 2:  # the baseline and something to compare it with
            return None
        blocks = self._confirm_blocks(trainings)
        request = self._request(CONFIRM, cases, looks[look + 1], blocks=blocks)
        return dataclasses.replace(request, first_launch=looks[look])

    def _is_open(self, records: Sequence[TrainingRecord], launches: int) -> bool:
        """Return whether the first new launches were all made and decide nothing."""
        seen = []
        for record in records:
            if record.case.phase != CONFIRM or record.launch < launches:
                seen.append(record)
        decision = decide(seen, self.info)
        if decision is None or decision.verdict != "inconclusive":
            return False
        speedup = decision.leader.speedup
        return speedup is not None and speedup.launches >= launches

    def _confirm_blocks(self, records: Sequence[TrainingRecord]) -> int:
        """Return the blocks of a setting in a new launch: after a search fewer than the budget's,
        but two, if steps are so slow that these would take more than twice as long as it says.

        Two blocks have twice the timed steps of one or more, because the early steps of a training
        are not timed, and are made in turns with those of the other settings.
        """
        most = self.budget.confirm_blocks
        for record in records:
            if self.schedule.searches and record.case == self.cases[0] and record.status == "ok":
                timed_steps = max(1, record.block_steps - record.discarded)
                block_s = timed_steps * median(record.step_ms) / 1e3
                return max(2, min(most, round(2 * most * self.budget.block_s / block_s)))
        return most

    def _withheld_hooks(self) -> tuple[str, ...]:
        """Return the hooks that may not be recommended."""
        info, hooks = self.info, {}
        for case in self.cases:
            if case.uses_ddp and withheld(case, self.cases[0], info):
                hooks[case.hook_name] = True
        return tuple(hooks)

    def _request(
        self,
        name: str,
        cases: Sequence[TrainingCase],
        launches: int = 1,
        *,
        blocks: int = 1,
        **terms: Any,
    ) -> RunRequest:
        """Return the request for a stage."""
        budget, searches = self.budget, self.schedule.searches
        fewest_launches, whole_limit_s = 2, None
        if searches:
            fewest_launches, whole_limit_s = 1, self.time_limit_s
        training = Terms(
            seed=self.seed,
            block_s=budget.block_s,
            blocks=blocks,
            steps=self.steps,
            threads=self.threads,
            file_hooks=find_file_hooks(self.sweep.hooks),
            **terms,
        )
        return RunRequest(
            name=name,
            cases=cases,
            ranks=self.ranks,
            seed=self.seed,
            budget=Budget(
                name=budget.name,
                launches=launches,
                relative_half_width=budget.relative_half_width,
                slice_s=blocks * budget.block_s * OVERHEAD,
            ),
            training=training,
            case_timeout_s=self.case_timeout_s,
            time_limit_s=self.time_limit_s,
            fewest_launches=fewest_launches,
            whole_limit_s=whole_limit_s,
            is_fixed_length=searches,
        )


def candidate_sweep(sweep: TrainingSweep, facts: WorkloadFacts) -> TrainingSweep:
    """Return the settings that a tuning chooses from: without a hook and with each hook of
    ``sweep``, in one bucket size for each different layout.

    Without bucket sizes in ``sweep``, `candidate_caps` gives them.
    """
    caps = sweep.bucket_caps or candidate_caps(facts)
    unique = unique_layouts([DEFAULT_CAP, *caps], facts)
    return dataclasses.replace(sweep, hooks=("none", *sweep.hooks), bucket_caps=unique)
