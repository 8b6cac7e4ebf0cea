"""Tests of summarising records into rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import (
    KIB,
    MIB,
    STEADY,
    make_case,
    make_info,
    make_launches,
    make_record,
    summarise_run,
)
from hypothesis import example, given
from hypothesis import strategies as st

from commbench.engine.records import Record, Row


def summarise_one(records: list[Record], **info: Any) -> Row:
    """Return the only row."""
    (row,) = summarise_run(records, make_info(**info))
    return row


def changed(records: list[Record], changes: dict[int, dict[str, Any]]) -> list[Record]:
    """Return the records with fields of some launches changed."""
    return [replace(record, **changes.get(launch, {})) for launch, record in enumerate(records)]


def launches_of(count: int) -> list[Record]:
    """Return equal launches."""
    return make_launches([10.0] * count)


RAMP = np.arange(1.0, 102.0)
WIDE = make_launches([9.0, 9.4, 9.8, 10.2, 10.6, 11.0])
NARROW = make_launches([0.9, 0.94, 0.98, 1.02, 1.06, 1.1])
BIMODAL = {"flags": ["bimodal"]}
WRONG = "7 wrong elements in 2 of 6 launches."
#: nccl-tests' factors of the bus bandwidth of 4 MiB, and the size that OSU prints: a rank's block
#: of an all-gather.
BANDWIDTHS = (
    ("all_reduce", 2, 1.0, 4 * MIB),
    ("all_reduce", 4, 1.5, 4 * MIB),
    ("all_reduce", 1, 0.0, 4 * MIB),
    ("all_gather", 4, 0.75, MIB),
    ("reduce_scatter", 1, 0.0, 4 * MIB),
    ("reduce_scatter", 4, 0.75, 4 * MIB),
    ("broadcast", 4, 1.0, 4 * MIB),
    ("latency", 2, 1.0, 4 * MIB),
)
#: What a row says: records, entries of run.json, columns.
ROWS = {
    "the median over launches, not over pooled repetitions": (
        changed(make_launches([10.0, 20.0, 30.0]), {2: {"times_us": [30.0] * 2000}}),
        {},
        {"time_us": 20.0, "launches": 3, "repetitions": 80 + 2000},
    ),
    "quantiles are medians over launches": (
        changed(launches_of(3), {k: {"times_us": list(RAMP * (1, 2, 7)[k])} for k in range(3)}),
        {},
        {"time_us_min": 2.0, "time_us_p25": 52.0, "time_us_p75": 152.0, "time_us_p95": 192.0},
    ),
    "rank mean and skew are of the launches that have them": (
        changed(make_launches([10.0, 20.0, 30.0]), {2: {"skew_us": []}}),
        {},
        {"time_us_rank_mean": 18.0, "skew_us": 1.5},
    ),
    "both directions count": (
        make_launches([1000.0] * 6, make_case("bibandwidth", message_bytes=MIB)),
        {},
        {"algbw_GBps": 2 * 1.048576},
    ),
    "a barrier has no size and no bandwidth": (
        make_launches(STEADY, make_case("barrier")),
        {},
        {
            "time_us": 10.0,
            **dict.fromkeys(("message_bytes", "osu_bytes", "algbw_GBps", "busbw_GBps")),
        },
    ),
    "wrong data is no measurement": (
        changed(
            make_launches(STEADY),
            {1: {"status": "wrong", "wrong": 3}, 4: {"status": "wrong", "wrong": 4}},
        ),
        {},
        {"status": "wrong", "wrong": 7, "algbw_GBps": None, "time_us": 10.0, "reason": WRONG},
    ),
    "no wrong elements": ([make_record()], {}, {"wrong": 0}),
    "unverified data": (
        [make_record(wrong=None, flags=["unverified"])],
        {},
        {"wrong": None, "flags": "one_launch;unverified"},
    ),
    "the latest failure shows, and what was measured": (
        [*make_launches(STEADY), make_record(launch=6, status="hung", reason="rank 1 hung.")],
        {},
        {"status": "hung", "reason": "rank 1 hung.", "launches": 6, "time_us": 10.0},
    ),
    "a repeated failure is forgotten": (
        [make_record(status="failed", reason="a crash."), *make_launches(STEADY)],
        {},
        {"status": "ok", "reason": "", "launches": 6},
    ),
    "one launch": (launches_of(1), {}, {"flags": "one_launch"}),
    "two launches": (launches_of(2), {}, {"flags": "few_launches"}),
    "five launches": (launches_of(5), {}, {"flags": "few_launches"}),
    "six launches": (launches_of(6), {}, {"flags": ""}),
    "wider than the target": (
        WIDE,
        {},
        {"flags": "ci_wide", "time_us_ci_low": 9.0, "time_us_ci_high": 11.0},
    ),
    "within the target": (WIDE, {"relative_half_width": 0.2}, {"flags": ""}),
    "no target": (WIDE, {"relative_half_width": None}, {"flags": ""}),
    "more than two ticks": (NARROW, {"tick_us": 0.04}, {"flags": "ci_wide"}),
    "two ticks": (NARROW, {"tick_us": 0.06}, {"flags": ""}),
    "unknown ticks": (NARROW, {"tick_us": None}, {"flags": "ci_wide"}),
    "two of six bimodal": (changed(launches_of(6), {0: BIMODAL, 1: BIMODAL}), {}, {"flags": ""}),
    "half bimodal": (
        changed(launches_of(6), {0: BIMODAL, 1: BIMODAL, 2: BIMODAL}),
        {},
        {"flags": "bimodal"},
    ),
    "overhead of a twentieth": (make_launches(STEADY, harness_us=0.49), {}, {"flags": ""}),
    "more overhead": (
        make_launches(STEADY, harness_us=0.51),
        {},
        {"flags": "harness", "harness_us": 0.51},
    ),
    "flags of launches in the registry's order": (
        changed(launches_of(2), {0: {"flags": ["late"]}, 1: {"flags": ["oversubscribed"]}}),
        {},
        {"flags": "few_launches;oversubscribed;late"},
    ),
    "texts that differ": (
        changed(launches_of(3), {0: {"transport": "sm"}, 1: {"transport": "tcp"}}),
        {},
        {"transport": "sm | tcp"},
    ),
    **{
        f"{operation} of {group_size} ranks": (
            make_launches(
                [1000.0] * 6, make_case(operation, message_bytes=4 * MIB), group_size=group_size
            ),
            {},
            {"algbw_GBps": 4.194304, "busbw_GBps": 4.194304 * factor, "osu_bytes": osu_bytes},
        )
        for operation, group_size, factor, osu_bytes in BANDWIDTHS
    },
    **{
        f"{status} everywhere": (
            [make_record(status=status, reason="rank 1 stopped.")],
            {},
            {
                "status": status,
                "reason": "rank 1 stopped.",
                "time_us": None,
                "launches": None,
                "flags": "",
                "message_bytes": KIB,
            },
        )
        for status in ("unsupported", "failed", "hung")
    },
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_summarises_its_records(name):
    """Fill the columns from the records of all launches."""
    records, info, expected = ROWS[name]
    row = summarise_one(records, **info)
    found = {column: getattr(row, column) for column in expected}
    assert pytest.approx(expected, nan_ok=True) == found


@given(st.lists(st.lists(st.floats(0.1, 10.0), min_size=6, max_size=9), min_size=1, max_size=12))
@example(
    [[1.0] * 9, [1.0] * 3 + [5.0] * 3, [5.0] * 6]
)  # the median over visits is above the repetitions' interval
@example(
    [[1.0] * 6] * 8 + [[0.1] * 6] * 4
)  # of skewed visits the median is above Student's interval
def test_the_interval_of_one_launch_includes_its_time(visits):
    """Include the median over visits, whether the interval is over visits or over repetitions."""
    times_us = [time for visit in visits for time in visit]
    row = summarise_one(
        [make_record(times_us=times_us, visit_lengths=[len(visit) for visit in visits])]
    )
    assert row.time_us_ci_low <= row.time_us <= row.time_us_ci_high


def test_the_interval_of_two_modes_covers_the_median():
    """Cover the median launch in at least 85 % of runs if 4 of 10 launches are slow, however often
    each is sampled.
    """
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        is_slow = random.random((10, 1)) < 0.4
        times_us = random.lognormal(0.0, 0.01, (10, 4)) * np.where(is_slow, 1.4, 1.0)
        records = []
        for launch, of_launch in enumerate(times_us.tolist()):
            record = make_record(times_us=of_launch, launch=launch, visit_lengths=[1] * 4)
            records.append(record)
        row = summarise_one(records)
        covered += row.time_us_ci_low <= 1.005 <= row.time_us_ci_high
    assert covered >= 51
