"""Messages that a hook sends for a bucket, and the cost of its local work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.hooks.message import FLOAT32_BYTES, BucketShape, Message, Shapes
from commbench.hooks.registry import find_hook

#: Buckets whose sizes differ by less than this factor cannot separate a fixed cost from a cost per byte.
LEAST_SIZE_RATIO = 2.0


def messages_of(
    case: TrainingCase, elements: int, world_size: int, *, shapes: Shapes | None = None, dtype: str = "float32"
) -> tuple[Message, ...]:
    """Return the collectives that a case's hook issues for a bucket of gradients, in order, after any warm-up.

    Args:
        case: the configuration; the step without DDP sends nothing.
        elements: of the bucket.
        world_size: number of ranks.
        shapes: of the bucket's tensors, in its order; for hooks that treat tensors differently.
        dtype: of the gradients; sparsifying hooks take float32 only.

    Raises:
        InputError: no hook has this name, or its messages depend on the shapes and ``shapes`` is None.
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
    """Local work of a hook on a bucket of n elements, linear in n; milliseconds."""

    encode_ms: float = 0.0
    """Per bucket, on the thread of the backward pass."""
    encode_ms_per_element: float = 0.0
    decode_ms: float = 0.0
    """Per bucket, after the communication; for the ``world_size`` of the calibration."""
    decode_ms_per_element: float = 0.0

    @classmethod
    def of(cls, records: Iterable[TrainingRecord]) -> HookCost:
        """Return the cost from the measured buckets of one hook; zero for hook none, whose copies DDP makes.

        A record has each bucket's total cost, and the share of encoding over all buckets. Every bucket gets the same
        share.
        """
        elements: list[float] = []
        encode: list[float] = []
        decode: list[float] = []
        for record in records:
            share = _encoding_share(record)
            for bucket in record.buckets if not record.case.is_plain else ():
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
        """Return the cost on a rank that is ``factor`` times as fast."""
        return HookCost(**{name: cost / factor for name, cost in dataclasses.asdict(self).items()})

    def encoding_ms(self, elements: float) -> float:
        """Return the time to encode a bucket, in milliseconds."""
        return self.encode_ms + self.encode_ms_per_element * elements

    def decoding_ms(self, elements: float) -> float:
        """Return the time to decode a bucket, in milliseconds."""
        return self.decode_ms + self.decode_ms_per_element * elements


def _encoding_share(record: TrainingRecord) -> float:
    """Return the share of encoding in the time of encoding and decoding."""
    if not record.compress_ms:
        return 0.0
    return min(1.0, (record.encode_ms or 0.0) / record.compress_ms)


def _line(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Return the fixed cost and the cost per unit of size by least squares, neither below 0."""
    if not sizes or not any(costs):
        return 0.0, 0.0
    x, y = np.asarray(sizes, dtype=float), np.asarray(costs, dtype=float)
    proportional = 0.0, float(x @ y / (x @ x))
    if x.max() < LEAST_SIZE_RATIO * x.min():
        return proportional
    slope, fixed = (float(value) for value in np.polyfit(x, y, 1))
    if slope < 0:
        return float(y.mean()), 0.0
    return (fixed, slope) if fixed >= 0 else proportional
