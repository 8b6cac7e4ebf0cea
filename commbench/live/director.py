"""Rank 0's part of a live tuning: plans blocks, keeps their records, concludes, and tells people.

`commbench.live.watch_director` has its part of a training that is watched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.plan.cases import CONFIRM, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import without_result
from commbench.errors import Reason
from commbench.live.instructions import Instruction, Order, say
from commbench.live.options import DOING, LiveOptions
from commbench.live.run import LiveFacts, LiveRun
from commbench.live.settings import settings_of
from commbench.results.recommendation import Choice, Recommendation, setting_of
from commbench.tuner.experiment import UNTIMED, Block, Experiment
from commbench.tuner.learning import withheld
from commbench.units import counted

#: A step is disturbed if the gap behind its optimiser exceeds the usual gap by this factor and by
#: this share of a step.
GAP_FACTOR, GAP_SHARE = 3.0, 0.1


class BaseDirector(ABC):
    """Decides what every rank trains next, and keeps the run directory.

    Args:
        ddp_model: the script's model.
        options: the settings to try, and the directory of the results.
        settings: those that the run measures, the script's own first.
        facts: of the training.

    Raises:
        CommbenchError: the run directory cannot be used.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        options: LiveOptions,
        settings: Sequence[TrainingCase],
        facts: LiveFacts,
    ) -> None:
        self.settings = settings
        """Settings by the number that an `Instruction` names."""
        self.recommendation: Recommendation | None = None
        self._options = options
        self._model = ddp_model
        self._parameters = sum(p.numel() for p in ddp_model.module.parameters() if p.requires_grad)
        self._run = LiveRun.open(
            options,
            baseline=settings[0],
            settings=settings,
            parameters=self._parameters,
            facts=facts,
        )
        self._began_s = time.monotonic()

    @abstractmethod
    def add_block(
        self,
        gathered: NDArray[np.float64],
        losses: Sequence[Sequence[float]],
        *,
        at: int,
        buckets: Sequence[int],
    ) -> None:
        """Enter the block that has ended.

        Args:
            gathered: times of each step, shape (ranks, steps, columns).
            losses: of each step on rank 0, one for each backward pass.
            at: the step of the training at which the block began.
            buckets: bytes of the buckets in use.
        """

    @abstractmethod
    def next_instruction(self, step: int) -> Instruction:
        """Return the next instruction.

        ``step`` is the number of steps that the training has made.
        """

    def instruction_ahead(self, step: int) -> Instruction | None:
        """Return what follows the block under way, before its times are known; None if it depends
        on them.
        """
        del step
        return None

    @abstractmethod
    def refuse(self, setting: TrainingCase, reason: str) -> None:
        """Do without a setting that a rank could not prepare."""

    def _name_of(self, setting: TrainingCase) -> str:
        """Return a setting in words, beside the script's own."""
        return Choice(**setting_of(setting)).name_beside(Choice(**setting_of(self.settings[0])))

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def _remaining_s(self) -> float | None:
        """Seconds of ``--time-limit`` that are left; None without a limit."""
        limit = self._options.time_limit_s
        return None if limit is None else limit - self._elapsed_s

    def _new_record(self, case: TrainingCase) -> TrainingRecord:
        return TrainingRecord(
            case=case,
            launch=self._run.launch,
            seed=self._options.seed,
            threads_per_rank=torch.get_num_threads(),
            device=_device_name(self._model),
            parameters=self._parameters,
            discarded=UNTIMED,
        )

    def _last(self, setting: int) -> Instruction:
        """Return the last instruction: train on with a setting, or end the training."""
        return Instruction(Order.STOP if self._options.then == "stop" else Order.END, setting)

    def give_up(self, error: Exception) -> Instruction:
        """Conclude after a failure.

        Return the instruction that leads back to the script's own setting.
        """
        reason = f"{DOING[self._options.mode]} failed: {error!r}"
        say(f"{reason}. The training goes on with its own setting.")
        with contextlib.suppress(Exception):
            self.conclude("failed", reason)
        return Instruction(Order.END)

    def conclude(self, ending: str, reason: str = "") -> Recommendation | None:
        """Write the conclusion, once; return it, or None if nothing can be concluded."""
        if not self._run.is_concluded:
            self.recommendation = self._run.conclude(ending, reason=reason, seconds=self._elapsed_s)
        return self.recommendation

    def close(self) -> None:
        """Release the run directory when all is written."""
        self._run.close()

    def wait(self) -> None:
        """Wait until all is written, after `close`."""
        self._run.wait()


class Director(BaseDirector):
    """Finds the best setting: decides which one every rank trains with next.

    Args:
        ddp_model: the script's model.
        options: the settings that may be tried, and the directory of the results.
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
        settings = settings_of(
            original,
            ddp_model.module,
            options,
            has_own_hook=facts["own_hook"],
            traits=facts["traits"],
            show=say,
        )
        super().__init__(ddp_model, options, settings, facts)
        self._experiment = Experiment(
            settings,
            seed=options.seed + self._run.launch,
            max_steps=options.steps,
            withheld=[
                number
                for number, case in enumerate(settings)
                if withheld(case, original, self._run.info)
            ],
        )
        self._blocks: list[Block] = []
        """Blocks whose times are awaited, in their order."""
        self._written: Counter[TrainingCase] = Counter()
        """Blocks that were written."""
        self._gaps_ms: list[float] = []
        self._progress = Progress(sys.stderr)
        say(
            f"tuning {type(ddp_model.module).__name__} on {original.world_size} ranks: "
            f"{counted(len(self.settings), 'setting')}, results in {options.out}"
        )

    def add_block(
        self,
        gathered: NDArray[np.float64],
        losses: Sequence[Sequence[float]],
        *,
        at: int,
        buckets: Sequence[int],
    ) -> None:
        """Enter the block that has ended.

        ``gathered`` holds milliseconds of each step and of the gap behind it.
        """
        block = self._blocks.pop(0)
        slowest = gathered.max(axis=0)
        steps_ms, gaps_ms = slowest[:, 0], slowest[:, 1]
        timed = self._undisturbed(steps_ms, gaps_ms)
        timed[:UNTIMED] = False
        self._gaps_ms += gaps_ms.tolist()
        self._run.add_losses(
            (at + number, sum(of_step)) for number, of_step in enumerate(losses) if of_step
        )
        accepted = steps_ms[timed]
        if block.is_measured_by(accepted):
            self._keep(
                block,
                accepted.tolist(),
                at=at,
                seconds=float(steps_ms.sum()) / 1e3,
                buckets=buckets,
            )
        self._experiment.add(block, accepted.tolist())

    def _undisturbed(
        self, steps_ms: NDArray[np.float64], gaps_ms: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return which steps had the usual gap behind them: no evaluation, checkpoint or stall of
        the data.
        """
        usual = float(np.median([*self._gaps_ms, *gaps_ms]))
        limit = max(GAP_FACTOR * usual, usual + GAP_SHARE * float(np.median(steps_ms)))
        undisturbed: NDArray[np.bool_] = gaps_ms <= limit
        return undisturbed

    def _keep(
        self,
        block: Block,
        steps_ms: Sequence[float],
        *,
        at: int,
        seconds: float,
        buckets: Sequence[int],
    ) -> None:
        """Write the record of the block."""
        case = dataclasses.replace(self.settings[block.setting], phase=block.phase)
        self._written[case] += 1
        record = dataclasses.replace(
            self._new_record(case),
            step_ms=steps_ms,
            block_lengths=[len(steps_ms)],
            block_at=[at],
            block=self._written[case],
            bucket_bytes=buckets,
            measuring_s=seconds,
        )
        self._run.append(record)

    def next_instruction(self, step: int) -> Instruction:
        """Return the next block or the decision."""
        block = self._experiment.next_block(step, self._remaining_s)
        if block is None:
            return self._end()
        return self._instruct(block, step)

    def instruction_ahead(self, step: int) -> Instruction | None:
        """Return the next block of the round; None at its end."""
        block = self._experiment.following_block(step, self._remaining_s)
        if block is None:
            return None
        return self._instruct(block, step)

    def _instruct(self, block: Block, step: int) -> Instruction:
        self._blocks.append(block)
        self._progress.show(step, self._name_of(self.settings[block.setting]), block.phase)
        return Instruction(Order.BLOCK, block.setting, UNTIMED + block.steps)

    def _end(self) -> Instruction:
        recommendation = self.conclude(self._experiment.ending)
        best = 0
        if recommendation is not None and recommendation.verdict == "change":
            best_setting = setting_of(recommendation.best)
            best = next(
                number
                for number, case in enumerate(self.settings)
                if setting_of(case) == best_setting
            )
        follows = (
            "training ends, as --then stop says"
            if self._options.then == "stop"
            else "training goes on with it"
        )
        say(f"{_conclusion(recommendation)}; {follows}.")
        return self._last(best)

    def refuse(self, setting: TrainingCase, reason: str) -> None:
        """Leave out a setting that a rank could not prepare."""
        number = self.settings.index(setting)
        why = reason or "another rank could not prepare it"
        say(f"{self._name_of(setting)} is left out: {why}")
        self._run.append(without_result(self._new_record(setting), "failed", Reason.stated(why)))
        self._experiment.leave_out(number)
        if self._blocks and self._blocks[-1].setting == number:
            self._blocks.pop()

    def conclude(self, ending: str, reason: str = "") -> Recommendation | None:
        """Write the conclusion, once; return it, or None if nothing can be concluded."""
        self._progress.clear()
        return super().conclude(ending, reason)


def _conclusion(recommendation: Recommendation | None) -> str:
    if recommendation is None:
        return "tuning ended without a comparison: the setting stays as it was"
    best = recommendation.best
    if recommendation.verdict == "change":
        return (
            f"decided: a step with {recommendation.named(best)} is"
            f" {best.gain_over(recommendation.baseline_name)}"
        )
    if recommendation.verdict == "keep":
        others = (
            "other that may be used"
            if any(each.withheld for each in recommendation.altering)
            else "other"
        )
        return f"decided: the script's own setting stays; no {others} is more than 2 % faster"
    return "undecided: the script's own setting stays"


def _device_name(ddp_model: DistributedDataParallel) -> str:
    """Return the name of the model's GPU, or the type of its device."""
    device = ddp_model.device
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


class Progress:
    """One line on a terminal, overwritten at each block; nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._is_shown = False

    def show(self, step: int, name: str, phase: str) -> None:
        """Show the step and the name of the setting that is tried."""
        if self._is_terminal:
            part = "confirming" if phase == CONFIRM else "trying"
            self._stream.write(f"\r\x1b[Kcommbench: step {step}, {part} {name}")
            self._stream.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False
