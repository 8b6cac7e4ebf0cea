"""The stages of a training sweep: every configuration, then the winners against the baseline in
fresh launches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.ddp.plan.cases import CONFIRM, Terms, TrainingCase, TrainingSweep, baseline_of
from commbench.ddp.plan.layout import case_bucket_bytes, group_by_layout
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts, named
from commbench.hooks.registry import find_file_hooks
from commbench.results.info import RunInfo
from commbench.results.plan import RunRequest, Stage, dry_run_estimate
from commbench.results.record_types import AnyRecord, training_records
from commbench.stats.budgets import Budget, TrainingBudget
from commbench.tuner.decision import candidates
from commbench.tuner.learning import ANY_HOOK, Permission
from commbench.units import counted

#: Share of the target time for the sweep; the rest is for the confirmation.
SWEEP_SHARE = 0.55
#: Launches that are made even beyond the target time.
FEWEST_LAUNCHES = 2
#: Duration of a block over that of its timed steps on the baseline: early steps, setup and
#: diagnosis.
OVERHEAD = 2.5
#: Most often the baseline, the fastest without compression and the fastest of all.
MOST_CONFIRMED = 3


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A request to train a sweep, and the stages that carry it out."""

    sweep: TrainingSweep
    facts: WorkloadFacts
    """Of the workload at its own or the first batch."""
    ranks: int
    seed: int
    budget: TrainingBudget
    """Largest relative increase of a recommended setting's loss; None: not judged."""
    max_accuracy_loss: float | None = None
    """Largest accuracy loss of a recommended setting, see `commbench.tuner.learning`; None: not
    judged."""
    permission: Permission = ANY_HOOK
    """The hooks that may be recommended."""
    steps: int | None = None
    """Steps of every block; None: see `commbench.ddp.plan.cases.Terms`."""
    threads: int | None = None
    case_timeout_s: float = 60.0
    time_limit_s: float | None = None
    """Of the whole run, in seconds from its start."""
    begins_s: float = 0.0
    """Start of the sweep in the run, in seconds, if there is a time limit."""
    cases: Sequence[TrainingCase] = field(init=False)
    """All requested configurations, the baseline first, steps without DDP last."""
    same_layout: Mapping[TrainingCase, TrainingCase] = field(init=False)
    """Configurations that are not measured, by the one that has the same buckets."""

    def __post_init__(self) -> None:
        cases = self.sweep.cases(ranks=self.ranks, batch=self.facts.batch_size)
        with_ddp = [case for case in cases if case.uses_ddp]
        object.__setattr__(self, "cases", cases)
        chosen = group_by_layout(with_ddp, self.facts)
        object.__setattr__(
            self, "same_layout", {case: kept for case, kept in chosen.items() if case != kept}
        )

    @property
    def measured(self) -> list[TrainingCase]:
        """The configurations that are trained."""
        return [case for case in self.cases if case not in self.same_layout]

    @property
    def info(self) -> RunInfo:
        """Entries of run.json: predicted buckets, configurations with equal layouts, first batch,
        model facts.
        """
        return {
            "facts": self.facts.to_json(),
            "same_layout": {case.key: kept.key for case, kept in self.same_layout.items()},
            "layouts": {
                case.key: list(case_bucket_bytes(case, self.facts))
                for case in self.measured
                if case.uses_ddp
            },
            "first_look": self.budget.confirm_launches,
            "max_accuracy_loss": self.max_accuracy_loss,
            **self.permission.info,
            "batches": [case.batch_per_rank for case in self.cases[:1]],
        }

    @property
    def left_out(self) -> list[str]:
        """Sentences on the configurations that are not measured."""
        sentences: list[str] = []
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

    @property
    def then(self) -> str:
        """The stages after the sweep, in words."""
        return (
            f"the fastest again in {counted(self.budget.confirm_launches, 'confirmation launch')}"
        )

    def estimate_s(self) -> float:
        """Return the estimated seconds of sweep and confirmation, if steps take as long as the
        baseline's.
        """
        sweep = self.sweep_request()
        fresh = self._request(
            "confirm",
            self.measured[:1],
            self.budget.confirm_launches,
            blocks=self.budget.confirm_blocks,
        )
        envs = len(self._envs)
        return sum(
            dry_run_estimate(cases, request.budget, request.budget.launches, starts=envs)
            for cases, request in ((len(sweep.cases), sweep), (MOST_CONFIRMED * envs, fresh))
        )

    def stages(self) -> list[Stage]:
        """Return the sweep and its confirmation."""
        return [lambda _: self.sweep_request(), self._confirm_request]

    def sweep_request(self) -> RunRequest:
        """Return the request for every measured configuration, in the budget's launches."""
        aim_s = self.budget.aim_s and SWEEP_SHARE * self.budget.aim_s * len(self._envs)
        request = self._request("sweep", self.measured, self.budget.launches, blocks=1, aim_s=aim_s)
        if self.time_limit_s is None:
            return request
        limit_s = self.begins_s + SWEEP_SHARE * (self.time_limit_s - self.begins_s)
        return dataclasses.replace(request, time_limit_s=limit_s)

    def _confirm_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the request for the baseline and the winners, in turns.

        None without any alternative.
        """
        trainings = training_records(records)
        cases = [
            case
            for env in self._envs
            for case in finalists([r for r in trainings if r.case.env == env], self.info)
        ]
        if len(cases) < 2:  # noqa: PLR2004 - the baseline and something to compare it with
            return None
        return self._request(
            "confirm", cases, self.budget.confirm_launches, blocks=self.budget.confirm_blocks
        )

    @property
    def _envs(self) -> list[str]:
        """The environments of the sweep; one empty text if none was varied."""
        return list(dict.fromkeys(case.env for case in self.cases))

    def _request(
        self,
        name: str,
        cases: Sequence[TrainingCase],
        launches: int,
        *,
        blocks: int,
        aim_s: float | None = None,
    ) -> RunRequest:
        return training_request(
            name,
            cases,
            ranks=self.ranks,
            budget=self.budget,
            launches=launches,
            terms=Terms(
                seed=self.seed,
                block_s=self.budget.block_s,
                blocks=blocks,
                divides_blocks=name == CONFIRM,
                steps=self.steps,
                threads=self.threads,
                file_hooks=find_file_hooks(self.sweep.hooks),
            ),
            case_timeout_s=self.case_timeout_s,
            time_limit_s=self.time_limit_s,
            aim_s=aim_s,
            fewest_launches=FEWEST_LAUNCHES,
        )


def finalists(records: Sequence[TrainingRecord], info: RunInfo) -> list[TrainingCase]:
    """Return the baseline of one environment, then its winners.

    Once begun, the winners do not change.
    """
    begun = dict.fromkeys(record.case for record in records if record.case.phase == CONFIRM)
    cases = list(begun) or candidates(records, info)
    return sorted(cases, key=lambda case: case != baseline_of(cases))


def training_request(
    name: str,
    cases: Sequence[TrainingCase],
    *,
    ranks: int,
    budget: TrainingBudget,
    launches: int,
    terms: Terms,
    **others: Any,  # noqa: ANN401 - fields of `RunRequest`
) -> RunRequest:
    """Return the request of a training stage with the launches and blocks of ``terms`` and the
    budget.
    """
    return RunRequest(
        name=name,
        cases=cases,
        ranks=ranks,
        seed=terms.seed,
        budget=Budget(
            name=budget.name,
            launches=launches,
            relative_half_width=budget.relative_half_width,
            slice_s=terms.blocks * budget.block_s * OVERHEAD,
        ),
        training=terms,
        **others,
    )
