"""The GPUs that cupy finds on this host, and whether it finds NCCL."""

from __future__ import annotations

import importlib
import socket

import cupy

from commbench.errors import InputError


def find_gpus(backend: str) -> list[str]:
    """The PCI addresses of the GPUs that CUDA shows this process, in its order: at least one.

    Args:
        backend: what needs them, for the sentence.

    Raises:
        InputError: this host has none that CUDA can use.
    """
    runtime = cupy.cuda.runtime
    try:
        found = [str(runtime.deviceGetPCIBusId(number)) for number in range(runtime.getDeviceCount())]
        reason = ""
    except runtime.CUDARuntimeError as error:
        found, reason = [], f" ({str(error).partition(': ')[2] or error})"
    if not found:
        raise InputError(f"Backend {backend} needs a GPU, and CUDA finds none on {socket.gethostname()}{reason}.")
    return found


def check_nccl() -> None:
    """Notice that NCCL is missing: cupy is imported without a word then, and has none of its functions.

    Raises:
        InputError: it is, or it is too old for this cupy.
    """
    from cupy.cuda import nccl

    if getattr(nccl, "available", True) and hasattr(nccl, "get_version"):
        return
    cuda = cupy.cuda.runtime.runtimeGetVersion() // 1000
    raise InputError(
        f"Backend nccl needs NCCL, and cupy {cupy.__version__} finds none that it can use on {socket.gethostname()}"
        f"{_why_no_nccl()}: pip install nvidia-nccl-cu{cuda}."
    )


def _why_no_nccl() -> str:
    """What cupy has swallowed, in brackets."""
    try:
        importlib.import_module("cupy_backends.cuda.libs.nccl")
    except ImportError as error:
        return f" ({error})"
    return ""
