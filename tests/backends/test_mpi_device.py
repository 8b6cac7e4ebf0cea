"""Tests of MPI on GPU memory, which is simulated in host memory, over real ranks."""

from typing import Any

import pytest

from commbench.collectives.cases import Case
from commbench.collectives.operations import OPERATIONS

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]

BACKENDS = ("mpi-staged", "mpi-cuda")
#: How the sentences begin, or what they hold, by which MPI on host memory refuses the same cases.
KNOWN = ("MPI has no avg", "this MPI library has no", "the average of int", "needs at least 2 ranks")


@pytest.fixture(scope="module", params=[2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3))])
def found(request: pytest.FixtureRequest, run_ranks: Any) -> dict[str, Any]:
    """What verification finds on so many ranks."""
    pytest.importorskip("numba")
    told: dict[str, Any] = run_ranks(request.param, "mpi_on_device.py", timeout=200)
    for entries in told["cases"].values():
        for entry in entries:
            entry["case"] = Case(**entry["case"])
    return {"size": request.param, **told}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_operation_is_right(found: dict[str, Any], backend: str) -> None:
    """Find nothing wrong, and exactly the element that was flipped; in the native loop, too, where there is one."""
    done = [entry for entry in found["cases"][backend] if "refused" not in entry]
    assert [] == [str(entry["case"]) for entry in done if (entry["clean"], entry["corrupted"]) != (0, 1)]
    native = {0} if backend == "mpi-cuda" else set()
    assert native == {entry["native"] for entry in done if "native" in entry}
    moving = {name for name, entry in OPERATIONS.items() if entry.moves_data and not entry.overlaps}
    assert {name for name in moving if OPERATIONS[name].minimum_ranks <= found["size"]} == {
        entry["case"].operation for entry in done
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_without_communication_is_detected(found: dict[str, Any], backend: str) -> None:
    """Find wrong elements unless no communication is needed."""
    assert [] == [
        str(entry["case"])
        for entry in found["cases"][backend]
        if entry.get("idle") == 0
        and entry["case"].message_bytes > 8 * found["size"]
        and not (found["size"] == 1 and entry["case"].in_place is not False)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_refuse_listed_operations_only(found: dict[str, Any], backend: str) -> None:
    """Refuse non-blocking operations, and the refusals of MPI on host memory."""
    refused = [entry for entry in found["cases"][backend] if "refused" in entry]
    texts = [entry["refused"] for entry in refused if not any(words in entry["refused"] for words in KNOWN)]
    assert {f"{backend} has no non-blocking all_reduce", f"{backend} has no non-blocking all_gather"} == set(texts)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_barrier_waits(found: dict[str, Any], backend: str) -> None:
    """Count no rank that leaves before the last has entered, and all those of a barrier that does nothing."""
    assert {"real": 0, "idle": found["size"] - 1} == found["barrier"][backend]


@pytest.mark.parametrize("backend", BACKENDS)
def test_cases_are_measured(found: dict[str, Any], backend: str) -> None:
    """Time what is on the GPU by the host's clock, natively where MPI is given its addresses; rotate buffers, too."""
    loop = "native" if backend == "mpi-cuda" else "python"
    assert {("ok", "", 0, loop, "Simulated GPU 0")} == {
        (record["status"], record["reason"], record["wrong"], record["loop"], record["device"])
        for record in found["records"][backend]
    }


def test_no_address_is_handed_to_an_mpi_that_does_not_take_it(found: dict[str, Any]) -> None:
    """Say what to use instead, unless the library says that it takes GPU memory."""
    assert found["takes"] == (not found["refusal"])
    if found["refusal"]:
        assert "does not say that it takes it (MPIX_Query_cuda_support)" in found["refusal"]
        assert "--backend mpi-staged" in found["refusal"]
