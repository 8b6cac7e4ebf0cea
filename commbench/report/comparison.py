"""The comparison of two runs, B relative to A: ratios with intervals, verdicts, and what could not be compared."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from commbench import stats
from commbench.cases import Case
from commbench.environment import unlike
from commbench.records import Row
from commbench.stats import MARGIN, Comparison, Verdict
from commbench.store import Run, load_run
from commbench.summary import RowKey, keyed_records, keyed_rows, launch_medians
from commbench.units import format_time

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")

FALSE_DISCOVERY_RATE = 0.05

#: Entries of run.json and columns that should be alike in both runs.
_RUN_ENTRIES = ("world_size", "nodes", "ranks_per_node", "ranks_per_gpu")
_COLUMNS = ("device", "library", "transport", "group_size", "sync", "loop", "algorithm", "batch")
_ENVIRONMENT = ("hosts", "versions", "variables", "mpi_library", "nccl_library", "emulated")
#: Verdicts, worst first, with their colours.
_STYLES = {Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.SAME: "", Verdict.INCONCLUSIVE: "yellow"}


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """One case, or one group of its ranks, that both runs measured well."""

    case: Case
    group: str = ""
    """Where the case's pattern makes groups."""
    row_a: Row
    row_b: Row
    comparison: Comparison


@dataclass(frozen=True, kw_only=True)
class BrokenCase:
    """One case or group that both runs have and at least one of them could not measure."""

    case: Case
    group: str = ""
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
        return {verdict: counted[verdict] for verdict in _STYLES}

    @property
    def regressions(self) -> tuple[Case, ...]:
        """The cases that became slower or that only A could measure."""
        slower = [case.case for case in self.cases if case.comparison.verdict is Verdict.SLOWER]
        return tuple(dict.fromkeys((*slower, *(case.case for case in self.broken if case.is_regression))))


def compare(
    a: Run | str | Path, b: Run | str | Path, *, margin: float = MARGIN, q: float = FALSE_DISCOVERY_RATE, seed: int = 0
) -> ComparisonTable:
    """Compare run B with run A, case by case; a ratio above 1 means that B takes longer.

    Cases are matched by their key, and by group where a pattern makes groups. Launch medians of those that are ok in
    both are compared as one family (see `commbench.stats.compare_family`).

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
    side_a, side_b = _Side.of(run_a), _Side.of(run_b)
    side_a, side_b = side_a.in_groups_of(side_b), side_b.in_groups_of(side_a)
    shared = [key for key in side_b.rows if key in side_a.rows]
    well = [key for key in shared if side_a.is_timed(key) and side_b.is_timed(key)]
    pairs = [(side_a.medians[key], side_b.medians[key]) for key in well]
    comparisons = [
        comparison if side_a.rows[key].batch == side_b.rows[key].batch else _undecided(comparison)
        for key, comparison in zip(well, stats.compare_family(pairs, margin=margin, q=q, seed=seed), strict=True)
    ]
    return ComparisonTable(
        name_a=str(run_a.path),
        name_b=str(run_b.path),
        margin=margin,
        cases=tuple(
            ComparedCase(
                case=side_b.cases[key],
                group=key[1],
                row_a=side_a.rows[key],
                row_b=side_b.rows[key],
                comparison=comparison,
            )
            for key, comparison in zip(well, comparisons, strict=True)
        ),
        broken=tuple(
            BrokenCase(
                case=side_b.cases[key],
                group=key[1],
                status_a=side_a.rows[key].status,
                status_b=side_b.rows[key].status,
            )
            for key in shared
            if key not in well and {side_a.rows[key].status, side_b.rows[key].status} != {"unsupported"}
        ),
        only_in_a=side_a.without(side_b),
        only_in_b=side_b.without(side_a),
        unlike=(*_unlike_runs(run_a.info, run_b.info), *_unlike_rows([(side_a.rows[k], side_b.rows[k]) for k in well])),
        too_few_launches=_too_few(comparisons, q),
    )


def _undecided(comparison: Comparison) -> Comparison:
    """No verdict where a different number of operations was timed together: in a batch they overlap a little."""
    return replace(comparison, verdict=Verdict.INCONCLUSIVE)


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One run by case and group, in the order of its rows."""

    cases: Mapping[RowKey, Case]
    rows: Mapping[RowKey, Row]
    medians: Mapping[RowKey, Sequence[float]]

    @classmethod
    def of(cls, run: Run) -> "_Side":
        records, cases = keyed_records(run.records), {record.case.key: record.case for record in run.records}
        return cls(
            cases={key: cases[key[0]] for key in records},
            rows=keyed_rows(run.records, run.info),
            medians={key: launch_medians(of_row) for key, of_row in records.items()},
        )

    def in_groups_of(self, other: "_Side") -> "_Side":
        """The same, but a case of which no group is known here, because it failed, stands for each of the other's."""
        groups: dict[str, list[RowKey]] = {}
        for key in other.rows:
            groups.setdefault(key[0], []).append(key)
        like = {key: groups.get(key[0], [key]) if not key[1] else [key] for key in self.rows}

        def spread(values: Mapping[RowKey, T]) -> dict[RowKey, T]:
            return {asked: values[key] for key, keys in like.items() for asked in keys}

        return _Side(cases=spread(self.cases), rows=spread(self.rows), medians=spread(self.medians))

    def is_timed(self, key: RowKey) -> bool:
        return self.rows[key].status == "ok" and bool(self.medians[key])

    def without(self, other: "_Side") -> tuple[Case, ...]:
        """The cases that the other side lacks."""
        return tuple(dict.fromkeys(self.cases[key] for key in self.rows if key not in other.rows))


def _too_few(comparisons: Sequence[Comparison], q: float) -> bool:
    """Judged by the typical numbers of launches: one case with fewer should not raise the hint for all."""
    if not comparisons:
        return False
    launches_a, launches_b = (
        round(median([getattr(comparison, name) for comparison in comparisons]))
        for name in ("launches_a", "launches_b")
    )
    return stats.family_hint(len(comparisons), launches_a, launches_b, q)


def _unlike_runs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Differences in how the ranks were laid out and in the conditions of their hosts."""
    entries = [
        f"{name}: {a[name]} vs {b[name]}"
        for name in _RUN_ENTRIES
        if None not in {a.get(name), b.get(name)} and a[name] != b[name]
    ]
    conditions_a, conditions_b = _conditions(a), _conditions(b)
    return entries + (unlike(conditions_a, conditions_b) if conditions_a and conditions_b else [])


def _conditions(info: Mapping[str, Any]) -> dict[str, Any]:
    """The run environment within ``run.json``: under ``environment`` or at the top, hosts as a list or by name."""
    stated = info.get("environment", info)
    found = {name: stated[name] for name in _ENVIRONMENT if stated.get(name) is not None}
    if isinstance(found.get("hosts"), Mapping):
        found["hosts"] = list(found["hosts"].values())
    return found if found.get("hosts") else {}


def _unlike_rows(pairs: Sequence[tuple[Row, Row]]) -> list[str]:
    """Differences in what carried and timed the cases, each kind once with the number of cases."""
    found = Counter(
        f"{name}: {getattr(a, name) or 'not stated'} vs {getattr(b, name) or 'not stated'}"
        for a, b in pairs
        for name in _COLUMNS
        if getattr(a, name) != getattr(b, name)
    )
    return [f"{text} (in {count} of {len(pairs)} cases)" for text, count in found.items()]


# ---------------------------------------------------------------------------------------------------- rendering


def render_comparison(table: ComparisonTable) -> "RenderableType":
    """The comparison for `rich.console.Console.print`: unlike conditions, one line a case, a summary line, hints."""
    from rich.console import Group
    from rich.text import Text

    head = [f"A: {table.name_a}", f"B: {table.name_b}", *(f"unlike conditions: {text}" for text in table.unlike)]
    parts: list[RenderableType] = [Text("\n".join(head)), Text("")]
    if table.cases:
        parts.append(_build_table(table))
    return Group(*parts, Text(""), Text("\n".join(_closing(table))))


def _build_table(table: ComparisonTable) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    names = _names(list(dict.fromkeys(compared.case for compared in table.cases)))
    built = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    built.add_column("case")
    for name in ("A", "B"):
        built.add_column(name, justify="right", no_wrap=True)
    built.add_column("B / A [CI]", no_wrap=True)
    built.add_column("verdict", no_wrap=True)
    built.add_column("detectable", justify="right", no_wrap=True)
    for compared in table.cases:
        comparison = compared.comparison
        times = (format_time((row.time_us or 0) * 1e-6) for row in (compared.row_a, compared.row_b))
        verdict = Text(str(comparison.verdict), style=_STYLES[comparison.verdict])
        built.add_row(
            names[compared.case] + (f" group {compared.group}" if compared.group else ""),
            *times,
            Text(_format_ratio(comparison)),
            verdict,
            _format_detectable(comparison.detectable),
        )
    return built


def _names(cases: Sequence[Case]) -> dict[Case, str]:
    """What to call each case: in short, with all its choices where that would name several."""
    short = Counter(map(str, cases))
    return {
        case: str(case) if short[str(case)] == 1 else f"{case} ({case.pattern}, sync {case.sync}, loop {case.loop})"
        for case in cases
    }


def _format_ratio(comparison: Comparison) -> str:
    interval = comparison.interval
    bounds = f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else ""
    return f"{comparison.ratio:.3f}{bounds}"


def _format_detectable(detectable: float) -> str:
    return f"+{100 * detectable:.1f} %" if math.isfinite(detectable) else "none"


def _closing(table: ComparisonTable) -> list[str]:
    """The summary line, then what could not be compared, then what to try."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in table.counts.items())
    total = len(table.cases)
    lines = [
        f"{total} {'case' if total == 1 else 'cases'} compared with a margin of {100 * table.margin:g} %: {counts}."
    ]
    lines += [
        f"Not compared: {broken.case}{f' group {broken.group}' if broken.group else ''} is {broken.status_a} in A and "
        f"{broken.status_b} in B."
        for broken in table.broken
    ]
    for name, cases in (("A", table.only_in_a), ("B", table.only_in_b)):
        if cases:
            lines.append(f"Only in {name}: {_listed(cases)}.")
    if table.too_few_launches:
        lines.append(
            f"A single changed case among {total} could not be found with so few launches, however large the change: "
            "measure both runs with more launches (--budget standard or rigorous) or compare fewer cases."
        )
    return lines


def _listed(cases: Sequence[Case], shown: int = 8) -> str:
    more = f" and {len(cases) - shown} more" if len(cases) > shown else ""
    return ", ".join(map(str, cases[:shown])) + more
