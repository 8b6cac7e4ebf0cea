"""What one launch is to do, and which launches and cases of a run are still missing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.budgets import Budget
from commbench.cases import Case, shuffled
from commbench.errors import InputError
from commbench.measure import frozen_from
from commbench.records import Frozen, Record

#: A record with one of these needs no second try; a case that failed or hung is tried again on resume.
DONE = frozenset({"ok", "unsupported", "wrong"})


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a person asked for: the cases and how they are measured, the same in every launch."""

    cases: Sequence[Case]
    ranks: int
    seed: int
    budget: Budget
    case_timeout_s: float = 60.0
    """A case that makes no progress for so long is hung, in seconds."""
    time_limit_s: float | None = None
    """Wall time that the whole run may take, in seconds; None: as long as it needs."""
    frozen: Mapping[str, Frozen] = field(default_factory=dict)
    """By case key, what another run has fixed that this one is to be compared with; the first launch finds the rest."""

    def __post_init__(self) -> None:
        if not self.cases:
            raise InputError("There is nothing to measure; name at least one operation, size and backend.")
        if self.ranks < 1:
            raise InputError(f"{self.ranks} ranks were asked for; give at least 1.")
        for name, value in (("case timeout", self.case_timeout_s), ("time limit", self.time_limit_s)):
            if value is not None and not value > 0:
                raise InputError(f"The {name} is {value:g} s; give more than 0.")


@dataclass(frozen=True, kw_only=True)
class PlannedCase:
    """A case and what an earlier launch has fixed about it; None in a case's first launch."""

    case: Case
    frozen: Frozen | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """All that the ranks of one launch need to know, as rank 0 receives and broadcasts it."""

    launch: int
    budget: Budget
    cases: Sequence[PlannedCase]
    """In the order in which they are measured."""
    case_timeout_s: float = 60.0
    deadline_s: float | None = None
    """No case is begun later than so many seconds after the ranks came together."""

    def to_json(self) -> str:
        """The plan as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> LaunchPlan:
        """Rebuild a plan; it comes from this very version of commbench, so anything amiss is a bug."""
        data: dict[str, Any] = json.loads(text)
        cases = [
            PlannedCase(case=Case(**planned["case"]), frozen=Frozen(**planned["frozen"]) if planned["frozen"] else None)
            for planned in data.pop("cases")
        ]
        return cls(**{**data, "budget": Budget(**data["budget"]), "cases": cases})


def missing_cases(request: RunRequest, records: Iterable[Record], launch: int) -> list[Case]:
    """The cases that ``launch`` has yet to measure, in the launch's own shuffled order."""
    done = {record.case.key for record in records if record.launch == launch and record.status in DONE}
    return [case for case in shuffled(request.cases, request.seed, launch) if case.key not in done]


def frozen_values(records: Iterable[Record]) -> dict[str, Frozen]:
    """By case key, what the lowest launch that measured the case has fixed for all others."""
    ordered = sorted(records, key=lambda record: record.launch, reverse=True)
    found = {record.case.key: frozen_from(record) for record in ordered if record.status == "ok"}
    return {key: frozen for key, frozen in found.items() if frozen}


def plan_launch(
    request: RunRequest,
    records: Sequence[Record],
    launch: int,
    *,
    slice_s: float | None = None,
    deadline_s: float | None = None,
) -> LaunchPlan:
    """Plan what ``launch`` has yet to measure, with ``slice_s`` in place of the budget's longest time for a case."""
    frozen = {**frozen_values(records), **request.frozen}
    budget = request.budget if slice_s is None else dataclasses.replace(request.budget, slice_s=slice_s)
    return LaunchPlan(
        launch=launch,
        budget=budget,
        cases=[PlannedCase(case=case, frozen=frozen.get(case.key)) for case in missing_cases(request, records, launch)],
        case_timeout_s=request.case_timeout_s,
        deadline_s=deadline_s,
    )


def next_launch(request: RunRequest, records: Sequence[Record]) -> int:
    """Which launch an invocation under mpirun or torchrun makes: the lowest unfinished one, else a new one."""
    begun = sorted({record.launch for record in records})
    unfinished = [launch for launch in begun if missing_cases(request, records, launch)]
    return unfinished[0] if unfinished else max(begun, default=-1) + 1


def launch_entry(
    *, launch: int, started: str, seconds: float, startup_s: float, measuring_s: float, status: str, reason: str = ""
) -> Mapping[str, object]:
    """How one launch went, as ``launches`` in run.json lists it; ``started`` is UTC in ISO 8601, times are seconds.

    ``startup_s`` is from starting the launcher until all ranks had come together, ``measuring_s`` what the records
    state as measured, ``other_s`` the rest.
    """
    return {
        "launch": launch,
        "started": started,
        "seconds": round(seconds, 3),
        "startup_s": round(startup_s, 3),
        "measuring_s": round(measuring_s, 3),
        "other_s": round(max(0.0, seconds - startup_s - measuring_s), 3),
        "status": status,
        "reason": reason,
    }
