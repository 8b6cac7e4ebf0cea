"""The lines of ``pairs.csv``: every ordered pair of ranks of a matrix, summarised over launches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench import stats
from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.engine.flags import join_flags
from commbench.engine.records import Record, TableRow, column, copied
from commbench.findings import Finding
from commbench.results.info import RunInfo, host_by_rank
from commbench.results.summary import (
    condition_flags,
    few_flags,
    joined_texts,
    records_by_case,
    run_columns,
)
from commbench.results.tables import Columns, column_dtypes, table_of
from commbench.stats import Floats
from commbench.units import algbw_GBps, format_size

if TYPE_CHECKING:
    from pandas import DataFrame

Integers = NDArray[np.int64]

#: Flags of a launch that also hold for each of its pairs; others are about the times of all pairs
#: together.
_SHARED_FLAGS = frozenset({"oversubscribed", "late", "clock", "throttled"})
_WRONG = str(Finding(code="pair_wrong"))
_TEXTS = ("device", "library", "transport", "sync", "loop")


@dataclass(frozen=True, kw_only=True)
class PairRow(TableRow):
    """One line of ``pairs.csv``: an ordered pair of ranks summarised over launches."""

    like = "collectives.csv"

    backend: str = ""
    device: str = ""
    library: str = ""
    transport: str = ""
    operation: str = ""
    source: int | None = column("rank that sends, or sends first")
    target: int | None = column("rank that receives")
    source_host: str = column("host of the source", "", heading="host")
    target_host: str = column("host of the target", "", heading="host")
    dtype: str | None = None
    message_bytes: int | None = None
    window: int | None = None
    sync: str = ""
    loop: str = ""
    env: str = ""
    launches: int | None = column("launches behind the row")
    repetitions: int | None = column("valid repetitions, all launches together")
    time_us: float | None = column("median over launches of the launch's median")
    time_us_ci_low: float | None = column("95 % interval of time_us over launches, low end")
    time_us_ci_high: float | None = column("and its high end")
    time_us_p95: float | None = column("median over launches of the launch's p95", heading="p95")
    algbw_GBps: float | None = column(
        "bytes of one operation over time_us, GB = 1e9 bytes", heading="bandwidth"
    )
    ratio_to_typical: float | None = column(
        "time_us over the median pair's: of those within hosts, or between hosts",
        heading="over the typical",
    )
    wrong: int | None = column("wrong elements found")
    status: str = "ok"
    reason: str = column("one sentence where status is not ok", "")
    flags: str = column("warnings about the row, separated by ;", "")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One case of the pattern ``matrix`` over all its launches, as arrays: a matrix of 1,000 ranks
    has 999,000 pairs.

    ``source`` and ``target`` have shape (pairs,), times (launches, pairs); NaN if a launch lacks a
    pair.
    """

    case: Case
    records: Sequence[Record]
    """Of each launch with any pair."""
    hosts: Sequence[str]
    """Host of each rank; empty texts if unknown."""
    source: Integers
    target: Integers
    times_us: Floats
    p95_us: Floats
    repetitions: Integers
    """Of each pair, over all launches."""
    wrong: Floats
    """Of each pair, over all launches; NaN if nothing could be verified."""

    @property
    def name(self) -> str:
        """Backend, operation, message size, and environment if one was asked for."""
        name = f"{self.case.backend} {self.case.operation} {format_size(self.case.message_bytes)}"
        return f"{name} under {self.case.env}" if self.case.env else name

    @cached_property
    def time_us(self) -> Floats:
        """Each pair's median over launches, (pairs,)."""
        return _median(self.times_us)

    @cached_property
    def is_inter(self) -> NDArray[np.bool_]:
        """Whether a pair spans two hosts, (pairs,)."""
        _, host = np.unique(np.asarray(self.hosts), return_inverse=True)
        return np.asarray(host[self.source] != host[self.target])

    @cached_property
    def is_sound(self) -> NDArray[np.bool_]:
        """Whether a pair has no wrong data, (pairs,)."""
        return ~(self.wrong > 0)

    @cached_property
    def untimed(self) -> int:
        """Ordered pairs without a time in any launch, because all their repetitions started
        late.
        """
        return len(self.hosts) * (len(self.hosts) - 1) - len(self.source)

    def rate_GBps(self, time_us: Any) -> Any:
        """Return the bandwidth of an operation that takes ``time_us``."""
        return algbw_GBps(
            OPERATIONS[self.case.operation].messages_at_once * self.case.message_bytes, time_us
        )

    @cached_property
    def ratio_to_typical(self) -> Floats:
        """Each pair's time over that of the median pair of its kind, NaN for wrong data, (pairs,).

        The median is an observed pair, for an even number the faster of the two middle ones: if
        half of the pairs are slow, the mean of the two would be the time of no pair.
        """
        ratios = np.full(len(self.source), np.nan)
        for kind in (self.is_inter, ~self.is_inter):
            chosen = kind & self.is_sound
            if chosen.any():
                ratios[chosen] = self.time_us[chosen] / np.quantile(
                    self.time_us[chosen], 0.5, method="lower"
                )
        return ratios


def matrices(records: Iterable[Record], info: RunInfo) -> list[Matrix]:
    """Return the matrices of a run, in the order of operations, sizes and backends.

    Args:
        records: of ``samples.jsonl``; of several for one case and launch the last counts.
        info: contents of ``run.json``; ``ranks`` names each rank's host.
    """
    by_case = records_by_case(record for record in records if record.case.pattern == MATRIX)
    measured = []
    for of_case in by_case.values():
        with_pairs = [r for r in of_case if r.pairs and r.status in {"ok", "wrong"}]
        if with_pairs:
            measured.append(_matrix(with_pairs, info))
    return sorted(measured, key=_order)


def _order(matrix: Matrix) -> tuple[Any, ...]:
    case = matrix.case
    return (
        list(OPERATIONS).index(case.operation),
        case.dtype or "",
        case.message_bytes,
        case.backend,
        case.key,
    )


def _matrix(records: Sequence[Record], info: RunInfo) -> Matrix:
    import pandas as pd

    launches = []
    for launch, record in enumerate(records):
        pairs = pd.DataFrame(vars(record.pairs), dtype=float)
        launches.append(pairs.assign(launch=launch).set_index(["source", "target", "launch"]))
    by_pair: Any = pd.concat(launches).unstack("launch")  # noqa: PD010 - nothing to aggregate
    ends = np.array(by_pair.index.to_list(), dtype=np.int64)
    ranks = max(1 + int(ends.max()), *(record.group_size for record in records))
    host_of_rank = host_by_rank(info)
    return Matrix(
        case=records[-1].case,
        records=records,
        hosts=[host_of_rank.get(rank, "") for rank in range(ranks)],
        source=ends[:, 0],
        target=ends[:, 1],
        times_us=by_pair["time_us"].to_numpy().T,
        p95_us=by_pair["time_us_p95"].to_numpy().T,
        repetitions=by_pair["repetitions"].sum(axis=1).to_numpy(np.int64),
        wrong=by_pair["wrong"].sum(axis=1, min_count=1).to_numpy(),
    )


def _median(values: Floats) -> Floats:
    """Return the median over launches, of what there is."""
    return np.asarray(np.nanmedian(values, axis=0))


# --------------------------------------------------------------------------------------------- rows


def pair_table(matrices: Iterable[Matrix], info: RunInfo) -> DataFrame:
    """Return the lines of ``pairs.csv`` as a DataFrame, by source and target within each matrix.

    Args:
        matrices: measured.
        info: as ``run.json`` holds it.
    """
    import pandas as pd

    dtypes = column_dtypes(PairRow)
    tables = [
        pd.DataFrame(_columns(matrix, info), columns=list(dtypes)).astype(dtypes)
        for matrix in matrices
    ]
    return pd.concat(tables, ignore_index=True) if tables else table_of(PairRow, [])


def _columns(matrix: Matrix, info: RunInfo) -> Columns:
    """Return the columns of ``pairs.csv`` for one matrix: an array with a value for each pair, or
    one for all pairs.
    """
    low, high = _ends(matrix.times_us)
    hosts = np.array(matrix.hosts, dtype=object)
    launches = np.isfinite(matrix.times_us).sum(axis=0)
    return {
        **run_columns(info),
        **copied(PairRow, matrix.case),
        **copied(PairRow, matrix),
        **{name: joined_texts(matrix.records, name) for name in _TEXTS},
        "source_host": hosts[matrix.source],
        "target_host": hosts[matrix.target],
        "window": matrix.records[-1].window,
        "launches": launches,
        "time_us_ci_low": low,
        "time_us_ci_high": high,
        "time_us_p95": _median(matrix.p95_us),
        "algbw_GBps": np.where(matrix.is_sound, matrix.rate_GBps(matrix.time_us), np.nan),
        "status": np.where(matrix.is_sound, "ok", "wrong"),
        "reason": np.where(matrix.is_sound, "", _WRONG),
        "flags": _flags(matrix, launches, info),
    }


def _ends(times_us: Floats) -> Floats:
    """Return the low and the high ends of the intervals over launches, (2, pairs); NaN without one.

    ``times_us`` has shape (launches, pairs).
    """
    ends = np.full((2, times_us.shape[1]), np.nan)
    for pair, launches in enumerate(times_us.T.tolist()):
        interval = stats.launch_interval(list(filter(math.isfinite, launches)))
        if interval is not None:
            ends[:, pair] = interval.low, interval.high
    return ends


def _flags(matrix: Matrix, launches: Integers, info: RunInfo) -> list[str]:
    """Return the flags of each pair: those of its launches, and those about their number."""
    shared = {flag for record in matrix.records for flag in record.flags} & _SHARED_FLAGS
    shared |= condition_flags(matrix.case.backend, info)
    by_count = {}
    for count in np.unique(launches).astype(int).tolist():
        by_count[count] = join_flags(shared | few_flags(count))
    return [by_count[count] for count in launches.tolist()]
