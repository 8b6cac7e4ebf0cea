"""Rank 0's part of a training that is watched: plans blocks, keeps the record, and ends when enough
was watched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.buckets import bucket_parameters
from commbench.ddp.merging import bucket_medians
from commbench.ddp.plan.cases import TrainingCase
from commbench.live.director import BaseDirector
from commbench.live.instructions import Instruction, Order, say
from commbench.live.options import LiveOptions
from commbench.live.run import WATCHED, LiveFacts
from commbench.live.switching import why_untimed
from commbench.live.watch_steps import (
    BACKWARD,
    BROADCAST,
    COLUMNS,
    EXPOSED,
    FORWARD,
    OPTIMIZER,
    STAMPS,
    STEP,
)
from commbench.tuner.experiment import UNTIMED

#: Steps that are watched by default, and those of a block, after which all ranks send their times.
STEPS, BLOCK_STEPS = 200, 20
#: Steps whose median counts as one observation when ranks are compared.
GROUP_STEPS = 10


class WatchDirector(BaseDirector):
    """Decides how long every rank is watched.

    The script's own setting stays in use while steps are timed. Behind these steps one block with
    the pass-through hook times the buckets.

    Args:
        ddp_model: the script's model.
        options: how long to watch, and where results go.
        original: the script's own setting.
        facts: of the training.

    Raises:
        CommbenchError: the run directory cannot be used.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        options: LiveOptions,
        original: TrainingCase,
        facts: LiveFacts,
    ) -> None:
        super().__init__(ddp_model, options, [original], facts)
        self._record = self._new_record(original)
        self._written = self._watched = 0
        """Blocks that were written, and steps in them."""
        self._times_buckets = False
        self._running = 0
        """Steps of the block under way."""
        untimed = why_untimed(ddp_model)
        say(
            f"watching {options.steps or STEPS} steps of {type(ddp_model.module).__name__} on"
            f" {original.world_size} ranks, results in {options.out}"
        )
        if untimed:
            say(f"buckets are not timed one by one, because {untimed}.")
        else:
            self.settings = [original, dataclasses.replace(original, hook="passthrough")]

    def add_block(
        self,
        gathered: NDArray[np.float64],
        losses: Sequence[Sequence[float]],
        *,
        at: int,
        buckets: Sequence[int],
    ) -> None:
        """Enter the block that has ended.

        ``gathered`` is as `commbench.live.watch_steps.StepParts.times`.
        """
        del losses
        timed = gathered[:, UNTIMED:]
        self._written += 1
        record = dataclasses.replace(self._record, block=self._written, bucket_bytes=buckets)
        if self._times_buckets:
            fields = self._buckets(timed, buckets)
        else:
            fields = {**self._steps(timed), "block_at": [at]}
        self._run.append(dataclasses.replace(record, **fields))

    def _steps(self, timed: NDArray[np.float64]) -> dict[str, Any]:
        """Return what a record has of the parts of steps, (ranks, steps, columns)."""
        exchange_ms = timed[:, :, EXPOSED] + timed[:, :, BROADCAST]
        last = exchange_ms.argmin(axis=0)
        parts_ms = timed[last, np.arange(timed.shape[1])]
        self._watched += len(parts_ms)
        mean_ms = parts_ms.mean(axis=0)
        computing_ms = (timed[:, :, STEP] - exchange_ms).T
        groups = np.array_split(computing_ms, max(1, len(computing_ms) // GROUP_STEPS))
        return {
            "step_ms": parts_ms[:, STEP].tolist(),
            "block_lengths": [len(parts_ms)],
            "broadcast_ms": float(mean_ms[BROADCAST]),
            "forward_ms": float(mean_ms[FORWARD]),
            "backward_ms": float(mean_ms[BACKWARD] + mean_ms[EXPOSED]),
            "exposed_comm_ms": float(mean_ms[EXPOSED]),
            "optimizer_ms": float(mean_ms[OPTIMIZER]),
            "computing_ms": [np.median(group, axis=0).round(6).tolist() for group in groups],
            "measuring_s": float(parts_ms[:, STEP].sum()) / 1e3,
        }

    def _buckets(self, timed: NDArray[np.float64], sizes: Sequence[int]) -> dict[str, Any]:
        """Return what a record has of the times of buckets, (ranks, steps, columns and stamps)."""
        tensors = [len(bucket) for bucket in bucket_parameters(self._model, self._record.case)]
        stamps = timed[:, :, COLUMNS:].reshape(*timed.shape[:2], -1, STAMPS).swapaxes(0, 1)
        stamps = stamps[np.isfinite(stamps).all(axis=(1, 2, 3))]
        if not len(stamps) or len(tensors) != len(sizes):
            say("buckets are not timed one by one, because their number varies from step to step.")
            return {}
        return bucket_medians(stamps, list(zip(sizes, tensors, strict=True)))._asdict()

    def next_instruction(self, step: int) -> Instruction:
        """Return the next block, the block of buckets, or the end."""
        left = (self._options.steps or STEPS) - self._watched
        if self._remaining_s is not None and self._remaining_s <= 0:
            return self._end("time" if left > 0 else WATCHED, step)
        if left > 0:
            return self._block_of(left)
        if len(self.settings) > 1 and not self._times_buckets:
            self._times_buckets = True
            return Instruction(Order.BLOCK, 1, UNTIMED + BLOCK_STEPS)
        return self._end(WATCHED, step)

    def instruction_ahead(self, step: int) -> Instruction | None:
        """Return the next block of the script's own setting; None behind the last one."""
        del step
        left = (self._options.steps or STEPS) - self._watched - self._running
        if self._times_buckets or left <= 0 or self._remaining_s is not None:
            return None
        return self._block_of(left)

    def _block_of(self, left: int) -> Instruction:
        self._running = min(BLOCK_STEPS, left)
        return Instruction(Order.BLOCK, 0, UNTIMED + self._running)

    def _end(self, ending: str, step: int) -> Instruction:
        self.conclude(ending)
        goes_on = "training goes on, and nothing is watched any more"
        follows = "training ends, as --then stop says" if self._options.then == "stop" else goes_on
        say(f"watched until step {step}; {follows}.")
        return self._last(0)

    def refuse(self, setting: TrainingCase, reason: str) -> None:
        """Do without the hook that times buckets, because a rank could not register it."""
        del setting
        say(
            "buckets are not timed one by one, because"
            f" {reason or 'another rank could not register the hook'}."
        )
        self.settings, self._times_buckets = self.settings[:1], False
