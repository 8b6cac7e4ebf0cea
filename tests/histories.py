"""Histories of runs with a planted change, for tests of what finds it."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
from builders import make_case, make_info, make_launches

from commbench.engine.records import Record
from commbench.results import Run

#: A history has a run a night.
FIRST_NIGHT = datetime(2026, 9, 1, 3, tzinfo=timezone.utc)
RUNS, CHANGED_RUN, FACTOR = 30, 20, 1.1
SIZES = (8, 1024, 65536, 1048576)
#: Standard deviations between the runs of a case, and between the launches of a run.
BETWEEN_RUNS, BETWEEN_LAUNCHES = 0.01, 0.005


def make_history(
    seed: int, *, changed_sizes: Collection[int] = (), sizes: Sequence[int] = SIZES
) -> list[Run]:
    """Return a run for each of 30 nights.

    Cases of ``changed_sizes`` take 10 % longer from run 20 on.
    """
    generator = np.random.default_rng(seed)
    runs = []
    for night in range(RUNS):
        records: list[Record] = []
        for size in sizes:
            factor = FACTOR if size in changed_sizes and night >= CHANGED_RUN else 1.0
            level_us = 10.0 * factor * np.exp(BETWEEN_RUNS * generator.standard_normal())
            launches_us = level_us * np.exp(BETWEEN_LAUNCHES * generator.standard_normal(6))
            records += make_launches(launches_us.tolist(), make_case(message_bytes=size))
        runs.append(make_night(night, records))
    return runs


def make_night(night: int, records: Sequence[Record]) -> Run:
    """Return the complete run of a night."""
    name, started = f"night{night:02}", FIRST_NIGHT + timedelta(days=night)
    info = make_info(run_id=name, started=started.isoformat(), status="complete")
    return Run(path=Path(name), info=info, records=tuple(records))
