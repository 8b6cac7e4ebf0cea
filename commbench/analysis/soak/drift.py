"""The drift of each case over a soak: the trend of its launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commbench.analysis.soak.rows import DriftRow
from commbench.engine.records import Record
from commbench.engine.visits import launch_value
from commbench.results.info import RunInfo
from commbench.results.tables import rows_by
from commbench.stats import MARGIN, Interval, trend

#: The fewest launches that show a trend.
LEAST_LAUNCHES = 6


def find_drifts(records: Sequence[Record], info: RunInfo) -> list[DriftRow]:
    """Return the trend of each case's launches.

    Intervals hold for all cases together (Bonferroni).
    """
    ordered = sorted(records, key=lambda record: record.points[0].at_s)
    by_case = rows_by(ordered, lambda record: record.case)
    rows = []
    for case, of_case in by_case.items():
        row = DriftRow(
            run_id=str(info.get("run_id", "")),
            case=str(case),
            launches=len(of_case),
            verdict="inconclusive",
        )
        if len(of_case) >= LEAST_LAUNCHES:
            times_s = [float(np.mean([point.at_s for point in each.points])) for each in of_case]
            values = [launch_value(record) for record in of_case]
            factor, interval = trend(times_s, values, alpha=0.05 / len(by_case))
            row = replace(
                row,
                change_percent=100 * (factor - 1),
                change_percent_ci_low=100 * (interval.low - 1),
                change_percent_ci_high=100 * (interval.high - 1),
                verdict=_verdict(interval),
            )
        rows.append(row)
    return rows


def _verdict(interval: Interval) -> str:
    if interval.low > 1 + MARGIN:
        return "slower"
    if interval.high < 1 - MARGIN:
        return "faster"
    if interval.low >= 1 - MARGIN and interval.high <= 1 + MARGIN:
        return "same"
    return "inconclusive"
