"""Tests of the NCCL backend on a simulated library: its calls implement each operation."""

import dataclasses
import gc
import importlib
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from types import ModuleType
from typing import Any

import pytest
import simulated_cupy
from faking import fake_case, make_session
from fields import fields_of
from measuring import measure
from simulated_cupy import L2_BYTES, MEMORY_BYTES, OPERATION_NS, simulated
from simulated_nvml import SimulatedNvml
from threads import run_threads
from verifying import MOVING, REDUCING, possible, refusal

from commbench.collectives.cases import Case, Sweep, all_cases
from commbench.collectives.datatypes import DTYPES, Content
from commbench.collectives.primitives import Request
from commbench.engine.control import Control
from commbench.engine.records import FixedSettings
from commbench.engine.setup import GRAPH_OPERATIONS, prepare
from commbench.engine.timing.loops import Call
from commbench.errors import InputError
from commbench.findings import UnsupportedError

#: Those that import cupy.
MODULES = tuple(f"commbench.backends.{name}" for name in ("nccl", "cupy_device"))
ELEMENTS = 301


pytestmark = pytest.mark.usefixtures("without_nccl_variables")


@pytest.fixture
def nccl(monkeypatch):
    """Return the backend's module over a simulated cupy."""
    # a full collection looks through all tests; what a test has made is young
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda generation=1: collect(generation))
    for name, module in simulated().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(MODULES[0])
    for name in MODULES:
        sys.modules.pop(name, None)


def cases(size: int) -> list[Case]:
    """Return every operation in every type by sum, and in two types by every reduction."""
    common = {
        "backends": ["nccl"],
        "in_place": "both",
        "roots": sorted({0, size - 1}),
    }
    sweeps = []
    for name, dtype in DTYPES.items():
        sizes = [size * ELEMENTS * dtype.itemsize]
        sweeps.append(Sweep(operations=MOVING, dtypes=[name], sizes=sizes, **common))
        if name in {"float32", "int8"}:
            redops = ["min", "max", "prod", "avg"]
            sweeps.append(
                Sweep(operations=REDUCING, dtypes=[name], sizes=sizes, redops=redops, **common)
            )
    return all_cases(sweeps, size)


def verified(
    nccl: ModuleType, size: int, planned: Sequence[Case], *, is_idle: bool = False
) -> dict[str, set[str]]:
    """Return the operations by finding of verification on ``size`` ranks."""

    def work(control: Control) -> dict[str, set[str]]:
        communicator = nccl.NcclCommunicator(control)
        found = defaultdict[str, set[str]](set)
        for case in planned:
            try:
                prepared = prepare(case, communicator)
            except UnsupportedError as error:
                expected = refusal(case, size)
                right = expected and str(error).startswith(expected)
                found["refused" if right else str(error)].add(case.operation)
                continue
            if is_idle:
                prepared = dataclasses.replace(prepared, calls=[Call(run=lambda: None)])
            wrong = sum(prepared.verify(control))
            found["wrong" if wrong else "right"].add(case.operation)
        communicator.close()
        return found

    return run_threads(size, work)[0]


@pytest.mark.programs
@pytest.mark.parametrize(
    "size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 4))]
)
def test_every_operation_is_right(nccl, size):
    """Find no wrong element in any case, and refuse only what NCCL lacks."""
    found = verified(nccl, size, cases(size))
    assert {"right", "refused"} == set(found)
    assert possible(size) == found["right"]


@pytest.mark.programs
def test_an_operation_without_communication_is_detected(nccl):
    """Find wrong elements in every operation without communication."""
    found = verified(nccl, 2, [case for case in cases(2) if case.dtype == "int8"], is_idle=True)
    assert {"wrong", "refused"} == set(found)
    assert possible(2) == found["wrong"]


def test_groups_have_communicators_of_their_own(nccl):
    """Reduce separately in two groups of four ranks, on the stream that is timed."""

    def work(control: Control) -> tuple[int, int, int]:
        communicator = nccl.NcclCommunicator(control)
        part = communicator.split([(0, 2), (1, 3)])
        buffer = part.allocate(DTYPES["int32"], 1)
        buffer.memory[:] = 10**control.rank
        part.call(Request("all_reduce", buffer, buffer, "sum")).run()
        result = (part.rank, part.size, int(buffer.memory[0]))
        assert {communicator._stream.ptr} == part._comm.streams
        communicator.close()
        return result

    assert [(0, 2, 101), (0, 2, 1010), (1, 2, 101), (1, 2, 1010)] == run_threads(4, work)


def test_a_missing_gpu_is_bad_input(nccl, monkeypatch):
    """Translate CUDA's error into a sentence."""

    def fail() -> int:
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    monkeypatch.setattr(nccl.cupy.cuda.runtime, "getDeviceCount", fail)
    with pytest.raises(
        InputError,
        match=r"needs a GPU, and CUDA finds none on .* \(no CUDA-capable device is detected\)",
    ):
        sys.modules[MODULES[1]].find_gpus("nccl")
    monkeypatch.setattr(nccl.cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(InputError, match="CUDA finds none"):
        sys.modules[MODULES[1]].find_gpus("nccl")


def test_a_missing_nccl_is_bad_input(nccl, monkeypatch):
    """Name the package to install."""
    check = sys.modules[MODULES[1]]
    assert 8 == len(check.find_nccl_gpus("nccl"))

    monkeypatch.setattr(nccl.nccl, "available", False, raising=False)
    monkeypatch.delattr(nccl.nccl, "get_version")
    with pytest.raises(
        InputError, match=r"14\.0\.1 finds none .*: pip install nvidia-nccl-cu13\.$"
    ):
        check.find_nccl_gpus("nccl")


# ----------------------------------------------------------------------------- cadences and buffers


def records_of(
    nccl: ModuleType, size: int, cases: Sequence[Case], *, fixed: FixedSettings | None = None
) -> list[Any]:
    """Return rank 0's records of cases, and last the addresses and calls of its communicator."""

    def work(control: Control) -> list[Any]:
        communicator = nccl.NcclCommunicator(control)
        session = make_session(control, slice_s=0.005, visits=24)
        records = [measure(case, communicator, session, launch=0, fixed=fixed) for case in cases]
        token, underlying = communicator._token.address, communicator._comm
        communicator.close()  # which asserts that no graph holds the communicator
        addresses = [address for address in underlying.addresses if address != token]
        return [*records, (addresses, underlying.calls)]

    return run_threads(size, work)[0]


def plain_case(message_bytes: int = 4096, **changes: Any) -> Case:
    """Return an all_reduce in place."""
    fields = {"backend": "nccl", "in_place": True, "message_bytes": message_bytes, **changes}
    return fake_case(**fields)


@pytest.mark.parametrize(("sync", "start"), [("auto", "barrier"), ("none", "none")])
def test_cases_are_measured_by_events(nccl, sync, start):
    """Time the device alone; rows name events, NCCL's version, the GPU and the start method."""
    record, _ = records_of(nccl, 2, [plain_case(sync=sync)])
    assert "ok" == record.status
    assert 0 == record.wrong
    assert "event" == record.loop
    assert start == record.sync
    assert ("NCCL 2.28.9", "Simulated GPU 0") == (record.library, record.device)
    assert len(record.times_us) + record.late_discarded > 5
    assert OPERATION_NS / 1e3 == pytest.approx(median(record.times_us))
    assert () == tuple(record.skew_us)
    assert () == tuple(record.rank_arrival_us)
    queueing_us = 0.5 if sync == "none" else 0  # half of a call: no operation is queued
    assert (queueing_us, None) == (record.harness_us, record.framework_us)


def alone(record: Any) -> bool:
    """Return whether a record is refused because one rank has no work."""
    return "among one rank nccl has nothing to do in place" in record.reason


@pytest.mark.programs
@pytest.mark.parametrize(
    "size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3))]
)
def test_every_operation_can_be_replayed(nccl, size):
    """Capture, verify and time every operation as a graph, the barrier included."""
    names = sorted(possible(size))
    common = {
        "backends": ["nccl"],
        "sizes": [size * ELEMENTS * 4],
        "cadences": ["graph"],
    }
    sweeps = [
        Sweep(operations=[*names, "barrier"], in_place="both", roots=[size - 1], **common),
        Sweep(operations=REDUCING[:3], in_place="both", redops=["max", "prod", "avg"], **common),
    ]
    *records, _ = records_of(nccl, size, all_cases(sweeps, size))
    timed = [record for record in records if record.status == "ok"]
    refused = [record for record in records if record.status != "ok" and not alone(record)]
    assert {"all_to_all"} == set(fields_of(refused, "case.operation"))
    idle = {"barrier", "broadcast"} if size == 1 else set()
    assert {*names, "barrier"} - idle == set(fields_of(timed, "case.operation"))
    assert {("graph", 0, 0)} == {(r.case.mode, r.wrong, r.batch % GRAPH_OPERATIONS) for r in timed}


@pytest.mark.parametrize("case", [plain_case(graph=True), plain_case(graph=True, in_place=False)])
def test_a_graph_without_operations_is_detected(nccl, stub, case):
    """Find wrong elements, in place too, if the replayed graph is empty."""
    stub("simulated_cupy.Graph.launch", None)
    record, _ = records_of(nccl, 3, [case])
    assert "wrong" == record.status
    assert (record.wrong or 0) > 0


@pytest.mark.parametrize("redop", ["sum", "avg"])
def test_nothing_is_timed_where_nccl_does_nothing(nccl, redop):
    """Refuse in-place calls of one rank, except averages; time out-of-place copies."""
    cases = [plain_case(in_place=in_place, redop=redop) for in_place in (True, False)]
    inside, outside, _ = records_of(nccl, 1, cases)
    assert [redop == "sum", False] == [alone(record) for record in (inside, outside)]
    assert ("unsupported" if redop == "sum" else "ok") == inside.status
    assert "ok" == outside.status
    assert OPERATION_NS / 1e3 == pytest.approx(median(outside.times_us))


def test_memory_that_is_full_on_one_rank_is_a_row(nccl):
    """Record on all ranks that the root has no memory, and continue with other cases."""
    large = plain_case(MEMORY_BYTES // 2, operation="gather", root=1, in_place=False)
    full, fine, _ = records_of(nccl, 2, [large, plain_case()])
    sentence = "the GPU's memory has no room for 512 MiB more; choose smaller --sizes"
    assert "unsupported" == full.status
    assert sentence == full.reason
    assert "ok" == fine.status


@pytest.mark.parametrize("step", ["write", "count_wrong"])
def test_memory_that_verification_lacks_is_a_row(nccl, monkeypatch, step):
    """Refuse a case if filling or comparing exceeds memory."""

    def full(*_: object) -> None:
        raise simulated_cupy.OutOfMemoryError

    monkeypatch.setattr(Content, step, full)
    record, _ = records_of(nccl, 2, [plain_case()])
    assert "unsupported" == record.status
    assert record.reason.startswith("the GPU's memory has no room for 4 KiB more")


@pytest.mark.parametrize(("algorithm", "ranks"), [("auto", {0}), ("ring", {0, 1})])
def test_a_failing_capture_is_a_row(nccl, monkeypatch, ranks, algorithm):
    """Record CUDA's error on one or all ranks, and continue on the same stream and algorithm."""
    all_gather = simulated_cupy.NcclCommunicator.allGather

    def refuse(self: Any, *arguments: int) -> None:
        if self.rank in ranks and simulated_cupy._STREAMS[arguments[-1]].captured is not None:
            raise RuntimeError(
                "cudaErrorStreamCaptureUnsupported: operation not permitted\nand more"
            )
        all_gather(self, *arguments)

    monkeypatch.setattr(simulated_cupy.NcclCommunicator, "allGather", refuse)
    fields = {"graph": True, "algorithm": algorithm}
    gather = plain_case(operation="all_gather", in_place=False, **fields)
    failed, fine, _ = records_of(nccl, 2, [gather, plain_case(**fields)])
    sentence = (
        "no graph can hold all_gather here: RuntimeError: cudaErrorStreamCaptureUnsupported:"
        " operation not permitted"
    )
    assert "unsupported" == failed.status
    assert sentence == failed.reason
    assert "ok" == fine.status


def test_a_group_ends_where_a_message_is_refused(nccl):
    """Close an NCCL group after an error, so that later calls execute at once."""

    def work(control: Control) -> int:
        communicator = nccl.NcclCommunicator(control)
        buffer = communicator.allocate(DTYPES["int32"], 1)
        ends = [(buffer, 5)]  # there is no such rank
        refused = communicator.call(Request("send_receive", sends=ends, receives=ends))
        with pytest.raises(AssertionError):
            refused.run()
        buffer.memory[:] = 10**control.rank
        communicator.call(Request("all_reduce", buffer, buffer, "sum")).run()
        total = int(buffer.memory[0])
        communicator.close()
        return total

    assert [11, 11] == run_threads(2, work)


def test_ranks_do_not_start_at_an_instant(nccl):
    """Refuse agreed instants, because events have no common clock."""
    record, _ = records_of(nccl, 2, [plain_case(sync="round-time")])
    assert "unsupported" == record.status
    assert "round-time" in record.reason


@pytest.mark.parametrize("graph", [False, True])
def test_rotated_buffers_exceed_the_cache(nccl, *, graph):
    """Rotate over twice the L2 size."""
    message_bytes, sets = L2_BYTES // 16, 32
    record, (addresses, _) = records_of(
        nccl, 2, [plain_case(message_bytes, buffers="rotated", graph=graph)]
    )
    assert "ok" == record.status
    assert 0 == record.wrong
    assert "rotated" == record.case.buffers
    assert "in_cache" not in record.flags
    counts = Counter(addresses)
    assert sets == len(counts)
    assert max(counts.values()) <= 2 * min(counts.values())
    assert all(
        len(set(addresses[at : at + sets // 2])) == sets // 2
        for at in range(len(addresses) - sets // 2)
    )


def test_small_messages_stay_in_the_cache(nccl):
    """Flag rotated buffers that fit into the L2; use one set if a message exceeds it."""
    small, _ = records_of(nccl, 2, [plain_case(64, buffers="rotated")])
    large, (addresses, _) = records_of(nccl, 2, [plain_case(2 * L2_BYTES, buffers="rotated")])
    assert [True, False] == ["in_cache" in record.flags for record in (small, large)]
    assert 1 == len(set(addresses))


def test_a_slowed_gpu_is_flagged(nccl, monkeypatch):
    """Read the clock of the rank's own GPU before and after a case."""
    nvml = SimulatedNvml(
        ["0000:00:00.0"], clocks_MHz=[1980] * 3 + [1100], reasons=[0x1] * 3 + [0x4]
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    record, _ = records_of(nccl, 2, [plain_case()])
    assert "throttled" in record.flags
    assert ("power cap",) == record.clocks.slowed_by
    assert (1100, 1980) == (record.clocks.sm_low_MHz, record.clocks.sm_high_MHz)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    record, _ = records_of(nccl, 2, [plain_case()])
    assert (False, None) == ("throttled" in record.flags, record.clocks)


# --------------------------------------------------------------------------------------- algorithms


def by_algorithm(nccl: ModuleType, algorithm: str, size: int = 1) -> list[Any]:
    """Return records of an all_reduce by default, by an algorithm, and by default again, in one
    launch.
    """
    simulated_cupy.COMMUNICATORS.clear()
    cases = [plain_case(algorithm=each, in_place=False) for each in ("auto", algorithm, "auto")]
    *records, _ = records_of(nccl, size, cases)
    return records


def test_an_algorithm_gets_a_communicator_of_its_own(nccl):
    """Create a communicator with the algorithm for that case only, and restore the environment."""
    assert ["ok"] * 3 == fields_of(by_algorithm(nccl, "tree/ll"), "status")
    calls_by_algorithm = {
        made.asked: len(made.calls) for made in simulated_cupy.COMMUNICATORS if made.calls
    }
    assert {"", "tree"} == set(calls_by_algorithm)
    assert min(calls_by_algorithm.values()) > 5
    assert "NCCL_ALGO" not in os.environ


@pytest.mark.parametrize(
    ("algorithm", "error"),
    [("nvls", "NCCL_ERROR_INVALID_USAGE"), ("collnetdirect", "ncclRemoteError")],
)
def test_what_nccl_cannot_do_is_a_row(nccl, algorithm, error):
    """Record NCCL's error, abandon the failed communicator, and continue with other cases."""
    records = by_algorithm(nccl, algorithm)
    assert ["ok", "unsupported", "ok"] == fields_of(records, "status")
    assert error in records[1].reason
    if algorithm == "nvls":
        failed = [made for made in simulated_cupy.COMMUNICATORS if made.asked == algorithm]
        assert [["abort"]] == fields_of(failed, "calls")


def test_numbers_of_channels_need_the_other_path(nccl):
    """Refuse a number of channels, and name --backend torch-nccl."""
    record = by_algorithm(nccl, "ring/8ch", size=2)[1]
    assert "unsupported" == record.status
    assert "use --backend torch-nccl" in record.reason


def test_a_row_has_the_algorithm_of_its_own_operation(nccl, monkeypatch):
    """Read a graph's algorithm from NCCL's log of the capture; leave it empty without a log."""
    script = [
        {"all_reduce": "tree/ll/1ch"},
        {},
        {"all_reduce": "ring/ll/1ch"},
        {"all_reduce": "nvls/simple/4ch"},
        {},
    ]
    logs = defaultdict[int, Iterator[dict[str, str]]](lambda: iter(script))

    @contextmanager
    def recording() -> Iterator[dict[str, str]]:
        log = {}
        yield log
        log |= next(logs[threading.get_ident()])

    monkeypatch.setattr(nccl.LOG, "recording", recording)
    monkeypatch.setattr(nccl.LOG, "transport", lambda: "P2P/CUMEM")
    *records, _ = records_of(nccl, 2, [plain_case(), plain_case(8192), plain_case(graph=True)])
    assert ["tree/ll/1ch", "", "nvls/simple/4ch"] == fields_of(records, "algorithm")
    assert ["P2P/CUMEM", "P2P/CUMEM", "NVLS+P2P/CUMEM"] == fields_of(records, "transport")
