"""The stages of tuning: the network, a calibration, the promising settings in rounds, the winner in fresh launches."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from commbench.analysis.prediction.bucketing import candidate_caps, unique_layouts
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
from commbench.hooks.registry import parse_hook
from commbench.results.info import RunInfo
from commbench.results.plan import RunRequest, Stage, dry_run_estimate
from commbench.results.record_types import AnyRecord, collective_records, training_records
from commbench.results.trained import median, trained
from commbench.stats.budgets import BUDGETS, TuningBudget
from commbench.tuner.choice import Chooser, network_cases
from commbench.tuner.decision import recommend
from commbench.tuner.rounds import Standing, can_gain
from commbench.tuner.sweep import training_request
from commbench.units import counted

#: The stages.
NETWORK, ROUND = "network", "round"
#: Of the steps that a full sweep takes, tuning may take this share.
COST_SHARE = 0.25
#: Shares of a time limit at which a stage ends; fresh launches have the rest. Without one launch of the network and one
#: of the calibration there is nothing to choose from: they are made as long as the whole limit lasts.
NETWORK_SHARE, ROUNDS_SHARE = 0.25, 0.65
#: Settings of the first round beside the default, at most.
MOST_PROMISING = 8
#: Fresh launches that are made however short a full sweep is; and enough for an interval that assumes no distribution,
#: of one alternative.
FEWEST_CONFIRMED, ENOUGH_CONFIRMED = 4, 6
#: Fresh launches of a second look, fewer are not worth it.
FEWEST_MORE = 2


@dataclass(frozen=True, kw_only=True)
class TuningPlan:
    """What a person asked to tune, and what is measured for it.

    Every stage is decided from the records of those before it alone, so that a run which is resumed, or made launch by
    launch under mpirun, comes to the same settings.
    """

    workload: str
    facts: WorkloadFacts
    ranks: int
    seed: int
    budget: TuningBudget
    hooks: Sequence[str]
    """Hooks that may be recommended, as ``--hook`` takes them; ``none`` always may."""
    caps: Sequence[str] = ()
    """Bucket sizes to choose from; empty: those of different layouts, and a list of sizes where torch takes one."""
    backend: str = "gloo"
    max_accuracy_loss: float | None = None
    """How much accuracy a recommended setting may lose, see `commbench.tuner.learning`; None: that is not judged."""
    confirm_launches: int | None = None
    """Fresh launches in place of the budget's; None: as many as the cost allows, up to the budget's."""
    steps: int | None = None
    """Steps of every block; None: see `commbench.ddp.plan.cases.Terms`."""
    threads: int | None = None
    case_timeout_s: float = 60.0
    time_limit_s: float | None = None
    """Of the whole run, in seconds since it began."""
    candidates: Sequence[TrainingCase] = field(init=False)
    """Every setting that a full sweep would measure, the default first."""
    _answers: dict[int, tuple[list[AnyRecord], Standing]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """After how many rounds which records led to which standing."""

    def __post_init__(self) -> None:
        given = unique_layouts([DEFAULT_CAP, *self.caps], self.facts) if self.caps else candidate_caps(self.facts)
        caps = list(dict.fromkeys([DEFAULT_CAP, *given]))
        hooks = list(dict.fromkeys(["none", *self.hooks]))
        object.__setattr__(self, "candidates", [self._case(hook, cap) for hook in hooks for cap in caps])

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
        """What run.json states for the summary, the prediction and the recommendation."""
        return {
            "facts": self.facts.to_json(),
            "candidates": [case.key for case in self.candidates],
            "layouts": {case.key: list(case_bucket_bytes(case, self.facts)) for case in self.candidates},
            "exhaustive_cases": len(self.candidates),
            "exhaustive_launches": self.budget.training.launches,
            "first_look": self.first_look,
            "max_accuracy_loss": self.max_accuracy_loss,
            "batches": [self.facts.batch_size],
        }

    @property
    def _chooser(self) -> Chooser:
        lists = self.facts.takes_lists and not self.caps
        return Chooser(facts=self.facts, candidates=self.candidates, info=self.info, lists=lists)

    # ------------------------------------------------------------------------------- what it may cost, in blocks

    @property
    def allowance(self) -> int:
        """Blocks that all stages together should train with DDP; small sweeps take more."""
        return int(COST_SHARE * self._full_sweep)

    @property
    def _full_sweep(self) -> int:
        """Blocks of a full sweep."""
        return blocks_of_sweep(len(self.candidates), self.budget.training.launches)

    @property
    def _left(self) -> int:
        """Blocks left after the calibration."""
        return self.allowance - self.budget.calibrate_launches * len(self._calibrated)

    @property
    def _calibrated(self) -> list[TrainingCase]:
        """The default, and every other hook with default buckets."""
        default = [case for case in self.candidates if case.bucket_cap_mb == DEFAULT_CAP]
        return [dataclasses.replace(case, phase=CALIBRATE) for case in default]

    @property
    def round_sizes(self) -> tuple[int, ...]:
        """How many settings beside the default each round is planned to have; none where there is one setting only.

        One round is always made, be it beyond `allowance`: a prediction that nothing was measured beside is a guess.
        """
        return self._planned[0]

    @property
    def _most_confirmed(self) -> int:
        """Settings of a fresh launch, the default included, for which blocks are set aside."""
        return self._planned[1]

    @property
    def _planned(self) -> tuple[tuple[int, ...], int]:
        """The rounds, and how many settings are set aside for a fresh launch.

        These are three where a compressed setting may win and `ENOUGH_CONFIRMED` launches of three fit in: beside it
        then stands the best without compression.
        """
        full = self.budget.training.confirm_launches
        enough = min(full, ENOUGH_CONFIRMED)
        most = 3 if any(not case.is_plain for case in self.candidates) else 2
        blocks_of_most = (max(most * enough, 2 * full), most * enough)
        options = [*((most, blocks) for blocks in blocks_of_most), (2, 2 * enough), (2, 2 * FEWEST_CONFIRMED)]
        for cases, blocks in options:
            if sizes := self._halving(self._left - blocks):
                return sizes, cases
        return ((self._fewest_promising,) if self._fewest_promising > 1 else ()), 2

    @property
    def _fewest_promising(self) -> int:
        """Settings of the shortest first round: one of each hook, and two at least to choose from."""
        hooks = {case.hook_name for case in self.candidates}
        return min(max(2, len(hooks)), len(self.candidates) - 1, MOST_PROMISING)

    def _halving(self, blocks: int) -> tuple[int, ...]:
        """The most rounds that so many blocks allow, and the most settings in them."""
        for rounds in range(self.budget.rounds, 0, -1):
            for first in range(min(MOST_PROMISING, len(self.candidates) - 1), max(2, self._fewest_promising) - 1, -1):
                sizes = _halved(first, rounds)
                if self._blocks_of(sizes) <= blocks:
                    return sizes
        return ()

    def _blocks_of(self, sizes: Iterable[int]) -> int:
        """Blocks of rounds of so many settings and the default."""
        return self.budget.round_launches * sum(size + 1 for size in sizes)

    @property
    def first_look(self) -> int:
        """Fresh launches after which it is judged whether they decide."""
        if self.confirm_launches is not None:
            return self.confirm_launches
        fitting = (self._left - self._blocks_of(self.round_sizes)) // self._most_confirmed
        return min(self.budget.training.confirm_launches, max(FEWEST_CONFIRMED, fitting))

    @property
    def _blocks_confirmed(self) -> int:
        """Blocks of a fresh launch if the rounds are as planned."""
        left = self._left - self._blocks_of(self.round_sizes)
        return self._most_confirmed * self._confirm_blocks(self._most_confirmed, left)

    @property
    def planned_share(self) -> float:
        """Blocks planned up to the first look, over those of a full sweep: more than `COST_SHARE` of a small one."""
        blocks = (
            self.allowance - self._left + self._blocks_of(self.round_sizes) + self._most_confirmed * self.first_look
        )
        return blocks / self._full_sweep

    def _left_to_confirm(self, records: Sequence[AnyRecord]) -> int:
        """Blocks left after the rounds."""
        return self._left - self._blocks_of(len(cases) for cases in self._rounds(records) if len(cases) > 1)

    # ------------------------------------------------------------------------------------------------- the stages

    def stages(self) -> list[Stage]:
        """What is known beforehand, the rounds, the confirmation and, if it is needed, a second look."""
        rounds = range(1, len(self.round_sizes) + 1)
        return [
            lambda _: self.network_request(),
            lambda _: self.calibrate_request(),
            *(lambda records, number=number: self.round_request(number, records) for number in rounds),
            self.confirm_request,
            self.second_look_request,
        ]

    def calibrate_request(self) -> RunRequest:
        """The default, each hook with default buckets, and the step without DDP."""
        cases, launches = self._calibrated, self.budget.round_launches * len(self.round_sizes)
        request = self._train(CALIBRATE, [*cases, cases[0].local()], self.budget.calibrate_launches, share=ROUNDS_SHARE)
        return dataclasses.replace(
            request,
            later_slices=self._blocks_of(self.round_sizes) + launches + self.first_look * self._blocks_confirmed,
            later_launches=launches + self.first_look,
        )

    def network_request(self) -> RunRequest:
        """The collectives that the hooks use, over the sizes of buckets."""
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
        """The default, the settings of a round and the step without DDP; None where fewer than two are left."""
        cases = self.contenders(number, records)
        if len(cases) < 2:  # noqa: PLR2004 - one that is left has won
            return None
        launches = self.budget.round_launches
        request = self._train(
            f"{ROUND} {number}",
            [self.baseline, *cases, self.baseline.local()],
            number * launches,
            share=ROUNDS_SHARE,
            first_launch=(number - 1) * launches,
            fewest_launches=0,
        )
        return dataclasses.replace(request, is_optional=True)

    def confirm_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """The default and the winners in fresh launches; None where nothing can be compared.

        Once begun it stays with its winners.
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
        """Blocks of each case in a fresh launch: several where there is room for them and for a second look."""
        room = left // (2 * cases * self.first_look)
        return min(self.budget.training.confirm_blocks, max(1, room))

    def second_look_request(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """More fresh launches where the first have decided nothing and the cost allows them.

        How many does not depend on what the first have shown, only that there are any: see `SECOND_LOOK`.
        """
        first = self.confirm_request(records)
        if first is None or self.confirm_launches is not None:
            return None
        in_first = [r for r in training_records(records) if r.case.phase != CONFIRM or r.launch < self.first_look]
        found = recommend(in_first, self.info)
        if found is None or found.verdict != "inconclusive" or found.launches < self.first_look:
            return None
        left = self._left_to_confirm(records)
        blocks = self._confirm_blocks(len(first.cases), left) * len(first.cases)
        more = min(self.first_look, left // blocks - self.first_look)
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
        first_launch: int = 0,
        fewest_launches: int = 1,
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
                steps=self.steps,
                threads=self.threads,
                watches_drift=False,
            ),
            case_timeout_s=self.case_timeout_s,
            time_limit_s=None if self.time_limit_s is None else share * self.time_limit_s,
            whole_limit_s=self.time_limit_s,
            first_launch=first_launch,
            fewest_launches=fewest_launches,
            is_fixed_length=True,
            depends=name != CALIBRATE,
        )

    # ---------------------------------------------------------------------------------------------- the decisions

    def contenders(self, number: int, records: Sequence[AnyRecord]) -> list[TrainingCase]:
        """The settings beside the default of round ``number``, from 1: decided from the launches before it."""
        return self._rounds(records, number)[-1]

    def _rounds(self, records: Sequence[AnyRecord], most: int | None = None) -> list[list[TrainingCase]]:
        """The settings of each round, of the first ``most`` if given; none in those for which not two are left."""
        rounds: list[list[TrainingCase]] = []
        left = self._left - self._most_confirmed * self.first_look
        for number, _ in enumerate(self.round_sizes[:most]):
            standing = self._standing(number, records)
            if not rounds:
                rounds.append(standing.promising(self.round_sizes[0]) if self._can_gain(standing, records) else [])
            elif len(rounds[-1]) < 2:  # noqa: PLR2004 - one that is left has won
                rounds.append([])
            else:
                left -= self._blocks_of([len(rounds[-1])])
                rounds.append(standing.survivors(rounds[-1], self._room(left, len(self.round_sizes) - number)))
        return rounds

    def _last_begun(self, records: Sequence[AnyRecord]) -> tuple[int, list[TrainingCase]]:
        """The number, from 0, and the settings of the last round of which anything was measured; none without any."""
        launches = {r.launch for r in training_records(records) if r.case.phase == SWEEP}
        begun = max(launches, default=-1) // self.budget.round_launches
        rounds = list(enumerate(self._rounds(records)))[: begun + 1]
        return next(((number, cases) for number, cases in reversed(rounds) if cases), (0, []))

    def _room(self, blocks: int, rounds: int) -> int:
        """Settings that a round may have so that it and those after it, ``rounds`` in all, take so many blocks."""
        sizes = range(len(self.candidates) - 1, 0, -1)
        return next((size for size in sizes if self._blocks_of(_halved(size, rounds)) <= blocks), 0)

    def _can_gain(self, standing: Standing, records: Sequence[AnyRecord]) -> bool:
        """Whether measuring may find a gain: not where perfect overlap would bring none."""
        default = trained(training_records(records), CALIBRATE).get(self._calibrated[0].key)
        if default is None or not default.is_ok or self.baseline not in standing.predicted:
            return False
        return can_gain(standing.predicted, self.baseline, median(list(default.steps_ms.values())))

    def winners(self, records: Sequence[AnyRecord]) -> list[TrainingCase]:
        """The setting that the fresh launches compare with the default, and the best without compression if it is none.

        It is the best of the last round; without rounds the best by prediction. Of a round that a time limit has cut
        what it would have measured counts by what is known of it, or chance would choose: by earlier rounds, and in the
        first by prediction.
        """
        standing = self._standing(len(self.round_sizes), records)
        measured = [one.case for one in standing.estimates if one.by_launch]
        number, latest = self._last_begun(records)
        if number:
            latest = [case for case in latest if case in measured]
        best = standing.best(latest) or standing.best(measured or None)
        if best is None:
            return []
        plain = standing.best(measured, plain=True)
        fitting = max(self._most_confirmed, self._left_to_confirm(records) // self.first_look)
        room = fitting > 2  # noqa: PLR2004 - the default, the best and it
        is_wanted = plain is not None and not best.is_plain and plain.log_ratio < 0 and room
        return [best.case, *([plain.case] if plain and is_wanted else [])]

    def _standing(self, rounds: int, records: Sequence[AnyRecord]) -> Standing:
        """How all settings stand after so many rounds, by prediction and measurement.

        That takes a second and is asked for again and again, so the last answer is kept.
        """
        launches = rounds * self.budget.round_launches
        collectives = collective_records(records)
        known = [r for r in training_records(records) if r.case.phase == CALIBRATE or _is_swept(r, launches)]
        asked: list[AnyRecord] = [*collectives, *known]
        answered, answer = self._answers.get(rounds, ([], None))
        if answer is None or len(asked) != len(answered) or any(map(operator.is_not, asked, answered)):
            answer = self._chooser.standing(self._chooser.predict(collectives, known), collectives, known)
            self._answers[rounds] = asked, answer
        return answer

    # -------------------------------------------------------------------------------------------------- for people

    @property
    def then(self) -> str:
        """What follows the stages that are known beforehand."""
        sizes = self.round_sizes
        rounds = f"at most {counted(sizes[0], 'promising setting')} of {len(self.candidates)} in " if sizes else ""
        rounds += f"{counted(len(sizes), 'round')}, then " if sizes else ""
        fresh = f"the best again in {counted(self.first_look, 'fresh launch')}"
        share = f"about {100 * self.planned_share:.0f} % of the steps of a full sweep"
        return f"{rounds}{fresh}: {share} in {counted(self.budget.training.launches, 'launch')}"

    def estimate_s(self) -> float:
        """What all of it takes, in seconds, if steps take as on the default and no second look is needed."""
        calibrate, network = self.calibrate_request(), self.network_request()
        parts = [(len(r.cases), r.budget, r.budget.launches) for r in (calibrate, network)]
        launches = self.budget.round_launches
        parts += [(size + 2, calibrate.budget, launches) for size in self.round_sizes]
        parts += [(self._blocks_confirmed, calibrate.budget, self.first_look)]
        return sum(dry_run_estimate(*part) for part in parts)


def _halved(first: int, rounds: int) -> tuple[int, ...]:
    """The settings of each round if every one goes on with half of those before it, until one would be left."""
    sizes = (math.ceil(first / 2**number) for number in range(rounds))
    return tuple(size for size in sizes if size > 1)


def _is_swept(record: TrainingRecord, launches: int) -> bool:
    return record.case.phase == SWEEP and record.launch < launches
