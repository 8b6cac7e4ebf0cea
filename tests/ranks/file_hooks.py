"""Hooks of a user's own file: valid ones, factories, and ones that fail."""

import functools
from typing import Any

import torch
import torch.distributed as dist

from commbench.hooks import FP16

NUMBER = 3


def half(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Send FP16."""
    assert state is None
    sent = bucket.buffer().to(torch.float16).div_(dist.get_world_size())
    received = dist.all_reduce(sent, async_op=True).get_future()
    return received.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def with_state(state: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Count buckets, and send FP16."""
    state.append(bucket.index())
    return half(None, bucket)


def make() -> Any:
    """Return a hook."""
    return half


def make_pair() -> tuple[Any, Any]:
    """Return a state and a hook."""
    return [], with_state


def make_class() -> FP16:
    """Return a hook of commbench."""
    return FP16()


class Made:
    """A class whose objects are hooks."""

    def __call__(
        self, _state: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """Send FP16."""
        return half(None, bucket)


made = Made()
partly = functools.partial(with_state, [])
"""Requires one argument: neither a hook nor a factory."""


def raising(_state: object, bucket: dist.GradBucket) -> None:
    """Fail on every bucket."""
    raise ValueError(f"no luck with {bucket.index()}")


def make_seven() -> int:
    """Return no hook."""
    return 7


def make_nothing() -> None:
    """Fail."""
    raise RuntimeError("no state")
