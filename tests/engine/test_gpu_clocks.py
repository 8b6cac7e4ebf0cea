"""Tests of GPU clocks as read from NVML around a case."""

import sys
from typing import Any

import pytest
from builders import make_case, make_record, summarise_run
from simulated_nvml import SimulatedNvml

from commbench.engine.gpu_clocks import GpuClocks
from commbench.engine.records import Clocks, Record

GPU = "0000:17:00.0"


def between(monkeypatch: pytest.MonkeyPatch, **readings: Any) -> Clocks | None:
    """Return the clocks from two readings of one GPU."""
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml([GPU], **readings))
    clocks = GpuClocks(GPU)
    clocks.before()
    return clocks.fields([clocks.after(), None])["clocks"]


@pytest.mark.parametrize(
    ("readings", "slowed_by"),
    [
        ({}, ()),
        ({"reasons": [0x1, 0x2]}, ()),  # idle before, clocks that someone has set after
        ({"reasons": [0x1, 0x4]}, ("power cap",)),
        ({"reasons": [0x8 | 0x40, 0x20]}, ("heat", "heat, by hardware")),
        ({"reasons": [0x0, 0x8 | 0x80]}, ("power brake",)),
        ({"reasons": [0x8, 0x8]}, ("hardware slowdown",)),
        ({"reasons": [0x8, 0x0]}, ()),  # a clock being changed, as nvml.h warns
        ({"reasons": [0x8, 0x40]}, ("heat, by hardware",)),
        ({"reasons": [0x80, 0x10]}, ("power brake", "sync boost")),
        ({"reasons": [0x4], "old_driver": True}, ("power cap",)),
        ({"violations_ns": {0: [10, 10], 1: [5, 5]}}, ()),
        ({"violations_ns": {0: [10, 10], 1: [5, 70], 3: [0, 1]}}, ("board limit", "heat")),
        (
            {"violations_ns": {5: [0, 99]}},
            (),
        ),  # the voltage's limit, which holds the highest clock of many GPUs
    ],
)
def test_what_slows_a_gpu_is_named(monkeypatch, readings, slowed_by):
    """Name what slows a GPU, and what is active at both readings, but not idleness."""
    clocks = between(monkeypatch, **readings)
    assert slowed_by == clocks.slowed_by


def test_clocks_have_a_range_over_the_gpus_that_nvml_knows(monkeypatch):
    """Return the lowest and the highest clock of all readings; no clock without NVML, and none for
    a GPU unknown to it.
    """
    first = between(monkeypatch, clocks_MHz=[345, 1980])
    assert 345 == (first and first.sm_low_MHz)
    assert 1980 == (first and first.sm_high_MHz)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuClocks(GPU).read() is None
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml(["0000:01:00.0"]))
    clocks = GpuClocks(GPU)
    clocks.before()
    assert {"clocks": None} == clocks.fields([clocks.after()])


def test_clocks_stay_in_records_and_make_a_flag_of_the_row():
    """Keep clocks through JSON, and flag a row if any of its launches was slowed."""
    clocks = Clocks(sm_low_MHz=1200.0, sm_high_MHz=1980.0, slowed_by=["power cap"])
    slowed = make_record(make_case(), launch=1, clocks=clocks, flags=["throttled"])
    assert slowed.clocks == Record.from_json(slowed.to_json()).clocks
    (row,) = summarise_run([make_record(make_case()), slowed], {})
    assert "throttled" in row.flags.split(";")
