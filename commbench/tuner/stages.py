"""The stages of tuning: the network, a calibration, rounds of promising settings, the winner in
fresh launches.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from commbench.ddp.plan.candidates import candidate_caps, unique_layouts
from commbench.ddp.plan.cases import (
    CALIBRATE,
    CONFIRM,
    DEFAULT_CAP,
    SWEEP,
    Terms,
    TrainingCase,
    baseline_of,
    blocks_of_sweep,
)
from commbench.ddp.plan.layout import case_bucket_bytes
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.hooks.registry import find_file_hooks, parse_hook
from commbench.results.info import RunInfo
from commbench.results.plan import RunRequest, Stage, dry_run_estimate
from commbench.results.record_types import AnyRecord, collective_records, training_records
from commbench.results.trained import median, trained
from commbench.stats.budgets import BUDGETS, TuningBudget
from commbench.tuner.choice import Chooser, Standing, can_gain, network_cases
from commbench.tuner.decision import recommend
from commbench.tuner.learning import ANY_HOOK, Permission, withheld
from commbench.tuner.sweep import training_request
from commbench.units import counted

#: The stages.
NETWORK, ROUND = "network", "round"
#: Share of a full sweep's steps that tuning may take.
COST_SHARE = 0.25
#: Shares of a time limit at which the network stage and the rounds end; fresh launches have the
#: rest. One launch of the network and one of the calibration are needed for any choice, so they may
#: use the whole limit.
NETWORK_SHARE, ROUNDS_SHARE = 0.25, 0.65
#: The most settings of the first round beside the default.
MOST_PROMISING = 8
#: The fewest fresh launches, however short a full sweep is; and enough for a distribution-free
#: interval of one alternative.
FEWEST_CONFIRMED, ENOUGH_CONFIRMED = 4, 6
#: The fewest fresh launches of a second look.
FEWEST_MORE = 2


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
    budget: TuningBudget
    hooks: Sequence[str]
    """Hooks that may be recommended, as in ``--hook``; ``none`` always may."""
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
    """Fresh launches; None: as many as the cost allows, up to the budget's."""
    steps: int | None = None
    """Steps of every block; None: see `commbench.ddp.plan.cases.Terms`."""
    threads: int | None = None
    case_timeout_s: float = 60.0
    time_limit_s: float | None = None
    """Of the whole run, in seconds from its start."""
    candidates: Sequence[TrainingCase] = field(init=False)
    """Every setting that a full sweep would measure, the default first."""
    _answers: dict[int, tuple[list[AnyRecord], Standing]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Cached standings by the number of rounds, with the records behind them."""

    def __post_init__(self) -> None:
        given = (
            unique_layouts([DEFAULT_CAP, *self.caps], self.facts)
            if self.caps
            else candidate_caps(self.facts)
        )
        caps = list(dict.fromkeys([DEFAULT_CAP, *given]))
        hooks = list(dict.fromkeys(["none", *self.hooks]))
        cases = [self._case(hook, cap) for hook in hooks for cap in caps]
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
    def _permitted(self) -> RunInfo:
        """The entries of run.json on what may be recommended."""
        return {"max_accuracy_loss": self.max_accuracy_loss, **self.permission.info}

    @property
    def info(self) -> RunInfo:
        """The entries of run.json for the summary, the prediction and the recommendation."""
        return {
            **self._permitted,
            "facts": self.facts.to_json(),
            "candidates": [case.key for case in self.candidates],
            "layouts": {
                case.key: list(case_bucket_bytes(case, self.facts)) for case in self.candidates
            },
            "first_look": self.first_look,
            "batches": [self.facts.batch_size],
        }

    @property
    def _chooser(self) -> Chooser:
        return Chooser(facts=self.facts, candidates=self.candidates, info=self.info)

    # ------------------------------------------------------------------ what it may cost, in blocks

    @property
    def allowance(self) -> int:
        """Blocks that all DDP stages together should take; small sweeps take more."""
        full_sweep = blocks_of_sweep(len(self.candidates), self.budget.training.launches)
        return int(COST_SHARE * full_sweep)

    @property
    def _remaining_blocks(self) -> int:
        """Blocks that remain after the calibration."""
        return self.allowance - self.budget.calibrate_launches * len(self._calibrated)

    @property
    def _calibrated(self) -> list[TrainingCase]:
        """The default, and every other hook with default buckets."""
        default = [case for case in self.candidates if case.bucket_cap_mb == DEFAULT_CAP]
        return [dataclasses.replace(case, phase=CALIBRATE) for case in default]

    @property
    def round_sizes(self) -> tuple[int, ...]:
        """Planned number of settings beside the default in each round.

        Empty if there is one setting only.

        There is always one round, even beyond `allowance`, because predictions need measured
        settings beside them.
        """
        return self._planned[0]

    @property
    def _most_confirmed(self) -> int:
        """Settings of a fresh launch, including the default, for which blocks are reserved."""
        return self._planned[1]

    @property
    def _planned(self) -> tuple[tuple[int, ...], int]:
        """The rounds, and the number of settings in a fresh launch.

        That number is three if a compressed setting may win and `ENOUGH_CONFIRMED` launches of
        three fit; the third is then the best setting without compression.
        """
        full = self.budget.training.confirm_launches
        enough = min(full, ENOUGH_CONFIRMED)
        most = 3 if any(not case.is_plain for case in self.candidates) else 2
        blocks_of_most = (max(most * enough, 2 * full), most * enough)
        options = [
            *((most, blocks) for blocks in blocks_of_most),
            (2, 2 * enough),
            (2, 2 * FEWEST_CONFIRMED),
        ]
        for cases, blocks in options:
            if sizes := self._halving(self._remaining_blocks - blocks):
                return sizes, cases
        return ((self._fewest_promising,) if self._fewest_promising > 1 else ()), 2

    @property
    def _fewest_promising(self) -> int:
        """Settings of the shortest first round: one of each hook, and at least two."""
        hooks = {case.hook_name for case in self.candidates}
        return min(max(2, len(hooks)), len(self.candidates) - 1, MOST_PROMISING)

    def _halving(self, blocks: int) -> tuple[int, ...]:
        """Return the most rounds that ``blocks`` allow, with the most settings in them."""
        for rounds in range(self.budget.rounds, 0, -1):
            for first in range(
                min(MOST_PROMISING, len(self.candidates) - 1),
                max(2, self._fewest_promising) - 1,
                -1,
            ):
                sizes = _halved(first, rounds)
                if self._blocks_of(sizes) <= blocks:
                    return sizes
        return ()

    def _blocks_of(self, sizes: Iterable[int]) -> int:
        """Return the blocks of rounds with these numbers of settings beside the default."""
        return self.budget.round_launches * sum(size + 1 for size in sizes)

    @property
    def first_look(self) -> int:
        """Fresh launches before the first look."""
        if self.confirm_launches is not None:
            return self.confirm_launches
        fitting = (
            self._remaining_blocks - self._blocks_of(self.round_sizes)
        ) // self._most_confirmed
        return min(self.budget.training.confirm_launches, max(FEWEST_CONFIRMED, fitting))

    @property
    def _blocks_confirmed(self) -> int:
        """Blocks of a fresh launch if the rounds go as planned."""
        left = self._remaining_blocks - self._blocks_of(self.round_sizes)
        return self._most_confirmed * self._confirm_blocks(self._most_confirmed, left)

    def _left_to_confirm(self, records: Sequence[AnyRecord]) -> int:
        """Return the blocks that remain after the rounds."""
        return self._remaining_blocks - self._blocks_of(
            len(cases) for cases in self._rounds(records) if len(cases) > 1
        )

    # ----------------------------------------------------------------------------------- the stages

    def stages(self) -> list[Stage]:
        """Return all stages: network and calibration, rounds, confirmation and, if needed, a second
        look.
        """
        rounds = range(1, len(self.round_sizes) + 1)
        return [
            lambda _: self.network_request(),
            lambda _: self.calibrate_request(),
            *(
                lambda records, number=number: self.round_request(number, records)
                for number in rounds
            ),
            self.confirm_request,
            self.second_look_request,
        ]

    def calibrate_request(self) -> RunRequest:
        """Return the request for the default, each hook with default buckets, and the step without
        DDP.
        """
        cases, launches = self._calibrated, self.budget.round_launches * len(self.round_sizes)
        request = self._train(
            CALIBRATE,
            [*cases, cases[0].local()],
            self.budget.calibrate_launches,
            share=ROUNDS_SHARE,
        )
        return dataclasses.replace(
            request,
            later_slices=self._blocks_of(self.round_sizes)
            + launches
            + self.first_look * self._blocks_confirmed,
            later_launches=launches + self.first_look,
        )

    def network_request(self) -> RunRequest:
        """Return the request for the collectives that the hooks use, over the sizes of buckets."""
        plain = BUDGETS[self.budget.training.name]
        limit_s = None if self.time_limit_s is None else NETWORK_SHARE * self.time_limit_s
        return RunRequest(
            name=NETWORK,
            cases=network_cases(self.hooks, self.facts, self.ranks, self.backend),
            ranks=self.ranks,
            seed=self.seed,
            budget=dataclasses.replace(plain, launches=self.budget.network_launches),
            case_timeout_s=self.case_timeout_s,
            time_limit_s=limit_s,
            whole_limit_s=self.time_limit_s,
            is_fixed_length=True,
        )

    def round_request(self, number: int, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the request for a round: default, settings, step without DDP.

        None with fewer than two settings.
        """
        cases = self.contenders(number, records)
        if len(cases) < 2:  # noqa: PLR2004 - a single setting has won
            return None
        launches = self.budget.round_launches
        request = self._train(
            f"{ROUND} {number}",
            [self.baseline, *cases, self.baseline.local()],
            number * launches,
            share=ROUNDS_SHARE,
        )
        return dataclasses.replace(
            request, first_launch=(number - 1) * launches, fewest_launches=0, is_optional=True
        )

    def confirm_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the request for the default and the winners in fresh launches.

        None if there is nothing to compare.

        Once begun, the winners do not change.
        """
        begun = dict.fromkeys(r.case for r in training_records(records) if r.case.phase == CONFIRM)
        winners = [case for case in begun if not case.is_default]
        winners = winners or self.winners(records)
        if not winners:
            return None
        cases = [dataclasses.replace(case, phase=CONFIRM) for case in (self.baseline, *winners)]
        blocks = self._confirm_blocks(len(cases), self._left_to_confirm(records))
        return self._train(CONFIRM, cases, self.first_look, blocks=blocks)

    def _confirm_blocks(self, cases: int, left: int) -> int:
        """Return the blocks per case of a fresh launch: several if they and a second look fit."""
        room = left // (2 * cases * self.first_look)
        return min(self.budget.training.confirm_blocks, max(1, room))

    def second_look_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the request for more fresh launches if the first look was inconclusive and the
        cost allows them.

        Their number is independent of the first look's results; see `SECOND_LOOK`.
        """
        first = self.confirm_request(records)
        if first is None or self.confirm_launches is not None:
            return None
        in_first = [
            r
            for r in training_records(records)
            if r.case.phase != CONFIRM or r.launch < self.first_look
        ]
        recommendation = recommend(in_first, self.info)
        if (
            recommendation is None
            or recommendation.verdict != "inconclusive"
            or recommendation.launches < self.first_look
        ):
            return None
        remaining = self._left_to_confirm(records)
        blocks = self._confirm_blocks(len(first.cases), remaining) * len(first.cases)
        more = min(self.first_look, remaining // blocks - self.first_look)
        if more < FEWEST_MORE:
            return None
        budget = dataclasses.replace(first.budget, launches=self.first_look + more)
        return dataclasses.replace(first, budget=budget, first_launch=self.first_look)

    def _train(
        self,
        name: str,
        cases: Sequence[TrainingCase],
        launches: int,
        *,
        blocks: int = 1,
        share: float = 1.0,
    ) -> RunRequest:
        budget = self.budget.training
        return training_request(
            name,
            cases,
            ranks=self.ranks,
            budget=budget,
            launches=launches,
            terms=Terms(
                seed=self.seed,
                block_s=budget.block_s,
                blocks=blocks,
                divides_blocks=name == CONFIRM,
                steps=self.steps,
                threads=self.threads,
                file_hooks=find_file_hooks(self.hooks),
                watches_drift=False,
            ),
            case_timeout_s=self.case_timeout_s,
            time_limit_s=None if self.time_limit_s is None else share * self.time_limit_s,
            whole_limit_s=self.time_limit_s,
            is_fixed_length=True,
            depends=name != CALIBRATE,
        )

    # -------------------------------------------------------------------------------- the decisions

    def contenders(self, number: int, records: Sequence[AnyRecord]) -> list[TrainingCase]:
        """Return the settings beside the default in round ``number``, from 1, from the launches
        before it.
        """
        return self._rounds(records, number)[-1]

    def _rounds(
        self, records: Sequence[AnyRecord], most: int | None = None
    ) -> list[list[TrainingCase]]:
        """Return the settings of each round, or of the first ``most``.

        Empty if fewer than two remain.
        """
        rounds: list[list[TrainingCase]] = []
        remaining = self._remaining_blocks - self._most_confirmed * self.first_look
        for number, _ in enumerate(self.round_sizes[:most]):
            standing = self._standing(number, records)
            if not rounds:
                rounds.append(
                    standing.promising(self.round_sizes[0])
                    if self._can_gain(standing, records)
                    else []
                )
            elif len(rounds[-1]) < 2:  # noqa: PLR2004 - a single setting has won
                rounds.append([])
            else:
                remaining -= self._blocks_of([len(rounds[-1])])
                rounds.append(
                    standing.survivors(
                        rounds[-1], self._room(remaining, len(self.round_sizes) - number)
                    )
                )
        return rounds

    def _last_begun(self, records: Sequence[AnyRecord]) -> tuple[int, list[TrainingCase]]:
        """Return the index and the settings of the last round with measurements.

        No settings if there is none.
        """
        launches = {r.launch for r in training_records(records) if r.case.phase == SWEEP}
        begun = max(launches, default=-1) // self.budget.round_launches
        rounds = list(enumerate(self._rounds(records)))[: begun + 1]
        return next(((number, cases) for number, cases in reversed(rounds) if cases), (0, []))

    def _room(self, blocks: int, rounds: int) -> int:
        """Return the settings of a round such that it and the following ones, ``rounds`` in all,
        take ``blocks``.
        """
        sizes = range(len(self.candidates) - 1, 0, -1)
        return next((size for size in sizes if self._blocks_of(_halved(size, rounds)) <= blocks), 0)

    def _can_gain(self, standing: Standing, records: Sequence[AnyRecord]) -> bool:
        """Return whether measuring may find a gain: perfect overlap must bring one."""
        default = trained(training_records(records), CALIBRATE).get(self._calibrated[0].key)
        if default is None or not default.is_ok or self.baseline not in standing.predicted:
            return False
        return can_gain(standing.predicted, self.baseline, median(list(default.steps_ms.values())))

    def winners(self, records: Sequence[AnyRecord]) -> list[TrainingCase]:
        """Return the settings to confirm: the best that may be recommended, then others if there is
        room.

        The others are the best of all and the best without compression. The best come from the last
        round, or without rounds from predictions. If a time limit cut a round, its unmeasured
        settings are judged by earlier rounds or, in the first round, by prediction; otherwise
        chance would choose.
        """
        standing = self._standing(len(self.round_sizes), records)
        measured = [estimate.case for estimate in standing.estimates if estimate.by_launch]
        number, latest = self._last_begun(records)
        if number:
            latest = [case for case in latest if case in measured]
        best = standing.best(latest) or standing.best(measured or None)
        if best is None:
            return []
        plain = standing.best(measured, is_plain=True)
        fitting = max(self._most_confirmed, self._left_to_confirm(records) // self.first_look)
        permitted = standing.without(
            case for case in standing.cases if withheld(case, self.baseline, self._permitted)
        )
        usable = permitted.best(latest) or permitted.best(measured or None)
        is_wanted = plain is not None and not best.is_plain and plain.log_ratio < 0
        chosen = [
            *([usable.case] if usable else []),
            best.case,
            *([plain.case] if plain and is_wanted else []),
        ]
        return list(dict.fromkeys(chosen))[: fitting - 1]

    def _standing(self, rounds: int, records: Sequence[AnyRecord]) -> Standing:
        """Return the standing of all settings after a number of rounds.

        Computing it takes a second and is repeated often, so the last result is cached.
        """
        launches = rounds * self.budget.round_launches
        collectives = collective_records(records)
        usable = [
            r
            for r in training_records(records)
            if r.case.phase == CALIBRATE or _is_swept(r, launches)
        ]
        inputs: list[AnyRecord] = [*collectives, *usable]
        answered, answer = self._answers.get(rounds, ([], None))
        if (
            answer is None
            or len(inputs) != len(answered)
            or any(map(operator.is_not, inputs, answered))
        ):
            answer = self._chooser.standing(
                self._chooser.predict(collectives, usable), collectives, usable
            )
            self._answers[rounds] = inputs, answer
        return answer

    # ----------------------------------------------------------------------------------- for people

    @property
    def then(self) -> str:
        """The stages after the fixed ones, in words."""
        sizes = self.round_sizes
        rounds = (
            f"at most {counted(sizes[0], 'promising setting')} of {len(self.candidates)} in "
            if sizes
            else ""
        )
        rounds += f"{counted(len(sizes), 'round')}, then " if sizes else ""
        fresh = f"the best again in {counted(self.first_look, 'fresh launch')}"
        return f"{rounds}{fresh}"

    def estimate_s(self) -> float:
        """Return the estimated seconds, if steps take as long as the default's and no second look
        is needed.
        """
        calibrate, network = self.calibrate_request(), self.network_request()
        parts = [(len(r.cases), r.budget, r.budget.launches) for r in (calibrate, network)]
        launches = self.budget.round_launches
        parts += [(size + 2, calibrate.budget, launches) for size in self.round_sizes]
        parts += [(self._blocks_confirmed, calibrate.budget, self.first_look)]
        return sum(dry_run_estimate(*part) for part in parts)


def _halved(first: int, rounds: int) -> tuple[int, ...]:
    """Return the settings of each round if each keeps half of the previous round's, down to one."""
    sizes = (math.ceil(first / 2**number) for number in range(rounds))
    return tuple(size for size in sizes if size > 1)


def _is_swept(record: TrainingRecord, launches: int) -> bool:
    return record.case.phase == SWEEP and record.launch < launches
