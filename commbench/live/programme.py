"""What rank 0 plans for a training and keeps of it; `commbench.live.tune` and
`commbench.live.watch` have the two programmes.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.live.agreement import Instruction, Measured
from commbench.live.options import DOING, LiveOptions, say
from commbench.live.run import Facts, LiveRun
from commbench.tuner.experiment import UNTIMED, Block


class Programme(ABC):
    """Decides what every rank trains next, and writes what was measured.

    Args:
        ddp_model: the script's model.
        options: the settings to try, and the directory of the results.
        facts: of the training.
        settings: those that the run measures, the script's own first.

    Raises:
        CommbenchError: the run directory cannot be used.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        options: LiveOptions,
        facts: Facts,
        settings: Sequence[TrainingCase],
    ) -> None:
        self.settings = list(settings)
        """Settings by the number that a block names."""
        self._options = options
        self._model = weakref.proxy(ddp_model)
        self._parameters = facts.parameters
        self.run = LiveRun(options, settings, facts)
        self._began_s = time.monotonic()
        self._blocks: list[Block] = []
        """Blocks whose times are awaited, in their order."""
        self._written: Counter[TrainingCase] = Counter()
        """Blocks that were written."""

    @abstractmethod
    def next_block(self, step: int, *, is_ahead: bool) -> Block | None:
        """Return the next block; None at the end.

        Args:
            step: the number of steps so far.
            is_ahead: the times of the block under way are not known; None if the next one depends
                on them.
        """

    @abstractmethod
    def add_block(self, block: Block, measured: Measured) -> None:
        """Enter a block of `next_block` that has ended."""

    @abstractmethod
    def leave_out(self, setting: TrainingCase, reason: str) -> None:
        """Do without a setting that a rank could not prepare."""

    @abstractmethod
    def finish(self, step: int) -> TrainingCase:
        """Conclude, say so, and return the setting with which the training goes on."""

    @property
    def _passed_s(self) -> float:
        """Seconds since the programme began."""
        return time.monotonic() - self._began_s

    def instruct(self, step: int, *, is_ahead: bool) -> Instruction | None:
        """Return the next block or the end; None if that depends on the block under way."""
        block = self.next_block(step, is_ahead=is_ahead)
        if block is not None:
            self._blocks.append(block)
            return Instruction(self.settings[block.setting], UNTIMED + block.steps)
        if is_ahead:
            return None
        setting = self.finish(step)
        ends = self._options.then == "stop"
        return Instruction(setting, ends_process=ends, recommendation=self.run.recommendation)

    def take(self, measured: Measured) -> None:
        """Enter the block that has ended."""
        self.add_block(self._blocks.pop(0), measured)

    def refuse(self, setting: TrainingCase, reason: str) -> None:
        """Do without a setting that a rank could not prepare."""
        if self._blocks and self.settings[self._blocks[-1].setting] == setting:
            self._blocks.pop()
        self.leave_out(setting, reason)

    def give_up(self, error: Exception) -> Instruction:
        """Conclude after a failure.

        Return the instruction that leads back to the script's own setting.
        """
        reason = f"{DOING[self._options.mode]} failed: {error!r}"
        say(f"{reason}. The training goes on with its own setting.")
        with contextlib.suppress(Exception):
            self.run.conclude("failed", reason)
        return Instruction(self.settings[0])

    def _say_end(self, text: str) -> None:
        """Say a conclusion, and what follows."""
        follows = "The training goes on."
        if self._options.then == "stop":
            follows = "The training ends, as --then stop says."
        say(f"{text} {follows}")

    def _record(self, case: TrainingCase, **fields: Any) -> TrainingRecord:
        device = self._model.device
        name = device.type
        if name == "cuda":
            name = str(torch.cuda.get_device_name(device))
        return TrainingRecord(
            case=case,
            launch=self.run.launch,
            seed=self._options.seed,
            threads_per_rank=torch.get_num_threads(),
            device=name,
            parameters=self._parameters,
            discarded=UNTIMED,
            **fields,
        )

    def _write_block(self, case: TrainingCase, **fields: Any) -> None:
        self._written[case] += 1
        self.run.append(self._record(case, block=self._written[case], **fields))
