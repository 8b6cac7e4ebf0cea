"""Tests of the torch NCCL backend on real ranks with the host in place of the GPU: all code except
CUDA calls.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from verifying import possible, read_cases, surprises

from commbench.collectives.datatypes import DTYPES
from commbench.collectives.primitives import Request

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]


@pytest.fixture(
    scope="module", params=[2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 4))]
)
def verified(request, run_ranks):
    """Return all findings on 2 ranks, and on 1 and 4 with the slow tests, from one launch each."""
    findings = read_cases(run_ranks(request.param, "torch_on_host.py"))
    return {"size": request.param, **findings}


def test_results_are_right_and_a_wrong_element_is_found(verified):
    """Find no wrong element in clean results, and exactly the flipped one.

    Refuse exactly the missing operations, with the reason. Hold every rank in a real barrier, and
    none in an idle one. Restore NCCL's variables after a case.
    """
    size, entries = verified["size"], verified["cases"]
    assert [] == surprises(entries, size)
    assert possible(size) == {e["case"].operation for e in entries if "refused" not in e}
    assert {"real": 0, "idle": size - 1} == verified["barrier"]
    assert {"NCCL_ALGO": None, "NCCL_PROTO": None} == verified["asked"]


@pytest.mark.parametrize(
    "how", ["plain", "in place", "algorithm", "narrow", "pipelined", "rotated", "groups", "barrier"]
)
def test_cases_are_measured_by_events(verified, how):
    """Measure through the whole engine: verified, timed by events, with overhead."""
    if how in {"in place", "barrier"} and verified["size"] == 1:
        assert (
            "among one rank torch-nccl has nothing to do in place"
            in verified["measured"][how]["reason"]
        )
        return
    if how == "groups" and verified["size"] != 4:
        assert how not in verified["measured"]
        return
    record = verified["measured"][how]
    assert ("ok", 0, "event", "host") == tuple(
        record[name] for name in ("status", "wrong", "loop", "device")
    )
    assert {"pipelined": "none"}.get(how, "barrier") == record["sync"]
    assert record["library"].startswith(f"torch {torch.__version__.split('+')[0]} NCCL")
    assert record["tried"] > 5
    assert record["harness_us"] >= 0
    assert [] == list(record["skew_us"])


def test_a_missing_gpu_is_bad_input():
    """Refuse a torch without GPU support before using it."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    from commbench.backends.torch_calls import find_gpus
    from commbench.errors import InputError

    with pytest.raises(
        InputError, match=r"Backend torch-nccl needs a (GPU|torch built for CUDA), and torch 2\."
    ):
        find_gpus("torch-nccl")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("registered", "makes no registered buffers here"),
        ("barrier in a graph", "barrier waits on the host, which no graph can hold"),
        ("too large", "room for {share} KiB more; choose smaller --sizes"),
    ],
)
def test_what_cannot_be_measured_is_a_row(verified, how, reason):
    """Record on all ranks why a case cannot be measured, though one alone has no memory."""
    record = verified["measured"][how]
    assert "unsupported" == record["status"]
    assert reason.format(share=4 // verified["size"]) in record["reason"]


def bare(**attributes: Any) -> Any:
    """Return a communicator of two ranks that joined no process group."""
    from commbench.backends.torch_nccl import TorchNcclCommunicator

    communicator = object.__new__(TorchNcclCommunicator)
    fields = {
        "rank": 0,
        "size": 2,
        "_members": (0, 1),
        "_group": None,
        "_torch_device": torch.device("cpu"),
        "_pool": None,
    }
    vars(communicator).update(fields | attributes)
    return communicator


@pytest.mark.parametrize(
    "name",
    [
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        *("broadcast", "reduce", "gather", "scatter"),
    ],
)
def test_collectives_are_begun_and_waited_for(monkeypatch, name):
    """Start each collective on the group's stream, as DDP does, and let the current stream wait."""
    from commbench.backends import torch_calls
    from commbench.backends.torch_nccl import TensorBuffer

    calls = []

    def begin(*_: object, async_op: bool = False, **__: object) -> Any:
        calls.append("begun" if async_op else "on the current stream")
        return SimpleNamespace(wait=lambda: calls.append("waited"))

    function = torch_calls._FUNCTIONS[name].split()[0]
    monkeypatch.setattr(torch_calls.dist, function, begin, raising=False)
    send = receive = TensorBuffer(torch.zeros(4), DTYPES["float32"])
    if name not in {"all_reduce", "reduce"}:  # which are in place only
        receive = TensorBuffer(torch.zeros(4), DTYPES["float32"])
    call = bare().call(Request(name, send, receive, "sum"))
    assert [] == calls
    call.run()
    assert ["begun", "waited"] == calls
