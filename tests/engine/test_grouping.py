"""Tests of concurrent groups on the fake backend: measured, summarised, compared and resumed."""

from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest
from builders import STEADY, make_case, make_grouped, make_info, make_record, summarise_run
from effort import repetitions, slack
from faking import EXACT, FakeRun, Script, fake_case
from fields import fields_of
from training_builders import run_of

from commbench.analysis.comparison import compare
from commbench.engine.records import Record, Row
from commbench.results import Run

TRUE_US = Script().time_us(1024)
SLOW = replace(EXACT, slow_rank=2, slow_rank_factor=1.5)


def rows_of(records: list[Record], **info: Any) -> list[Row]:
    """Return the rows of records of four ranks on two hosts."""
    return summarise_run(records, make_info(world_size=4, nodes=2, **info))


# ----------------------------------------------------------------------------------------- measured


def test_each_group_has_its_own_times():
    """Include a slow rank's time in its own group and in the case, but in no other group."""
    (record,) = FakeRun(script=SLOW, ranks=4, hosts="AABB").launch([fake_case(pattern="node")])
    assert ("ok", "0-3", 4) == (record.status, record.group, record.group_size)
    assert [("0-1", 2, 1024), ("2-3", 2, 1024)] == fields_of(
        record.groups, "group", "group_size", "message_bytes"
    )
    assert [TRUE_US, 1.5 * TRUE_US] == pytest.approx(
        [median(g.times_us) for g in record.groups], abs=1e-3
    )
    assert 1.5 * TRUE_US == pytest.approx(median(record.times_us), abs=1e-3)
    assert [len(record.times_us), 0] == list(record.groups[1].rank_slowest)
    assert [0, 0] == fields_of(record.groups, "wrong")


def test_ranks_in_no_group_only_keep_step():
    """Measure the only group although rank 0 is idle."""
    (record,) = FakeRun(ranks=3, hosts="ABB").launch([fake_case(pattern="node")])
    assert ("1-2", 2, 1) == (record.group, record.group_size, record.batch)
    assert TRUE_US == pytest.approx(median(record.times_us), abs=1e-3)
    assert ["1-2"] == fields_of(record.groups, "group")


def test_pairs_are_the_ends_of_each_group():
    """Run ping-pong between the first and the last rank of every group."""
    (record,) = FakeRun(ranks=6, hosts="AAABBB").launch([fake_case("latency", pattern="node")])
    assert [("0,2", 2), ("3,5", 2)] == fields_of(record.groups, "group", "group_size")
    assert [2, 2] == [len(g.rank_median_us) for g in record.groups]


def test_what_cannot_be_grouped_is_a_row():
    """Refuse hosts without groups, a root outside a group, and unsupported arrangements."""
    cases = [
        fake_case(pattern="cross"),
        fake_case("broadcast", root=2, pattern="split:2"),
        fake_case(pattern="node"),
    ]
    no_group, no_root, measured = FakeRun(ranks=4).launch(cases)
    assert ("unsupported", "ok") == (no_group.status, measured.status)
    assert (
        "pattern cross makes no group of two ranks or more of 4 ranks on 1 host" == no_group.reason
    )
    assert (
        "root 2 counts within a group, and pattern split:2 makes groups of 2 ranks here"
        == no_root.reason
    )


def test_wrong_data_is_named_by_group():
    """Count wrong elements by group, and time no group of the case."""
    script = replace(EXACT, wrong=lambda rank: 5 if rank == 3 else 0)
    (record,) = FakeRun(script=script, ranks=4, hosts="AABB").launch([fake_case(pattern="node")])
    assert ("wrong", 5, "the data differs from the known answer in 5 elements in group 2-3") == (
        record.status,
        record.wrong,
        record.reason,
    )
    rows = rows_of([record])
    assert [("0-1", "wrong", 0), ("2-3", "wrong", 5)] == fields_of(rows, "group", "status", "wrong")
    assert {None} == set(fields_of(rows, "busbw_GBps"))


# --------------------------------------------------------------------------------------- summarised


def test_a_row_is_one_group():
    """Write size, bandwidth and flags of each group."""
    case = make_case("all_gather", pattern="node", in_place=False)
    groups = {"0-1": [10.0] * 6, "2-5": [20.0] * 6}
    small, large = rows_of(make_grouped(case, groups), environment={"emulated": {"rate": "1gbit"}})
    assert [("0-1", 2, 1024), ("2-5", 4, 1024)] == fields_of(
        (small, large), "group", "group_size", "message_bytes"
    )
    assert 1024 / 10.0 / 1e3 * 0.5 == pytest.approx(small.busbw_GBps)
    assert 1024 / 20.0 / 1e3 * 0.75 == pytest.approx(large.busbw_GBps)
    assert (512, 256) == (small.osu_bytes, large.osu_bytes)
    assert ("emulated", "slowest_group;emulated") == (small.flags, large.flags)


@pytest.mark.parametrize(
    ("others", "last", "flagged"),
    [
        ([STEADY, STEADY], [time * 1.1 for time in STEADY], True),
        ([STEADY, STEADY], [time * 1.015 for time in STEADY], False),
        ([STEADY, STEADY], STEADY, False),
        ([STEADY], [9.0, 11.0, 12.0, 12.0, 12.0, 12.0], False),
        ([STEADY[:1], STEADY[:1]], [20.0], False),
    ],
)
def test_the_slowest_group_is_flagged_beyond_noise(others, last, flagged):
    """Flag a group whose interval lies above the median group's by more than the margin."""
    times = {f"{2 * i}-{2 * i + 1}": group for i, group in enumerate([*others, last])}
    rows = rows_of(make_grouped(make_case(pattern="split:2"), times))
    assert [*(False for _ in others), flagged] == [
        "slowest_group" in row.flags.split(";") for row in rows
    ]


def test_equal_groups_are_rarely_called_slow():
    """Flag none of eight equal groups in nearly all of 200 runs of six noisy launches."""
    generator = np.random.default_rng(3)
    flagged, runs = 0, repetitions(200)
    for _ in range(runs):
        times = {
            f"{2 * i}-{2 * i + 1}": list(10 * np.exp(0.05 * generator.standard_normal(6)))
            for i in range(8)
        }
        rows = rows_of(make_grouped(make_case(pattern="split:2"), times, repetitions=3))
        flagged += any("slowest_group" in row.flags for row in rows)
    assert flagged <= runs * (0.03 + slack(0.03, 200))


def test_a_launch_that_failed_counts_for_every_group():
    """Show the latest failure in the rows of all groups, or in one row without results."""
    case = make_case(pattern="node")
    failed = make_record(case, launch=6, status="hung", reason="rank 1 stopped.", group="")
    rows = rows_of([*make_grouped(case, {"0-1": STEADY, "2-3": STEADY}), failed])
    assert [("0-1", "hung"), ("2-3", "hung")] == fields_of(rows, "group", "status")
    assert [("", "hung")] == fields_of(rows_of([failed]), "group", "status")


# ----------------------------------------------------------------------------------------- compared


def make_run(groups: dict[str, list[float]], *more: Record) -> Run:
    """Return a run of one case in groups."""
    return run_of([*make_grouped(make_case(pattern="node"), groups), *more])


def test_groups_are_compared_each():
    """Judge the one group that became slower."""
    slower = [2 * time for time in STEADY]
    table = compare(
        make_run({"0-1": STEADY, "2-3": STEADY}), make_run({"0-1": STEADY, "2-3": slower})
    )
    assert [("0-1", "same"), ("2-3", "slower")] == fields_of(
        table.cases, "group", "comparison.verdict"
    )


def test_a_case_that_failed_stands_for_its_groups():
    """List every group as broken if the other run could not measure the case."""
    failed = run_of([make_record(make_case(pattern="node"), status="failed", group="")])
    table = compare(make_run({"0-1": STEADY, "2-3": STEADY}), failed)
    assert [("0-1", True), ("2-3", True)] == fields_of(table.broken, "group", "is_regression")
    assert ((), ()) == (table.only_in_a, table.only_in_b)
