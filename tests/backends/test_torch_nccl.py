"""Tests of NCCL through torch with a host in place of the GPU: every line but CUDA's own, on real ranks."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from commbench.collectives.cases import Case
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=[2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 4))])
def found(request: pytest.FixtureRequest, run_ranks: Any) -> dict[str, Any]:
    """All findings on so many ranks, from one launch."""
    findings = run_ranks(request.param, "torch_on_host.py")
    for entry in findings["cases"]:
        entry["case"] = Case(**entry["case"])
    return {"size": request.param, **findings}


def refusal(case: Case, size: int) -> str:
    """The beginning of the sentence that must refuse a case; empty for a case that must work."""
    operation = OPERATIONS[case.operation]
    if size < operation.minimum_ranks:
        return f"{case.operation} needs at least"
    if case.redop == "avg" and case.dtype and not DTYPES[case.dtype].epsilon:
        return f"the average of {case.dtype} has no exact answer"
    if operation.overlaps:
        return "torch-nccl has no non-blocking"
    if case.operation in {"all_reduce", "reduce"} and not case.in_place:
        return "torch.distributed reduces in place only"
    if case.operation == "all_to_all" and case.in_place:
        return "torch.distributed has no in-place all_to_all"
    return ""


def test_results_are_right_and_a_wrong_element_is_found(found: dict[str, Any]) -> None:
    """Find no wrong element in what is possible, and exactly the one that was flipped."""
    done = [entry for entry in found["cases"] if "refused" not in entry]
    assert [] == [str(entry["case"]) for entry in done if (entry["clean"], entry["corrupted"]) != (0, 1)]
    possible = {name for name, o in OPERATIONS.items() if o.moves_data and not o.overlaps}
    assert {name for name in possible if OPERATIONS[name].minimum_ranks <= found["size"]} == {
        entry["case"].operation for entry in done
    }


def test_backends_refuse_listed_operations_only(found: dict[str, Any]) -> None:
    """Refuse missing operations with the reason, and nothing else."""
    seen = [(entry["case"], entry.get("refused", "")) for entry in found["cases"]]
    expected = [(case, reason, refusal(case, found["size"])) for case, reason in seen]
    assert [] == [
        (str(case), reason)
        for case, reason, sentence in expected
        if bool(reason) != bool(sentence) or not reason.startswith(sentence)
    ]


def test_the_barrier_waits(found: dict[str, Any]) -> None:
    """Count no rank that leaves before the last has entered, and all that do where nobody waits."""
    assert {"real": 0, "idle": found["size"] - 1} == found["barrier"]


@pytest.mark.parametrize(
    "how", ["plain", "in place", "algorithm", "narrow", "pipelined", "rotated", "groups", "barrier"]
)
def test_cases_are_measured_by_events(found: dict[str, Any], how: str) -> None:
    """Measure through the whole engine: verified, timed by events, with the overhead beside it."""
    if how in {"in place", "barrier"} and found["size"] == 1:
        assert "among one rank torch-nccl has nothing to do in place" in found["measured"][how]["reason"]
        return
    if how == "groups" and found["size"] != 4:
        assert how not in found["measured"]
        return
    record = found["measured"][how]
    assert ("ok", 0, "event", "host") == tuple(record[name] for name in ("status", "wrong", "loop", "device"))
    assert {"pipelined": "none"}.get(how, "barrier") == record["sync"]
    assert record["library"].startswith(f"torch {torch.__version__.split('+')[0]} NCCL")
    assert record["tried"] > 5
    assert record["harness_us"] > 0
    assert [] == list(record["skew_us"])


def test_nothing_stays_asked_for(found: dict[str, Any]) -> None:
    """Leave NCCL's variables as they were."""
    assert {"NCCL_ALGO": None, "NCCL_PROTO": None} == found["asked"]


def test_a_missing_gpu_is_bad_input() -> None:
    """Name what torch lacks before using it."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    from commbench.backends.torch_calls import find_gpus
    from commbench.errors import InputError

    with pytest.raises(InputError, match=r"Backend torch-nccl needs a (GPU|torch built for CUDA), and torch 2\."):
        find_gpus("torch-nccl")


def test_memory_that_cannot_be_registered_is_a_row(found: dict[str, Any]) -> None:
    """Say so where torch's backend has no allocator of its own, and go on."""
    record = found["measured"]["registered"]
    assert "unsupported" == record["status"]
    assert "makes no registered buffers here" in record["reason"]


def test_a_barrier_that_waits_on_the_host_is_in_no_graph(found: dict[str, Any]) -> None:
    """Refuse beforehand what CUDA forbids while it captures, as a row."""
    record = found["measured"]["barrier in a graph"]
    assert "unsupported" == record["status"]
    assert record["reason"].startswith("torch-nccl's barrier waits on the host, which no graph can hold")


def test_memory_that_is_full_on_one_rank_is_a_row(found: dict[str, Any]) -> None:
    """Say on all ranks what one had no room for, and how much is free there."""
    record = found["measured"]["too large"]
    share = {1: "4 KiB", 2: "2 KiB", 4: "1 KiB"}[found["size"]]
    assert (
        "unsupported",
        f"the GPU's memory has no room for another {share}, 1 GiB are free; choose smaller --sizes",
    ) == (
        record["status"],
        record["reason"],
    )


def bare(**attributes: Any) -> Any:
    """Return a communicator of two ranks that has joined nothing."""
    from commbench.backends.torch_nccl import TorchNcclCommunicator

    found = object.__new__(TorchNcclCommunicator)
    fields = {
        "rank": 0,
        "size": 2,
        "_members": (0, 1),
        "_group": None,
        "_torch_device": torch.device("cpu"),
        "_pool": None,
    }
    vars(found).update(fields | attributes)
    return found


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("all_reduce", "same same sum"),
        ("all_gather", "send receive"),
        ("reduce_scatter", "send receive sum"),
        ("all_to_all", "send receive"),
        ("broadcast", "send 1"),
        ("reduce", "same same sum 1"),
        ("gather", "send receive 0"),
        ("scatter", "send receive 0"),
    ],
)
def test_collectives_are_begun_and_waited_for(monkeypatch: pytest.MonkeyPatch, name: str, arguments: str) -> None:
    """Begin each as DDP does, on the group's own stream, and have the current stream wait for it."""
    from commbench.backends import torch_calls
    from commbench.backends.torch_nccl import TensorBuffer

    asked: list[str] = []

    def begin(*_: object, async_op: bool = False, **__: object) -> Any:
        asked.append("begun" if async_op else "on the current stream")
        return SimpleNamespace(wait=lambda: asked.append("waited"))

    owner, function = {
        "all_gather": (torch_calls, "all_gather_single"),
        "reduce_scatter": (torch_calls, "_reduce_scatter"),
        "all_to_all": (torch_calls.dist, "all_to_all_single"),
    }.get(name, (torch_calls.dist, name))
    monkeypatch.setattr(owner, function, begin)
    buffers = {word: TensorBuffer(torch.zeros(4), DTYPES["float32"]) for word in ("same", "send", "receive")}
    call = getattr(bare(), name)(
        *(int(word) if word.isdigit() else buffers.get(word, word) for word in arguments.split())
    )
    assert [] == asked
    call.run()
    assert ["begun", "waited"] == asked


def test_memory_that_was_not_registered_whole_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch forget a pool that it has noted and could not register, and which it deregisters as badly."""
    from commbench.errors import UnsupportedError

    noted: set[str] = set()

    class Backend:
        mem_allocator = None

        def register_mem_pool(self, pool: str) -> None:
            noted.add(pool)
            raise RuntimeError("ncclCommRegister failed")

        def deregister_mem_pool(self, pool: str) -> None:
            noted.remove(pool)
            raise RuntimeError("a segment is not registered")

    monkeypatch.setattr(torch.cuda, "MemPool", lambda _: "pool", raising=False)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", nullcontext, raising=False)
    communicator = bare(_group=SimpleNamespace(_get_backend=lambda _: Backend()))
    with pytest.raises(UnsupportedError, match="ncclCommRegister failed"), communicator.allocating("registered"):
        noted.add("memory")
    assert ({"memory"}, None) == (noted, communicator._pool)
