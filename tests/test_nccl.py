"""Tests of the NCCL backend on a simulated library: what it asks NCCL for is what each operation means."""

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import simulated_cupy

from commbench.budgets import BUDGETS
from commbench.cases import Case, Sweep, all_cases
from commbench.collectives import OPERATIONS
from commbench.control import Control, run_threads
from commbench.datatypes import DTYPES
from commbench.errors import InputError, UnsupportedError
from commbench.measure import Session, measure
from commbench.preparation import prepare
from commbench.records import Record
from commbench.timing.loops import Call
from commbench.timing.progress import Progress

ELEMENTS = 301
MOVING = [name for name, operation in OPERATIONS.items() if operation.moves_data]
REDUCING = [name for name, operation in OPERATIONS.items() if operation.reduces]


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The backend's module over a simulated cupy."""
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    for name, module in simulated_cupy.simulated().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "commbench.communicators.nccl", raising=False)
    yield importlib.import_module("commbench.communicators.nccl")
    sys.modules.pop("commbench.communicators.nccl", None)
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def cases(size: int) -> list[Case]:
    """Every operation in every type, by sum; in two types by every reduction."""
    common: dict[str, Any] = {"backends": ["nccl"], "in_place": "both", "roots": sorted({0, size - 1})}
    sweeps = []
    for name, dtype in DTYPES.items():
        sizes = [size * ELEMENTS * dtype.itemsize]
        sweeps.append(Sweep(operations=MOVING, dtypes=[name], sizes=sizes, **common))
        if name in {"float32", "int8"}:
            redops = ["min", "max", "prod", "avg"]
            sweeps.append(Sweep(operations=REDUCING, dtypes=[name], sizes=sizes, redops=redops, **common))
    return all_cases(sweeps, size)


def refusal(case: Case) -> str:
    """The beginning of the sentence that must refuse a case; empty for a case that must work."""
    if case.redop == "avg" and case.dtype == "int8":
        return "the average of int8 has no exact answer"
    if OPERATIONS[case.operation].overlaps:
        return "nccl has no non-blocking"
    if case.operation == "all_to_all" and case.in_place:
        return "NCCL has no in-place all_to_all"
    return ""


def verified(nccl: ModuleType, size: int, change: Callable[[Any], None] | None = None) -> dict[str, list[str]]:
    """What verification says of every case on so many ranks: cases by finding."""

    def work(control: Control) -> dict[str, list[str]]:
        communicator = nccl.NcclCommunicator(control)
        found: dict[str, list[str]] = {}
        for case in cases(size):
            try:
                prepared = prepare(case, communicator)
            except UnsupportedError as error:
                right = refusal(case) and str(error).startswith(refusal(case))
                found.setdefault("refused" if right else str(error), []).append(str(case))
                continue
            if change is not None:
                prepared = dataclasses.replace(prepared, calls=[Call(run=lambda: None)])
            checked = prepared.verify(control, shared_clock=True)
            found.setdefault(f"{(checked.wrong and 'wrong') or 'right'}", []).append(str(case))
        communicator.close()
        return found

    return run_threads(size, work)[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_operation_is_right(nccl: ModuleType, size: int) -> None:
    """Find no wrong element in any operation, type, reduction and place, and refuse only what NCCL lacks."""
    found = verified(nccl, size)
    pairs = ["needs at least 2 ranks" in name for name in found if name not in {"right", "refused"}]
    assert all(pairs)
    assert bool(pairs) == (size == 1)
    possible = {name for name in MOVING if not OPERATIONS[name].overlaps and OPERATIONS[name].minimum_ranks <= size}
    assert possible == {case.split()[1] for case in found["right"]}


def test_an_operation_that_does_nothing_is_caught(nccl: ModuleType) -> None:
    """Find wrong elements in everything where nothing is communicated."""
    found = verified(nccl, 3, change=lambda _: None)
    assert set(found) <= {"wrong", "refused"}


def test_groups_have_communicators_of_their_own(nccl: ModuleType) -> None:
    """Divide four ranks into two groups, of which each reduces for itself."""

    def work(control: Control) -> tuple[int, int, int]:
        communicator = nccl.NcclCommunicator(control)
        part = communicator.split([(0, 2), (1, 3)])
        buffer = part.allocate(DTYPES["int32"], 1)
        buffer.memory[:] = 10**control.rank
        part.all_reduce(buffer, buffer, "sum").run()
        found = (part.rank, part.size, int(buffer.memory[0]))
        communicator.close()
        return found

    assert [(0, 2, 101), (0, 2, 1010), (1, 2, 101), (1, 2, 1010)] == run_threads(4, work)


@pytest.mark.parametrize(("sync", "cadence"), [("auto", "isolated"), ("none", "pipelined")])
def test_cases_are_measured_by_events(nccl: ModuleType, sync: str, cadence: str) -> None:
    """Measure through the whole engine: rows say event, NCCL's version, the GPU, and how ranks start."""
    case = Case(
        backend="nccl",
        operation="all_reduce",
        message_bytes=4096,
        dtype="float32",
        redop="sum",
        in_place=True,
        sync=sync,
    )
    budget = dataclasses.replace(BUDGETS["quick"], slice_s=0.05)

    def work(control: Control) -> Any:
        communicator = nccl.NcclCommunicator(control)
        return measure(case, communicator, Session(control=control, budget=budget, progress=Progress()), launch=0)

    record = run_threads(2, work)[0]
    assert ("ok", 0, "event") == (record.status, record.wrong, record.loop)
    assert ("NCCL 2.28.9", "Simulated GPU 0") == (record.library, record.device)
    assert {"auto": "barrier", "none": "none"}[sync] == record.sync
    assert len(record.times_us) > 5
    assert min(record.times_us) > 0
    assert (record.harness_us or 0) > 0
    assert cadence == case.cadence


def test_instants_are_refused(nccl: ModuleType) -> None:
    """Say that events know no common clock."""
    case = Case(backend="nccl", operation="barrier", message_bytes=0, dtype=None, sync="round-time")

    def work(control: Control) -> Any:
        communicator = nccl.NcclCommunicator(control)
        return measure(
            case, communicator, Session(control=control, budget=BUDGETS["quick"], progress=Progress()), launch=0
        )

    record = run_threads(2, work)[0]
    assert "unsupported" == record.status
    assert "nccl cannot start ranks by round-time; use --sync auto or barrier or none" == record.reason


def test_ranks_may_share_a_gpu(nccl: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each rank a host of its own in NCCL's eyes, and TCP, but only where GPUs are too few."""

    def settings(devices: int) -> dict[str, str]:
        monkeypatch.setattr(nccl.cupy.cuda.runtime, "getDeviceCount", lambda: devices)
        for name in [name for name in os.environ if name.startswith("NCCL_")]:
            del os.environ[name]
        run_threads(2, lambda control: nccl.NcclCommunicator(control).close())
        return {name: os.environ[name] for name in os.environ if name.startswith("NCCL_") and "DEBUG" not in name}

    assert {} == settings(2)
    shared = settings(1)
    assert {"NCCL_NET": "Socket", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo"}.items() <= shared.items()
    assert "NCCL_HOSTID" in shared


def test_without_a_gpu_a_sentence_says_so(nccl: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Translate CUDA's error, and the absence of an error."""

    def fail() -> int:
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    monkeypatch.setattr(nccl.cupy.cuda.runtime, "getDeviceCount", fail)
    with pytest.raises(
        InputError, match=r"needs a GPU, and CUDA finds none on .* \(no CUDA-capable device is detected\)"
    ):
        nccl.check_gpu()
    monkeypatch.setattr(nccl.cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(InputError, match="CUDA finds none"):
        nccl.check_gpu()


def measured(nccl: ModuleType, algorithm: str, size: int = 1) -> list[Record]:
    """All_reduce as it is, by an algorithm, and as it is again, in one launch of so many ranks."""
    asked = ("auto", algorithm, "auto")
    cases = [
        Case(
            backend="nccl",
            operation="all_reduce",
            message_bytes=4096,
            dtype="float32",
            redop="sum",
            in_place=True,
            algorithm=each,
        )
        for each in asked
    ]
    budget = dataclasses.replace(BUDGETS["quick"], slice_s=0.02)

    def work(control: Control) -> list[Any]:
        communicator = nccl.NcclCommunicator(control)
        session = Session(control=control, budget=budget, progress=Progress())
        found = [measure(case, communicator, session, launch=0) for case in cases]
        communicator.close()
        return found

    return run_threads(size, work)[0]


def test_an_algorithm_gets_a_communicator_of_its_own(nccl: ModuleType) -> None:
    """Ask for it when a communicator is made, carry out the case by that alone, and ask for nothing afterwards."""
    simulated_cupy.COMMUNICATORS.clear()
    records = measured(nccl, "tree/ll")
    assert ["ok"] * 3 == [record.status for record in records]
    asked = {made.asked: len(made.calls) for made in simulated_cupy.COMMUNICATORS if made.calls}
    assert {"", "tree"} == set(asked)
    assert min(asked.values()) > 5
    assert "NCCL_ALGO" not in os.environ


def test_what_nccl_cannot_do_is_a_row(nccl: ModuleType) -> None:
    """Say what NCCL says, go on with other cases, and give up the communicator that has failed."""
    simulated_cupy.COMMUNICATORS.clear()
    records = measured(nccl, "nvls")
    assert ["ok", "unsupported", "ok"] == [record.status for record in records]
    assert "invalid usage" in records[1].reason
    assert [["abort"]] == [made.calls for made in simulated_cupy.COMMUNICATORS if made.asked == "nvls"]


def test_numbers_of_channels_need_the_other_path(nccl: ModuleType) -> None:
    """Say what to use instead."""
    record = measured(nccl, "ring/8ch", size=2)[1]
    assert "unsupported" == record.status
    assert "use --backend torch-nccl" in record.reason


def test_groups_work_on_the_stream_that_is_timed(nccl: ModuleType) -> None:
    """Queue what groups do where the events of the whole are recorded, else they would time nothing."""

    def work(control: Control) -> bool:
        communicator = nccl.NcclCommunicator(control)
        part = communicator.split([(0, 2), (1, 3)])
        same = part._stream is communicator._stream and communicator.using("tree")._stream is communicator._stream
        communicator.close()
        return same

    assert [True] * 4 == run_threads(4, work)
