"""The stages of training a sweep and of tuning a workload: first all settings in few launches, then
the best against the baseline in new launches.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from commbench.ddp.plan.candidates import candidate_caps, unique_layouts
from commbench.ddp.plan.cases import (
    CONFIRM,
    DEFAULT_CAP,
    Terms,
    TrainingCase,
    TrainingSweep,
    baseline_of,
)
from commbench.ddp.plan.layout import case_bucket_bytes, group_by_layout
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts, named
from commbench.hooks.registry import find_file_hooks, parse_hook
from commbench.results.info import RunInfo
from commbench.results.plan import RunRequest, Stage, dry_run_estimate
from commbench.results.record_types import AnyRecord, training_records
from commbench.stats import median
from commbench.stats.budgets import Budget, TrainingBudget
from commbench.tuner.decision import candidates, decide
from commbench.tuner.learning import ANY_HOOK, Permission, withheld
from commbench.tuner.rules import SEARCH_SHARE, SWEEP_SHARE
from commbench.units import counted

#: Duration of a block over that of its timed steps on the baseline: early steps, setup and
#: diagnosis.
OVERHEAD = 2.5
#: Most often the baseline, the fastest without compression and the fastest of all.
MOST_CONFIRMED = 3


@dataclass(frozen=True, kw_only=True)
class Plan(abc.ABC):
    """A request to compare settings, and the stages that carry it out.

    Every stage follows only from the records of the stages before it. So a run that is resumed, or
    made launch by launch under mpirun, reaches the same settings.
    """

    fewest_launches: ClassVar[int] = 1
    """Launches of a stage that are made even beyond the target time."""
    searches: ClassVar[bool] = False
    """Whether the first stage searches, and a stage depends on all launches of those before."""

    facts: WorkloadFacts
    """Of the workload at its own or the first batch."""
    ranks: int
    seed: int
    budget: TrainingBudget
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
    cases: Sequence[TrainingCase] = field(init=False)
    """All settings that may be tried, the baseline first."""

    @property
    @abc.abstractmethod
    def measured(self) -> list[TrainingCase]:
        """The settings that the first stage trains, the baseline first, steps without DDP last."""

    @abc.abstractmethod
    def first_request(self) -> RunRequest:
        """Return the request for the first stage."""

    @property
    @abc.abstractmethod
    def _given_hooks(self) -> Sequence[str]:
        """The hooks that are tried, as in ``--hook``."""

    @property
    def info(self) -> RunInfo:
        """Entries of run.json: model facts, predicted buckets, first batch, what may be
        recommended.
        """
        layouts = {}
        for case in self.measured:
            if case.uses_ddp:
                layouts[case.key] = list(case_bucket_bytes(case, self.facts))
        return {
            "facts": self.facts.to_json(),
            "layouts": layouts,
            "first_look": self.first_look,
            "max_accuracy_loss": self.max_accuracy_loss,
            **self.permission.info,
            "batches": [case.batch_per_rank for case in self.cases[:1]],
        }

    @property
    def first_look(self) -> int:
        """New launches before the first look."""
        return self.budget.confirm_launches

    @property
    def then(self) -> str:
        """The stages after the first, in words."""
        return f"the fastest again in {counted(self.first_look, 'confirmation launch')}"

    def estimate_s(self) -> float:
        """Return the most seconds of the first stage and the confirmation, if steps take as long as
        the baseline's and the first look decides.
        """
        envs = len(self._envs)
        first = self.first_request()
        fresh = self._request(
            CONFIRM, self.measured[:1], self.first_look, blocks=self.budget.confirm_blocks
        )
        seconds = 0.0
        for slices, request in (
            (first.slices(first.cases), first),
            (MOST_CONFIRMED * envs, fresh),
        ):
            launches = request.budget.launches
            seconds += dry_run_estimate(slices, request.budget, launches, starts=envs)
        return seconds

    def stages(self) -> list[Stage]:
        """Return the first stage and its confirmation."""
        return [lambda _: self.first_request(), self.confirm_request]

    def confirm_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the request for the baseline and the winners of each environment, in turns.

        None if there is nothing to compare.
        """
        trainings = training_records(records)
        cases: list[TrainingCase] = []
        for env in self._envs:
            cases += finalists([r for r in trainings if r.case.env == env], self.info)
        if len(cases) < 2:  # noqa: PLR2004 - the baseline and something to compare it with
            return None
        return self._request(
            CONFIRM, cases, self.first_look, blocks=self._confirm_blocks(trainings)
        )

    def _confirm_blocks(self, _records: Sequence[TrainingRecord]) -> int:
        """Return the blocks of a setting in a new launch."""
        return self.budget.confirm_blocks

    @property
    def _envs(self) -> list[str]:
        """The environments of the settings; one empty text if none was varied."""
        return list(dict.fromkeys(case.env for case in self.cases))

    def _request(
        self,
        name: str,
        cases: Sequence[TrainingCase],
        launches: int,
        *,
        blocks: int = 1,
        search_s: float | None = None,
    ) -> RunRequest:
        """Return the request for a stage."""
        budget = self.budget
        whole_limit_s = None
        unusable: dict[str, bool] = {}
        if self.searches:
            whole_limit_s = self.time_limit_s
            for case in self.cases:
                if withheld(case, self.cases[0], self.info):
                    unusable[case.hook_name] = True
        training = Terms(
            seed=self.seed,
            block_s=budget.block_s,
            blocks=blocks,
            divides_blocks=name == CONFIRM,
            steps=self.steps,
            threads=self.threads,
            file_hooks=find_file_hooks(self._given_hooks),
            watches_drift=not self.searches,
            search_s=search_s,
            withheld=tuple(unusable),
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
            fewest_launches=self.fewest_launches,
            whole_limit_s=whole_limit_s,
            is_fixed_length=self.searches,
            depends=self.searches and name == CONFIRM,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(Plan):
    """A request to train a sweep: every configuration, then the winners in new launches."""

    fewest_launches: ClassVar[int] = 2

    sweep: TrainingSweep
    begins_s: float = 0.0
    """Start of the sweep in the run, in seconds, if there is a time limit."""
    same_layout: Mapping[TrainingCase, TrainingCase] = field(init=False)
    """Configurations that are not measured, by the one that has the same buckets."""

    def __post_init__(self) -> None:
        cases = self.sweep.cases(ranks=self.ranks, batch=self.facts.batch_size)
        object.__setattr__(self, "cases", cases)
        chosen = group_by_layout([case for case in cases if case.uses_ddp], self.facts)
        same = {case: kept for case, kept in chosen.items() if case != kept}
        object.__setattr__(self, "same_layout", same)

    @property
    def measured(self) -> list[TrainingCase]:
        """The configurations that are trained."""
        return [case for case in self.cases if case not in self.same_layout]

    @property
    def info(self) -> RunInfo:
        """Entries of run.json, also configurations with equal layouts."""
        same = {case.key: kept.key for case, kept in self.same_layout.items()}
        return {**super().info, "same_layout": same}

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

    def first_request(self) -> RunRequest:
        """Return the request for every measured configuration, in the budget's launches."""
        request = self._request("sweep", self.measured, self.budget.launches)
        limit_s, aim_s = self.time_limit_s, self.budget.aim_s
        if limit_s is not None:
            limit_s = self.begins_s + SWEEP_SHARE * (limit_s - self.begins_s)
        if aim_s is not None:
            aim_s = SWEEP_SHARE * aim_s * len(self._envs)
        return dataclasses.replace(request, time_limit_s=limit_s, aim_s=aim_s)

    @property
    def _given_hooks(self) -> Sequence[str]:
        return self.sweep.hooks


@dataclass(frozen=True, kw_only=True)
class TuningPlan(Plan):
    """A request to tune: a search, then the winners in new launches, in two looks."""

    searches: ClassVar[bool] = True

    workload: str
    hooks: Sequence[str]
    """Hooks that are tried, as in ``--hook``; ``none`` always is."""
    caps: Sequence[str] = ()
    """Bucket sizes to choose from; empty: one of each layout, and a list of sizes if torch
    supports lists."""
    backend: str = "gloo"
    confirm_launches: int | None = None
    """New launches; None: the budget's, and as many again if they do not decide."""

    def __post_init__(self) -> None:
        caps = candidate_caps(self.facts)
        if self.caps:
            caps = unique_layouts([DEFAULT_CAP, *self.caps], self.facts)
        cases = []
        for hook in dict.fromkeys(["none", *self.hooks]):
            for cap in dict.fromkeys([DEFAULT_CAP, *caps]):
                case = TrainingCase(
                    workload=self.workload,
                    world_size=self.ranks,
                    batch_per_rank=self.facts.batch_size,
                    backend=self.backend,
                    bucket_cap_mb=cap,
                    **parse_hook(hook),
                )
                cases.append(case)
        object.__setattr__(self, "cases", cases)

    @property
    def measured(self) -> list[TrainingCase]:
        """The settings that the search chooses from, and the step without DDP."""
        return [*self.cases, self.cases[0].local()]

    @property
    def info(self) -> RunInfo:
        """Entries of run.json, also the settings that may be tried."""
        return {**super().info, "candidates": [case.key for case in self.cases]}

    @property
    def first_look(self) -> int:
        """New launches before the first look."""
        return self.confirm_launches or super().first_look

    def stages(self) -> list[Stage]:
        """Return the search, the confirmation and, if needed, a second look."""
        return [*super().stages(), self.second_look_request]

    def first_request(self) -> RunRequest:
        """Return the request of one launch that searches among the settings."""
        limit_s, search_s = self.time_limit_s, self.budget.search_s
        if limit_s is not None:
            limit_s *= SEARCH_SHARE
            search_s = min(search_s, limit_s)
        request = self._request("search", self.measured, 1, search_s=search_s)
        return dataclasses.replace(request, time_limit_s=limit_s)

    def second_look_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the request for as many new launches again if the first look did not decide."""
        first = self.confirm_request(records)
        if first is None or self.confirm_launches is not None:
            return None
        in_first = []
        for record in training_records(records):
            if record.case.phase != CONFIRM or record.launch < self.first_look:
                in_first.append(record)
        decision = decide(in_first, self.info)
        if decision is None or decision.verdict != "inconclusive":
            return None
        speedup = decision.leader.speedup
        if speedup is None or speedup.launches < self.first_look:
            return None
        budget = dataclasses.replace(first.budget, launches=2 * self.first_look)
        return dataclasses.replace(first, budget=budget, first_launch=self.first_look)

    def _confirm_blocks(self, records: Sequence[TrainingRecord]) -> int:
        """Return the blocks of a setting in a new launch: fewer than the budget's if steps are
        so slow that these would take longer than it says.
        """
        most = self.budget.confirm_blocks
        for record in records:
            if record.case == self.cases[0] and record.status == "ok":
                block_s = record.block_steps * median(record.step_ms) / 1e3
                return max(1, min(most, round(most * self.budget.block_s / block_s)))
        return most

    @property
    def _given_hooks(self) -> Sequence[str]:
        return self.hooks


def finalists(records: Sequence[TrainingRecord], info: RunInfo) -> list[TrainingCase]:
    """Return the baseline of one environment, then its winners.

    Once begun, the winners do not change.
    """
    begun = dict.fromkeys(record.case for record in records if record.case.phase == CONFIRM)
    cases = list(begun) or candidates(records, info)
    return sorted(cases, key=lambda case: case != baseline_of(cases))
