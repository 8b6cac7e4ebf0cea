"""The programme of a training that is watched: no setting is exchanged while steps are timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.buckets import bucket_parameters
from commbench.ddp.merging import bucket_medians
from commbench.ddp.plan.cases import SWEEP, TrainingCase
from commbench.ddp.step_times import STAMPS
from commbench.live.agreement import Measured
from commbench.live.options import LiveOptions, say
from commbench.live.programme import Programme
from commbench.live.run import WATCHED, Facts
from commbench.live.switching import why_untimed
from commbench.live.watch_steps import (
    BACKWARD,
    BROADCAST,
    COLUMNS,
    EXPOSED,
    FORWARD,
    OPTIMIZER,
    STEP,
)
from commbench.tuner.experiment import UNTIMED, Block
from commbench.units import counted

#: Steps that are watched by default, and those of a block, after which all ranks send their times.
STEPS, BLOCK_STEPS = 200, 20
#: Steps whose median counts as one observation when ranks are compared.
GROUP_STEPS = 10
#: The block with the pass-through hook, which times the buckets.
BUCKETS = Block(1, SWEEP, BLOCK_STEPS)


class Watch(Programme):
    """Times some steps with the script's own setting, then the buckets in one block with the
    pass-through hook.

    Arguments and errors as of `Programme`.
    """

    def __init__(
        self, ddp_model: DistributedDataParallel, options: LiveOptions, facts: Facts
    ) -> None:
        original = facts.original
        super().__init__(ddp_model, options, facts, [original])
        self._steps = options.steps or STEPS
        self._left = self._steps
        """Steps that were not watched yet."""
        say(
            f"watching {counted(self._steps, 'step')} of {type(ddp_model.module).__name__} on"
            f" {counted(original.world_size, 'rank')}, results in {options.out}"
        )
        untimed = why_untimed(ddp_model) or facts.held
        self._times_buckets = not untimed
        if untimed:
            say(f"buckets are not timed one by one, because {untimed}.")
        else:
            self.settings.append(dataclasses.replace(original, hook="passthrough"))

    def next_block(self, step: int, *, is_ahead: bool) -> Block | None:
        """Return the next block with the script's own setting, then that of the buckets."""
        del step
        limit_s = self._options.time_limit_s
        if limit_s is not None and (is_ahead or self._passed_s >= limit_s):
            return None
        left = self._left - sum(block.steps for block in self._blocks)
        if left > 0:
            return Block(0, SWEEP, min(BLOCK_STEPS, left))
        if is_ahead or not self._times_buckets:
            return None
        self._times_buckets = False
        return BUCKETS

    def add_block(self, block: Block, measured: Measured) -> None:
        """Enter a block with times as of `commbench.live.watch_steps.times_of`."""
        timed = measured.times[:, UNTIMED:]
        if block == BUCKETS:
            fields = self._buckets(timed, measured.buckets)
        else:
            fields = {**_steps(timed), "block_at": [measured.at]}
            self._left -= timed.shape[1]
        self._write_block(self.settings[0], bucket_bytes=measured.buckets, **fields)

    def _buckets(self, timed: NDArray[np.float64], sizes: Sequence[int]) -> dict[str, Any]:
        """Return what a record has of the times of buckets, (ranks, steps, columns and stamps)."""
        tensors = [len(bucket) for bucket in bucket_parameters(self._model, self.settings[0])]
        stamps = timed[:, :, COLUMNS:].reshape(*timed.shape[:2], -1, STAMPS).swapaxes(0, 1)
        stamps = stamps[np.isfinite(stamps).all(axis=(1, 2, 3))]
        if not len(stamps) or len(tensors) != len(sizes):
            say("buckets are not timed one by one, because their number varies from step to step.")
            return {}
        return bucket_medians(stamps, list(zip(sizes, tensors, strict=True)))

    def leave_out(self, setting: TrainingCase, reason: str) -> None:
        """Do without the hook that times buckets, because a rank could not register it."""
        del setting
        say(f"buckets are not timed one by one, because {reason}.")

    def finish(self, step: int) -> TrainingCase:
        """Conclude, and return the script's own setting."""
        ending = WATCHED
        if self._left > 0:
            ending = "time"
        self.run.conclude(ending)
        self._say_end(f"watched until step {step}.")
        return self.settings[0]


def _steps(timed: NDArray[np.float64]) -> dict[str, Any]:
    """Return what a record has of the parts of steps, (ranks, steps, columns)."""
    exchange_ms = timed[:, :, EXPOSED] + timed[:, :, BROADCAST]
    last = exchange_ms.argmin(axis=0)
    parts_ms = timed[last, np.arange(timed.shape[1])]
    mean_ms = parts_ms.mean(axis=0).tolist()
    computing_ms = (timed[:, :, STEP] - exchange_ms).T
    groups = np.array_split(computing_ms, max(1, len(computing_ms) // GROUP_STEPS))
    return {
        "step_ms": parts_ms[:, STEP].tolist(),
        "block_lengths": [len(parts_ms)],
        "broadcast_ms": mean_ms[BROADCAST],
        "forward_ms": mean_ms[FORWARD],
        "backward_ms": mean_ms[BACKWARD] + mean_ms[EXPOSED],
        "exposed_comm_ms": mean_ms[EXPOSED],
        "optimizer_ms": mean_ms[OPTIMIZER],
        "computing_ms": [np.median(group, axis=0).round(6).tolist() for group in groups],
        "measuring_s": float(parts_ms[:, STEP].sum()) / 1e3,
    }
