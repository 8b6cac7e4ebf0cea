"""The drift of each case over a soak: the trend of its launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commbench.analysis.soak.rows import DriftRow
from commbench.collectives.cases import Case
from commbench.engine.records import Record
from commbench.engine.visits import launch_value
from commbench.results.info import RunInfo
from commbench.stats import MARGIN, Interval, trend

#: The fewest launches that show a trend.
LEAST_LAUNCHES = 6


def find_drifts(records: Sequence[Record], info: RunInfo) -> list[DriftRow]:
    """Return the trend of each case."""
    by_case: dict[Case, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.points[0].at_s):
        by_case.setdefault(record.case, []).append(record)
    return [_drift(case, of_case, info, cases=len(by_case)) for case, of_case in by_case.items()]


def _drift(case: Case, records: Sequence[Record], info: RunInfo, *, cases: int) -> DriftRow:
    """Return the trend of a case's launches.

    Its interval holds for ``cases`` together (Bonferroni).
    """
    name = str(info.get("run_id", ""))
    row = DriftRow(run_id=name, case=str(case), launches=len(records), verdict="inconclusive")
    if len(records) < LEAST_LAUNCHES:
        return row
    times_s = [float(np.mean([point.at_s for point in record.points])) for record in records]
    factor, interval = trend(
        times_s, [launch_value(record) for record in records], alpha=0.05 / cases
    )
    return replace(
        row,
        change_percent=100 * (factor - 1),
        change_percent_ci_low=100 * (interval.low - 1),
        change_percent_ci_high=100 * (interval.high - 1),
        verdict=_verdict(interval),
    )


def _verdict(interval: Interval) -> str:
    if interval.low > 1 + MARGIN or interval.high < 1 - MARGIN:
        return "slower" if interval.low > 1 else "faster"
    return "same" if interval.low >= 1 - MARGIN and interval.high <= 1 + MARGIN else "inconclusive"
