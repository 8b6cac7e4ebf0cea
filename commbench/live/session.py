"""Tunes or watches one DDP model while it trains: the same steps on every rank, decisions by rank
0.

Ranks talk through a Gloo group of their own, at block ends only. A block end is the begin of an
optimiser step, where no gradient is pending. There all ranks send the times of the block to rank 0,
receive the next setting, prepare the reducer of that setting, agree that every rank could, and
exchange it. Whatever fails, the model trains on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.buckets import bucket_bytes
from commbench.ddp.plan.cases import TrainingCase
from commbench.engine.control import gather_everywhere
from commbench.hooks.base import StateDict
from commbench.hooks.step_clock import elapsed_ms
from commbench.live.boundaries import Boundaries, Step
from commbench.live.instructions import Instruction, Order, say
from commbench.live.options import DOING, LiveOptions
from commbench.live.ranks import Ranks, gather_conditions
from commbench.live.switching import (
    COMPILED,
    Prepared,
    Switcher,
    cap_of,
    is_compiled,
    own_hooks,
    why_untunable,
    why_unwatchable,
)
from commbench.live.watch_steps import SYNC_BUFFERS, StepParts

if TYPE_CHECKING:
    from commbench.launch.events import Session
    from commbench.live.director import BaseDirector
    from commbench.live.run import LiveFacts
    from commbench.results.recommendation import Recommendation

#: Steps before the first block: memory is allocated, kernels are chosen, DDP rebuilds its buckets.
WARM_UP_STEPS = 5
#: Why a model of one rank is left alone.
ALONE = "it trains on one rank, which exchanges no gradients"


class LiveTuning:
    """The tuning or the watching of one DDP model in this process.

    Args:
        ddp_model: the script's model; its reducer is exchanged between steps.
        options: the settings that may be tried, and the directory of the results.
        framework: the library that made the DDP object, such as ``transformers``; empty: the script
            itself.
        on_begin: called at the first training forward pass of the model.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        options: LiveOptions,
        *,
        framework: str = "",
        on_begin: Callable[[LiveTuning], None] = lambda _: None,
    ) -> None:
        self.options = options
        self._on_begin = on_begin
        self.framework = framework
        self.recommendation: Recommendation | None = None
        """The conclusion, on every rank."""
        self._director: BaseDirector | None = None
        """Decides; on rank 0 only."""
        self._model = ddp_model
        self._ranks: Ranks | None = None
        """None before the set-up."""
        self._switcher: Switcher | None = None
        self._settings: Sequence[TrainingCase] = ()
        self._instruction = Instruction(Order.BLOCK)
        self._block_from = 0
        """Step at which the block under way began."""
        self._steps: list[Step] = []
        """Steps of the block under way that are over."""
        self._is_watch = options.mode == "watch"
        self._parts = StepParts(ddp_model) if self._is_watch else None
        """Times the parts of steps if nothing is tuned."""
        self._boundaries: Boundaries | None = Boundaries(
            ddp_model, self._at_boundary, watches_parts=self._is_watch
        )
        ddp_model.join_hook = self._joining
        ddp_model.__dict__["__getstate__"] = self._state

    @property
    def is_over(self) -> bool:
        """Whether nothing of the tuning is left in the training."""
        return self._boundaries is None

    @property
    def _doing(self) -> str:
        return DOING[self.options.mode]

    @property
    def _assembled(self) -> Ranks:
        """The ranks after the set-up."""
        assert self._ranks is not None  # noqa: S101 - only the set-up comes before
        return self._ranks

    @property
    def has_run(self) -> bool:
        """Whether a run directory was begun."""
        return self._switcher is not None

    def release(self, reason: str, *, restores: bool = False) -> None:
        """End the tuning for a reason that all ranks have at the same place of the script.

        Args:
            reason: a clause for people.
            restores: go back to the script's own setting; collective.
        """
        if self.is_over:
            return
        if restores and self._switcher is not None:
            self._change_to(self._settings[0], is_trial=False)
        if dist.get_rank(self._model.process_group) == 0:
            say(
                f"{self._doing} is over, because {reason}. The training goes on with its own"
                " setting."
            )
        if self._director is not None:
            self._director.conclude("released", reason)
        self._close()

    def _joining(self, **arguments: Any) -> Any:  # noqa: ANN401 - as DDP's
        """Leave the model alone from here on.

        DDP's join() calls this on all ranks before their first batch.
        """
        self.release(
            "the script uses join(), and ranks that are out of data cannot take part", restores=True
        )
        return self._model.join_hook(**arguments)

    def _state(self) -> StateDict:
        """Return the state of the model for copies and pickles, without the tuning."""
        state: StateDict = {**DistributedDataParallel.__getstate__(self._model)}
        hooks = self._boundaries.hooks if self._boundaries is not None else set()
        before = state["_forward_pre_hooks"]
        state["_forward_pre_hooks"] = type(before)(
            (key, hook) for key, hook in before.items() if key not in hooks
        )
        return {
            key: value
            for key, value in state.items()
            if key not in {"join_hook", "__getstate__", SYNC_BUFFERS}
        }

    # At the begin of a step

    def _at_boundary(self, ended: Step | None, begun: Step) -> None:
        """Take the step that is over; at the end of a block, change the setting.

        It never raises.
        """
        try:
            self._handle(ended, begun)
        except Exception as error:  # noqa: BLE001 - whatever fails here must not fail the training
            self._fail(error)

    def _handle(self, ended: Step | None, begun: Step) -> None:
        if ended is None:
            self._on_begin(self)
            if is_compiled(self._model):
                self.release(f"{COMPILED}; torch.compile may be applied to the model inside DDP")
        if ended is not None and self._parts is not None:
            self._parts.end_step(ended)
        if ended is None or begun.index < WARM_UP_STEPS:
            return
        if self._ranks is None:
            self._set_up(ended)
        else:
            self._steps.append(ended)
        if not self.is_over and len(self._steps) >= self._instruction.steps:
            self._end_block(begun)

    def _set_up(self, ended: Step) -> None:
        """Form the group and agree on the settings, or release the model. All ranks take part."""
        if self._model.process_group.size() < 2:  # noqa: PLR2004 - nobody to agree with
            self.release(ALONE)
            return
        self._ranks = Ranks(self._model)
        check = why_unwatchable if self._is_watch else why_untunable
        reason = next(filter(None, gather_everywhere(self._ranks, check(self._model))), "")
        if reason:
            self.release(reason)
            return
        session = gather_conditions(self._ranks, self._model)
        keys, reason = self._ranks.broadcast(
            self._plan(self._original_of(ended), session) if session else ([], "")
        )
        if reason:
            self.release(reason)
            return
        self._settings = [TrainingCase.from_key(key) for key in keys]
        self._switcher = Switcher(
            self._model, self._settings[0], file_hooks=self.options.file_hooks
        )
        if self.options.witness:
            with contextlib.suppress(OSError):  # the command waits on another host
                Path(self.options.witness).touch()

    def _plan(self, original: TrainingCase, session: Session) -> tuple[list[str], str]:
        """Return the keys of the settings, or why there is no tuning; on rank 0."""
        from commbench.live.director import Director
        from commbench.live.watch_director import WatchDirector

        facts: LiveFacts = {
            "framework": self.framework,
            "torch": torch.__version__,
            "own_hook": bool(own_hooks(self._model)),
            "session": session,
        }
        try:
            director = WatchDirector if self._is_watch else Director
            self._director = director(self._model, self.options, original, facts)
        except Exception as error:  # noqa: BLE001 - the training goes on
            return [], f"its run could not be begun: {error}"
        return [setting.key for setting in self._director.settings], ""

    def _original_of(self, ended: Step) -> TrainingCase:
        """Return the script's own setting in the words of ``ddp.csv``."""
        group, device = self._model.process_group, self._model.device
        return TrainingCase(
            workload=self.options.workload,
            world_size=group.size(),
            batch_per_rank=ended.batch,
            backend=group._get_backend(device).name(),  # noqa: SLF001 - of a group with several backends
            precision=ended.precision,
            bucket_cap_mb=cap_of(self._model),
            bucket_view=self._model.gradient_as_bucket_view,
            static_graph=self._model.static_graph,
            unused_parameters=self._model.find_unused_parameters,
            broadcast_buffers=bool(self._model.broadcast_buffers),
            batched_grad_copy=getattr(self._model, "batched_grad_copy", False),
            accumulation=max(1, ended.passes),
        )

    def _end_block(self, begun: Step) -> None:
        """Send the block's times to rank 0, receive its instruction, and carry it out.

        collective.
        """
        self._send_times(begun)
        self._steps = []
        self._instruction, self._block_from = self._receive(begun), begun.index
        is_trial = self._instruction.order is Order.BLOCK
        changed = self._change_to(self._settings[self._instruction.setting], is_trial=is_trial)
        if not is_trial:
            if not changed:
                self._change_to(self._settings[0], is_trial=False)
            self._finish()

    def _send_times(self, begun: Step) -> None:
        """Gather the times of each step and of the gap behind it on rank 0, which gives them to the
        director.
        """
        if not self._steps:
            return
        buckets = bucket_bytes(self._model)
        if self._parts is not None:
            times = self._parts.times(self._steps, len(buckets))
        else:
            times = step_times([*self._steps, begun])
        gathered = self._assembled.gather_tensor(torch.from_numpy(times))
        if self._director is not None and gathered is not None:
            losses = [[float(loss) for loss in step.losses] for step in self._steps]
            self._director.add_block(gathered.numpy(), losses, at=self._block_from, buckets=buckets)

    def _receive(self, begun: Step) -> Instruction:
        """Return the instruction of rank 0."""
        message = torch.zeros(3, dtype=torch.int64)
        if self._director is not None:
            message = torch.tensor(
                self._next_instruction(self._director, begun.index), dtype=torch.int64
            )
        order, setting, steps = self._assembled.broadcast_tensor(message).tolist()
        return Instruction(Order(order), setting, steps)

    @staticmethod
    def _next_instruction(director: BaseDirector, step: int) -> Instruction:
        """Return the director's decision; the other ranks wait for it, so it must not raise."""
        try:
            return director.next_instruction(step)
        except Exception as error:  # noqa: BLE001 - the training goes on
            return director.give_up(error)

    def _change_to(self, setting: TrainingCase, *, is_trial: bool) -> bool:
        """Exchange the reducer on all ranks, or on none if a rank cannot.

        Return whether the setting is in use.
        """
        assert self._switcher is not None  # noqa: S101 - made in the set-up
        if setting == self._switcher.current and (is_trial or not self._switcher.is_trial):
            return True
        prepared, failure = self._prepare(setting, is_trial=is_trial)
        if self._assembled.can_all(prepared is not None) and prepared is not None:
            self._switcher.commit(prepared)
            if self._parts is not None and prepared.hook is not None:
                self._parts.observe(prepared.hook)
            return True
        if self._director is not None:
            self._director.refuse(setting, failure)
        return False

    def _prepare(self, setting: TrainingCase, *, is_trial: bool) -> tuple[Prepared | None, str]:
        assert self._switcher is not None  # noqa: S101 - as above
        try:
            return self._switcher.prepare(setting, is_trial=is_trial), ""
        except Exception as error:  # noqa: BLE001 - the setting is left out
            return None, str(error)

    # The end

    def _finish(self) -> None:
        """Tell all ranks the conclusion, and leave the training alone."""
        recommendation = self._director.recommendation if self._director is not None else None
        self.recommendation = self._assembled.broadcast(recommendation)
        self._close()
        if self._instruction.order is Order.STOP:
            if self._director is not None:
                self._director.wait()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # torch aborts at exit while a process group is open

    def _fail(self, error: Exception) -> None:
        """Give up.

        The setting stays, which is that of all ranks; these notice that the group is gone.
        """
        rank = dist.get_rank() if dist.is_initialized() else 0
        reason = f"{self._doing} failed on rank {rank}: {error!r}"
        say(f"{reason}. The training goes on.")
        with contextlib.suppress(Exception):
            if self._director is not None:
                self._director.conclude("failed", reason)
        self._close()

    def _close(self) -> None:
        """Remove everything that the tuning has added but the reducer in use."""
        if self._parts is not None:
            self._parts.close()
        if self._boundaries is not None:
            self._boundaries.close()
            self._boundaries = None
            del self._model.join_hook, self._model.__dict__["__getstate__"]
        if self._director is not None:
            self._director.close()
        if self._ranks is not None:
            self._ranks.close()


def step_times(steps: Sequence[Step]) -> NDArray[np.float64]:
    """Return the milliseconds of all steps but the last, which has only begun: shape (steps, 2).

    The first column is the time from the begin of a step to that of the next, the second the part
    of it after the
    optimiser, on the host: loading data, evaluating, saving.
    """
    times = np.zeros((len(steps) - 1, 2))
    for row, (step, following) in enumerate(itertools.pairwise(steps)):
        gap_ns = 0 if step.updated_ns is None else following.host_ns - step.updated_ns
        times[row] = elapsed_ms(step.begun, following.begun), gap_ns / 1e6
    return times
