"""What a hook sends for a bucket, and what its local work costs: the link between a setting and the network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias, cast

import numpy as np

from commbench.collectives.datatypes import DTYPES
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError
from commbench.hooks.message import Selection, Values, kept, matrix_sides
from commbench.units import TRUTH

#: Each tensor of a bucket as its shape; None where only the number of elements is known.
Shapes: TypeAlias = Sequence[Sequence[int]] | None
#: Bytes of an element of a gradient.
FLOAT32_BYTES = 4
#: Buckets whose sizes differ by less than this factor tell no fixed cost from one that grows with the size.
ALIKE = 2.0
#: Options of top-k under which what is sent depends on the single tensors.
_BY_TENSOR = ("scope", "dense_below", "dense_vectors")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One collective of a hook for a bucket."""

    operation: str
    dtype: str
    """Of what is added up; an all_gather adds nothing, and ``float32`` stands for any."""
    message_bytes: float
    """As in ``collectives.csv``: the total of all ranks for an all_gather."""


def messages_of(
    case: TrainingCase, elements: int, world_size: int, *, shapes: Shapes = None, dtype: str = "float32"
) -> tuple[Message, ...]:
    """The collectives that a case's hook issues for a bucket of gradients, in order, after any warm-up.

    Args:
        case: the configuration; none where it is the step without DDP.
        elements: of the bucket.
        world_size: number of ranks.
        shapes: of the bucket's tensors, in its order; for hooks that treat tensors differently.
        dtype: of the gradients; hooks that compress by leaving out take float32 only.

    Raises:
        InputError: what the hook sends cannot be told from the number of elements, and no shapes are given.
    """
    if not case.uses_ddp:
        return ()
    sent = _SENT_AS.get(case.hook, dtype)
    if sent is not None:
        return _all_reduce(elements, sent)
    return _COMPRESSED[case.hook](case, elements, world_size, shapes)


def needs_shapes(case: TrainingCase) -> bool:
    """Whether what a case's hook sends depends on more than the number of elements."""
    return case.hook == "powersgd" or (case.hook == "topk" and any(name in case.options for name in _BY_TENSOR))


def _all_reduce(elements: int, dtype: str = "float32") -> tuple[Message, ...]:
    return (Message(operation="all_reduce", dtype=dtype, message_bytes=elements * DTYPES[dtype].itemsize),)


def _top_k(case: TrainingCase, elements: int, world_size: int, shapes: Shapes) -> tuple[Message, ...]:
    """One all_gather of k indices and values a rank with the tensors sent whole; dense buckets are all-reduced."""
    if shapes is None and needs_shapes(case):
        raise _unknown(case)
    message = _selection(case).message([(elements, 1)] if shapes is None else shapes)
    if not message.sparse:
        return _all_reduce(elements)
    return (Message(operation="all_gather", dtype="float32", message_bytes=world_size * message.nbytes),)


def _selection(case: TrainingCase) -> Selection:
    options = case.options
    return Selection(
        density=case.density or 1.0,
        values=cast("Values", options.get("values", "float32")),
        scope=options.get("scope", "bucket"),
        dense_below=int(options.get("dense_below", "0")),
        dense_vectors=TRUTH[options.get("dense_vectors", "false").lower()],
    )


def _power_sgd(case: TrainingCase, _elements: int, _size: int, shapes: Shapes) -> tuple[Message, ...]:
    """The left factors with all that is sent whole, then the right factors."""
    if shapes is None:
        raise _unknown(case)
    rank, rate = int(case.options.get("rank", "1")), float(case.options.get("min_compression_rate", "2"))
    sides = [matrix_sides(shape, rank=rank, min_compression_rate=rate) for shape in shapes]
    right = sum(columns * r for side in sides if side for _, columns, r in [side])
    left = sum(side[0] * side[2] if side else math.prod(shape) for side, shape in zip(sides, shapes, strict=True))
    return _all_reduce(left) + (_all_reduce(right) if right else ())


def _unknown(case: TrainingCase) -> InputError:
    return InputError(
        f"What hook {case.hook_name} sends was asked for from the number of elements alone, but it depends on the "
        "shapes of the tensors: give these, from an inspection of the workload."
    )


#: The type in which a hook sends every element, where that is not the gradients' own; None: it leaves elements out.
_SENT_AS: Mapping[str, str | None] = MappingProxyType(
    {"fp16": "float16", "bf16": "bfloat16", "topk": None, "randomk": None, "powersgd": None}
)
_COMPRESSED: Mapping[str, Callable[[TrainingCase, int, int, Shapes], tuple[Message, ...]]] = MappingProxyType(
    {
        "topk": _top_k,
        "randomk": lambda case, elements, _size, _shapes: _all_reduce(kept(elements, case.density or 1.0)),
        "powersgd": _power_sgd,
    }
)


@dataclass(frozen=True, kw_only=True)
class HookCost:
    """Local work of a hook on a bucket of n elements: linear in n; milliseconds."""

    encode_ms: float = 0.0
    """Per bucket, on the thread of the backward pass."""
    encode_ms_per_element: float = 0.0
    decode_ms: float = 0.0
    """Per bucket, after the communication; for ``world_size`` ranks as calibrated."""
    decode_ms_per_element: float = 0.0

    @classmethod
    def of(cls, records: Iterable[TrainingRecord]) -> HookCost:
        """What measured buckets of one hook show; nothing for hook none, whose own work DDP does while it copies.

        A record tells what each bucket costs altogether and which part of all buckets' cost is encoding: that part is
        taken to be the same for every bucket.
        """
        elements: list[float] = []
        encode: list[float] = []
        decode: list[float] = []
        for record in records:
            share = _encoding_share(record)
            for bucket in record.buckets if record.case.hook != "none" else ():
                elements.append(bucket.size_bytes / FLOAT32_BYTES)
                encode.append(share * bucket.compress_ms)
                decode.append((1 - share) * bucket.compress_ms)
        encode_ms, encode_ms_per_element = _line(elements, encode)
        decode_ms, decode_ms_per_element = _line(elements, decode)
        return cls(
            encode_ms=encode_ms,
            encode_ms_per_element=encode_ms_per_element,
            decode_ms=decode_ms,
            decode_ms_per_element=decode_ms_per_element,
        )

    def faster(self, factor: float) -> HookCost:
        """The same work by a rank that is so many times as fast."""
        return HookCost(**{name: cost / factor for name, cost in dataclasses.asdict(self).items()})

    def encoding_ms(self, elements: float) -> float:
        """The time to encode a bucket, in milliseconds."""
        return self.encode_ms + self.encode_ms_per_element * elements

    def decoding_ms(self, elements: float) -> float:
        """The time to decode a bucket, in milliseconds."""
        return self.decode_ms + self.decode_ms_per_element * elements


def _encoding_share(record: TrainingRecord) -> float:
    """Which part of compressing and decompressing is compressing."""
    if not record.compress_ms:
        return 0.0
    return min(1.0, (record.encode_ms or 0.0) / record.compress_ms)


def _line(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Fixed cost and cost per unit of size by least squares, neither below 0."""
    if not sizes or not any(costs):
        return 0.0, 0.0
    x, y = np.asarray(sizes, dtype=float), np.asarray(costs, dtype=float)
    proportional = 0.0, float(x @ y / (x @ x))
    if x.max() < ALIKE * x.min():
        return proportional
    slope, fixed = (float(value) for value in np.polyfit(x, y, 1))
    if slope < 0:
        return float(y.mean()), 0.0
    return (fixed, slope) if fixed >= 0 else proportional
