"""The summary of a run: records of several launches become the rows of ``collectives.csv``."""

import dataclasses
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from commbench import stats
from commbench.collectives.algorithms import AUTO
from commbench.collectives.composed import operation_in_pattern
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import pattern_order
from commbench.engine.flags import join_flags, raised_flags, split_flags
from commbench.engine.records import (
    SCHEMA,
    OverlapRow,
    Record,
    Row,
    copied,
    interval_columns,
)
from commbench.engine.visits import launch_value, visit_times
from commbench.results.info import RunInfo, environment_of, ranks_per_gpu, shares_gpu
from commbench.results.record_types import AnyCase, AnyRecord
from commbench.results.tables import Columns, rows_by
from commbench.stats.components import FEWEST_VISITS, components_of
from commbench.system.process import without_collector
from commbench.units import algbw_GBps, counted

#: From this number of launches on an interval is possible that assumes no distribution.
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
KeyedRows = dict[RowKey, Row]
"""Rows by their key."""
RecordT = TypeVar("RecordT", bound=AnyRecord)

#: Columns that ``run.json`` states.
_OF_RUN = ("world_size", "nodes", "ranks_per_node")
#: Columns that name the different texts of the launches.
_TEXTS = ("group", "device", "library", "transport", "sync", "loop", "algorithm")
#: Columns that are sums over launches; imported cases have none.
_TOTALS = ("disturbed", "late_discarded")
#: Columns that are medians over launches: the field of a record, and its statistic in a launch.
_MEDIANS: Mapping[str, tuple[str, Callable[[Any], float]]] = {
    "time_us_rank_mean": ("rank_mean_us", stats.median),
    "time_us_mean": ("rank_mean_us", statistics.fmean),
    "time_us_mean_min": ("rank_average_us", min),
    "time_us_mean_max": ("rank_average_us", max),
    "skew_us": ("skew_us", stats.median),
    "harness_us": ("harness_us", float),
    "framework_us": ("framework_us", float),
}
#: Columns that are medians over launches of a quantile: the field of a stated one, and its share.
_QUANTILES = {
    "time_us_min": ("min_us", 0.0),
    "time_us_p25": ("p25_us", 0.25),
    "time_us_p75": ("p75_us", 0.75),
    "time_us_p95": ("p95_us", 0.95),
}
#: Flags that are determined again for the row; the others are kept from the records.
_JUDGED = frozenset(
    {"one_launch", "few_launches", "ci_wide", "bimodal", "bimodal_launches", "unsteady", "harness"}
)
#: Flags of a record that are about its times, so that those of a group stand in their place.
_TIMED_DOUBTS = frozenset({"bimodal", "unsteady"})
_PLACES = {name: place for place, name in enumerate(OPERATIONS)}


# ------------------------------------------------------------------------------ records of each row


def latest(records: Iterable[RecordT]) -> dict[tuple[str, int], RecordT]:
    """Return the last record of each (case key, launch), in the order of writing.

    A repetition replaces a failure.
    """
    by_launch: dict[tuple[str, int], RecordT] = {}
    for record in records:
        pair = (record.case.key, record.launch)
        by_launch.pop(pair, None)
        by_launch[pair] = record
    return by_launch


def records_by_case(records: Iterable[RecordT]) -> dict[str, list[RecordT]]:
    """Return the latest record of each launch of each case, by case key, in the order of
    writing.
    """
    return rows_by(latest(records).values(), attrgetter("case.key"))


def keyed_records(records: Iterable[Record]) -> dict[RowKey, list[Record]]:
    """Return the records of each row: the latest of each launch of a case, reduced to one group.

    The record of a launch that failed before it had groups counts for every group of the case.
    """
    by_row = {}
    for key, of_case in records_by_case(records).items():
        groups = dict.fromkeys(times.group for record in of_case for times in record.groups)
        for group in groups or [""]:
            by_row[key, group] = [part for record in of_case for part in _within(record, group)]
    return by_row


def _within(record: Record, group: str) -> Iterator[Record]:
    """Yield the record reduced to one of its groups; nothing if it lacks the group."""
    if not record.groups:
        yield record
    for times in record.groups:
        if times.group == group:
            columns = dict(vars(times))
            size = columns.pop("message_bytes")
            columns["case"] = dataclasses.replace(record.case, message_bytes=size)
            shared = [flag for flag in record.flags if flag not in _TIMED_DOUBTS]
            columns["flags"] = (*shared, *times.flags)
            columns |= {"energy_J": None, "energy_of": ""}  # of all groups
            yield dataclasses.replace(record, groups=(), **columns)


def _timed(records: Iterable[Record], statuses: Collection[str]) -> list[Record]:
    return [record for record in records if record.status in statuses and len(record.times_us)]


def launch_values(records: Iterable[Record]) -> dict[int, float]:
    """Return the time in microseconds of each launch, of timed records without wrong data, see
    `launch_value`.
    """
    return {record.launch: launch_value(record) for record in _timed(records, {"ok"})}


def time_interval(records: Iterable[Record], level: float) -> stats.Interval | None:
    """Return the interval of a row's time over launches, in microseconds, from timed records
    without wrong data.

    None as in `_interval`, and for one launch: its repetitions differ less than launches do.
    """
    timed = _timed(records, {"ok"})
    if len(timed) < 2:
        return None
    return _interval(timed, [launch_value(record) for record in timed], level)


def variance_components(records: Iterable[Record]) -> dict[str, dict[str, float | None]]:
    """Return the components of variance by case, of cases measured in several visits per launch."""
    components = {}
    for key, of_case in records_by_case(records).items():
        launches = [visit_times(record) for record in _timed(of_case, {"ok"})]
        if max(map(len, launches), default=0) > 1:
            levels = vars(components_of(launches))
            components[key] = {name: value and round(value, 5) for name, value in levels.items()}
    return components


# --------------------------------------------------------------------------------------------- rows


def keyed_rows(records: Iterable[Record], info: RunInfo) -> KeyedRows:
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
        rows = {}
        for key, of_row in keyed_records(records).items():
            rows[key] = _summarise(of_row, info, key[1])
    for key in _slowest_groups(rows):
        flags = join_flags([*split_flags(rows[key].flags), "slowest_group"])
        rows[key] = dataclasses.replace(rows[key], flags=flags)
    envs = {env: place for place, env in enumerate(info.get("env", ()))}
    return dict(
        sorted(rows.items(), key=lambda pair: (order_of_row(pair[1]), envs.get(pair[1].env, 0)))
    )


def _slowest_groups(rows: KeyedRows) -> Iterator[RowKey]:
    """Yield the slowest group of each case if its slowness exceeds noise.

    Its whole interval must lie above that of the median group, and its time beyond a margin. Among
    2 to 32 equal groups one is called the slowest in at most 2 % of cases, among 128 in 4 %
    (simulated, lognormal). A single launch has no interval between launches.
    """
    timed = []
    for key, row in rows.items():
        if row.status == "ok" and row.time_us is not None and (row.launches or 0) > 1:
            timed.append((row.time_us, key))
    for groups in rows_by(timed, lambda time_and_key: time_and_key[1][0]).values():
        groups.sort()
        middle_us, middle = groups[(len(groups) - 1) // 2]
        _, slowest = groups[-1]
        high = rows[middle].time_us_ci_high
        low = rows[slowest].time_us_ci_low
        least_us = (1 + SLOWEST_MARGIN) * middle_us
        if low is not None and high is not None and low > max(high, least_us):
            yield slowest


def overlap_rows(records: Iterable[Record], rows: KeyedRows) -> Iterator[OverlapRow]:
    """Yield the lines of ``overlap.csv``: medians over launches, in the order of the rows.

    Args:
        records: as `keyed_rows`.
        rows: what `keyed_rows` made of them.
    """
    by_case = {}
    for key, of_case in records_by_case(records).items():
        by_case[key] = [record.overlap for record in of_case if record.overlap]
    for (key, _), row in rows.items():
        overlaps = by_case.pop(key, [])  # once, although each group has a row
        if not overlaps:
            continue
        columns = copied(OverlapRow, row)
        columns["launches"] = len(overlaps)
        for name in ("overall_us", "compute_us", "pure_us"):
            columns[name] = stats.median([getattr(overlap, name) for overlap in overlaps])
        shares = [overlap.percent for overlap in overlaps]
        columns["overlap_percent"] = stats.median(shares)
        columns |= interval_columns("overlap_percent", stats.median_interval(shares))
        yield OverlapRow(**columns)


def _summarise(records: Sequence[Record], info: RunInfo, group: str) -> Row:
    outcome = outcome_of(records)
    statuses = {"ok"}
    if outcome["status"] == "wrong":
        statuses.add("wrong")
    timed = _timed(records, statuses)
    case = records[-1].case
    columns = requested(Row, case, info, _OF_RUN)
    columns["cadence"] = case.mode
    if not OPERATIONS[case.operation].moves_data:
        columns["message_bytes"] = None
    if case.algorithm != AUTO:
        columns["algorithm_requested"] = case.algorithm
    for name in _TEXTS:
        columns[name] = joined_texts(timed or records, name)
    last = (timed or records)[-1]
    columns["group_size"] = last.group_size or None
    columns["wrong"] = _total(record.wrong for record in timed or records)
    if len(last.times_us):
        columns |= {"batch": last.batch, "window": last.window}
    medians = [launch_value(record) for record in timed]
    if timed:
        columns |= _times(timed, medians)
    row = Row(**columns, **outcome)
    flags = ""
    if timed:
        flags = join_flags(_flags(row, timed, medians, info, group))
    return dataclasses.replace(row, **_sizes_and_rates(row), flags=flags)


def outcome_of(records: Sequence[AnyRecord]) -> Columns:
    """Return the columns of status and reason of a case: wrong if any launch is, else ok if any is
    and the latest did not fail.
    """
    last = records[-1]
    wrong = [record for record in records if record.status == "wrong"]
    for record in wrong:
        if record.reason:
            return _outcome(record)
    if wrong:
        elements = _total(getattr(record, "wrong", None) for record in wrong) or 0
        launches = f"{len(wrong)} of {counted(len(records), 'launch')}"
        return {"status": "wrong", "reason": f"{counted(elements, 'wrong element')} in {launches}."}
    if last.status in {"failed", "hung"} or all(record.status != "ok" for record in records):
        return _outcome(last)
    return {"status": "ok"}


def _outcome(record: AnyRecord) -> Columns:
    return {name: getattr(record, name) for name in ("status", "reason", "reason_code")}


def run_columns(info: RunInfo) -> Columns:
    """Return the columns that name a run."""
    return {"schema": info.get("schema", SCHEMA), "run_id": info.get("run_id", "")}


def requested(row_class: type[Any], case: AnyCase, info: RunInfo, of_run: Iterable[str]) -> Columns:
    """Return the columns of the requested case and of the run; ``of_run``: those of run.json."""
    columns = copied(row_class, case) | run_columns(info)
    for name in of_run:
        columns[name] = info.get(name)
    columns["ranks_per_gpu"] = ranks_per_gpu(case.backend, info)
    return columns


def joined_texts(records: Iterable[AnyRecord], name: str) -> str:
    """Return the different texts of a field, without empty ones, joined by `` | ``."""
    texts = dict.fromkeys(getattr(record, name) for record in records)
    return " | ".join(filter(None, texts))


def _times(timed: Sequence[Record], medians: Sequence[float]) -> Columns:
    """Return the columns made of times, of which each launch has one in ``medians``."""
    columns = metered(timed)
    columns["launches"] = len(timed)
    if not any(record.stated or record.pairs for record in timed):
        columns["visits"] = round(stats.median([len(visit_times(record)) for record in timed]))
    columns["repetitions"] = _total(_repetitions(record) for record in timed)
    own = [record for record in timed if not record.stated]
    for name in _TOTALS:
        columns[name] = _total(getattr(record, name) for record in own)
    columns["time_us"] = stats.median(medians)
    columns |= interval_columns("time_us", _interval(timed, medians, stats.DEFAULT_LEVEL))
    columns |= _quantiles(timed)
    for name, (field, statistic) in _MEDIANS.items():
        of_launches = []
        for record in timed:
            values = getattr(record, field)
            if values is not None and np.size(values):
                of_launches.append(statistic(values))
        if of_launches:
            columns[name] = stats.median(of_launches)
    return columns


def metered(records: Sequence[AnyRecord]) -> Columns:
    """Return the columns of energy: the median over launches, and the devices that were counted.

    None if launches counted different devices.
    """
    joules = [record.energy_J for record in records if record.energy_J is not None]
    kinds = {record.energy_of for record in records if record.energy_J is not None}
    if len(kinds) != 1:
        return {}
    return {"energy_J": stats.median(joules), "energy_of": kinds.pop()}


def _quantiles(timed: Sequence[Record]) -> dict[str, float]:
    """Return the minimum, the quartiles and p95 as medians over launches.

    Of imported cases, the stated ones: none of a quantile that a launch does not state.
    """
    by_launch = []
    shares = [share for _, share in _QUANTILES.values()]
    for record in timed:
        if record.stated:
            by_launch.append([getattr(record.stated, field) for field, _ in _QUANTILES.values()])
        else:
            by_launch.append(stats.quantiles(record.times_us, shares))
    columns = {}
    for name, values in zip(_QUANTILES, zip(*by_launch, strict=True), strict=True):
        if None not in values:
            columns[name] = stats.median(values)
    return columns


def _repetitions(record: Record) -> int | None:
    """Return the number of valid repetitions.

    In a matrix of all pairs, with both directions of a pair as one.
    """
    if record.stated:
        return record.stated.repetitions
    if not record.pairs:
        return len(record.times_us)
    repetitions = sum(record.pairs.repetitions)
    if OPERATIONS[record.case.operation].is_one_way:
        return repetitions
    return repetitions // 2


def _interval(
    timed: Sequence[Record], medians: Sequence[float], level: float
) -> stats.Interval | None:
    """Return the interval over launches.

    Of a single launch, over its visits or else its repetitions.

    Launches of several visits are close to normally distributed on a logarithmic scale, as each is
    a median over visits: the interval is Student's, which holds whether launches or visits differ
    more. It covers the median of launches in two modes in half of the runs only. So the interval of
    such launches and of other ones assumes no distribution. The interval includes the time of the
    row, whose median over visits may lie outside the interval of the repetitions.
    """
    visits = [visit_times(record) for record in timed]
    has_visits = min(map(len, visits)) >= FEWEST_VISITS
    if len(timed) > 1:
        if has_visits and not stats.is_bimodal(medians):
            return stats.student_interval(medians, level)
        return stats.launch_interval(medians, level)
    if has_visits:
        return stats.student_interval([stats.median(visit) for visit in visits[0]], level)
    if timed[0].stated:
        return None
    interval = stats.median_interval(timed[0].times_us, level)
    return interval and interval.including(medians[0])


def _sizes_and_rates(row: Row) -> Columns:
    """Return OSU's size, and algbw and busbw in GB/s (nccl-tests, doc/PERFORMANCE.md).

    None for a barrier, and no rates of wrong data.
    """
    size = row.group_size or row.world_size
    if row.message_bytes is None or not size:
        return {}
    columns: Columns = {"osu_bytes": OPERATIONS[row.operation].osu_bytes(row.message_bytes, size)}
    if row.status != "wrong" and row.time_us:
        operation = operation_in_pattern(row.operation, row.pattern, size)
        algbw = algbw_GBps(operation.messages_at_once * row.message_bytes, row.time_us)
        columns["algbw_GBps"] = algbw
        columns["busbw_GBps"] = algbw * operation.busbw_factor(size)
    return columns


def _flags(
    row: Row, timed: Sequence[Record], medians: Sequence[float], info: RunInfo, group: str
) -> set[str]:
    """Return the flags of a row: those of its records, and those judged over all launches."""
    ticks = TICKS * (info.get("tick_us") or DEFAULT_TICK_US)
    judged = {
        "ci_wide": is_wide(row, "time_us", info, at_least=ticks),
        "bimodal": are_most(_is_bimodal(record, group) for record in timed),
        "unsteady": are_most("unsteady" in record.flags for record in timed),
        "harness": (row.harness_us or 0) > HARNESS_SHARE * (row.time_us or 0),
    }
    flags = {flag for record in timed for flag in record.flags} - _JUDGED
    flags.update(raised_flags(judged))
    flags |= launch_flags(medians)
    flags |= condition_flags(row.backend, info)
    if "imported" in flags and len(timed) == 1:
        return flags - {"one_launch"}  # an output of another tool cannot be measured again
    return flags - {"imported"}  # several outputs give an interval


def _is_bimodal(record: Record, group: str) -> bool:
    """Return whether the repetitions of a launch have two modes; of a group it is stated."""
    if group or not len(record.visit_lengths):
        return "bimodal" in record.flags
    return stats.is_bimodal(record.times_us)


def are_most(of_launches: Iterable[bool]) -> bool:
    """Return whether something holds in at least half of the launches."""
    held = list(of_launches)
    return 2 * sum(held) >= len(held)


def condition_flags(backend: str, info: RunInfo) -> set[str]:
    """Return the flags about the place of the ranks: emulated hosts, and ranks that share a GPU."""
    emulated = environment_of(info).get("emulated")
    return set(raised_flags({"emulated": bool(emulated), "shared_gpu": shares_gpu(backend, info)}))


def launch_flags(medians: Sequence[float]) -> set[str]:
    """Return the flags about the number of launches and about bimodal medians."""
    flags = few_flags(len(medians))
    if stats.is_bimodal(medians):
        flags.add("bimodal_launches")
    return flags


def few_flags(launches: int) -> set[str]:
    """Return the flags about a number of launches."""
    if launches == 1:
        return {"one_launch"}
    if 1 < launches < MANY_LAUNCHES:
        return {"few_launches"}
    return set()


def is_wide(row: object, name: str, info: RunInfo, *, at_least: float = 0.0) -> bool:
    """Return whether the interval of a row's column misses the budget's target, and its half-width
    exceeds the clock's resolution.
    """
    target = info.get("relative_half_width")
    value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_ci_low", "_ci_high"))
    if target is None or None in {value, low, high}:
        return False
    half_width: float = (high - low) / 2
    allowed: float = max(target * value, at_least)
    return half_width > allowed


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


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts that are not None; None without any."""
    present = [count for count in counts if count is not None]
    if not present:
        return None
    return sum(present)
