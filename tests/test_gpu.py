"""Tests of the NCCL backend on real GPUs: one rank, and two that may have to share a GPU."""

from typing import Any

import pytest

from commbench.cases import Case
from commbench.collectives import OPERATIONS

pytest.importorskip("cupy")

pytestmark = [pytest.mark.gpu, pytest.mark.mpi, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=[1, 2])
def verified(request: pytest.FixtureRequest, run_ranks: Any) -> dict[str, Any]:
    """What verification finds of every case on so many ranks."""
    found: dict[str, Any] = run_ranks(request.param, "verify_all.py", "nccl", timeout=280)
    for entry in found["cases"]:
        entry["case"] = Case(**entry["case"])
    return {"size": request.param, **found}


def test_results_are_right_and_a_wrong_element_is_found(verified: dict[str, Any]) -> None:
    """Find no wrong element, and exactly the one that was flipped."""
    done = [entry for entry in verified["cases"] if "refused" not in entry]
    assert [] == [str(entry["case"]) for entry in done if (entry["clean"], entry["corrupted"]) != (0, 1)]
    possible = {name for name, o in OPERATIONS.items() if o.moves_data and not o.overlaps}
    possible = {name for name in possible if OPERATIONS[name].minimum_ranks <= verified["size"]}
    assert possible == {entry["case"].operation for entry in done}


def test_the_barrier_waits(verified: dict[str, Any]) -> None:
    """Count no rank that leaves before the last has entered."""
    assert 0 == verified["barrier"]["nccl"]["real"]
