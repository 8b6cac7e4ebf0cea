"""The base class of hooks whose collectives depend on each other: their jobs run in order, off the autograd thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.hooks.feedback import FeedbackHook
from commbench.hooks.ordering import CommStream, CommThread, borrow, give_back

if TYPE_CHECKING:
    from typing_extensions import Self


class OrderedHook(FeedbackHook):
    """A hook that exchanges a bucket by several collectives, each of which needs the result of the previous one.

    They run on the communication thread of the model's process group, or on a GPU on a separate stream.
    """

    _lane: CommThread | CommStream
    _private: dist.ProcessGroup = None
    """The process group of the jobs' collectives; None before `register` and after `close`."""

    @property
    def is_ordered(self) -> bool:
        """Whether the hook with its options needs jobs."""
        return True

    def attach(self, ddp_model: DistributedDataParallel, scaler: torch.amp.GradScaler | None) -> None:
        """See `FeedbackHook.attach`; also raise InputError unless all gradients are on the host or on one GPU."""
        super().attach(ddp_model, scaler)
        devices = {str(parameter.device) for parameter in ddp_model.module.parameters() if parameter.requires_grad}
        if self.is_ordered and (len(devices) != 1 or self._device.type not in {"cpu", "cuda"}):
            places = ", ".join(sorted(devices))
            raise InputError(f"Hook {self.name} works on models on the host or on one GPU, this one is on {places}.")

    def register(
        self,
        ddp_model: DistributedDataParallel,
        *,
        scaler: torch.amp.GradScaler | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Self:
        """See `FeedbackHook.register`; collective over Gloo, where the ranks create a process group."""
        super().register(ddp_model, scaler=scaler, optimizer=optimizer)
        if not self.is_ordered:
            return self
        if self._device.type == "cuda":
            self._lane, self._private = CommStream(self._device), self._group
        else:
            self._lane, self._private = borrow(self._group)
        return self

    def submit(self, job: Callable[[], torch.Tensor]) -> torch.futures.Future:
        """Queue a job that may issue blocking collectives on ``self._private``; return the future of its tensor.

        Raises:
            InputError: the hook was closed.
        """
        if self._private is None:
            raise InputError(f"Hook {self.name} was used after its close(): close hooks when training is over.")
        return self._lane.submit(job)

    def close(self) -> None:
        """Release the thread, which ends with its last user; raise LaunchError if a collective does not end."""
        if self._private is None:
            return
        self._private = None
        if isinstance(self._lane, CommThread):
            give_back(self._group)
