"""The remaining work of a run: launches and their cases, the estimated time, and the time limit."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from commbench.collectives.cases import Case, shuffled
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.terms import Terms
from commbench.engine.matrix import time_slices
from commbench.engine.records import FixedSettings
from commbench.engine.sampling import settings_after
from commbench.errors import InputError
from commbench.results.info import Launch
from commbench.results.record_types import AnyCase, AnyRecord, collective_records, training_records
from commbench.results.tables import rows_by
from commbench.schema import Unlimited, read_as
from commbench.stats.budgets import Budget

#: A record with one of these statuses is finished; a case that failed or hung is tried again on
#: resume.
DONE = frozenset({"ok", "unsupported", "wrong"})


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The cases that a run, or one stage of it, measures in every launch, and the settings."""

    cases: Sequence[AnyCase]
    ranks: int
    seed: int
    budget: Budget
    case_timeout_s: float = 60.0
    """A case without progress for this long is hung."""
    time_limit_s: float | None = None
    """Wall time of the run up to the end of this stage, in seconds; None: no limit."""
    whole_limit_s: float | None = None
    """Wall time of all stages, which the ``fewest_launches`` of this stage may use; None:
    ``time_limit_s``."""
    fixed: Mapping[str, FixedSettings] = field(default_factory=dict)
    """Settings by case key that a run to compare with has fixed; the first launch fixes the
    others."""
    training: Terms | None = None
    """Terms of training cases; None for collectives."""
    name: str = "collectives"
    """The stage's name among ``launches`` in run.json."""
    aim_s: float | None = None
    """Target for the time of all launches, in seconds: a launch that would exceed it is left
    out."""
    fewest_launches: int = 1
    """Launches that are made regardless of ``aim_s``, within ``whole_limit_s``."""
    first_launch: int = 0
    """Number of the first launch; launches below it belong to an earlier stage."""
    is_fixed_length: bool = False
    """Whether later stages depend on all launches of this one: then no launch is added, also
    under mpirun or torchrun, where each invocation makes one launch of each stage. Such a stage
    itself, unless it searches, waits for the launches of the stages before, and for another
    invocation."""
    soak_s: float | None = None
    """Wall time of a soak in seconds: launches follow each other until it is over; None: no
    soak."""

    def __post_init__(self) -> None:
        if not self.cases:
            raise InputError(
                "There is nothing to measure; name at least one operation, size and backend."
            )

    def by_env(self, launch: int) -> list[RunRequest]:
        """Return the request once for each environment, with the cases under it, in the order of
        one launch.

        Each is a start of its own: the order is shuffled by the run's seed and the number of the
        launch.
        """
        parts = rows_by(self.cases, attrgetter("env"))
        order = shuffled(list(parts), self.seed, launch)
        return [dataclasses.replace(self, cases=parts[env]) for env in order]

    @property
    def envs(self) -> list[str]:
        """The environments of the cases in the requested order, see `commbench.system.env`.

        One empty text for none.
        """
        return list(dict.fromkeys(case.env for case in self.cases))

    @property
    def searches(self) -> bool:
        """Whether a launch chooses among its cases, and may leave some out."""
        return self.training is not None and self.training.search_s is not None

    def slices(self, cases: Iterable[AnyCase]) -> float:
        """Return the time slices that ``cases`` may take in one launch: one each, more for the
        matrix of pairs; a search takes its own time.
        """
        if self.training is not None and self.training.search_s is not None and any(cases):
            return self.training.search_s / self.budget.slice_s
        return sum(
            time_slices(case, self.ranks) if isinstance(case, Case) else 1.0 for case in cases
        )


#: Plans one part of a run from all records of the parts before it; returns None if there is nothing
#: to measure.
Stage = Callable[[Sequence[AnyRecord]], RunRequest | None]


def single_stage(request: RunRequest) -> list[Stage]:
    """Return the only stage of a run that is planned as a whole."""
    return [lambda _: request]


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The plan of one launch, as rank 0 receives and broadcasts it."""

    launch: int
    budget: Budget
    collectives: Sequence[Case] = ()
    """In the order of measuring."""
    trainings: Sequence[TrainingCase] = ()
    """In the order of the request, the baseline first."""
    fixed: Mapping[str, FixedSettings] = field(default_factory=dict)
    """By case key, the settings that an earlier launch has fixed."""
    env: str = ""
    """The environment variables of the ranks, see `commbench.system.env`; all cases have the
    same."""
    case_timeout_s: float = 60.0
    deadline_s: Unlimited = math.inf
    """No case begins later than this many seconds after the ranks came together."""
    training: Terms | None = None
    """Terms of training cases; None for collectives."""

    @property
    def cases(self) -> Sequence[AnyCase]:
        """What is measured or trained; a launch has collectives or trainings."""
        return self.trainings or self.collectives

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> LaunchPlan:
        """Return the plan of `to_json`; the same version wrote it, so any error is a bug."""
        return read_as(cls, json.loads(text))


def missing_cases(
    request: RunRequest, records: Iterable[AnyRecord], launch: int, left_out: Collection[str] = ()
) -> list[AnyCase]:
    """Return the cases that ``launch`` has yet to measure, without the keys in ``left_out``.

    Collectives come in the launch's own shuffled order. Cases that have failed in this launch, or
    in another one and
    never succeeded, come last: cases after one that fails again wait for new ranks. Training cases
    come in the order of the request, as the ranks shuffle them. They are compared within a launch,
    so if one is missing, all train again. A search is over when the first case has its record.
    """
    records = list(records)
    done = {r.case.key for r in records if r.launch == launch and r.status in DONE}
    order = request.cases
    if not request.training:
        good = {record.case.key for record in records if record.status in DONE}
        broken = set()
        for record in records:
            if record.status not in DONE and (
                record.launch == launch or record.case.key not in good
            ):
                broken.add(record.case.key)
        order = shuffled(request.cases, request.seed, launch)
        order = sorted(order, key=lambda case: case.key in broken)
    wanted = [case for case in order if case.key not in left_out]
    missing = [case for case in wanted if case.key not in done]
    if request.searches and request.cases[0].key in {*done, *left_out}:
        return []
    if request.training and missing:
        return wanted
    return missing


def fixed_settings(records: Iterable[AnyRecord], budget: Budget) -> dict[str, FixedSettings]:
    """Return by case key the settings that the lowest launch of a collective has fixed for all
    others.
    """
    ordered = sorted(collective_records(records), key=attrgetter("launch"), reverse=True)
    fixed = {}
    for record in ordered:
        settings = settings_after(record, budget)
        if record.status == "ok" and settings:
            fixed[record.case.key] = settings
    return fixed


def steps_of_blocks(records: Iterable[AnyRecord]) -> int | None:
    """Return the steps of a block, early steps included, as the first trained case fixed them.

    None before that.
    """
    for record in training_records(records):
        if record.status == "ok" and record.block_steps:
            return record.block_steps
    return None


def slice_seconds(request: RunRequest, records: Iterable[AnyRecord]) -> float | None:
    """Return the seconds of a case's time slice if they are fixed: training blocks last as long as
    earlier blocks.

    None before the first block, and for collectives, which fit into any slice.
    """
    if request.training is None:
        return None
    blocks_s = []
    for record in training_records(records):
        if record.status == "ok" and record.block_steps and record.measuring_s:
            blocks: float = max(1, len(record.block_lengths))
            if record.total_steps:  # before they were divided into short ones
                blocks = record.total_steps / record.block_steps
            blocks_s.append(record.measuring_s / blocks)
    if not blocks_s:
        return None
    return request.training.blocks * statistics.fmean(blocks_s)


def plan_launch(
    request: RunRequest,
    records: Sequence[AnyRecord],
    launch: int,
    *,
    slice_s: float | None = None,
    deadline_s: float = math.inf,
    left_out: Collection[str] = (),
) -> LaunchPlan:
    """Plan what ``launch`` has yet to measure, with ``slice_s`` in place of the budget's longest
    time for a case.

    All cases of the request have the same ``env``, see `RunRequest.by_env`.

    All training launches of all stages make as many steps as the first one: only its blocks can be
    shortened.
    """
    fixed = {**fixed_settings(records, request.budget), **request.fixed}
    terms = request.training
    if terms is not None and terms.steps is None:
        terms = dataclasses.replace(terms, steps=steps_of_blocks(records))
    if terms and terms.steps:
        slice_s = slice_seconds(request, records)
    elif terms and slice_s is not None:
        terms = dataclasses.replace(
            terms, block_s=terms.block_s * (slice_s / request.budget.slice_s)
        )
    slice_s = request.budget.slice_s if slice_s is None else slice_s
    longest_s = request.budget.longest_s * (slice_s / request.budget.slice_s)
    missing = missing_cases(request, records, launch, left_out)
    return LaunchPlan(
        launch=launch,
        budget=dataclasses.replace(request.budget, slice_s=slice_s, longest_s=longest_s),
        collectives=[case for case in missing if isinstance(case, Case)],
        trainings=[case for case in missing if isinstance(case, TrainingCase)],
        fixed={case.key: fixed[case.key] for case in missing if case.key in fixed},
        env=request.cases[0].env,
        case_timeout_s=request.case_timeout_s,
        deadline_s=deadline_s,
        training=terms,
    )


def launch_times(*, seconds: float, startup_s: float, measuring_s: float) -> Launch:
    """Return where the time of a launch went, for its entry in ``launches`` of run.json.

    Each stage counts its launches from 0; a launch that went on after a failure has several
    entries. ``startup_s`` is from starting the launcher until all ranks have come together,
    ``measuring_s`` the sum over the records, ``other_s`` the rest.
    """
    return {
        "seconds": round(seconds, 3),
        "startup_s": round(startup_s, 3),
        "measuring_s": round(measuring_s, 3),
        "other_s": round(max(0.0, seconds - startup_s - measuring_s), 3),
    }


#: Assumed until measured, in seconds: the start of a launch; per case, everything but measuring.
STARTUP_S = 3.0
OTHER_S = 0.05


def dry_run_estimate(slices: float, budget: Budget, launches: int, *, starts: int = 1) -> float:
    """Return the most seconds that a run takes: the cases of every launch use up ``slices`` whole
    time slices.

    ``starts``: how often each launch starts its ranks, once for each environment.
    """
    return launches * (starts * STARTUP_S + slices * (budget.slice_s + budget.energy_s + OTHER_S))
