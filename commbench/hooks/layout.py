"""The layout of a bucket's buffer: the position, shape and strides of each tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One tensor's part of a bucket: elements ``start`` to ``start + numel``, with the strides
    ``stride``.
    """

    name: str
    start: int
    numel: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, flat: Tensor) -> Tensor:
        """Return the span of ``flat``, shape (bucket numel,), as a tensor of the parameter's
        shape.
        """
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.start)

    def flat(self, flat: Tensor) -> Tensor:
        """Return the span of ``flat`` in memory order, shape (numel,)."""
        return flat[self.start : self.start + self.numel]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """The tensors of one bucket in the order of its buffer.

    One object as long as the tensors stay the same.

    DDP uses one large bucket in the first step, then rebuilds its buckets in the order in which
    gradients were ready.
    """

    parameters: tuple[torch.nn.Parameter, ...]
    spans: tuple[Span, ...]
    numel: int

    @classmethod
    def of(cls, bucket: dist.GradBucket, names: Mapping[int, str]) -> Self:
        """Return the layout of a bucket; ``names`` maps the parameters' ``id`` to names."""
        spans, start = [], 0
        parameters = tuple(bucket.parameters())
        for parameter in parameters:
            shape, numel = tuple(parameter.shape), parameter.numel()
            name, stride = names[id(parameter)], _stride_in_bucket(shape, tuple(parameter.stride()))
            spans.append(Span(name=name, start=start, numel=numel, shape=shape, stride=stride))
            start += numel
        return cls(parameters=parameters, spans=tuple(spans), numel=start)

    def holds(self, parameters: Sequence[torch.nn.Parameter]) -> bool:
        """Return whether the bucket consists of these parameter objects, in this order."""
        return list(map(id, self.parameters)) == list(map(id, parameters))


def _stride_in_bucket(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a gradient in its bucket: the parameter's own if dense in memory, else
    row-major.

    ``GradBucket.gradients()`` does not show it: it returns every tensor as row-major.
    """
    expected = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda pair: (pair[1], pair[0])):
        if size != 1 and step != expected:
            return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        expected *= size
    return stride
