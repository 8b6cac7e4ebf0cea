"""Tests of the NCCL backend on real GPUs: one rank, and two that may have to share a GPU."""

import importlib.util
import re
import sys

import pytest
from fields import fields_of
from verifying import possible, read_cases

from commbench.engine.setup import GRAPH_OPERATIONS

pytest.importorskip("cupy")

pytestmark = [pytest.mark.gpu, pytest.mark.mpi, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=[1, 2])
def verified(request, run_ranks):
    """Return the verification of every case on one and on two ranks."""
    words = "verify_all.py", "nccl"
    output = run_ranks(request.param, *words, timeout=280, python=sys.executable)
    return {"size": request.param, **read_cases(output)}


def test_results_are_right_and_a_wrong_element_is_found(verified):
    """Find no wrong element in clean results, and exactly the flipped one."""
    done = [entry for entry in verified["cases"] if "refused" not in entry]
    assert [] == [
        str(entry["case"]) for entry in done if (entry["clean"], entry["corrupted"]) != (0, 1)
    ]
    assert possible(verified["size"]) == {entry["case"].operation for entry in done}


def test_the_barrier_waits(verified):
    """Hold every rank until the last has entered."""
    assert 0 == verified["barrier"]["nccl"]["real"]


@pytest.fixture(scope="module", params=[1, 2])
def measured(request, run_ranks):
    """Return the records of an all_reduce in every cadence with hot and rotated buffers."""
    output = run_ranks(request.param, "device_cases.py", timeout=280, python=sys.executable)
    return {"size": request.param, **output}


def test_cadences_and_buffers_are_timed(measured):
    """Verify and time every combination; a graph holds many operations and is destroyed cleanly."""
    records = measured["records"]
    assert [] == [record for record in records if (record["status"], record["wrong"]) != ("ok", 0)]
    assert {(c, b) for c in ("isolated", "pipelined", "graph") for b in ("hot", "rotated")} == set(
        fields_of(records, "cadence", "buffers")
    )
    assert all(
        record["batch"] % GRAPH_OPERATIONS == 0
        for record in records
        if record["cadence"] == "graph"
    )


def test_a_graph_costs_no_more_than_calls_from_python(measured):
    """Replay small operations within twice their pipelined time."""
    times = {
        record["cadence"]: record["time_us"]
        for record in measured["records"]
        if (record["buffers"], record["message_bytes"]) == ("hot", 1024)
    }
    assert times["graph"] < 2 * times["pipelined"]


def test_the_gpu_is_known(measured):
    """Return the L2 cache size, the PCI address, and the clock if NVML is installed."""
    assert measured["l2_bytes"] >= 2**20
    assert re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d", measured["gpu"])
    if importlib.util.find_spec("pynvml"):
        assert all(record["clocks"]["sm_high_MHz"] > 0 for record in measured["records"])
