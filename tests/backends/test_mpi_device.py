"""Tests of MPI on GPU memory simulated in host memory, over real ranks."""

import pytest
from fields import fields_of
from verifying import possible, read_cases, surprises

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]

BACKENDS = ("mpi-staged", "mpi-cuda")
#: How the sentences begin, or what they hold, by which MPI on host memory refuses the same cases.
KNOWN = (
    "MPI has no avg",
    "this MPI library has no",
    "the average of int",
    "needs at least 2 ranks",
    "has no persistent operations",
)


@pytest.fixture(
    scope="module", params=[2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3))]
)
def verified(request, run_ranks):
    """Return the findings of verification on 2 ranks, and on 1 and 3 with the slow tests."""
    pytest.importorskip("numba")
    results = run_ranks(request.param, "mpi_on_device.py", timeout=200)
    for entries in results["cases"].values():
        read_cases({"cases": entries})
    return {"size": request.param, **results}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_operation_is_right(verified, backend):
    """Find no wrong element, exactly the flipped one, none after the native loop, and missing
    communication.

    Refuse non-blocking operations, and what MPI refuses on host memory. Hold every rank in a real
    barrier, and none in an idle one.
    """
    entries, size = verified["cases"][backend], verified["size"]
    done = [entry for entry in entries if "refused" not in entry]
    assert [] == surprises(done, size, lambda *_: "")
    assert possible(size) == {entry["case"].operation for entry in done}
    refusals = {entry["refused"] for entry in entries if "refused" in entry}
    unknown = {text for text in refusals if not any(words in text for words in KNOWN)}
    names = ("all_reduce", "all_gather")
    assert {f"{backend} has no non-blocking {name}" for name in names} == unknown
    assert {"real": 0, "idle": size - 1} == verified["barrier"][backend]


@pytest.mark.parametrize("backend", BACKENDS)
def test_cases_are_measured(verified, backend):
    """Time by the host's clock, natively for direct device addresses, also with rotated buffers."""
    loop = "native" if backend == "mpi-cuda" else "python"
    assert {("ok", "", 0, loop, "Simulated GPU 0")} == set(
        fields_of(verified["records"][backend], "status", "reason", "wrong", "loop", "device")
    )


def test_no_address_is_handed_to_an_mpi_that_does_not_take_it(verified):
    """Refuse device addresses unless MPI accepts GPU memory, and name the alternative."""
    assert verified["takes"] == (not verified["refusal"])
    if verified["refusal"]:
        assert "does not report support for it (MPIX_Query_cuda_support)" in verified["refusal"]
        assert "--backend mpi-staged" in verified["refusal"]
