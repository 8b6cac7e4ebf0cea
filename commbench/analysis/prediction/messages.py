"""What a hook sends for a bucket, and what its local work costs: the link between a setting and the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.hooks.message import FLOAT32_BYTES, BucketShape, Message, Shapes
from commbench.hooks.registry import NONE, find_hook

#: Buckets whose sizes differ by less than this factor tell no fixed cost from one that grows with the size.
ALIKE = 2.0


def messages_of(
    case: TrainingCase, elements: int, world_size: int, *, shapes: Shapes | None = None, dtype: str = "float32"
) -> tuple[Message, ...]:
    """The collectives that a case's hook issues for a bucket of gradients, in order, after any warm-up.

    Args:
        case: the configuration; none where it is the step without DDP.
        elements: of the bucket.
        world_size: number of ranks.
        shapes: of the bucket's tensors, in its order; for hooks that treat tensors differently.
        dtype: of the gradients; hooks that compress by leaving out take float32 only.

    Raises:
        InputError: no hook has this name, or the hook's messages depend on the shapes, and no shapes are given.
    """
    if not case.uses_ddp:
        return ()
    bucket = BucketShape(elements=elements, world_size=world_size, shapes=shapes, dtype=dtype)
    return find_hook(case.hook).messages_of(bucket, density=case.density, options=case.options)


def needs_shapes(case: TrainingCase) -> bool:
    """Return whether the messages of a case's hook depend on more than the number of elements."""
    return case.uses_ddp and find_hook(case.hook).needs_shapes(case.options)


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
            for bucket in record.buckets if record.case.hook != NONE else ():
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
