"""When each bucket of a training step is ready, sent and done, by an event simulation with one or two servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BucketWork:
    """One bucket as the timeline takes it in; milliseconds."""

    size_bytes: int
    ready_ms: float
    """All its gradients are there, since the backward pass began, were there no hooks."""
    encode_ms: float
    """Delays every later gradient, too."""
    comm_ms: float
    """Its collectives alone on the network."""
    decode_ms: float


@dataclass(frozen=True, kw_only=True)
class BucketPrediction:
    """One bucket in a predicted step; milliseconds since the backward pass began."""

    size_bytes: int
    ready_ms: float
    start_ms: float
    done_ms: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The backward pass of a step."""

    buckets: Sequence[BucketPrediction]
    end_ms: float
    """The backward pass, communication included, is over."""
    exposed_ms: float
    """What of that the backward pass without communication and encoding does not take."""


def overlapped(work: Sequence[BucketWork], backward_ms: float, *, servers: int) -> Timeline:
    """The timeline if communication costs computing nothing: the lower bound."""
    raise NotImplementedError


def serial(work: Sequence[BucketWork], backward_ms: float) -> Timeline:
    """The timeline if nothing overlaps: the upper bound."""
    raise NotImplementedError
