"""Which package compiles the local work of hooks for a device, and what to say if it cannot."""

from __future__ import annotations

import importlib.util

import torch

from commbench.errors import InputError


def find_compiler(device: torch.device) -> str | None:
    """Return the package that compiles for a device, ``numba`` or ``cupy``; None without it.

    torch's device type ``cuda`` includes AMD's GPUs, for which cupy's kernels are not meant.
    """
    compiler = {"cpu": "numba", "cuda": "cupy" if torch.version.cuda is not None else None}.get(
        device.type
    )
    return compiler if compiler and importlib.util.find_spec(compiler) else None


def compile_error(error: Exception, *, work: str, alternative: str) -> InputError:
    """Return the error of a hook whose kernels cupy cannot compile.

    Args:
        error: of cupy, which raises many types if a library or CUDA's headers are missing.
        work: the hook and what it does, such as ``topk selects``.
        alternative: what a user can do without kernels.
    """
    reason = " ".join(str(error).split()).rstrip(".")
    return InputError(
        f"Hook {work} on this GPU by kernels that cupy cannot compile ({reason:.200}): "
        f"pip install '{cupy_wheel()}', or {alternative}."
    )


def cupy_wheel() -> str:
    """Return the cupy package for torch's CUDA version, with compiler and headers."""
    return f"cupy-cuda{str(torch.version.cuda).partition('.')[0]}x[ctk]"


def stream_of(device: torch.device) -> int:
    """Return the handle of a GPU's current stream."""
    return int(torch.cuda.current_stream(device).cuda_stream)
