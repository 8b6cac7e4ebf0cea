"""Tests of the engine on scripted backends: records, refusals and intervals."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest
from builders import make_info
from effort import repetitions, slack
from faking import (
    EXACT,
    Coarse,
    FakeCommunicator,
    FakeRun,
    FakeTimer,
    Script,
    fake_case,
    make_late,
)
from fields import fields_of

from commbench.collectives.primitives import Request
from commbench.engine.records import FixedSettings, Record
from commbench.engine.sampling import settings_after
from commbench.engine.timing.loops import Call
from commbench.engine.timing.sync import MINIMUM_SLACK_NS
from commbench.findings import UnsupportedError
from commbench.results.summary import keyed_rows
from commbench.stats.budgets import BUDGETS

TRUE_US = Script().time_us(1024)


def test_a_record_states_how_it_was_measured():
    """Record ranks, synchronisation, loop, overhead and times in microseconds."""
    (record,) = FakeRun(ranks=3).launch([fake_case()], number=4)
    assert "ok" == record.status
    assert 4 == record.launch
    assert "0-2" == record.group
    assert 3 == record.group_size
    assert "round-time" == record.sync
    assert "python" == record.loop
    assert "script" == record.transport
    assert "none" == record.device
    assert 0 == record.wrong
    assert 1 == record.batch
    assert 1 == record.window
    assert 0.0 == record.harness_us
    assert TRUE_US == pytest.approx(median(record.times_us), abs=1e-3)
    assert record.measuring_s > 0


def test_the_slowest_rank_is_named():
    """Use the slowest rank's time, and count how often each rank was slowest."""
    script = replace(EXACT, slow_rank=2, slow_rank_factor=1.2)
    (record,) = FakeRun(script=script, ranks=4).launch([fake_case()])
    assert [0, 0, len(record.times_us), 0] == list(record.rank_slowest)
    assert 1.2 * TRUE_US == pytest.approx(median(record.times_us), abs=1e-3)
    assert [TRUE_US, TRUE_US, 1.2 * TRUE_US, TRUE_US] == pytest.approx(
        record.rank_median_us, abs=1e-3
    )
    assert (3 + 1.2) / 4 * TRUE_US == pytest.approx(median(record.rank_mean_us), abs=1e-3)


def test_skew_needs_clocks_that_agree():
    """Report arrivals only if the ranks' clocks agree closely enough."""
    script = replace(EXACT, skew_us=1.0)
    (shared,) = FakeRun(script=script, ranks=3).launch([fake_case()])
    (apart,) = FakeRun(script=script, ranks=3, clock=Coarse).launch([fake_case()])
    assert len(shared.times_us) == len(shared.skew_us)
    assert 3 == len(shared.rank_arrival_us)
    assert "dissemination" == apart.sync
    assert () == tuple(apart.skew_us)
    assert () == tuple(apart.rank_arrival_us)


def test_wrong_data_is_no_measurement_and_what_a_backend_cannot_do_a_row():
    """Record the number of wrong elements over all ranks, or the reason, and no times."""
    script = replace(EXACT, wrong=lambda rank: rank, unsupported=("all_gather",))
    refused, wrong = FakeRun(script=script, ranks=4).launch([fake_case("all_gather"), fake_case()])
    assert "wrong" == wrong.status
    assert 6 == wrong.wrong
    assert () == tuple(wrong.times_us)
    assert wrong.reason.endswith("in 6 elements")
    assert "unsupported" == refused.status
    assert "gloo has no all_gather" == refused.reason
    assert "missing" == refused.reason_code
    assert () == tuple(refused.times_us)


def test_one_rank_that_cannot_stops_the_case_on_all(monkeypatch):
    """Refuse on all ranks what only the root's library refuses, and stay in step."""
    make_call = FakeCommunicator.call

    def call(self: FakeCommunicator, request: Request) -> Call:
        if request.name == "reduce" and self.rank == 1:
            raise UnsupportedError("missing", backend="this rank", what="reduce")
        return make_call(self, request)

    monkeypatch.setattr(FakeCommunicator, "call", call)
    refused, measured = FakeRun(ranks=3).launch([fake_case("reduce", root=0), fake_case()])
    assert ("unsupported", "this rank has no reduce") == (refused.status, refused.reason)
    assert "ok" == measured.status


@pytest.mark.parametrize("last", [1, 2, 3])
def test_memory_that_is_full_on_one_rank_stops_the_case_on_all(monkeypatch, last):
    """Refuse on all ranks when one rank has no room to fill its buffers, before verification, for
    the native loop, or before timing.
    """
    writes = [0] * 3
    write = FakeCommunicator.write

    def fill(self: FakeCommunicator, buffer: Any, content: Any) -> None:
        writes[self.rank] += 1
        if (self.rank, writes[1]) == (1, last):
            raise UnsupportedError("gpu_memory_full", size="1 KiB")
        write(self, buffer, content)

    monkeypatch.setattr(FakeCommunicator, "write", fill)
    monkeypatch.setattr(FakeTimer, "name", "native")
    refused, measured = FakeRun(ranks=3).launch([fake_case(in_place=True), fake_case()])
    assert ("unsupported", "gpu_memory_full") == (refused.status, refused.reason_code)
    assert "ok" == measured.status


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loop": "native"}, "gloo has no native loop"),
        ({"dtype": "int8", "redop": "avg"}, "average of int8"),
        ({"graph": True}, "gloo has no graphs of operations; use --cadence isolated or pipelined"),
        ({"buffers": "rotated"}, "the size of the last-level cache is not known on every rank"),
        (
            {"operation": "bandwidth", "pattern": "matrix", "buffers": "rotated"},
            "a matrix is timed call by call",
        ),
    ],
)
def test_conditions_that_cannot_be_met_are_rows(changes, reason):
    """Refuse an unavailable loop or synchronisation in a row."""
    (record,) = FakeRun().launch([fake_case(**changes)])
    assert "unsupported" == record.status
    assert reason in record.reason


@pytest.mark.parametrize(("size", "in_cache"), [(8, True), (2**20, False)])
def test_rotated_buffers_that_fit_into_the_cache_are_flagged(stub, size, in_cache):
    """Flag buffers that take turns and stay in the cache all the same."""
    stub("faking.FakeCommunicator.cache_bytes", 2**20)
    (record,) = FakeRun().launch([fake_case("all_reduce", size, buffers="rotated")])
    assert ("ok", in_cache) == (record.status, "in_cache" in record.flags)


@pytest.mark.parametrize(
    ("alpha_us", "sync", "expected", "flagged"),
    [
        (80.0, "auto", "dissemination", False),
        (150.0, "auto", "round-time", False),
        (80.0, "round-time", "round-time", True),
        (150.0, "round-time", "round-time", False),
        (150.0, "dissemination", "dissemination", False),
    ],
)
def test_clocks_that_agree_within_a_bound_suit_long_operations(alpha_us, sync, expected, flagged):
    """Warn of an agreed start if the clock error exceeds a tenth of the time."""
    script = replace(EXACT, alpha_us=alpha_us)
    (record,) = FakeRun(script=script, clock=Coarse).launch([fake_case(sync=sync)])
    assert (expected, flagged) == (record.sync, "clock" in record.flags)
    assert (alpha_us > 100) == bool(record.skew_us) == bool(record.rank_arrival_us)


def test_later_launches_start_ranks_as_the_first_did():
    """Keep the start method of launch 1, even if the operation became shorter."""
    long, short = (replace(EXACT, alpha_us=us) for us in (150.0, 80.0))
    (first,) = FakeRun(script=long, clock=Coarse).launch([fake_case()])
    (later,) = FakeRun(script=short, clock=Coarse).launch(
        [fake_case()], 1, [settings_after(first, BUDGETS["quick"])]
    )
    assert ("round-time", "round-time") == (first.sync, later.sync)


def test_stale_clocks_are_compared_before_a_case(monkeypatch):
    """Compare stale clocks on every rank before a case, and in every turn of a matrix."""
    monkeypatch.setattr(Coarse, "compared", 0)
    matrix = fake_case("latency", pattern="matrix")
    FakeRun(clock=Coarse, ranks=4, slice_s=0.05).launch([fake_case(), matrix])
    turns = 3
    assert Coarse.compared >= 4 * (1 + 1 + turns)


@pytest.mark.parametrize(
    ("operation", "message_bytes", "status"),
    [("all_reduce", 40, "ok"), ("all_reduce", 44, "unsupported"), ("all_gather", 80, "ok")],
)
def test_more_elements_than_a_call_can_count_are_refused(
    operation, message_bytes, status, monkeypatch
):
    """Refuse more elements than a call can count, per message or per block."""
    monkeypatch.setattr(FakeCommunicator, "most_elements", 10)
    (record,) = FakeRun(ranks=2).launch([fake_case(operation, message_bytes)])
    assert status == record.status
    assert ("at most 10 elements" in record.reason) == (status == "unsupported")


def test_warm_up_is_found_first_and_frozen_later():
    """Detect a slow start in launch 0, and discard as many repetitions in later launches."""
    records = FakeRun(script=replace(EXACT, warmup=30)).launches([fake_case()], 3)
    assert records[0].warmups >= 30
    assert {records[0].warmups} == set(fields_of(records, "warmups"))
    assert all(TRUE_US == pytest.approx(max(record.times_us), abs=1e-3) for record in records)


def test_short_operations_are_timed_together(monkeypatch):
    """Batch by the power of two that lasts 20 readings, keep it in later launches, and state times
    of one.
    """
    costs = iter([1000.0] * 2 + [1e6] * 2)
    monkeypatch.setattr(FakeTimer, "reading_ns", lambda _: next(costs))
    first, second = FakeRun(ranks=2).launches([fake_case()], 2)
    assert (4, 4) == (first.batch, second.batch)  # 4 times 5.1 us is 20 us
    assert TRUE_US == pytest.approx(median(first.times_us), abs=1e-3)


def test_buffers_that_are_made_again_have_the_same_window(
    monkeypatch,
):
    """Keep as many messages in flight as the first visit, whether or not buffers are kept."""
    case = fake_case("bandwidth", 1024)
    fixed = FixedSettings(warmups=1, batch=1, visits=3, repetitions=6, window=2)
    (kept,) = FakeRun(visits=24).launch([case], 1, [fixed])
    monkeypatch.setattr("commbench.engine.measure.KEPT_BYTES", 0)
    (again,) = FakeRun(visits=24).launch([case], 1, [fixed])
    assert (2, 18) == (again.window, len(again.times_us))
    assert kept.times_us == again.times_us


# -------------------------------------------------------------------------------------- late starts


def test_late_starts_are_dropped_counted_and_flagged(monkeypatch):
    """Drop a repetition late on any rank, widen the slack, and flag more than a fifth."""
    slack = make_late(
        monkeypatch, lambda rank, n: np.arange(n) % 3 == 0 if rank == 1 else np.zeros(n)
    )
    noisy = replace(EXACT, noise=0.5)
    (record,) = FakeRun(script=noisy).launch([fake_case()])
    share = record.late_discarded / (record.late_discarded + len(record.times_us))
    assert 1 / 3 == pytest.approx(share, abs=0.02)
    assert "late" in record.flags
    assert max(slack) > MINIMUM_SLACK_NS


def test_a_case_that_never_starts_on_time_has_failed(monkeypatch):
    """Fail a case or a matrix without any start on time, and say what to do."""
    make_late(monkeypatch, lambda _, n: np.ones(n))
    cases = [fake_case(), fake_case("bandwidth", pattern="matrix")]
    for record in FakeRun(slice_s=0.01).launch(cases):
        assert "failed" == record.status
        assert () == tuple(record.times_us)
        assert 0 == len(record.pairs)
        assert "--sync dissemination" in record.reason
        assert record.late_discarded >= 24


# ----------------------------------------------------------------------------------- how sure it is

#: Cases with draws of their own: each is one simulated run.
MANY = [fake_case(message_bytes=4 * (index + 1)) for index in range(repetitions(600))]


def summarise(records: Sequence[Record]) -> list[Any]:
    """Return the rows, in the order of `MANY`."""
    rows = keyed_rows(records, make_info(world_size=1, nodes=1, ranks_per_node=1))
    return [rows[case.key, ""] for case in MANY if (case.key, "") in rows]


@pytest.mark.parametrize("launches", [6, pytest.param(10, marks=pytest.mark.slow)])
def test_intervals_cover_the_truth(launches):
    """Cover the scripted time with 92 to 98.5 % of the 95 % intervals of 600 runs."""
    run = FakeRun(script=Script(seed=launches), ranks=1, slice_s=1e-6)
    records = run.launches(MANY, launches)
    rows = summarise(records)
    truth = [Script().time_us(case.message_bytes) for case in MANY]
    covered = [
        row.time_us_ci_low <= true <= row.time_us_ci_high
        for row, true in zip(rows, truth, strict=True)
    ]
    assert len(MANY) == len(covered)
    assert 0.92 - slack(0.92, 600) <= sum(covered) / len(covered) <= 0.985 + slack(0.985, 600)


def test_launches_in_two_modes_are_flagged():
    """Flag rows whose launches have modes 50 % apart, but not those with 1 % noise."""
    bimodal = Script(launch_effect=0.01, slow_launches=0.5, seed=5)
    cases = MANY[:20]
    run = FakeRun(script=bimodal, ranks=1, slice_s=1e-6)
    split = summarise(run.launches(cases, 20))
    unimodal = replace(run, script=replace(bimodal, slow_launches=0.0))
    steady = summarise(unimodal.launches(cases, 20))
    assert sum("bimodal_launches" in row.flags.split(";") for row in split) >= 19
    assert sum("bimodal_launches" in row.flags.split(";") for row in steady) <= 1
