"""The search of ``run --bisect`` for a set of hosts that is slow only together, as stages of a
run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from commbench.analysis.stragglers.bisection import FIRST_LAUNCH, Outcome, bisection_of
from commbench.cli.conduct import Place, Task
from commbench.collectives.cases import Case
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.results import Store
from commbench.results.info import Bisect, RunInfo
from commbench.results.plan import RunRequest
from commbench.results.record_types import AnyRecord, collective_records
from commbench.units import counted

#: More steps than any search takes.
MOST_STEPS = 1000
EXAMPLE = "commbench run -c all_to_all --sizes 1M --backend mpi --bisect 1.5"


def parse_bisect(factor: float, racks: Path | None, launches: int | None) -> Bisect:
    """Return the terms of a search.

    Raises:
        InputError: the factor is not above 1, launches are given, or the file of racks cannot be
            read.
    """
    if not 1 < factor < math.inf:
        raise InputError(
            f"--bisect {factor:g} is no factor above 1; write how many times the time is slow, e.g."
            " 1.5."
        )
    if launches is not None:
        raise InputError(
            "--launches was given with --bisect, which chooses its launches; leave --launches out."
        )
    return Bisect(factor=factor, racks=_read_racks(racks) if racks else {})


def _read_racks(path: Path) -> dict[str, str]:
    """Return the rack of each host from a file with a host and a label on each line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--racks {path} cannot be read ({error}); give a file of lines HOST RACK."
        ) from error
    racks: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if words and (len(words) != 2 or words[0] in racks):  # noqa: PLR2004 - host and rack
            raise InputError(
                f"Line {number} of {path} is not understood: {line!r}; write HOST RACK, each host"
                " once."
            )
        if words:
            racks[words[0]] = words[1]
    return racks


def as_search(task: Task, terms: Bisect, place: Place) -> Task:
    """Return the task that searches a slow set, from the task that measures one case on all ranks.

    Raises:
        InputError: it has several cases, or one that no search can use, or the ranks run already.
    """
    (request,) = task.requests
    first, *others = request.cases
    if place.started:
        raise InputError(
            "--bisect starts ranks often, and these are started already; run it outside the"
            " launcher."
        )
    if others:
        raise InputError(
            f"--bisect searches by one case and {counted(len(request.cases), 'case')} were asked"
            f" for; name one operation, size and backend, as in {EXAMPLE}."
        )
    assert isinstance(first, Case)  # noqa: S101 - of a suite
    operation = OPERATIONS[first.operation]
    if (
        first.pattern != "flat"
        or first.env
        or operation.kind != "collective"
        or not operation.moves_data
    ):
        raise InputError(
            f"--bisect takes a collective with data on all ranks and no --env, as in {EXAMPLE}."
        )
    search = _Search(request, first)
    return replace(
        task,
        requests=(search.first,),
        stages=[search] * MOST_STEPS,
        begin=search.begin,
        info=RunInfo(bisect=terms),
        identity={"bisect": terms},
        then="sets of its ranks down to the smallest that is slow",
    )


class _Search:
    """Plans the next step of a search, again and again."""

    def __init__(self, request: RunRequest, case: Case) -> None:
        self._request = request
        self._case = case
        self._previous: RunRequest | None = None
        self._store: Store | None = None
        self.first = self._part("whole", [case], 0, FIRST_LAUNCH)

    def begin(self, store: Store) -> None:
        """Take the run that the search reads and extends."""
        self._store = store

    def __call__(self, records: Sequence[AnyRecord]) -> RunRequest | None:
        """Return the next step; None at the end, or where a step was not completed."""
        assert self._store is not None  # noqa: S101 - the conductor begins with it
        request = self._next(collective_records(records), self._store.info)
        if request == self._previous:
            return None
        self._previous = request
        return request

    def _next(self, records: Sequence[Record], info: RunInfo) -> RunRequest | None:
        if not any(
            record.case == self._case and record.launch < FIRST_LAUNCH for record in records
        ):
            return self.first
        step = bisection_of(self._case, records, info).advance()
        if isinstance(step, Outcome):
            return None
        return self._part(f"set {step.stage}", step.cases, step.first, step.end)

    def _part(self, name: str, cases: Sequence[Case], first: int, end: int) -> RunRequest:
        budget = replace(self._request.budget, launches=end)
        return replace(self._request, name=name, cases=cases, budget=budget, first_launch=first)
