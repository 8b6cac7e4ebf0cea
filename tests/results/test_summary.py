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

from commbench import stats
from commbench.engine.records import Record, Row
from commbench.results.summary import launch_medians


def summarise_one(records: list[Record], **info: Any) -> Row:
    """Return the only row."""
    (row,) = summarise_run(records, make_info(**info))
    return row


def flags_of(row: Row) -> set[str]:
    """Return a row's flags as a set."""
    return set(filter(None, row.flags.split(";")))


def test_time_is_median_of_launch_medians() -> None:
    """Return the median over launches, not over pooled repetitions."""
    long_launch = make_record(launch=2, time_us=30.0)
    long_launch = replace(long_launch, times_us=list(long_launch.times_us) * 50)
    row = summarise_one([*make_launches([10.0, 20.0]), long_launch])
    assert pytest.approx(20.0) == row.time_us
    assert (3, 80 + 2000) == (row.launches, row.repetitions)


def test_interval_is_over_launches() -> None:
    """Use launch medians for the interval from two launches on."""
    row = summarise_one(make_launches(STEADY))
    expected = stats.launch_interval(launch_medians(make_launches(STEADY)))
    assert (expected.low, expected.high) == (row.time_us_ci_low, row.time_us_ci_high)
    assert set() == flags_of(row)


@given(st.lists(st.lists(st.floats(0.1, 10.0), min_size=6, max_size=9), min_size=1, max_size=12))
@example(
    [[1.0] * 9, [1.0] * 3 + [5.0] * 3, [5.0] * 6]
)  # the median over visits is above the repetitions' interval
@example(
    [[1.0] * 6] * 8 + [[0.1] * 6] * 4
)  # of skewed visits the median is above Student's interval
def test_the_interval_of_one_launch_includes_its_time(visits: list[list[float]]) -> None:
    """Include the median over visits, whether the interval is over visits or over repetitions."""
    times_us = [time for visit in visits for time in visit]
    row = summarise_one(
        [make_record(times_us=times_us, visit_lengths=[len(visit) for visit in visits])]
    )
    assert row.time_us_ci_low <= row.time_us <= row.time_us_ci_high


def test_one_launch_falls_back_to_its_repetitions() -> None:
    """Return the interval within one launch, and flag it."""
    record = make_record()
    row = summarise_one([record])
    expected = stats.median_interval(record.times_us)
    assert (expected.low, expected.high) == (row.time_us_ci_low, row.time_us_ci_high)
    assert {"one_launch"} == flags_of(row)


@pytest.mark.parametrize(
    ("launches", "expected"), [(1, "one_launch"), (2, "few_launches"), (5, "few_launches"), (6, "")]
)
def test_flags_few_launches(launches: int, expected: str) -> None:
    """Flag one launch, and two to five, but not more."""
    assert expected == summarise_one(make_launches([10.0] * launches)).flags


def test_quantiles_are_medians_over_launches() -> None:
    """Return the median over launches of each launch's quantile."""
    samples = [np.arange(1.0, 102.0) * factor for factor in (1, 2, 7)]
    records = [
        replace(make_record(launch=k), times_us=list(sample)) for k, sample in enumerate(samples)
    ]
    row = summarise_one(records)
    assert pytest.approx([2.0, 52.0, 152.0, 192.0]) == [
        row.time_us_min,
        row.time_us_p25,
        row.time_us_p75,
        row.time_us_p95,
    ]


def test_rank_mean_and_skew_are_medians_of_medians() -> None:
    """Summarise rank mean and skew over the launches that have them."""
    records = make_launches([10.0, 20.0, 30.0])
    records[2] = replace(records[2], skew_us=[])
    row = summarise_one(records)
    assert pytest.approx((18.0, 1.5)) == (row.time_us_rank_mean, row.skew_us)


@pytest.mark.parametrize(
    ("operation", "group_size", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce", 1, 0.0),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 1, 0.0),
        ("broadcast", 4, 1.0),
        ("latency", 2, 1.0),
    ],
)
def test_bandwidths_follow_nccl_tests(operation: str, group_size: int, factor: float) -> None:
    """Compute algbw in 1e9 bytes per second, and busbw by the operation's factor."""
    case = make_case(operation, message_bytes=4 * MIB)
    row = summarise_one(make_launches([1000.0] * 6, case, group_size=group_size))
    assert pytest.approx(4.194304) == row.algbw_GBps
    assert pytest.approx(4.194304 * factor) == row.busbw_GBps


def test_bibandwidth_counts_both_directions() -> None:
    """Count both directions of bidirectional bandwidth."""
    row = summarise_one(make_launches([1000.0] * 6, make_case("bibandwidth", message_bytes=MIB)))
    assert pytest.approx(2 * 1.048576) == row.algbw_GBps


def test_barrier_has_no_size_and_no_bandwidth() -> None:
    """Leave size and bandwidth of a barrier empty."""
    row = summarise_one(make_launches(STEADY, make_case("barrier")))
    assert (None, None, None, None) == (
        row.message_bytes,
        row.osu_bytes,
        row.algbw_GBps,
        row.busbw_GBps,
    )
    assert pytest.approx(10.0) == row.time_us


def test_osu_size_is_per_rank_where_osu_counts_so() -> None:
    """Return the size that OSU prints: a rank's block of an all-gather, the whole
    reduce-scatter.
    """
    records = make_launches(STEADY, make_case("all_gather"), group_size=4) + make_launches(
        STEADY, make_case("reduce_scatter", redop="sum"), group_size=4
    )
    assert [KIB // 4, KIB] == [row.osu_bytes for row in summarise_run(records, make_info())]


def test_wrong_data_is_no_measurement() -> None:
    """Add wrong elements, keep the time, and leave bandwidths empty if any launch is wrong."""
    records = make_launches(STEADY)
    records[1] = replace(records[1], status="wrong", wrong=3)
    records[4] = replace(records[4], status="wrong", wrong=4)
    row = summarise_one(records)
    assert ("wrong", 7, None, None) == (row.status, row.wrong, row.algbw_GBps, row.busbw_GBps)
    assert pytest.approx(10.0) == row.time_us
    assert "7 elements were wrong in 2 of 6 launches." == row.reason


def test_unverified_data_leaves_wrong_empty() -> None:
    """Distinguish no wrong elements from unverified data."""
    assert 0 == summarise_one([make_record()]).wrong
    row = summarise_one([make_record(wrong=None, flags=["unverified"])])
    assert None is row.wrong
    assert "unverified" in flags_of(row)


@pytest.mark.parametrize("status", ["unsupported", "failed", "hung"])
def test_case_without_result_is_a_row(status: str) -> None:
    """Keep status and reason, and leave figures empty."""
    row = summarise_one([make_record(status=status, reason="rank 1 on node b stopped.")])
    assert (status, "rank 1 on node b stopped.", None, None, "") == (
        row.status,
        row.reason,
        row.time_us,
        row.launches,
        row.flags,
    )
    assert KIB == row.message_bytes


def test_latest_failure_shows_and_keeps_what_was_measured() -> None:
    """Show the last launch's hang with the times of earlier launches."""
    row = summarise_one(
        [*make_launches(STEADY), make_record(launch=6, status="hung", reason="rank 1 hung.")]
    )
    assert ("hung", "rank 1 hung.", 6) == (row.status, row.reason, row.launches)
    assert pytest.approx(10.0) == row.time_us


def test_repeated_failure_is_forgotten() -> None:
    """Count a case as ok after its failed launch was repeated."""
    row = summarise_one([make_record(status="failed", reason="a crash."), *make_launches(STEADY)])
    assert ("ok", "", 6) == (row.status, row.reason, row.launches)


def test_wide_interval_is_flagged_against_the_target() -> None:
    """Flag an interval wider than the budget's target."""
    records = make_launches([9.0, 9.4, 9.8, 10.2, 10.6, 11.0])
    assert {"ci_wide"} == flags_of(summarise_one(records))
    assert set() == flags_of(summarise_one(records, relative_half_width=0.2))
    assert set() == flags_of(summarise_one(records, relative_half_width=None))


def test_interval_of_two_ticks_is_never_wide() -> None:
    """Accept an interval of two clock ticks."""
    records = make_launches([0.9, 0.94, 0.98, 1.02, 1.06, 1.1])
    assert {"ci_wide"} == flags_of(summarise_one(records, tick_us=0.04))
    assert set() == flags_of(summarise_one(records, tick_us=0.06))
    assert {"ci_wide"} == flags_of(summarise_one(records, tick_us=None))


def test_bimodal_needs_half_of_the_launches() -> None:
    """Keep the bimodal flag of repetitions if at least half of the launches raised it."""
    records = make_launches(STEADY)
    few = [replace(record, flags=["bimodal"]) for record in records[:2]] + records[2:]
    half = [replace(record, flags=["bimodal"]) for record in records[:3]] + records[3:]
    assert set() == flags_of(summarise_one(few))
    assert {"bimodal"} == flags_of(summarise_one(half))


def test_harness_is_flagged_above_a_twentieth() -> None:
    """Flag overhead above 5 % of the time."""
    assert "harness" not in flags_of(summarise_one(make_launches(STEADY, harness_us=0.49)))
    row = summarise_one(make_launches(STEADY, harness_us=0.51))
    assert ({"harness"}, 0.51) == (flags_of(row), row.harness_us)


def test_flags_of_records_are_kept_in_order() -> None:
    """Merge the flags of launches in registry order."""
    records = make_launches([10.0, 10.0])
    records = [replace(records[0], flags=["late"]), replace(records[1], flags=["oversubscribed"])]
    assert "few_launches;oversubscribed;late" == summarise_one(records).flags


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9))
def test_time_lies_within_its_interval(medians: list[float]) -> None:
    """Keep time within its interval, minimum and 95th percentile."""
    row = summarise_one(make_launches(medians))
    if (
        1 < len(medians) < 6
    ):  # Student's t is centred on the geometric mean, which need not be the median
        assert row.time_us_ci_low <= row.time_us_ci_high
    else:
        assert row.time_us_ci_low <= row.time_us <= row.time_us_ci_high
    assert row.time_us_min <= row.time_us <= row.time_us_p95


def test_texts_that_differ_between_launches_are_both_named() -> None:
    """Show differing transports of launches."""
    row = summarise_one(
        [make_record(transport="sm"), make_record(launch=1, transport="tcp"), make_record(launch=2)]
    )
    assert "sm | tcp" == row.transport
