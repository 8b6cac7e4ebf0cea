"""The summary of a run: records of several launches become the rows of ``collectives.csv``."""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from commbench import stats
from commbench.collectives.algorithms import AUTO
from commbench.collectives.cases import Case
from commbench.collectives.composed import operation_in_pattern
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import pattern_order
from commbench.engine.flags import add_flag, join_flags, raised_flags
from commbench.engine.records import SCHEMA, GroupTimes, Overlap, OverlapRow, PairTable, Record, Row
from commbench.engine.visits import launch_value, visit_times
from commbench.results.info import RunInfo, ranks_per_gpu, shares_gpu
from commbench.stats.components import FEWEST_VISITS, components_of
from commbench.system.process import without_collector
from commbench.units import algbw_GBps

#: From this number of launches on, the interval over launches assumes no distribution.
MANY_LAUNCHES = 6
#: Share of the time above which the overhead is flagged.
HARNESS_SHARE = 0.05
#: The smallest half-width that the clock can resolve, in ticks.
TICKS = 2
DEFAULT_TICK_US = 0.01
#: A group is not called the slowest for so small a share of the median group's time.
SLOWEST_MARGIN = 0.02

RowKey = tuple[str, str]
"""The key of a row's case, and its group; empty without groups."""

#: Columns that name the different texts of the launches.
_TEXTS = ("group", "device", "library", "transport", "sync", "loop", "algorithm")
#: What ``overlap.csv`` repeats of ``collectives.csv``, to be joined by.
_SHARED_COLUMNS = (
    *("schema", "run_id", "backend", "operation", "pattern", "dtype", "redop", "in_place"),
    *("message_bytes", "osu_bytes", "env"),
)
#: Flags that are determined again for the row; the others are kept from the records.
_JUDGED = frozenset(
    {"one_launch", "few_launches", "ci_wide", "bimodal", "bimodal_launches", "unsteady", "harness"}
)
#: Flags of a record that are about its times, so that those of a group stand in their place.
_TIMED_DOUBTS = frozenset({"bimodal", "unsteady"})
_PLACES = {name: place for place, name in enumerate(OPERATIONS)}
#: Fields that a group's times share with a record.
_GROUP_FIELDS = {f.name for f in dataclasses.fields(GroupTimes)} - {"message_bytes", "flags"}


class _Keyed(Protocol):
    """A collective or a training case."""

    @property
    def key(self) -> str:
        """Return what identifies it within a run."""


class HasStatus(Protocol):
    """A record or a row with its status and the reason for it."""

    @property
    def status(self) -> str:
        """Return its status, e.g. ``ok``."""

    @property
    def reason(self) -> str:
        """Return one sentence unless the status is ok."""

    @property
    def reason_code(self) -> str:
        """Return the code of the reason; empty in older files."""


class Launched(HasStatus, Protocol):
    """The record of a collective or a training case in one launch."""

    @property
    def case(self) -> _Keyed:
        """Return what was measured."""

    @property
    def launch(self) -> int:
        """Return its launch."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Status and reason of a case over all launches, as fields of its row."""

    status: str = "ok"
    reason: str = ""
    reason_code: str = ""

    @classmethod
    def of(cls, record: HasStatus) -> "Outcome":
        """Return the outcome of a case that ended as one of its records did."""
        return cls(status=record.status, reason=record.reason, reason_code=record.reason_code)

    @property
    def is_ok(self) -> bool:
        """Whether the case has a result."""
        return self.status == "ok"


class Metered(Protocol):
    """The energy of a record of either type."""

    @property
    def energy_J(self) -> float | None:  # noqa: N802 - a unit
        """Return joules."""

    @property
    def energy_of(self) -> str:
        """Return the devices that were counted."""


AnyLaunched = TypeVar("AnyLaunched", bound=Launched)


def latest(records: Iterable[AnyLaunched]) -> dict[tuple[str, int], AnyLaunched]:
    """Return the last record of each (case key, launch), in the order of writing.

    A repetition replaces a failure.
    """
    by_launch: dict[tuple[str, int], AnyLaunched] = {}
    for record in records:
        pair = (record.case.key, record.launch)
        by_launch.pop(pair, None)
        by_launch[pair] = record
    return by_launch


def records_by_case(records: Iterable[AnyLaunched]) -> dict[str, list[AnyLaunched]]:
    """Return the latest record of each launch of each case, by case key, in the order of
    writing.
    """
    by_case: dict[str, list[AnyLaunched]] = {}
    for record in latest(records).values():
        by_case.setdefault(record.case.key, []).append(record)
    return by_case


def keyed_records(records: Iterable[Record]) -> dict[RowKey, list[Record]]:
    """Return the records of each row: the latest of each launch of a case, reduced to one group.

    The record of a launch that failed before it had groups counts for every group of the case.
    """
    by_row: dict[RowKey, list[Record]] = {}
    for key, of_case in records_by_case(records).items():
        groups = dict.fromkeys(times.group for record in of_case for times in record.groups)
        for group in groups or [""]:
            by_row[key, group] = [part for record in of_case for part in _within(record, group)]
    return by_row


def _within(record: Record, group: str) -> list[Record]:
    """Return the record reduced to one of its groups; empty if it lacks the group."""
    if not record.groups:
        return [record]
    return [
        dataclasses.replace(
            record,
            case=dataclasses.replace(record.case, message_bytes=times.message_bytes),
            groups=(),
            energy_J=None,  # that of all groups
            energy_of="",
            **{name: getattr(times, name) for name in _GROUP_FIELDS},
            flags=(*(flag for flag in record.flags if flag not in _TIMED_DOUBTS), *times.flags),
        )
        for times in record.groups
        if times.group == group
    ]


def launch_medians(records: Iterable[Record], statuses: Sequence[str] = ("ok",)) -> list[float]:
    """Return the time in microseconds of each timed record with one of ``statuses``: see
    `launch_value`.
    """
    return [launch_value(record) for record in _timed(records, statuses)]


def variance_components(records: Iterable[Record]) -> dict[str, dict[str, float | None]]:
    """Return the components of variance by case, of cases measured in several visits per launch."""
    components = {}
    for key, of_case in records_by_case(records).items():
        launches = [visit_times(record) for record in _timed(of_case, ("ok",))]
        if launches and max(map(len, launches)) > 1:
            components[key] = {
                level: value and round(value, 5)
                for level, value in vars(components_of(launches)).items()
            }
    return components


def keyed_rows(records: Iterable[Record], info: RunInfo) -> dict[RowKey, Row]:
    """Return a row for each case and group, by its key, in order.

    The order is by operation, pattern, dtype, redop, in_place, root, message_bytes and backend;
    environments are in the order of ``info["env"]``.

    Args:
        records: as ``samples.jsonl`` holds them; the last one of a case and launch counts.
        info: as ``run.json`` holds it; read are ``run_id``, ``world_size``, ``nodes``,
            ``ranks_per_node``, ``ranks_per_gpu``, ``relative_half_width`` (the budget's target),
            ``tick_us`` (the clock's resolution) and ``emulated`` within ``environment``, each
            optional.
    """
    with without_collector():
        rows = {key: _summarise(of_row, info) for key, of_row in keyed_records(records).items()}
    for key in _slowest_groups(rows):
        rows[key] = dataclasses.replace(rows[key], flags=add_flag(rows[key].flags, "slowest_group"))
    envs = {env: place for place, env in enumerate(info.get("env") or ())}
    return dict(
        sorted(rows.items(), key=lambda pair: (order_of_row(pair[1]), envs.get(pair[1].env, 0)))
    )


def _slowest_groups(rows: Mapping[RowKey, Row]) -> list[RowKey]:
    """Return the slowest group of each case if its slowness exceeds noise.

    Its whole interval must lie above that of the median group, and its time beyond a margin. For
    two equal groups in
    six launches, all six medians of one must exceed all six of the other: once in 462 cases. A
    single launch has no interval between launches.
    """
    timed: dict[str, list[tuple[float, RowKey]]] = {}
    for key, row in rows.items():
        if row.status == "ok" and row.time_us is not None and (row.launches or 0) > 1:
            timed.setdefault(key[0], []).append((row.time_us, key))
    slowest_groups = []
    for groups in timed.values():
        middle, slowest = (rows[sorted(groups)[at][1]] for at in ((len(groups) - 1) // 2, -1))
        low, high = slowest.time_us_ci_low, middle.time_us_ci_high
        least_us = (1 + SLOWEST_MARGIN) * (middle.time_us or 0.0)
        if low is not None and high is not None and low > max(high, least_us):
            slowest_groups.append(max(groups)[1])
    return slowest_groups


def overlap_rows(records: Iterable[Record], info: RunInfo) -> list[OverlapRow]:
    """Return the lines of ``overlap.csv``: medians over launches, ordered as `keyed_rows`."""
    records = list(records)
    if not any(record.overlap for record in records):
        return []
    by_case = records_by_case(records)
    first: dict[str, Row] = {}
    for (key, _), row in keyed_rows(records, info).items():
        first.setdefault(key, row)
    measured = ((row, [r.overlap for r in by_case[key] if r.overlap]) for key, row in first.items())
    return [_overlap_row(row, overlaps) for row, overlaps in measured if overlaps]


def _overlap_row(row: Row, overlaps: Sequence[Overlap]) -> OverlapRow:
    shares = [overlap.percent for overlap in overlaps]
    interval = stats.median_interval(shares)
    return OverlapRow(
        **{name: getattr(row, name) for name in _SHARED_COLUMNS},
        launches=len(overlaps),
        overall_us=stats.median([overlap.overall_us for overlap in overlaps]),
        compute_us=stats.median([overlap.compute_us for overlap in overlaps]),
        pure_us=stats.median([overlap.pure_us for overlap in overlaps]),
        overlap_percent=stats.median(shares),
        overlap_percent_ci_low=interval.low if interval else None,
        overlap_percent_ci_high=interval.high if interval else None,
    )


def _summarise(records: Sequence[Record], info: RunInfo) -> Row:
    outcome = _outcome(records)
    timed = _timed(records, ("ok", "wrong") if outcome.status == "wrong" else ("ok",))
    row = _with_conditions(_requested(records[-1].case, info), timed or records)
    wrong = _total(r.wrong for r in timed or records)
    row = dataclasses.replace(_with_times(row, timed), wrong=wrong, **vars(outcome))
    algbw, busbw = _bandwidths(row)
    flags = join_flags(_flags(row, timed, info))
    return dataclasses.replace(
        row, osu_bytes=_osu_bytes(row), algbw_GBps=algbw, busbw_GBps=busbw, flags=flags
    )


def _timed(records: Iterable[Record], statuses: Sequence[str]) -> list[Record]:
    return [record for record in records if record.status in statuses and len(record.times_us)]


def _outcome(records: Sequence[Record]) -> Outcome:
    """Return the outcome of a case: wrong if any launch is, else ok if any is and the latest did
    not fail.
    """
    wrong = [record for record in records if record.status == "wrong"]
    if wrong:
        counted = (
            f"{_total(r.wrong for r in wrong) or 0} elements were wrong in {len(wrong)} of"
            f" {len(records)} launches."
        )
        stated = next((record for record in wrong if record.reason), None)
        return Outcome.of(stated) if stated else Outcome(status="wrong", reason=counted)
    return last_outcome(records)


def last_outcome(records: Sequence[HasStatus]) -> Outcome:
    """Return the outcome of a case without wrong data: ok if any launch is and the latest did not
    fail.
    """
    last = records[-1]
    if last.status in {"failed", "hung"} or all(record.status != "ok" for record in records):
        return Outcome.of(last)
    return Outcome()


def _requested(case: Case, info: RunInfo) -> Row:
    """Return a row with the columns of the requested case and of the run."""
    return Row(
        schema=info.get("schema", SCHEMA),
        run_id=str(info.get("run_id", "")),
        backend=case.backend,
        operation=case.operation,
        pattern=case.pattern,
        world_size=info.get("world_size"),
        nodes=info.get("nodes"),
        ranks_per_node=info.get("ranks_per_node"),
        ranks_per_gpu=ranks_per_gpu(case.backend, info),
        dtype=case.dtype,
        redop=case.redop,
        root=case.root,
        in_place=case.in_place,
        message_bytes=case.message_bytes if OPERATIONS[case.operation].moves_data else None,
        cadence=case.mode,
        buffers=case.buffers,
        algorithm_requested="" if case.algorithm == AUTO else case.algorithm,
        env=case.env,
    )


def _with_conditions(row: Row, records: Sequence[Record]) -> Row:
    """Fill the columns about how the case was measured.

    Texts that differ between launches are all named.
    """
    last = records[-1]
    texts: dict[str, Any] = {
        name: joined_texts(getattr(record, name) for record in records) for name in _TEXTS
    }
    return dataclasses.replace(
        row,
        **texts,
        group_size=last.group_size or None,
        batch=last.batch if len(last.times_us) else None,
        window=last.window if len(last.times_us) else None,
    )


def _with_times(row: Row, timed: Sequence[Record]) -> Row:
    """Fill the columns made of times; they stay empty if nothing was timed."""
    if not timed:
        return row
    low, p25, p75, p95 = _quantiles(timed)
    interval = _interval(timed)
    return dataclasses.replace(
        row,
        launches=len(timed),
        visits=_visits(timed),
        disturbed=_total(None if r.stated else r.disturbed for r in timed),
        repetitions=_total(_repetitions(r) for r in timed),
        late_discarded=_total(None if r.stated else r.late_discarded for r in timed),
        time_us=stats.median(launch_medians(timed, ("ok", "wrong"))),
        time_us_ci_low=interval.low if interval else None,
        time_us_ci_high=interval.high if interval else None,
        time_us_min=low,
        time_us_p25=p25,
        time_us_p75=p75,
        time_us_p95=p95,
        time_us_rank_mean=_median_of_medians(r.rank_mean_us for r in timed),
        time_us_mean=_median_of_medians(
            [statistics.fmean(r.rank_mean_us)] for r in timed if len(r.rank_mean_us)
        ),
        time_us_mean_min=_median_of_medians(
            [min(r.rank_average_us)] for r in timed if len(r.rank_average_us)
        ),
        time_us_mean_max=_median_of_medians(
            [max(r.rank_average_us)] for r in timed if len(r.rank_average_us)
        ),
        skew_us=_median_of_medians(r.skew_us for r in timed),
        harness_us=_median_of_medians([r.harness_us] for r in timed if r.harness_us is not None),
        framework_us=_median_of_medians(
            [r.framework_us] for r in timed if r.framework_us is not None
        ),
        energy_J=metered(timed)[0],
    )


def joined_texts(texts: Iterable[str]) -> str:
    """Return the different texts, without empty ones, joined by `` | ``."""
    return " | ".join(dict.fromkeys(filter(None, texts)))


def metered(records: Iterable[Metered]) -> tuple[float | None, str]:
    """Return the median energy over launches and the counted devices.

    None if launches counted different devices.
    """
    with_energy = [
        (record.energy_of, record.energy_J) for record in records if record.energy_J is not None
    ]
    kinds = {energy_of for energy_of, _ in with_energy}
    return (
        (stats.median([joules for _, joules in with_energy]), kinds.pop())
        if len(kinds) == 1
        else (None, "")
    )


def energy_kinds(records: Iterable[Record]) -> dict[RowKey, str]:
    """Return the ``energy_of`` of each row with an energy."""
    records = list(records)
    if all(record.energy_J is None for record in records):
        return {}
    energies = {key: metered(of_row) for key, of_row in keyed_records(records).items()}
    return {key: energy_of for key, (joules, energy_of) in energies.items() if joules is not None}


def _quantiles(timed: Sequence[Record]) -> list[float | None]:
    """Return the minimum, the quartiles and p95 as medians over launches.

    Of imported cases, the stated ones.
    """
    stated = [r.stated for r in timed if r.stated]
    columns: Iterable[Sequence[float | None]]
    if stated:
        columns = (
            [getattr(statistics, f"{name}_us") for statistics in stated]
            for name in ("min", "p25", "p75", "p95")
        )
    else:
        columns = zip(
            *(stats.quantiles(r.times_us, (0, 0.25, 0.75, 0.95)) for r in timed), strict=True
        )
    present = ([value for value in column if value is not None] for column in columns)
    return [stats.median(column) if len(column) == len(timed) else None for column in present]


def _repetitions(record: Record) -> int | None:
    """Return the number of valid repetitions.

    In a matrix of all pairs, with both directions of a pair as one.
    """
    if record.stated:
        return record.stated.repetitions
    if not record.pairs:
        return len(record.times_us)
    directions = 1 if OPERATIONS[record.case.operation].is_one_way else 2
    return int(PairTable.of(record.pairs).columns["repetitions"].sum()) // directions


def _visits(timed: Sequence[Record]) -> int | None:
    """Return the visits of a launch, the median over launches.

    None for a matrix and for imported cases.
    """
    if any(record.stated or record.pairs for record in timed):
        return None
    return round(stats.median([len(visit_times(record)) for record in timed]))


def _interval(timed: Sequence[Record]) -> stats.Interval | None:
    """Return the 95 % interval over launches.

    Of a single launch, over its visits or else its repetitions.

    Launches of several visits are close to normally distributed on a logarithmic scale, as each is
    a median over
    visits: the interval is Student's, which holds whether launches or visits differ more. Other
    launches may have two modes, so that their interval assumes no distribution. The interval
    includes the time of the row, whose median over visits may lie outside the interval of the
    repetitions.
    """
    visits = [visit_times(record) for record in timed]
    has_visits = min(map(len, visits)) >= FEWEST_VISITS
    if len(timed) > 1:
        medians = launch_medians(timed, ("ok", "wrong"))
        return stats.student_interval(medians) if has_visits else stats.launch_interval(medians)
    if has_visits:
        return stats.student_interval([stats.median(visit) for visit in visits[0]])
    interval = None if timed[0].stated else stats.median_interval(timed[0].times_us)
    return interval and interval.including(launch_value(timed[0]))


def _osu_bytes(row: Row) -> int | None:
    size = row.group_size or row.world_size
    if row.message_bytes is None or not size:
        return None
    return OPERATIONS[row.operation].osu_bytes(row.message_bytes, size)


def _bandwidths(row: Row) -> tuple[float | None, float | None]:
    """Return algbw and busbw in GB/s (nccl-tests, doc/PERFORMANCE.md).

    None for a barrier and for wrong data.
    """
    size = row.group_size or row.world_size
    if row.status == "wrong" or row.message_bytes is None or not row.time_us or not size:
        return None, None
    operation = operation_in_pattern(row.operation, row.pattern, size)
    algbw = algbw_GBps(operation.messages_at_once * row.message_bytes, row.time_us)
    return algbw, algbw * operation.busbw_factor(size)


def _flags(row: Row, timed: Sequence[Record], info: RunInfo) -> set[str]:
    """Return the flags of a row: those of its records, and those judged over all launches."""
    if not timed:
        return set()
    counts = Counter(flag for record in timed if record.flags for flag in set(record.flags))
    ticks = TICKS * float(info.get("tick_us") or DEFAULT_TICK_US)
    judged = {
        "ci_wide": is_wide(
            row.time_us, row.time_us_ci_low, row.time_us_ci_high, info, at_least=ticks
        ),
        "bimodal": 2 * counts["bimodal"] >= len(timed),
        "unsteady": 2 * counts["unsteady"] >= len(timed),
        "harness": (row.harness_us or 0) > HARNESS_SHARE * (row.time_us or 0),
    }
    flags = (counts.keys() - _JUDGED) | set(raised_flags(judged))
    flags |= launch_flags(launch_medians(timed, ("ok", "wrong"))) | condition_flags(
        row.backend, info
    )
    # a single output of another tool cannot be measured again; more than one give an interval
    return flags - ({"one_launch"} if "imported" in flags and len(timed) == 1 else {"imported"})


def condition_flags(backend: str, info: RunInfo) -> set[str]:
    """Return the flags about the place of the ranks: emulated hosts, and ranks that share a GPU."""
    emulated = (info.get("environment") or {}).get("emulated")
    return set(raised_flags({"emulated": bool(emulated), "shared_gpu": shares_gpu(backend, info)}))


def launch_flags(medians: Sequence[float]) -> set[str]:
    """Return the flags about the number of launches and about bimodal medians."""
    conditions = {
        "one_launch": len(medians) == 1,
        "few_launches": 1 < len(medians) < MANY_LAUNCHES,
        "bimodal_launches": stats.is_bimodal(medians),
    }
    return set(raised_flags(conditions))


def is_wide(
    value: float | None,
    low: float | None,
    high: float | None,
    info: RunInfo,
    *,
    at_least: float = 0.0,
) -> bool:
    """Return whether an interval misses the budget's target and its half-width exceeds the clock's
    resolution.
    """
    target = info.get("relative_half_width")
    if target is None or value is None or low is None or high is None:
        return False
    return (high - low) / 2 > max(float(target) * value, at_least)


def order_of_row(row: Row) -> tuple[Any, ...]:
    """Return the sort key of a row; see `keyed_rows`."""
    keys = (
        pattern_order(row.pattern),
        row.dtype,
        row.redop,
        row.in_place,
        row.root,
        row.message_bytes,
        row.backend,
    )
    return (_PLACES[row.operation], *((key is not None, key) for key in keys))


def _median_of_medians(samples: Iterable[Sequence[float]]) -> float | None:
    """Return the median over launches of the median over repetitions; None without any."""
    medians = [stats.median(sample) for sample in samples if len(sample)]
    return stats.median(medians) if medians else None


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts that are not None; None without any."""
    present = [count for count in counts if count is not None]
    return sum(present) if present else None
