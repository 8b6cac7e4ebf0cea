"""Reports of an MPI library: what it prints at its start, and whether it accepts GPU memory."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: MPIX_GPU_SUPPORT_CUDA (MPICH's mpi.h).
_GPU_CUDA = 0


class Captured:
    """Text that was written to a file descriptor."""

    text = ""


@contextmanager
def captured(descriptor: int) -> Iterator[Captured]:
    """Collect the text that libraries write to a file descriptor, including text in C's buffers."""
    output, flush_c = Captured(), ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush_c(None)
    saved = os.dup(descriptor)
    with tempfile.TemporaryFile() as scratch:
        os.dup2(scratch.fileno(), descriptor)
        try:
            yield output
        finally:
            sys.stdout.flush()
            flush_c(None)
            os.dup2(saved, descriptor)
            os.close(saved)
            scratch.seek(0)
            output.text = scratch.read().decode(errors="replace")


def takes_gpu_memory(library: Any) -> bool:
    """Return whether an initialised MPI library reports that it accepts addresses in the memory of
    NVIDIA's GPUs.

    Open MPI and MPICH have MPIX_Query_cuda_support; MPICH's result depends on MPIR_CVAR_ENABLE_GPU.
    Older versions of MPICH have only MPIX_GPU_query_support. A library with neither function counts
    as one that denies: it would use such an address as one in host memory.
    """
    query = getattr(library, "MPIX_Query_cuda_support", None)
    if query is not None:
        return bool(query())
    query, answer = getattr(library, "MPIX_GPU_query_support", None), ctypes.c_int()
    return query is not None and query(_GPU_CUDA, ctypes.byref(answer)) == 0 and bool(answer.value)
