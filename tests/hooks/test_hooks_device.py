"""Tests of what hooks choose for a device: conditions, selections and kernels.

Those on ranks are in test_hooks_ranks.py.
"""

import sys
from types import SimpleNamespace

import cuda_on_host
import pytest
from cuda_on_host import needs_compiler
from training_builders import make_training_case

torch = pytest.importorskip("torch")

from commbench.ddp import session
from commbench.errors import InputError
from commbench.hooks import PowerSGD, chunks, quantisers, selectors
from commbench.hooks.feedback import is_finite, poison, put


@pytest.mark.parametrize("device", ["host", "device"])
@pytest.mark.parametrize("holds", [False, True])
def test_writing_under_a_truth_value(stub, device, holds):
    """Write or keep a value by a condition on the device, in any data type."""
    if device == "device":
        stub("commbench.hooks.feedback.on_host", value=False)
    flag = torch.tensor(holds)
    into, half, poisoned = torch.ones(3), torch.ones(3, dtype=torch.float16), torch.ones(3)
    put(into, torch.full((3,), 2.0), where=flag)
    put(half, torch.full((3,), 2.0), where=flag)
    poison(poisoned, unless=flag)
    assert [2.0 if holds else 1.0] * 3 == into.tolist() == half.tolist()
    assert torch.float16 == half.dtype
    assert holds == bool(is_finite(poisoned))


def test_which_selection_serves_which_device(monkeypatch):
    """Choose compiled selection if its compiler is installed, else torch, or torch on request."""
    monkeypatch.setattr(selectors, "CudaSelector", lambda *arguments: arguments)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    gpu, host = torch.device("cuda", 1), torch.device("cpu")
    assert (100, 3, "float32", gpu) == made_with(monkeypatch, "cupy", gpu, fast=True)
    assert isinstance(made_with(monkeypatch, "numba", host, fast=True), selectors.NativeSelector)
    for installed, device, fast in (
        ("numba", gpu, True),
        ("cupy", host, True),
        ("cupy", gpu, False),
    ):
        assert isinstance(
            made_with(monkeypatch, installed, device, fast=fast), selectors.TorchSelector
        )


def made_with(
    monkeypatch: pytest.MonkeyPatch, installed: str, device: torch.device, *, fast: bool
) -> object:
    """Return a selector of 3 of 100 elements on a device with one package installed."""
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: name if name == installed else None
    )
    return selectors.make_selector(100, 3, "float32", fast=fast, device=device)


HOST = torch.device("cpu")


@pytest.fixture
def cuda(monkeypatch, stub):
    """Return kernels compiled for the host, and their record of launches."""
    stub("commbench.hooks.compilers.find_compiler", "cupy")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with cuda_on_host.installed() as launches:
        yield launches


@needs_compiler
@pytest.mark.parametrize("module", [selectors, quantisers])
def test_every_kernel_is_compiled_and_launched_beforehand(cuda, module):
    """Compile and load all kernels before the first step."""
    module.prepare(HOST)
    assert set(module.KERNELS) == {name for name, _ in cuda}


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("lacks", "quoted"),
    [("cupy", "import of cupy halted"), ("headers", "auto-detect CUDA root directory")],
)
def test_a_cupy_that_cannot_compile_is_bad_input(monkeypatch, lacks, quoted):
    """Quote cupy's error, and what to install."""
    if lacks == "headers":
        monkeypatch.setattr(sys.modules["cupy"], "RawModule", cuda_on_host.without_headers)
    else:
        monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match=quoted) as caught:
        selectors.prepare(HOST)
    assert "pip install 'cupy-cuda13x[ctk]'" in str(caught.value)


@pytest.mark.parametrize(
    ("hooks", "compiled", "selection"),
    [
        (("none", "passthrough", "powersgd:1", "local"), [], None),
        (("none", "topk:0.1:selection=exact"), [], None),
        (("topk:0.1:selection=exact", "topk:0.1"), [selectors], "torch.topk"),
        (("topk:0.1:values=float16",), [selectors], "torch.topk"),
        (("topk:0.1:exchange=aligned",), [chunks], None),
    ],
)
def test_only_what_is_used_is_compiled(
    monkeypatch,
    stub,
    hooks,
    compiled,
    selection,
):
    """Compile what the hooks use before their cases, for the training's device, and name the
    selection.
    """
    begun = []
    for module in (chunks, selectors):
        monkeypatch.setattr(
            module, "prepare", lambda *on, module=module: begun.append((module, *on))
        )
    stub("importlib.util.find_spec", None)
    cases = [make_training_case(hook, backend="nccl") for hook in hooks]
    gpu = SimpleNamespace(torch_device=torch.device("cuda", 1))
    session.compile_hooks(cases, gpu.torch_device)
    assert [(module, gpu.torch_device) for module in compiled] == begun
    assert selection == session.fast_selection(cases, gpu)


def test_powersgd_needs_a_device_whose_collectives_it_can_order():
    """Refuse PowerSGD on a device that is neither host nor GPU."""
    model = SimpleNamespace(module=torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(InputError, match="on the host or on one GPU, this one is on meta"):
        PowerSGD().attach(model, None)


@pytest.mark.parametrize("architecture", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
@pytest.mark.parametrize(
    ("module", "threads", "warps"), [(selectors, 1024, 64), (quantisers, 256, 32)]
)
def test_the_source_compiles_for_gpus(module, threads, warps, architecture):
    """Compile without warnings and without spilling, in registers that let so many warps of a
    multiprocessor be resident: all of them, or half.
    """
    registers = cuda_on_host.registers_on_gpu(module, architecture, threads)
    assert 65_536 // (32 * warps) >= max(registers)
