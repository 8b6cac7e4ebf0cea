"""The comparison of two runs, B relative to A: ratios with intervals, verdicts, and what could not be compared."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench import stats
from commbench.cases import Case
from commbench.records import Row
from commbench.stats import Comparison, Verdict
from commbench.store import Run, load_run
from commbench.summary import launch_medians, records_by_case, summarise_run
from commbench.units import format_time

if TYPE_CHECKING:
    from rich.console import RenderableType

MARGIN = 0.02
FALSE_DISCOVERY_RATE = 0.05

#: Entries of run.json and columns that should be alike in both runs.
_RUN_ENTRIES = ("world_size", "nodes", "ranks_per_node", "ranks_per_gpu")
_COLUMNS = ("device", "library", "transport", "group_size", "sync", "loop", "algorithm")
_VERDICTS = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """One case that both runs measured well."""

    case: Case
    row_a: Row
    row_b: Row
    comparison: Comparison


@dataclass(frozen=True, kw_only=True)
class BrokenCase:
    """One case that both runs have and at least one of them could not measure."""

    case: Case
    status_a: str
    status_b: str

    @property
    def is_regression(self) -> bool:
        """Whether it was ok in A and is not in B."""
        return self.status_a == "ok"


@dataclass(frozen=True, kw_only=True)
class ComparisonTable:
    """B relative to A, case by case in the order of the rows."""

    name_a: str
    name_b: str
    margin: float
    cases: tuple[ComparedCase, ...]
    broken: tuple[BrokenCase, ...] = ()
    only_in_a: tuple[Case, ...] = ()
    only_in_b: tuple[Case, ...] = ()
    unlike: tuple[str, ...] = ()
    """Conditions that differ, each as ``name: A's vs B's``."""
    too_few_launches: bool = False
    """Whether these launches are too few for one changed case in a family of this size to be found."""

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many cases got each verdict, worst first."""
        counted = Counter(case.comparison.verdict for case in self.cases)
        return {verdict: counted[verdict] for verdict in _VERDICTS}

    @property
    def regressions(self) -> tuple[Case, ...]:
        """The cases that became slower or that only A could measure."""
        slower = [case.case for case in self.cases if case.comparison.verdict is Verdict.SLOWER]
        return (*slower, *(case.case for case in self.broken if case.is_regression))


def compare(
    a: Run | str | Path, b: Run | str | Path, *, margin: float = MARGIN, q: float = FALSE_DISCOVERY_RATE, seed: int = 0
) -> ComparisonTable:
    """Compare run B with run A, case by case; a ratio above 1 means that B takes longer.

    Cases are matched by their key. Launch medians of the cases that are ok in both are compared as one family (see
    `commbench.stats.compare_family`).

    Args:
        a: the run to compare with, or its directory.
        b: the run that is judged, or its directory.
        margin: relative difference that does not matter.
        q: share of the verdicts ``faster`` and ``slower`` that may be false.
        seed: of the bootstrap.

    Raises:
        InputError: a directory holds no run, or the margin is not in [0, 1).
    """
    run_a, run_b = (run if isinstance(run, Run) else load_run(run) for run in (a, b))
    sides = _Side.of(run_a), _Side.of(run_b)
    shared = [key for key in sides[1].rows if key in sides[0].rows]
    well = [key for key in shared if all(side.is_timed(key) for side in sides)]
    compared = stats.compare_family(
        [(sides[0].medians[key], sides[1].medians[key]) for key in well], margin=margin, q=q, seed=seed
    )
    return ComparisonTable(
        name_a=str(run_a.path),
        name_b=str(run_b.path),
        margin=margin,
        cases=tuple(_compared(key, sides, comparison) for key, comparison in zip(well, compared, strict=True)),
        broken=tuple(_broken(key, sides) for key in shared if key not in set(well) and not _both_unable(key, sides)),
        only_in_a=tuple(side_case for key, side_case in sides[0].cases.items() if key not in sides[1].rows),
        only_in_b=tuple(side_case for key, side_case in sides[1].cases.items() if key not in sides[0].rows),
        unlike=(*_unlike_runs(run_a.info, run_b.info), *_unlike_rows(well, sides)),
        too_few_launches=_too_few(compared, q),
    )


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One run by case key, in the order of its rows."""

    cases: dict[str, Case]
    rows: dict[str, Row]
    medians: dict[str, list[float]]

    @classmethod
    def of(cls, run: Run) -> "_Side":
        records = records_by_case(run.records)
        found = [(key, summarise_run(of_case, run.info)[0]) for key, of_case in records.items()]
        order = {id(row): number for number, row in enumerate(sort_rows(row for _, row in found))}
        rows = dict(sorted(found, key=lambda pair: order[id(pair[1])]))
        return cls(
            cases={key: records[key][-1].case for key in rows},
            rows=rows,
            medians={key: launch_medians(records[key]) for key in rows},
        )

    def is_timed(self, key: str) -> bool:
        return self.rows[key].status == "ok" and bool(self.medians[key])


def _compared(key: str, sides: tuple[_Side, _Side], comparison: Comparison) -> ComparedCase:
    a, b = sides
    return ComparedCase(case=b.cases[key], row_a=a.rows[key], row_b=b.rows[key], comparison=comparison)
