"""Tests of NCCL through torch with a host in place of the GPU: every line but CUDA's own, on real ranks."""

from typing import Any

import pytest

from commbench.cases import Case
from commbench.collectives import OPERATIONS
from commbench.datatypes import DTYPES

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=[1, 2, 4])
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


def test_refusals_are_the_known_ones(found: dict[str, Any]) -> None:
    """Refuse what torch does not have, with the reason, and nothing else."""
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


@pytest.mark.parametrize("how", ["plain", "algorithm", "pipelined", "rotated", "groups"])
def test_cases_are_measured_by_events(found: dict[str, Any], how: str) -> None:
    """Measure through the whole engine: verified, timed by events, with our own cost beside it."""
    if how == "groups" and found["size"] != 4:
        assert how not in found["measured"]
        return
    record = found["measured"][how]
    assert ("ok", 0, "event", "host") == tuple(record[name] for name in ("status", "wrong", "loop", "device"))
    assert {"pipelined": "none"}.get(how, "barrier") == record["sync"]
    assert record["library"].startswith(f"torch {torch.__version__.split('+')[0]} NCCL")
    assert record["times"] > 5
    assert record["harness_us"] > 0


def test_nothing_stays_asked_for(found: dict[str, Any]) -> None:
    """Leave NCCL's variables as they were."""
    assert {"NCCL_ALGO": None, "NCCL_PROTO": None} == found["asked"]


def test_without_a_gpu_a_sentence_says_so() -> None:
    """Say what torch lacks, before anything is asked of it."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    from commbench.communicators.torch_nccl import check_gpu
    from commbench.errors import InputError

    with pytest.raises(InputError, match=r"Backend torch-nccl needs a (GPU|torch built for CUDA), and torch 2\."):
        check_gpu()


def test_memory_that_cannot_be_registered_is_a_row(found: dict[str, Any]) -> None:
    """Say so where torch's backend has no allocator of its own, and go on."""
    record = found["measured"]["registered"]
    assert "unsupported" == record["status"]
    assert "makes no registered buffers here" in record["reason"]
