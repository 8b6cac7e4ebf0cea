"""Hooks on the way that a GPU's gradients take, on Gloo ranks: as right as on the host, and never asking a tensor."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cuda_on_host
import pytest
from launching import found_by, run_gloo_ranks

torch = pytest.importorskip("torch")

from commbench.errors import InputError  # noqa: E402 - needs torch
from commbench.hooks import PowerSGD, randomk, selectors  # noqa: E402
from commbench.hooks.comm_stream import CommStream  # noqa: E402
from commbench.hooks.feedback import is_finite, put, spoil  # noqa: E402

MEMORIES = ("topk", "topk parameter fp16", "topk momentum", "randomk", "powersgd")
CHECKS = (
    *("asked", "density_one", "telescope", "resume", "scaled", "infinite", "shapes_and_options"),
    *("without_feedback", "compression_gradients", "low_rank"),
)
KINDS = (
    "torch",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not cuda_on_host.find_compiler(), reason="needs a C++ compiler")
    ),
)


@pytest.fixture(scope="module", params=KINDS)
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the checks find on two ranks, with elements selected in either way."""
    store = tmp_path_factory.mktemp("store") / "store"
    return found_by(run_gloo_ranks(2, "hooks_device.py", request.param, *CHECKS, store=store, timeout=280))


def test_asking_is_noticed(checked: Any) -> None:
    """Show that the other tests can fail."""
    assert "a hook asks what is in a tensor" in checked["asked"]


def test_density_one_is_dense(checked: Any) -> None:
    """Send everything at density 1."""
    for found in checked["density_one"].values():
        assert 1e-6 > found["error"]
        assert 0.0 == found["residual"]


def test_what_is_sent_and_what_is_left_is_everything(checked: Any) -> None:
    """Find each rank's summed gradients in its own messages and its last residual."""
    assert 1e-5 > checked["telescope"]


@pytest.mark.parametrize("name", MEMORIES)
def test_checkpoints_resume(checked: Any, name: str) -> None:
    """Go on from a checkpoint to the same bits."""
    assert {"parameters": True, "memory": True, "without the state": False} == checked["resume"][name]


@pytest.mark.parametrize("name", MEMORIES)
def test_scaler(checked: Any, name: str) -> None:
    """Change no bit by a scaler; drop the updates of every bucket of a step that it skips."""
    truths = ("same memory", "same parameters", "memory kept", "parameters kept", "goes on", "agree")
    numbers = {"scale": 512.0, "discarded": 1, "discarded later": 1}
    assert dict.fromkeys(truths, True) | numbers == checked["scaled"][name]


@pytest.mark.parametrize("name", MEMORIES)
def test_infinity_without_a_scaler(checked: Any, name: str) -> None:
    """Show one rank's infinity to all and keep it out of the residual."""
    assert {"seen by all": True, "kept": True, "clean": True, "goes on": True} == checked["infinite"][name]


def test_memory_layouts_and_options(checked: Any) -> None:
    """Be right for tensors in other memory orders, and under DDP's own options."""
    assert 10 == len(checked["shapes_and_options"])
    assert {} == {name: error for name, error in checked["shapes_and_options"].items() if not error < 1e-5}


def test_without_feedback(checked: Any) -> None:
    """Send the largest elements, or drawn elements times n/k, and remember nothing."""
    found = checked["without_feedback"]
    assert 1e-6 > max(found[name]["error"] for name in ("topk", "randomk"))
    assert [647, 0, 0] == [found["randomk"]["sent"], found["randomk"]["kept"], found["topk"]["kept"]]


def test_deep_gradient_compression(checked: Any) -> None:
    """Follow momentum correction, masking, clipping, warm-up and a changed learning rate as done by hand."""
    assert 1e-5 > checked["compression_gradients"]["error"]
    assert [100, 100, 20, 20, 10, 10, 10] == checked["compression_gradients"]["counts"]


def test_low_rank(checked: Any) -> None:
    """Send everything at full rank, and come close to the best of two columns with the steps."""
    found = checked["low_rank"]
    assert 1e-5 > max(found["full"], found["left"], found["everything"])
    assert 0.999 * found["best"] < found["later"] < 1.01 * found["best"]


@pytest.mark.parametrize("device", ["host", "device"])
@pytest.mark.parametrize("holds", [False, True])
def test_writing_under_a_truth_value(monkeypatch: pytest.MonkeyPatch, device: str, holds: bool) -> None:
    """Write a value or leave everything alone, spoil or spare, in another type, too."""
    if device == "device":
        monkeypatch.setattr("commbench.hooks.feedback.on_host", lambda _: False)
    flag = torch.tensor(holds)
    into, half, spoilt = torch.ones(3), torch.ones(3, dtype=torch.float16), torch.ones(3)
    put(into, torch.full((3,), 2.0), where=flag)
    put(half, torch.full((3,), 2.0), where=flag)
    spoil(spoilt, unless=flag)
    assert [2.0 if holds else 1.0] * 3 == into.tolist() == half.tolist()
    assert torch.float16 == half.dtype
    assert holds == bool(is_finite(spoilt))


def test_which_selection_serves_which_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Select on a GPU by cupy's kernels where it can compile them, else by torch, and by torch where that is asked."""
    made = []
    monkeypatch.setattr(selectors, "CudaSelector", lambda *arguments: made.append(arguments))
    gpu, host = torch.device("cuda", 1), torch.device("cpu")
    for has_kernels in (True, False):
        monkeypatch.setattr(selectors, "has_kernels", lambda _, has_kernels=has_kernels: has_kernels)
        found = selectors.make_selector(100, 3, "float32", fast=True, device=gpu)
        assert [(100, 3, "float32", gpu)] == made
        assert has_kernels == (found is None)
        assert has_kernels or isinstance(found, selectors.TorchSelector)
    assert isinstance(selectors.make_selector(9, 3, "float32", fast=False, device=gpu), selectors.TorchSelector)
    assert isinstance(selectors.make_selector(9, 3, "float32", fast=True, device=host), selectors.NativeSelector)


def test_kernels_need_a_gpu_of_nvidia_and_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for cupy only where torch's cuda is CUDA."""
    looked: list[str] = []
    monkeypatch.setattr(selectors.importlib.util, "find_spec", lambda name: looked.append(name) or name)
    for version, device, wanted in (("13.0", "cuda", True), (None, "cuda", False), ("13.0", "cpu", False)):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert wanted == selectors.has_kernels(torch.device(device))
    assert ["cupy"] == looked


def test_indices_stay_on_the_host_for_a_host() -> None:
    """Copy nothing where there is nothing to copy to."""
    indices = torch.arange(3)
    assert indices is randomk._moved(indices, torch.device("cpu"))


def test_jobs_are_queued_on_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for what the device has to do, run the job on the stream, and hand over its result there."""
    log: list[str] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            log.append(f"made for {device}")

        def wait_stream(self, other: str) -> None:
            log.append(f"wait for {other}")

    @contextlib.contextmanager
    def entered(_: Stream) -> Iterator[None]:
        log.append("enter")
        yield
        log.append("leave")

    class Future:
        def __init__(self, *, devices: list[Any]) -> None:
            assert [gpu] == devices

        def set_result(self, value: str) -> None:
            log.append(value)

    gpu = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"current of {device}")
    monkeypatch.setattr(torch.futures, "Future", Future)
    CommStream(gpu).submit(lambda: log.append("work") or "done")
    assert ["made for cuda:1", "wait for current of cuda:1", "enter", "work", "done", "leave"] == log


def test_powersgd_needs_a_device_whose_collectives_it_can_order() -> None:
    """Refuse a model that is neither on the host nor on a GPU."""
    model: Any = SimpleNamespace(module=torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(InputError, match="on the host or on one GPU, this one is on meta"):
        PowerSGD().attach(model, None)
