"""Run on Gloo ranks: the checks of hooks_check.py on the device path with host reads forbidden, by
torch or kernels.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hooks_check
import torch
from gloo import run_checks
from torch.utils._python_dispatch import TorchDispatchMode

from commbench.hooks import (
    Int8,
    PowerSGD,
    TopK,
    chunks,
    feedback,
    int8,
    powersgd,
    quantisers,
    selectors,
    topk,
)
from commbench.hooks.base import Hook
from commbench.hooks.chunks import TorchChunks

sys.path.append(str(Path(__file__).parents[1]))
import cuda_on_host

#: What makes the host wait for a device: a number, a truth value, a shape that depends on what is
#: there.
ASKING = (
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "equal",
    "unique",
    "_unique2",
)


class HostReadsForbidden(TorchDispatchMode):
    """Raise if the host reads the content of a tensor."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Run every other function."""
        name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else ""
        assert name not in ASKING, f"a hook asks what is in a tensor, by {name}"
        return func(*args, **(kwargs or {}))


def without_host_reads(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with host reads forbidden."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with HostReadsForbidden():
            return function(*args, **kwargs)

    return call


def work_by(kind: str) -> None:
    """Select elements and quantise by torch, or by kernels that are compiled for the host."""
    if kind == "torch":
        topk.make_selector = lambda _n, k, values, **_: selectors.TorchSelector(k, values)
        int8.make_quantiser = lambda layout, _: quantisers.TorchQuantiser(layout)
        return
    simulation = cuda_on_host.installed()
    simulation.__enter__()  # as long as this process
    topk.make_selector = lambda n, k, values, *, device, **_: selectors.CudaSelector(
        n, k, values, device
    )
    int8.make_quantiser = quantisers.CudaQuantiser


def use_device_path() -> None:
    """Make hooks treat tensors as device tensors, and forbid host reads."""
    for module in (chunks, feedback, powersgd, topk):
        module.on_host = lambda _: False
    TopK.prepare = Int8.prepare = staticmethod(lambda _: None)
    chunks.make_chunks = lambda layout, device, **_: TorchChunks(layout, device)
    jobs = ((PowerSGD, "_refine"), (Int8, "_reduce"), (TorchChunks, "take"))
    for owner, name in ((Hook, "run"), (Hook, "_finished"), *jobs):
        setattr(owner, name, without_host_reads(getattr(owner, name)))


def host_read_error() -> str:
    """Return the error that a host read raises, to show that the checks can fail."""
    try:
        without_host_reads(bool)(torch.ones(()))
    except AssertionError as error:
        return str(error)
    return ""


#: Hooks that kernels serve; those of aligned top-k are torch's in both cases.
ON_KERNELS = ("topk", "int8")
#: What a device does not change.
NOT_ON_DEVICES = ("feedback", "two_models", "train")
#: What is checked for each hook with a memory.
OF_MEMORIES = ("resume", "scaled", "infinite")


def check_all(kind: str, *memories: str) -> dict[str, Any]:
    """Return the results of all checks with this work; of memories, those that it serves."""
    work_by(kind)
    checks = {
        name: check for name, check in hooks_check.CHECKS.items() if name not in NOT_ON_DEVICES
    }
    checks |= {"asked": host_read_error}
    if kind == "cuda":
        memories = tuple(name for name in memories if name.startswith(ON_KERNELS))
    return {
        name: check(*memories) if name in OF_MEMORIES else check() for name, check in checks.items()
    }


if __name__ == "__main__":
    use_device_path()
    run_checks(
        {kind: functools.partial(check_all, kind) for kind in ("torch", "cuda")}, sys.argv[1:]
    )
