"""A CUDA stream of our own, on which hooks run dependent collectives in the order of their calls.

What `comm_thread` has to be for Gloo, a stream is for NCCL: the host queues collectives in the order of the buckets,
the same on all ranks, and the device carries them out in this order while it computes the rest of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class CommStream:
    """Queues jobs behind what the device has to do when they are submitted, and behind each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def submit(self, job: Callable[[], torch.Tensor]) -> torch.futures.Future:
        """Let a job queue its work, blocking collectives included; the future of the tensor that it returns.

        Whoever waits for the future makes its stream wait, not the host.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        future = torch.futures.Future(devices=[self._device])
        with torch.cuda.stream(self._stream):
            future.set_result(job())
        return future
