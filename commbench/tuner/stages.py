"""The stages of tuning a workload: a search, and the winners in fresh launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from commbench.ddp.plan.candidates import candidate_caps, unique_layouts
from commbench.ddp.plan.cases import CONFIRM, DEFAULT_CAP, Terms, TrainingCase, baseline_of
from commbench.ddp.plan.layout import case_bucket_bytes
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.hooks.registry import find_file_hooks, parse_hook
from commbench.results.info import RunInfo
from commbench.results.plan import RunRequest, Stage, dry_run_estimate
from commbench.results.record_types import AnyRecord, training_records
from commbench.stats import median
from commbench.stats.budgets import TrainingBudget
from commbench.tuner.decision import decide
from commbench.tuner.learning import ANY_HOOK, Permission, withheld
from commbench.tuner.sweep import MOST_CONFIRMED, finalists, training_request
from commbench.units import counted

#: Share of a time limit at which the search ends; fresh launches have the rest.
SEARCH_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class TuningPlan:
    """A request to tune, and the stages that carry it out.

    Every stage follows only from the records of the stages before it. So a run that is resumed, or
    made launch by launch under mpirun, reaches the same settings.
    """

    workload: str
    facts: WorkloadFacts
    ranks: int
    seed: int
    budget: TrainingBudget
    hooks: Sequence[str]
    """Hooks that are tried, as in ``--hook``; ``none`` always is."""
    caps: Sequence[str] = ()
    """Bucket sizes to choose from; empty: one of each layout, and a list of sizes if torch
    supports lists."""
    backend: str = "gloo"
    max_accuracy_loss: float | None = None
    """Largest accuracy loss of a recommended setting, see `commbench.tuner.learning`; None: not
    judged."""
    permission: Permission = ANY_HOOK
    """The hooks that may be recommended."""
    confirm_launches: int | None = None
    """Fresh launches; None: the budget's, and as many again if they do not decide."""
    steps: int | None = None
    """Steps of every block; None: see `commbench.ddp.plan.cases.Terms`."""
    threads: int | None = None
    case_timeout_s: float = 60.0
    time_limit_s: float | None = None
    """Of the whole run, in seconds from its start."""
    candidates: Sequence[TrainingCase] = field(init=False)
    """Every setting that may be tried, the default first."""

    def __post_init__(self) -> None:
        if self.caps:
            given = unique_layouts([DEFAULT_CAP, *self.caps], self.facts)
        else:
            given = candidate_caps(self.facts)
        cases = []
        for hook in dict.fromkeys(["none", *self.hooks]):
            for cap in dict.fromkeys([DEFAULT_CAP, *given]):
                cases.append(self._case(hook, cap))
        object.__setattr__(self, "candidates", cases)

    def _case(self, hook: str, cap: str) -> TrainingCase:
        return TrainingCase(
            workload=self.workload,
            world_size=self.ranks,
            batch_per_rank=self.facts.batch_size,
            backend=self.backend,
            bucket_cap_mb=cap,
            **parse_hook(hook),
        )

    @property
    def baseline(self) -> TrainingCase:
        """The default."""
        return baseline_of(self.candidates)

    @property
    def info(self) -> RunInfo:
        """The entries of run.json for the summary and the recommendation."""
        return {
            "max_accuracy_loss": self.max_accuracy_loss,
            **self.permission.info,
            "facts": self.facts.to_json(),
            "candidates": [case.key for case in self.candidates],
            "layouts": {
                case.key: list(case_bucket_bytes(case, self.facts)) for case in self.candidates
            },
            "first_look": self.first_look,
            "batches": [self.facts.batch_size],
        }

    @property
    def _withheld(self) -> tuple[str, ...]:
        """The hooks that may not be recommended."""
        hooks, info = [], self.info
        for case in self.candidates:
            if withheld(case, self.baseline, info):
                hooks.append(case.hook_name)
        return tuple(dict.fromkeys(hooks))

    @property
    def first_look(self) -> int:
        """Fresh launches before the first look."""
        return self.confirm_launches or self.budget.confirm_launches

    def stages(self) -> list[Stage]:
        """Return the search, the confirmation and, if needed, a second look."""
        return [lambda _: self.search_request(), self.confirm_request, self.second_look_request]

    def search_request(self) -> RunRequest:
        """Return the request of one launch that searches among the candidates."""
        limit_s, search_s = self.time_limit_s, self.budget.search_s
        if self.time_limit_s is not None:
            limit_s = SEARCH_SHARE * self.time_limit_s
            search_s = min(search_s, limit_s)
        cases = [*self.candidates, self.baseline.local()]
        request = self._train("search", cases, 1, search_s=search_s)
        return dataclasses.replace(request, time_limit_s=limit_s)

    def confirm_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the request for the default and the winners in fresh launches.

        None if there is nothing to compare.
        """
        cases = finalists(training_records(records), self.info)
        if len(cases) < 2:  # noqa: PLR2004 - the default and something to compare it with
            return None
        return self._train(CONFIRM, cases, self.first_look, blocks=self._fresh_blocks(records))

    def _fresh_blocks(self, records: Sequence[AnyRecord]) -> int:
        """Return the blocks of a setting in a fresh launch: fewer than the budget's if steps are
        so slow that these would take longer than it says.
        """
        most = self.budget.confirm_blocks
        for record in training_records(records):
            if record.case == self.baseline and record.status == "ok":
                block_s = record.block_steps * median(record.step_ms) / 1e3
                return max(1, min(most, round(most * self.budget.block_s / block_s)))
        return most

    def second_look_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the request for as many fresh launches again if the first look did not decide."""
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

    def _train(
        self,
        name: str,
        cases: Sequence[TrainingCase],
        launches: int,
        *,
        blocks: int = 1,
        search_s: float | None = None,
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
                file_hooks=find_file_hooks(self.hooks),
                watches_drift=False,
                search_s=search_s,
                withheld=self._withheld,
            ),
            case_timeout_s=self.case_timeout_s,
            time_limit_s=self.time_limit_s,
            whole_limit_s=self.time_limit_s,
            is_fixed_length=True,
            depends=name == CONFIRM,
        )

    @property
    def then(self) -> str:
        """The stages after the search, in words."""
        return f"the best again in {counted(self.first_look, 'confirmation launch')}"

    def estimate_s(self) -> float:
        """Return the most seconds of search and confirmation, if the first look decides."""
        search = self.search_request()
        fresh = self._train(
            CONFIRM, self.candidates[:1], self.first_look, blocks=self.budget.confirm_blocks
        )
        return sum(
            dry_run_estimate(slices, request.budget, request.budget.launches)
            for slices, request in ((search.slices(search.cases), search), (MOST_CONFIRMED, fresh))
        )
