"""The base class of hooks whose collectives depend on each other: their jobs run in order, off the
autograd thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.hooks.feedback import FeedbackHook
from commbench.hooks.ordering import (
    CommStream,
    CommThread,
    Ending,
    borrow,
    give_back,
    opening_group,
)

#: Issues a collective on a process group, without waiting for it.
Opening = Callable[[ProcessGroup], Work]


class OrderedHook(FeedbackHook):
    """A hook that exchanges a bucket by several collectives, each of which needs the result of the
    previous one.

    They run on the communication thread of the model's process group, or on a GPU on a separate
    stream.
    """

    _lane: CommThread | CommStream
    _private: ProcessGroup = None
    """The process group of the jobs' collectives; None before `register` and after `close`."""
    _opening: ProcessGroup = None
    """The process group of openings, see `submit_opened`; None if the hook has none."""
    opens: ClassVar[bool] = False
    """Whether the hook's jobs have an opening."""

    def attach(
        self, ddp_model: DistributedDataParallel, scaler: torch.amp.GradScaler | None
    ) -> None:
        """See `FeedbackHook.attach`.

        Also raise InputError unless all gradients are on the host or on one GPU.
        """
        super().attach(ddp_model, scaler)
        devices = {
            str(parameter.device)
            for parameter in ddp_model.module.parameters()
            if parameter.requires_grad
        }
        if self.runs_in_order and (len(devices) != 1 or self._device.type not in {"cpu", "cuda"}):
            places = ", ".join(sorted(devices))
            raise InputError(
                f"Hook {self.name} works on models on the host or on one GPU, this one is on"
                f" {places}."
            )

    def join_group(self) -> None:
        """See `Hook.join_group`; over Gloo the ranks create a process group."""
        if not self.runs_in_order:
            return
        if self._device.type == "cuda":
            self._lane, self._private = CommStream(self._device), self._group
        else:
            self._lane, self._private = borrow(self._group)
            self._opening = opening_group(self._group) if self.opens else None

    def submit(self, job: Callable[[], Tensor | Ending]) -> Future:
        """Queue a job that may issue blocking collectives on ``self._private``.

        Return the future of its tensor.

        Raises:
            InputError: the hook was closed.
        """
        if self._private is None:
            raise InputError(
                f"Hook {self.name} was used after its close(): close hooks when training is over."
            )
        return self._lane.submit(job)

    def submit_opened(
        self, opening: Opening, job: Callable[[Callable[[], object]], Tensor | Ending]
    ) -> Future:
        """Queue a job whose first collective needs no earlier one.

        Over Gloo that begins before the job's turn.

        Args:
            opening: issues the first collective.
            job: as of `submit`; it gets a function that waits for the opening.
        """
        if self._opening is None or self._private is None:  # a closed hook refuses the job
            return self.submit(lambda: job(lambda: opening(self._private).wait()))
        work = opening(self._opening)
        return self.submit(lambda: job(work.wait))

    def close(self) -> None:
        """Release the thread, which ends with its last user.

        Raise LaunchError if a collective does not end.
        """
        if self._private is None:
            return
        self._private = None
        if isinstance(self._lane, CommThread):
            give_back(self._group)
