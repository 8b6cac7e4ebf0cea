"""What a run still has to measure: launches and their cases, the estimated time, and the time limit."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.collectives.cases import Case, shuffled
from commbench.ddp.plan.cases import Terms, TrainingCase
from commbench.engine.matrix import time_slices
from commbench.engine.measure import fixed_settings_of
from commbench.engine.records import FixedSettings
from commbench.errors import InputError
from commbench.results.record_types import AnyCase, AnyRecord, collective_records, training_records
from commbench.stats.budgets import Budget
from commbench.units import counted

#: A record with one of these needs no second try; a case that failed or hung is tried again on resume.
DONE = frozenset({"ok", "unsupported", "wrong"})
#: A collective that has failed so often no longer keeps a launch by hand unfinished.
_TRIES = 2


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run, or a stage of it, is to measure: the cases, of one kind, and how, the same in every launch."""

    cases: Sequence[AnyCase]
    ranks: int
    seed: int
    budget: Budget
    case_timeout_s: float = 60.0
    """A case that makes no progress for so long is hung, in seconds."""
    time_limit_s: float | None = None
    """Wall time that the run may take up to the end of this stage, in seconds; None: as long as it needs."""
    whole_limit_s: float | None = None
    """Wall time that all stages may take, which ``fewest_launches`` of this one may use up; None: ``time_limit_s``."""
    frozen: Mapping[str, FixedSettings] = field(default_factory=dict)
    """By case key, what another run has fixed that this one is to be compared with; the first launch finds the rest."""
    training: Terms | None = None
    """How training cases are trained; None for collectives."""
    name: str = "collectives"
    """What ``launches`` in run.json calls the stage, in a word."""
    aim_s: float | None = None
    """What all launches together should take, in seconds: a launch is left out rather than exceed it."""
    fewest_launches: int = 1
    """So many launches are made whatever ``aim_s`` says, and for as long as ``whole_limit_s`` lasts."""
    first_launch: int = 0
    """Launches below this number are left as they are: they were made for a stage before this one."""
    is_fixed_length: bool = False
    """Whether what follows is decided from all of its launches: no launch is then added to them, also where mpirun or
    torchrun starts a launch of each stage at a time."""
    later_slices: float = 0.0
    """Time slices of stages after it whose length it fixes, as the first that trains does: under a time limit its own
    are so short that these fit in, too."""
    later_launches: int = 0
    """Launches of these."""
    depends: bool = False
    """Whether it is decided from all launches of the stages before it: it then waits for them, and for a launch of its
    own, where mpirun or torchrun starts them."""

    def __post_init__(self) -> None:
        if not self.cases:
            raise InputError("There is nothing to measure; name at least one operation, size and backend.")
        if self.ranks < 1:
            raise InputError(f"{self.ranks} ranks were asked for; give at least 1.")
        for name, value in (("case timeout", self.case_timeout_s), ("time limit", self.time_limit_s)):
            if value is not None and not value > 0:
                raise InputError(f"The {name} is {value:g} s; give more than 0.")

    def slices(self, cases: Iterable[AnyCase]) -> float:
        """How long ``cases`` may take in one launch, in time slices: one each, and more for the matrix of pairs."""
        return sum(time_slices(case, self.ranks) if isinstance(case, Case) else 1.0 for case in cases)


def budget_fields(request: RunRequest) -> dict[str, Any]:
    """What run.json is to say of the budget, as the summary needs to know it."""
    return {"budget": request.budget.name, "relative_half_width": request.budget.relative_half_width}


#: Part of a run: given all records so far when the stages before it are finished, it says what to measure.
#: None: nothing.
Stage = Callable[[Sequence[AnyRecord]], RunRequest | None]


def single_stage(request: RunRequest) -> list[Stage]:
    """The stages of a run that is planned as a whole."""
    return [lambda _: request]


@dataclass(frozen=True, kw_only=True)
class PlannedCase:
    """A case and what an earlier launch has fixed about it; None in a case's first launch, and of training."""

    case: AnyCase
    frozen: FixedSettings | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """All that the ranks of one launch need to know, as rank 0 receives and broadcasts it."""

    launch: int
    budget: Budget
    cases: Sequence[PlannedCase]
    """In the order in which collectives are measured; of training in the order of the request, its baseline first."""
    case_timeout_s: float = 60.0
    deadline_s: float | None = None
    """No case is begun later than so many seconds after the ranks came together."""
    training: Terms | None = None
    """How the cases are trained; None for collectives."""

    def to_json(self) -> str:
        """The plan as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> LaunchPlan:
        """Rebuild a plan; it comes from this very version of commbench, so anything amiss is a bug."""
        data: dict[str, Any] = json.loads(text)
        case_class = TrainingCase if data["training"] else Case
        cases = [
            PlannedCase(
                case=case_class(**planned["case"]),
                frozen=FixedSettings(**planned["frozen"]) if planned["frozen"] else None,
            )
            for planned in data["cases"]
        ]
        training = Terms(**data["training"]) if data["training"] else None
        return cls(**{**data, "budget": Budget(**data["budget"]), "cases": cases, "training": training})


def missing_cases(
    request: RunRequest, records: Iterable[AnyRecord], launch: int, left_out: Collection[str] = ()
) -> list[AnyCase]:
    """The cases that ``launch`` has yet to measure, but for those whose keys are ``left_out``.

    Collectives come in the launch's own shuffled order, but last those that have failed in it, or elsewhere and never
    succeeded: what follows a case that fails again waits for a new start. Training comes in the order of the request,
    as the ranks shuffle it. What is trained is compared within a launch, so all of it trains again where some of it is
    missing.
    """
    records = list(records)
    done = {record.case.key for record in records if record.launch == launch and record.status in DONE}
    order = request.cases if request.training else _broken_last(request, records, launch)
    wanted = [case for case in order if case.key not in left_out]
    missing = [case for case in wanted if case.key not in done]
    return wanted if request.training and missing else missing


def _broken_last(request: RunRequest, records: Sequence[AnyRecord], launch: int) -> list[AnyCase]:
    """The request's collectives in the order in which ``launch`` measures them."""
    failed = [record for record in records if record.status not in DONE]
    good = {record.case.key for record in records if record.status in DONE}
    broken = {record.case.key for record in failed if record.launch == launch or record.case.key not in good}
    order = shuffled(request.cases, request.seed, launch)
    return sorted(order, key=lambda case: case.key in broken)


def frozen_values(records: Iterable[AnyRecord]) -> dict[str, FixedSettings]:
    """By case key, what the lowest launch that measured a collective has fixed for all others."""
    ordered = sorted(collective_records(records), key=lambda record: record.launch, reverse=True)
    found = {record.case.key: fixed_settings_of(record) for record in ordered if record.status == "ok"}
    return {key: frozen for key, frozen in found.items() if frozen}


def steps_of_blocks(records: Iterable[AnyRecord]) -> int | None:
    """Steps of a block, early ones included, which whatever was trained first has fixed; None before that."""
    trained = (record.block_steps for record in training_records(records) if record.status == "ok")
    return next((steps for steps in trained if steps), None)


def slice_seconds(request: RunRequest, records: Iterable[AnyRecord]) -> float | None:
    """Seconds of a case's time slice where they are fixed: the blocks of training last as those that were made.

    None before any were, and of collectives, which take what they are given.
    """
    if request.training is None:
        return None
    made = [r for r in training_records(records) if r.status == "ok" and r.block_steps and r.measuring_s]
    if not made:
        return None
    return request.training.blocks * statistics.fmean(r.measuring_s / max(1, len(r.block_lengths)) for r in made)


def plan_launch(
    request: RunRequest,
    records: Sequence[AnyRecord],
    launch: int,
    *,
    slice_s: float | None = None,
    deadline_s: float | None = None,
    left_out: Collection[str] = (),
) -> LaunchPlan:
    """Plan what ``launch`` has yet to measure, with ``slice_s`` in place of the budget's longest time for a case.

    All launches that train, of all stages, make as many steps as the first: only that one's blocks can be shortened.
    """
    frozen = {**frozen_values(records), **request.frozen}
    terms = _terms(request, records)
    if terms and terms.steps:
        slice_s = slice_seconds(request, records)
    elif terms and slice_s is not None:
        terms = dataclasses.replace(terms, block_s=terms.block_s * slice_s / request.budget.slice_s)
    slice_s = request.budget.slice_s if slice_s is None else slice_s
    missing = missing_cases(request, records, launch, left_out)
    return LaunchPlan(
        launch=launch,
        budget=dataclasses.replace(request.budget, slice_s=slice_s),
        cases=[PlannedCase(case=case, frozen=frozen.get(case.key)) for case in missing],
        case_timeout_s=request.case_timeout_s,
        deadline_s=deadline_s,
        training=terms,
    )


def _terms(request: RunRequest, records: Iterable[AnyRecord]) -> Terms | None:
    terms = request.training
    if terms is None or terms.steps is not None:
        return terms
    return dataclasses.replace(terms, steps=steps_of_blocks(records))


def next_launch(request: RunRequest, records: Sequence[AnyRecord]) -> int:
    """Which launch an invocation under mpirun or torchrun makes: the lowest unfinished one, else a new one.

    A case that has failed does not keep a launch unfinished for ever: of training none that could not be trained in
    it, of collectives none that has also failed another time, in this launch or any other.
    """
    asked = {case.key for case in request.cases}
    begun = sorted({r.launch for r in records if r.case.key in asked and r.launch >= request.first_launch})
    failed = [record for record in records if record.status not in DONE]
    times = Counter(record.case.key for record in failed)
    given_up = {
        launch: {
            record.case.key
            for record in failed
            if record.launch == launch and (request.training or times[record.case.key] >= _TRIES)
        }
        for launch in begun
    }
    unfinished = (launch for launch in begun if missing_cases(request, records, launch, given_up[launch]))
    return next(unfinished, max(begun, default=request.first_launch - 1) + 1)


def unmeasured_cases(request: RunRequest, records: Iterable[AnyRecord]) -> list[AnyCase]:
    """The cases of a stage that no launch has measured: a run that the time limit ends without them is partial."""
    measured = {record.case.key for record in records if record.status in DONE}
    return [case for case in request.cases if case.key not in measured]


def unmeasured_clause(request: RunRequest, records: Iterable[AnyRecord]) -> str:
    """Return how many cases of a stage no launch has measured, to follow a sentence; empty if each has a launch."""
    missing = len(unmeasured_cases(request, records))
    cases = counted(len(request.cases), "case")
    return f"; {missing} of {cases} {'has' if missing == 1 else 'have'} no launch" if missing else ""


def exceeds_aim(request: RunRequest, entries: Iterable[Mapping[str, Any]], launch: int) -> bool:
    """Whether ``launch`` is better left out: with it, all of the request would take longer than it should.

    Args:
        request: the stage.
        entries: how the launches of the run went, as `launch_entry` states it; the last of the stage is the measure.
        launch: one that has begun is completed.
    """
    if request.aim_s is None or launch < request.fewest_launches:
        return False
    seconds: dict[int, float] = {}
    for entry in entries:
        if entry["stage"] == request.name:
            seconds[entry["launch"]] = seconds.get(entry["launch"], 0.0) + entry["seconds"]
    if launch in seconds or not seconds:
        return False
    return sum(seconds.values()) + seconds[max(seconds)] > request.aim_s


def launch_entry(
    *,
    stage: str,
    launch: int,
    started: str,
    seconds: float,
    startup_s: float,
    measuring_s: float,
    status: str,
    reason: str = "",
    culprit: Mapping[str, object] | None = None,
) -> Mapping[str, object]:
    """How one launch went, as ``launches`` in run.json lists it; ``started`` is UTC in ISO 8601, times are seconds.

    Launches are counted anew in every ``stage``; one that was continued after a failure stands there several times.

    ``startup_s`` is from starting the launcher until all ranks had come together, ``measuring_s`` what the records
    state as measured, ``other_s`` the rest. ``culprit`` stands there of a failure: see
    `commbench.launch.diagnosis.Culprit`.
    """
    return {
        "stage": stage,
        "launch": launch,
        "started": started,
        "seconds": round(seconds, 3),
        "startup_s": round(startup_s, 3),
        "measuring_s": round(measuring_s, 3),
        "other_s": round(max(0.0, seconds - startup_s - measuring_s), 3),
        "status": status,
        "reason": reason,
        **({"culprit": culprit} if culprit else {}),
    }


#: What is assumed until it has been measured, in seconds: starting a launch; per case, everything but measuring.
STARTUP_S = 3.0
OTHER_S = 0.05
#: Below this a case's time slice holds too few repetitions to be worth a launch.
SHORTEST_SLICE_S = 0.02
#: Kept free at the end of a time limit, for the last launch to leave and for the summary.
LEAVING_S = 1.0


def dry_run_estimate(slices: float, budget: Budget, launches: int) -> float:
    """Seconds that a run takes at most if the cases of every launch use up so many whole time slices."""
    return launches * (STARTUP_S + slices * (budget.slice_s + budget.energy_s + OTHER_S))


@dataclass(kw_only=True)
class TimePlan:
    """Shares the time of a run out among launches and cases, and learns from the launches that are over.

    All times are in seconds; ``now`` is of any steady clock and the same for all methods. Cases are counted by the
    time slices that they may take (see `commbench.results.plan.RunRequest.slices`).
    """

    budget: Budget
    begun: float
    limit_s: float | None = None
    whole_limit_s: float | None = None
    """The limit of what is begun with ``whole``; None: ``limit_s``."""
    startup_s: float = field(default=STARTUP_S, init=False)
    per_slice_s: float | None = field(default=None, init=False)
    other_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.other_s = OTHER_S + self.budget.energy_s

    def learn(self, *, startup_s: float, seconds: float, measuring_s: float, slices: float) -> None:
        """Take over what a finished launch of so many ``slices`` took in all, before and while measuring."""
        self.startup_s = startup_s
        if slices:
            self.per_slice_s = max(0.0, seconds - startup_s) / slices
            self.other_s = max(0.0, seconds - startup_s - measuring_s) / slices

    def left_s(self, now: float, *, whole: bool = False) -> float | None:
        """Time left until the limit; None without a limit."""
        limit_s = self.whole_limit_s if whole and self.whole_limit_s is not None else self.limit_s
        return None if limit_s is None else self.begun + limit_s - LEAVING_S - now

    def slice_s(self, now: float, *, slices: float, launches: int, whole: bool = False) -> float | None:
        """How long a time slice is where ``launches`` launches have still to measure so many ``slices`` together.

        (time left - launches * start-up) / slices, less what a case costs beside measuring; never more than the
        budget's slice, and None, which means the budget's, without a limit.
        """
        left = self.left_s(now, whole=whole)
        if left is None or not slices:
            return None
        share = (left - launches * self.startup_s) / slices - self.other_s
        return min(self.budget.slice_s, max(SHORTEST_SLICE_S, share))

    def fits(self, now: float, *, slices: float, whole: bool = False, slice_s: float | None = None) -> bool:
        """Whether a launch of so many slices would end before the limit.

        ``slice_s`` is how long they are where that is fixed; None: they may be as short as any.
        """
        left = self.left_s(now, whole=whole)
        shortest = SHORTEST_SLICE_S if slice_s is None else slice_s
        return left is None or left >= self.startup_s + slices * (shortest + self.other_s)

    def deadline_s(self, now: float, *, whole: bool = False) -> float | None:
        """How long after its ranks have come together a launch that is started now may begin cases."""
        left = self.left_s(now, whole=whole)
        return None if left is None else max(0.0, left - self.startup_s)

    def eta_s(self, now: float, *, slices: float, launches: int, slice_s: float | None = None) -> float:
        """Time until so many slices, of ``slice_s`` where that is fixed, and ``launches`` further starts are done."""
        assumed = self.budget.slice_s if slice_s is None else slice_s
        per_slice = assumed + self.other_s if self.per_slice_s is None else self.per_slice_s
        eta = launches * self.startup_s + slices * per_slice
        left = self.left_s(now)
        return eta if left is None else min(eta, max(0.0, left))
