"""The k largest elements of a tensor as bytes of a message, and back: compiled for the host or a GPU, or by torch."""

from __future__ import annotations

import importlib.util
from typing import Protocol

import torch

from commbench.errors import InputError
from commbench.hooks.feedback import put
from commbench.hooks.message import INDEX_BYTES, ValueType

DTYPES = {"float32": torch.float32, "float16": torch.float16}
#: What selects where nothing is compiled.
SLOW = "torch.topk"


class Selector(Protocol):
    """Selects k of n elements; a payload is uint8: k int32 indices, then k values.

    On a device all is only queued, on the stream under way: nothing is asked, for the host would have to wait.
    """

    def encode(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        *,
        out_residual: torch.Tensor | None,
        step: int,
    ) -> None:
        """Write the payload of a = gradient + residual, and to ``out_residual`` what stays of a.

        ``gradient`` may be overwritten. Where a is not finite: NaN in the payload's values, ``out_residual`` untouched.
        """

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Add the values of a payload to ``into``, shape (n,), at its indices."""


class TorchSelector:
    """``torch.topk``: the reference, and what works on any device."""

    def __init__(self, k: int, values: ValueType) -> None:
        self._k = k
        self._dtype = DTYPES[values]

    def encode(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        *,
        out_residual: torch.Tensor | None,
        step: int,  # noqa: ARG002 - which of equal elements torch.topk takes is its own affair
    ) -> None:
        """As `Selector.encode`."""
        total = gradient if residual is None else gradient.add_(residual)
        magnitudes, chosen = torch.topk(total.abs(), self._k, sorted=False)
        finite = magnitudes.isfinite().all()  # torch.topk, too, takes what is not finite for the largest
        indices, values = split(payload, self._k, self._dtype)
        indices.copy_(chosen)
        values.fill_(torch.nan)
        put(values, total[chosen].clamp_(-_largest(self._dtype), _largest(self._dtype)), where=finite)
        if out_residual is not None:
            put(out_residual, total.index_add_(0, chosen, values.to(total.dtype), alpha=-1), where=finite)

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """As `Selector.add`."""
        indices, values = split(payload, self._k, self._dtype)
        into.index_add_(0, indices, values.to(into.dtype))


class NativeSelector:
    """The compiled selection of `commbench.hooks.compression`, on the host's memory."""

    def __init__(self, n: int, k: int, values: ValueType) -> None:
        from commbench.hooks.compression.selection import TopKSelector, decode_add

        self._n, self._k, self._values = n, k, values
        self._selector = TopKSelector(n, k, value_dtype=values)
        self._decode_add = decode_add

    def encode(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        *,
        out_residual: torch.Tensor | None,
        step: int,
    ) -> None:
        """As `Selector.encode`."""
        old = None if residual is None else residual.numpy()
        new = None if out_residual is None else out_residual.numpy()
        self._selector.encode(gradient.numpy(), old, payload.numpy(), out_residual=new, step=step)

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """As `Selector.add`."""
        self._decode_add(payload.numpy(), self._n, self._k, self._values, into.numpy())


class CudaSelector:
    """The CUDA kernels of `commbench.hooks.compression`, on a GPU's memory, all of which is torch's."""

    def __init__(self, n: int, k: int, values: ValueType, device: torch.device) -> None:
        from commbench.hooks.compression.cuda import CudaTopK, scratch_bytes

        self._scratch = torch.zeros(scratch_bytes(n), dtype=torch.uint8, device=device)
        self._selector = CudaTopK(n, k, scratch=self._scratch.data_ptr(), value_dtype=values, device=device.index)

    def encode(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        *,
        out_residual: torch.Tensor | None,
        step: int,
    ) -> None:
        """As `Selector.encode`."""
        sums = torch.empty_like(gradient) if out_residual is None else out_residual
        self._selector.encode(
            gradient.data_ptr(),
            0 if residual is None else residual.data_ptr(),
            payload.data_ptr(),
            out_residual=sums.data_ptr(),
            step=step,
            stream=stream_of(gradient.device),
        )

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """As `Selector.add`; an index that is not there becomes NaN."""
        self._selector.add(payload.data_ptr(), into.data_ptr(), stream=stream_of(into.device))


def make_selector(n: int, k: int, values: ValueType, *, fast: bool, device: torch.device) -> Selector:
    """The compiled selection if ``fast`` and there is one for the device, else torch's."""
    compiler = fast_selection(device) if fast else SLOW
    if compiler == "numba":
        return NativeSelector(n, k, values)
    return CudaSelector(n, k, values, device) if compiler == "cupy" else TorchSelector(k, values)


def prepare(device: torch.device) -> None:
    """Compile what `make_selector` makes for a device, or load it from a cache, so that no step has to wait for it.

    Raises:
        InputError: it cannot be compiled; the sentence says what is missing.
    """
    compiler = fast_selection(device)
    if compiler == "numba":
        from commbench.hooks.compression.selection import prepare as prepare_host

        prepare_host()
    elif compiler == "cupy":
        _prepare_kernels(device)


def _prepare_kernels(device: torch.device) -> None:
    """Compile the CUDA kernels and launch each once: the driver may load them no sooner."""
    try:
        selector = CudaSelector(4, 2, "float32", device)
    except Exception as error:  # cupy has many ways to say that it lacks a library or CUDA's headers
        said = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"Hook topk selects on this GPU by kernels that cupy cannot compile ({said:.200}): "
            f"pip install '{cupy_wheel()}', or give the hook selection=exact."
        ) from error
    elements = torch.ones(4, device=device)
    payload = torch.zeros(16, dtype=torch.uint8, device=device)
    selector.encode(elements, None, payload, out_residual=None, step=0)
    selector.add(payload, elements)


def cupy_wheel() -> str:
    """The package of cupy for torch's CUDA, with the compiler and the headers that it needs."""
    return f"cupy-cuda{str(torch.version.cuda).partition('.')[0]}x[ctk]"


def fast_selection(device: torch.device) -> str:
    """What selects on a device where ``selection=fast`` is asked for: ``numba``, ``cupy``, or `SLOW` without these."""
    compiler = _compiler_for(device)
    return compiler if compiler and importlib.util.find_spec(compiler) else SLOW


def _compiler_for(device: torch.device) -> str | None:
    """The package that compiles commbench's selection for a device; torch calls AMD's GPUs cuda, too."""
    if device.type == "cpu":
        return "numba"
    return "cupy" if device.type == "cuda" and torch.version.cuda is not None else None


def stream_of(device: torch.device) -> int:
    """The number of the stream under way on a GPU."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def split(payload: torch.Tensor, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The k int32 indices and the k values in a payload, which they share memory with."""
    return payload[: INDEX_BYTES * k].view(torch.int32), payload[INDEX_BYTES * k :].view(dtype)[:k]


def _largest(dtype: torch.dtype) -> float:
    """Beyond this a value cannot be sent; what is cut off stays in the residual."""
    return float(torch.finfo(dtype).max)
