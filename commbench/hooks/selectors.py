"""The k largest elements of a tensor as bytes of a message, and back: by torch anywhere, or compiled on the host."""

from __future__ import annotations

from typing import Protocol

import torch

from commbench.hooks.feedback import is_finite
from commbench.training.message import INDEX_BYTES, Values

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class Selector(Protocol):
    """Selects k of n elements; a payload is uint8: k int32 indices, then k values."""

    def encode(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        *,
        out_residual: torch.Tensor | None,
        step: int,
    ) -> bool:
        """Write the payload of a = gradient + residual, and to ``out_residual`` what stays of a.

        ``gradient`` may be overwritten. Where a is not finite: False, NaN in the payload, ``out_residual`` untouched.
        """

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Add the values of a payload to ``into``, shape (n,), at its indices."""


class TorchSelector:
    """``torch.topk``: the reference, and what works on any device."""

    def __init__(self, k: int, values: Values) -> None:
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
    ) -> bool:
        """As `Selector.encode`."""
        total = gradient if residual is None else gradient.add_(residual)
        chosen = torch.topk(total.abs(), self._k, sorted=False).indices
        indices, values = split(payload, self._k, self._dtype)
        indices.copy_(chosen)
        if not is_finite(total):
            values.fill_(torch.nan)
            return False
        exact = total[chosen]
        values.copy_(exact.clamp_(-_largest(self._dtype), _largest(self._dtype)))
        if out_residual is not None:
            out_residual.copy_(total).index_add_(0, chosen, values.to(total.dtype), alpha=-1)
        return True

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """As `Selector.add`."""
        indices, values = split(payload, self._k, self._dtype)
        into.index_add_(0, indices, values.to(into.dtype))


class NativeSelector:
    """The compiled selection of `commbench.compression`, on the host's memory."""

    def __init__(self, n: int, k: int, values: Values) -> None:
        from commbench.compression.selection import TopKSelector, decode_add

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
    ) -> bool:
        """As `Selector.encode`."""
        old = None if residual is None else residual.numpy()
        new = None if out_residual is None else out_residual.numpy()
        return bool(self._selector.encode(gradient.numpy(), old, payload.numpy(), out_residual=new, step=step))

    def add(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """As `Selector.add`."""
        self._decode_add(payload.numpy(), self._n, self._k, self._values, into.numpy())


def split(payload: torch.Tensor, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The k int32 indices and the k values in a payload, which they share memory with."""
    return payload[: INDEX_BYTES * k].view(torch.int32), payload[INDEX_BYTES * k :].view(dtype)[:k]


def _largest(dtype: torch.dtype) -> float:
    """Beyond this a value cannot be sent; what is cut off stays in the residual."""
    return float(torch.finfo(dtype).max)
