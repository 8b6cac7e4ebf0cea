"""Tests of the rows of ddp.csv and buckets.csv."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from fields import fields_of
from training_builders import (
    launches_of,
    make_bucket,
    make_training_case,
    make_training_info,
    make_training_launches,
    make_training_record,
    rows_of,
    training_rows,
)

from commbench.ddp.plan.records import TrainingRecord
from commbench.results.training_summary import bucket_rows

FP16 = make_training_case("fp16")
LOCAL = make_training_case("local")
DRIFTING = {"step_ms": [20.0] * 10 + [23.0] * 10, "block_lengths": [10, 10]}


def flags_of(records: list[TrainingRecord], **info: Any) -> set[str]:
    """Return the flags of the only row."""
    (row,) = training_rows(records, make_training_info(**info))
    return {flag for flag in row.flags.split(";") if flag}


MEMORY = [(1.0, 1e6, 5_000_000, 1), (3.0, 3e6, 9_000_000, 2), (2.0, 2e6, None, 0)]
COMPRESSED = [
    make_training_record(FP16, launch=launch, backward_ms=backward_ms, encode_ms=encode_ms)
    for launch, (backward_ms, encode_ms) in enumerate([(15.0, 2.0), (18.0, 1.0), (9.0, 1.0)])
]
UNSHARDED = [make_training_record(LOCAL, launch=launch, backward_ms=10.0) for launch in range(3)]
FIRST, LATER = (make_training_record(FP16, launch=launch) for launch in range(2))
NO_MEMORY = make_training_record(FP16, launch=1, status="failed", reason="no memory")
#: What the row of a hook says: records, and columns.
ROWS = {
    "the step is the median over launches": (
        "none",
        make_training_launches([19, 20, 21, 22, 23, 30]),
        {
            "step_ms": 21.5,
            "step_ms_ci_low": 19,
            "step_ms_ci_high": 30,
            "launches": 6,
            "steps": 120,
            "step_ms_p95": 21.5 * 1.009,
            "samples_per_s": 1e3 * 64 / 21.5,
        },
    ),
    "two buckets": (
        "none",
        [make_training_record(bucket_bytes=[1_200_000, 33_600_000])],
        {"bucket_mb": "1.2+33.6", "bucket_count": 2},
    ),
    "a small bucket": (
        "none",
        [make_training_record(bucket_bytes=[4])],
        {"bucket_mb": "0.000004", "bucket_count": 1},
    ),
    "buckets without an exponent": (
        "none",
        [make_training_record(bucket_bytes=[123_456_789_000, 1_234_567])],
        {"bucket_mb": "123000+1.23", "bucket_count": 2},
    ),
    "unknown buckets": (
        "none",
        [make_training_record(bucket_bytes=[])],
        {"bucket_mb": "", "bucket_count": None},
    ),
    "parts are medians, with the largest memory and all skipped steps": (
        "none",
        [
            make_training_record(
                launch=launch,
                comm_ms=comm_ms,
                sent_bytes=sent_bytes,
                peak_memory_bytes=memory_bytes,
                skipped_steps=skipped,
            )
            for launch, (comm_ms, sent_bytes, memory_bytes, skipped) in enumerate(MEMORY)
        ],
        {
            "comm_ms": 2.0,
            "sent_MB_per_step": 2.0,
            "dense_MB_per_step": 34.8,
            "peak_memory_MB": 9.0,
            "skipped_steps": 3,
            "forward_ms": 6,
            "backward_ms": 12,
            "optimizer_ms": 2,
        },
    ),
    "the local step is of launches that have both": (
        "fp16",
        [*make_training_launches([20, 40], FP16), *make_training_launches([10, 16, 99], LOCAL)],
        {"local_step_ms": 13, "scaling_efficiency": 13 / 30},
    ),
    "exposed communication leaves out encoding": (
        "fp16",
        [*COMPRESSED, *UNSHARDED],
        {"exposed_comm_ms": 3.0},
    ),
    "exposed communication is not negative": (
        "fp16",
        [COMPRESSED[2], UNSHARDED[2]],
        {"exposed_comm_ms": 0.0},
    ),
    "a success behind a failure": ("fp16", [FIRST, NO_MEMORY, LATER], {"status": "ok"}),
    "a failure behind a success": ("fp16", [FIRST, LATER, NO_MEMORY], {"status": "failed"}),
    "a failed baseline": (
        "fp16",
        [
            *launches_of(20),
            make_training_record(launch=6, status="hung", reason="stuck"),
            *launches_of(10, FP16),
        ],
        {"status": "ok", "speedup": None},
    ),
    **{
        f"{status} everywhere": (
            "fp16",
            [*launches_of(20), make_training_record(FP16, status=status, reason="no answer")],
            {
                "status": status,
                "reason": "no answer",
                "verdict": "",
                "flags": "",
                **dict.fromkeys(("step_ms", "launches", "speedup", "loss_first", "comm_ms")),
            },
        )
        for status in ("failed", "hung", "unsupported")
    },
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_summarises_its_records(name):
    """Fill the columns from the records of all launches."""
    hook, records, expected = ROWS[name]
    row = rows_of(records)[f"{hook} default"]
    found = {column: getattr(row, column) for column in expected}
    assert pytest.approx(expected) == found


def test_local_step_has_the_same_precision_and_accumulation():
    """Compare only with a local step of equal precision and accumulation."""
    half = make_training_case(precision="amp-bf16", accumulation=2)
    records = [make_training_record(half, step_ms=30), make_training_record(LOCAL, step_ms=10)]
    assert training_rows(records, {})[0].local_step_ms is None
    (row,) = training_rows([*records, make_training_record(half.local(), step_ms=15)], {})
    assert 15 == pytest.approx(row.local_step_ms)


def test_speedups_stand_against_fp16_too():
    """Compare every setting with FP16 in default buckets, by launch, where that was measured."""
    times = {
        make_training_case(): 20,
        FP16: 16,
        make_training_case("fp16", "5"): 15,
        make_training_case("topk:0.01"): 8,
    }
    records = [record for case, step_ms in times.items() for record in launches_of(step_ms, case)]
    rows = rows_of(records)
    expected = {"none default": 0.8, "fp16 default": 1.0, "fp16 5": 16 / 15, "topk default": 2.0}
    assert pytest.approx(expected) == {name: row.speedup_fp16 for name, row in rows.items()}
    topk = rows["topk default"]
    assert pytest.approx([2.0, 2.0]) == [topk.speedup_fp16_ci_low, topk.speedup_fp16_ci_high]
    assert rows["fp16 default"].speedup_fp16_ci_low is None
    failed = make_training_record(FP16, launch=6, status="failed", reason="no memory")
    assert {None} == set(fields_of(rows_of([*records, failed]).values(), "speedup_fp16"))


def test_fp16_with_the_same_layout_stands_for_fp16_in_default_buckets():
    """Compare with the setting that was measured in place of FP16 in default buckets."""
    measured = make_training_case("fp16", "25")
    rows = rows_of([*launches_of(20), *launches_of(16, measured)], **same_layout(FP16, measured))
    assert [0.8, 1.0, 1.0] == pytest.approx(fields_of(rows.values(), "speedup_fp16"))


# ---------------------------------------------------------------------------------- one for several


def same_layout(case: Any, other: Any) -> dict[str, Any]:
    """Return the entry of run.json that ``other`` was measured for ``case``."""
    return {"same_layout": {case.key: other.key}}


def test_same_layout_has_a_row_of_its_own():
    """Copy the row of the measured bucket size, and flag it."""
    five, six = make_training_case("fp16", "5"), make_training_case("fp16", "6")
    rows = rows_of([*launches_of(20), *launches_of(16, five)], **same_layout(six, five))
    assert ["none default", "fp16 5", "fp16 6"] == list(rows)
    copied = dataclasses.replace(rows["fp16 6"], bucket_cap_mb="5", flags=rows["fp16 5"].flags)
    assert rows["fp16 5"] == copied
    assert "same_layout" in rows["fp16 6"].flags.split(";")
    assert "same_layout" not in rows["fp16 5"].flags.split(";")


def test_same_layout_as_the_baseline_is_the_same():
    """Judge a setting with the baseline's buckets the same."""
    copy = make_training_case(cap="25")
    rows = rows_of(launches_of(20), **same_layout(copy, make_training_case()))
    assert "same" == rows["none 25"].verdict
    assert 1.0 == rows["none 25"].speedup


# ----------------------------------------------------------------------------------------- warnings


@pytest.mark.parametrize(
    ("flag", "changes"),
    [
        ("short", {"step_ms": [20.0, 20.1], "block_lengths": [2]}),
        ("ranks_differ", {"ranks_agree": False}),
        ("traffic", {"sent_bytes": 30_000_000.0}),
        ("layout", {"flags": ["layout"]}),
        ("drift", DRIFTING),
        ("unsteady", {"step_ms": list(np.linspace(20, 30, 20)), "block_lengths": [20]}),
        (
            "bimodal",
            {"step_ms": [20.0, 20.1, 19.9] * 4 + [30.0, 30.1, 29.9] * 3, "block_lengths": [21]},
        ),
    ],
)
def test_warnings_are_flagged(flag, changes):
    """Flag the warnings that a record shows or states."""
    records = [dataclasses.replace(record, **changes) for record in launches_of(20)]
    assert flag in flags_of(records)


@pytest.mark.parametrize(
    ("flag", "steps_ms", "info"),
    [
        ("one_launch", [20], {}),
        ("few_launches", [20, 20.1], {}),
        ("ci_wide", [18, 19, 20, 21, 22, 23], {}),
        ("bimodal_launches", [20, 20.1, 20.2, 30, 30.1, 30.2], {}),
        ("oversubscribed", [20], {"oversubscribed": True}),
        ("emulated", [20], {"environment": {"emulated": {"rate": "1gbit"}}}),
    ],
)
def test_launches_and_conditions_are_flagged(flag, steps_ms, info):
    """Flag warnings of launches and of the run's conditions."""
    assert flag in flags_of(make_training_launches(steps_ms), **info)


def test_headers_are_no_warning():
    """Allow small buckets the header bytes of messages."""
    small = launches_of(20, bucket_bytes=[400], expected_bytes=400.0, sent_bytes=700.0)
    assert "traffic" not in flags_of(small)


def test_drift_is_that_of_the_baseline():
    """Flag all configurations of a group if its baseline drifted in most launches."""
    base = launches_of(20)
    for drifted, expected in ((2, False), (3, True)):
        moved = [dataclasses.replace(record, **DRIFTING) for record in base[:drifted]]
        rows = rows_of([*moved, *base[drifted:], *launches_of(15, FP16)])
        assert expected == ("drift" in rows["fp16 default"].flags)
        assert expected == ("drift" in rows["none default"].flags)


# ------------------------------------------------------------------------------------------ buckets


def test_buckets_are_medians_over_launches():
    """Write one line per bucket, in sending order."""
    records = []
    for launch, done_ms in enumerate((8.0, 12.0, 10.0)):
        buckets = [make_bucket(done_ms=done_ms), make_bucket(8_000_000, done_ms=2 * done_ms)]
        records.append(make_training_record(FP16, launch=launch, buckets=buckets))
    rows = bucket_rows(records, make_training_info())
    assert [(0, 4_000_000, 10.0), (1, 8_000_000, 20.0)] == fields_of(
        rows, "bucket", "size_bytes", "done_ms"
    )
    assert "fp16" == rows[0].hook
    assert "default" == rows[0].bucket_cap_mb
    assert 2 == rows[0].parameters


def test_other_buckets_are_left_out():
    """Use only launches with the usual buckets, of the sweep, with DDP."""
    usual = [make_bucket(done_ms=8.0)]
    other = [make_bucket(1, done_ms=1.0), make_bucket(done_ms=9.0)]
    records = [
        make_training_record(launch=launch, buckets=buckets)
        for launch, buckets in enumerate((usual, other, usual))
    ]
    confirm = make_training_record(make_training_case(phase="confirm"), buckets=other)
    rows = bucket_rows([*records, confirm, make_training_record(LOCAL)], {})
    assert [(0, 8.0)] == fields_of(rows, "bucket", "done_ms")
