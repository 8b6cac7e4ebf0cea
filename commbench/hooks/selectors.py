"""Selection of the k largest elements of a tensor into a message: compiled for the host or a GPU,
or by torch.
"""

from __future__ import annotations

import torch

from commbench.hooks.compilers import compile_error, find_compiler, stream_of
from commbench.hooks.feedback import put
from commbench.hooks.message import INDEX_BYTES, ValueType

DTYPES = {"float32": torch.float32, "float16": torch.float16}
#: The selection if none is compiled.
SLOW = "torch.topk"


class TorchSelector:
    """Selects k of n elements by ``torch.topk``, on any device; compiled selection inherits it.

    A payload is uint8: k int32 indices, then k values.

    On a device everything is queued on the current stream; the host never waits.
    """

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
        step: int,  # noqa: ARG002 - torch.topk decides among equal elements
    ) -> None:
        """Write the payload of a = gradient + residual, and the unsent part of a to
        ``out_residual``.

        ``gradient`` may be overwritten. If a is not finite, the payload's values are NaN and
        ``out_residual`` is kept.
        """
        total = gradient if residual is None else gradient.add_(residual)
        magnitudes, positions = torch.topk(total.abs(), self._k, sorted=False)
        finite = magnitudes.isfinite().all()  # torch.topk treats infinity and NaN as the largest
        indices, values = split(payload, self._k, self._dtype)
        indices.copy_(positions)
        values.fill_(torch.nan)
        put(
            values,
            total[positions].clamp_(-_largest(self._dtype), _largest(self._dtype)),
            where=finite,
        )
        if out_residual is not None:
            put(
                out_residual,
                total.index_add_(0, positions, values.to(total.dtype), alpha=-1),
                where=finite,
            )

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Add the values of a payload to ``into``, shape (n,), at its indices."""
        indices, values = split(payload, self._k, self._dtype)
        into.index_add_(0, indices, values.to(into.dtype))


class NativeSelector(TorchSelector):
    """The compiled selection of `commbench.hooks.compression` on host memory."""

    def __init__(self, n: int, k: int, values: ValueType) -> None:
        from commbench.hooks.compression.selection import TopKSelector, decode_add

        super().__init__(k, values)
        self._n, self._values = n, values
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
        """See `TorchSelector.encode`."""
        old = None if residual is None else residual.numpy()
        new = None if out_residual is None else out_residual.numpy()
        self._selector.encode(gradient.numpy(), old, payload.numpy(), out_residual=new, step=step)

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """See `TorchSelector.add`."""
        self._decode_add(payload.numpy(), self._n, self._k, self._values, into.numpy())


class CudaSelector(TorchSelector):
    """The CUDA kernels of `commbench.hooks.compression` on GPU memory, which torch allocates."""

    def __init__(self, n: int, k: int, values: ValueType, device: torch.device) -> None:
        from commbench.hooks.compression.cuda import CudaTopK, scratch_bytes

        super().__init__(k, values)
        self._scratch = torch.zeros(scratch_bytes(n), dtype=torch.uint8, device=device)
        self._selector = CudaTopK(
            n, k, scratch=self._scratch.data_ptr(), value_dtype=values, device=device.index
        )

    def encode(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        *,
        out_residual: torch.Tensor | None,
        step: int,
    ) -> None:
        """See `TorchSelector.encode`."""
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
        """See `TorchSelector.add`; an index out of range makes an element NaN."""
        self._selector.add(payload.data_ptr(), into.data_ptr(), stream=stream_of(into.device))


def make_selector(
    n: int, k: int, values: ValueType, *, fast: bool, device: torch.device
) -> TorchSelector:
    """Return the compiled selection if ``fast`` and the device has one, else torch's."""
    compiler = fast_selection(device) if fast else SLOW
    if compiler == "numba":
        return NativeSelector(n, k, values)
    return CudaSelector(n, k, values, device) if compiler == "cupy" else TorchSelector(k, values)


def prepare(device: torch.device) -> None:
    """Compile the selection for a device, or load it from a cache, so that no step waits for it.

    Raises:
        InputError: it cannot be compiled; the message names what is missing.
    """
    compiler = fast_selection(device)
    if compiler == "numba":
        from commbench.hooks.compression.selection import prepare as prepare_host

        prepare_host()
    elif compiler == "cupy":
        _prepare_kernels(device)


def _prepare_kernels(device: torch.device) -> None:
    """Compile the CUDA kernels and launch each once: the driver may load a kernel at its first
    launch.
    """
    try:
        selector = CudaSelector(4, 2, "float32", device)
    except (
        Exception
    ) as error:  # cupy raises errors of many types if a library or CUDA's headers are missing
        raise compile_error(
            error, work="topk selects", alternative="give the hook selection=exact"
        ) from error
    elements = torch.ones(4, device=device)
    payload = torch.zeros(16, dtype=torch.uint8, device=device)
    selector.encode(elements, None, payload, out_residual=None, step=0)
    selector.add(payload, elements)


def fast_selection(device: torch.device) -> str:
    """Return the package behind ``selection=fast`` on a device: ``numba``, ``cupy``, or `SLOW`
    without these.
    """
    return find_compiler(device) or SLOW


def split(payload: torch.Tensor, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k int32 indices and the k values of a payload, as views."""
    return payload[: INDEX_BYTES * k].view(torch.int32), payload[INDEX_BYTES * k :].view(dtype)[:k]


def _largest(dtype: torch.dtype) -> float:
    """Return the largest value that can be sent.

    Values are clipped to it, and the rest stays in the residual.
    """
    return float(torch.finfo(dtype).max)
