"""Tests of the MPI and Gloo backends on real ranks: right results, and detection of wrong ones."""

import importlib.util
from collections.abc import Mapping
from typing import Any

import pytest

from commbench.collectives.cases import Case
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]

BACKENDS = "mpi,gloo" if importlib.util.find_spec("torch") else "mpi"
#: How the sentence begins where an MPI library has no 16-bit floats to reduce in, as some have.
LACKING = "this MPI library has no"

Entry = Mapping[str, Any]


@pytest.fixture(scope="module", params=[1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def verified(request: pytest.FixtureRequest, run_ranks: Any) -> dict[str, Any]:
    """Return all findings on 1, 2 and 3 ranks, and on 4 with the slow tests, from one launch each."""
    results = run_ranks(request.param, "verify_all.py", BACKENDS)
    for entry in results["cases"]:
        entry["case"] = Case(**entry["case"])
    return {"size": request.param, **results}


def refusal(case: Case, size: int) -> str:
    """Return the beginning of the sentence that must refuse a case, or an empty text."""
    if size < OPERATIONS[case.operation].minimum_ranks:
        return f"{case.operation} needs at least"
    if case.redop == "avg" and case.dtype and not DTYPES[case.dtype].epsilon:
        return f"the average of {case.dtype} has no exact answer"
    if case.backend == "mpi" and case.redop == "avg":
        return "MPI has no avg"
    if case.backend == "gloo" and case.operation in {"all_reduce", "iall_reduce", "reduce"} and not case.in_place:
        return "torch.distributed reduces in place only"
    if case.backend == "gloo" and case.operation == "all_to_all" and case.in_place:
        return "torch.distributed has no in-place all_to_all"
    return ""


def differing(entries: list[Entry], kind: str, expected: int) -> list[tuple[str, int]]:
    """Return the cases whose finding of one type is unexpected."""
    return [(str(entry["case"]), entry[kind]) for entry in entries if kind in entry and entry[kind] != expected]


def test_clean_results_are_right(verified: dict[str, Any]) -> None:
    """Find no wrong element in any operation, data type, reduction and place."""
    assert [] == differing(verified["cases"], "clean", 0)


def test_one_corrupted_element_is_caught(verified: dict[str, Any]) -> None:
    """Find exactly the one element that was flipped on one rank, in every case."""
    assert [] == differing(verified["cases"], "corrupted", 1)
    assert all(("corrupted" in entry) != ("refused" in entry) for entry in verified["cases"])


def test_the_native_loop_makes_the_same_calls(verified: dict[str, Any]) -> None:
    """Find no wrong element after the native calls, in every MPI case."""
    assert [] == differing(verified["cases"], "native", 0)
    assert all("native" in e or "refused" in e for e in verified["cases"] if e["case"].backend == "mpi")


def test_an_operation_without_communication_is_detected(verified: dict[str, Any]) -> None:
    """Find wrong elements unless no communication is needed."""
    alone = verified["size"] == 1
    assert [] == [
        str(entry["case"])
        for entry in verified["cases"]
        if entry.get("idle") == 0
        and entry["case"].message_bytes > 8 * verified["size"]
        and not (alone and entry["case"].in_place is not False)
    ]


def test_backends_refuse_listed_operations_only(verified: dict[str, Any]) -> None:
    """Refuse exactly the missing operations, with the reason."""
    wrong = []
    for entry in verified["cases"]:
        case, reason = entry["case"], entry.get("refused", "")
        expected = refusal(case, verified["size"])
        lacking = reason.startswith(LACKING) and case.redop and case.dtype in {"float16", "bfloat16"}
        if not lacking and (not reason.startswith(expected) or bool(reason) != bool(expected)):
            wrong.append((str(case), expected, reason))
    assert [] == wrong


def test_every_operation_and_type_is_covered(verified: dict[str, Any]) -> None:
    """Corrupt each operation in each type on at least one backend."""
    done = {(e["case"].operation, e["case"].dtype) for e in verified["cases"] if "corrupted" in e}
    possible = [name for name, o in OPERATIONS.items() if o.moves_data and o.minimum_ranks <= verified["size"]]
    dtypes = DTYPES if "gloo" in BACKENDS else ("float64", "float32", "int32", "int8")
    assert {(name, dtype) for name in possible for dtype in dtypes} <= done


def test_a_barrier_that_does_not_wait_is_caught(verified: dict[str, Any]) -> None:
    """Count the ranks that leave an idle barrier early, and none in a real one."""
    expected = {"real": 0, "idle": verified["size"] - 1}
    assert dict.fromkeys(BACKENDS.split(","), expected) == verified["barrier"]
