"""What a hook sends for a bucket, and what its local work costs: the link between a setting and the network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commbench.training.cases import TrainingCase
from commbench.training.records import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class Message:
    """One collective of a hook for a bucket."""

    operation: str
    dtype: str
    message_bytes: float
    """As in ``collectives.csv``: the total of all ranks for an all_gather."""


def messages_of(case: TrainingCase, elements: int, world_size: int) -> tuple[Message, ...]:
    """The collectives that a case's hook issues for a bucket of float32 gradients, in order.

    Raises:
        InputError: what the hook sends cannot be told from the number of elements.
    """
    raise NotImplementedError


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
        """What measured buckets of one hook show."""
        raise NotImplementedError
