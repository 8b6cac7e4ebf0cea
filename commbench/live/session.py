"""Tunes or watches one DDP model while it trains, and cannot harm the training.

The clock is the synchronised backward pass (`commbench.live.passes`). What ranks agree on they hand
over through the store (`commbench.live.agreement`): there is no collective and no wait. The last
four passes of a block agree on the next setting:

- after pass ``end - 3`` rank 0 writes the next instruction;
- after pass ``end - 2`` every rank reads it, tries the setting, and writes whether it can;
- after pass ``end - 1`` rank 0 writes whether all can;
- after pass ``end`` every rank reads that, exchanges the reducer, and writes the block's times;
- after the pass behind it rank 0 reads the times.

If the next setting depends on the times of this block, rank 0 writes None, and the block goes on
for four passes more, which are not timed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
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
from commbench.hooks.base import StateDict
from commbench.hooks.step_clock import elapsed_ms
from commbench.launch.facts import Place, own_host, own_place
from commbench.live.agreement import AbsentError, Agreement
from commbench.live.conditions import conditions_of, gpu_of
from commbench.live.instructions import Instruction, Order, say
from commbench.live.options import DOING, LiveOptions
from commbench.live.passes import Pass, Passes, period_of
from commbench.live.switching import (
    COMPILED,
    Switcher,
    cap_of,
    is_compiled,
    own_hooks,
    why_untunable,
    why_unwatchable,
)
from commbench.live.watch_steps import SYNC_BUFFERS, StepParts
from commbench.units import counted

if TYPE_CHECKING:
    from commbench.live.director import BaseDirector
    from commbench.live.run import LiveFacts
    from commbench.results.recommendation import Recommendation

#: Passes before ranks tell rank 0 about themselves: memory is allocated, kernels are chosen, DDP
#: rebuilds its buckets, and the period of the training shows.
WARM_UP_PASSES = 8
#: Passes in which ranks agree on a setting: rank 0 tells, all try, rank 0 decides, all exchange.
TOLD, TRIED, DECIDED = -3, -2, -1
AGREEING = 4
#: Passes after which a model asks again whether it may begin, while another one is tuned.
WAITING_PASSES = 20
#: Why a model of one rank is left alone.
ALONE = "it trains on one rank, which exchanges no gradients"


class LiveTuning:
    """The tuning or the watching of one DDP model in this process.

    Args:
        ddp_model: the script's model; its reducer is exchanged between steps.
        options: the settings that may be tried, and the directory of the results.
        framework: the library that made the DDP object, such as ``transformers``; empty: the script
            itself.
        may_begin: whether rank 0 may begin now; it may change ``options`` before.

    Raises:
        Exception: the ranks cannot agree on anything, so the model is left alone.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        options: LiveOptions,
        *,
        framework: str = "",
        may_begin: Callable[[LiveTuning], bool] = lambda _: True,
    ) -> None:
        self.options = options
        self.framework = framework
        self.recommendation: Recommendation | None = None
        """The conclusion, on every rank."""
        self.is_over = False
        """Whether nothing of the tuning is left in the training but the reducer in use."""
        self.passes = 0
        """Synchronised backward passes so far."""
        self._may_begin = may_begin
        self._model = ddp_model
        self._agreement = Agreement(ddp_model)
        self._director: BaseDirector | None = None
        """Decides; on rank 0 only."""
        self._switcher: Switcher | None = None
        self._settings: Sequence[TrainingCase] = ()
        self._set_up_from = WARM_UP_PASSES
        self._ranks: list[tuple[str, Place, tuple[str, str], set[str]]] = []
        """What every rank has told rank 0 about itself."""
        self._signatures: list[tuple[int, int]] = []
        self._steps: list[Pass] = []
        """Passes of the block under way that are over."""
        self._block, self._begun, self._end = 0, 0, 0
        """Number of the block, its first pass, and the pass behind which the next one begins."""
        self._period = 1
        self._is_sent = self._is_rebuilding = self._is_failing = False
        self._told: Instruction | None = None
        """The instruction that this rank has tried."""
        self._has_promised = False
        """Whether the other ranks rely on this one for the exchange."""
        self._awaited: tuple[int, int, int, list[list[float]], list[int]] | None = None
        """The block whose times rank 0 reads next: number, first step, period, losses, buckets."""
        self._is_watch = options.mode == "watch"
        self._parts = StepParts(ddp_model) if self._is_watch else None
        """Times the parts of steps if nothing is tuned."""
        self._clock = Passes(ddp_model, self._after_pass, self._before_forward)
        ddp_model.join_hook = self._joining
        ddp_model.__dict__["__getstate__"] = self._state
        atexit.register(_say_if_too_short, weakref.ref(self))

    @property
    def is_root(self) -> bool:
        """Whether this rank decides."""
        return bool(self._agreement.rank == 0)

    @property
    def doing(self) -> str:
        """What is done, for people."""
        return DOING[self.options.mode]

    @property
    def has_run(self) -> bool:
        """Whether a run directory was begun."""
        return self._switcher is not None

    def release(self, reason: str) -> None:
        """End the tuning for a reason that all ranks have between the same two passes."""
        if self.is_over:
            return
        with contextlib.suppress(Exception):
            if self._switcher is not None:
                self._exchange(self._settings[0], is_trial=False)
        if self.is_root:
            say(
                f"{self.doing} is over, because {reason}. The training goes on with its own"
                " setting."
            )
        self._conclude("released", reason)
        self._close()

    def abandon(self, reason: str) -> None:
        """Conclude on rank 0 for a model that trains no more."""
        self._conclude("released", reason)
        self._is_failing = True
        if not self._has_promised:
            self._close()

    def _joining(self, **arguments: Any) -> Any:  # noqa: ANN401 - as DDP's
        """Leave the model alone from here on.

        DDP's join() calls this on all ranks before their first batch.
        """
        self.release("the script uses join(), and ranks that are out of data cannot take part")
        return self._model.join_hook(**arguments)

    def _state(self) -> StateDict:
        """Return the state of the model for copies and pickles, without the tuning."""
        state: StateDict = {**DistributedDataParallel.__getstate__(self._model)}
        before = state["_forward_pre_hooks"]
        state["_forward_pre_hooks"] = type(before)(
            (key, hook) for key, hook in before.items() if key != self._clock.forward_hook
        )
        for name in ("join_hook", "__getstate__", SYNC_BUFFERS):
            state.pop(name, None)
        return state

    # Entries from the training, which never raise

    def _before_forward(self) -> None:
        if self.passes or self.is_over:
            return
        try:
            reason = self._why_left_alone()
        except Exception as error:  # noqa: BLE001 - whatever fails here must not fail the training
            self._fail(error)
            return
        if reason:
            self.release(reason)

    def _why_left_alone(self) -> str:
        """Return why the model is left alone from its first forward pass on; empty: it is not."""
        if self._agreement.size == 1:
            return ALONE
        if is_compiled(self._model):
            return f"{COMPILED}; torch.compile may be applied to the model inside DDP"
        return ""

    def _after_pass(self, ended: Pass) -> None:
        """Do what is due after a synchronised pass."""
        self.passes = ended.index + 1
        try:
            if self._is_rebuilding:
                self._is_rebuilding = False
                self._model.reducer._rebuild_buckets()  # noqa: SLF001 - here all ranks do it
            if self.is_over:
                self._close()
            elif not self._is_failing:
                self._handle(ended)
        except Exception as error:  # noqa: BLE001 - whatever fails here must not fail the training
            self._fail(error)
        if self._is_failing:
            self._keep_promise(ended.index)

    def _handle(self, ended: Pass) -> None:
        self._signatures.append(ended.signature)
        if self._parts is not None:
            self._parts.end_step(ended)
        if self._model._join_config.enable:  # noqa: SLF001 - the only way
            self.release("the script uses join() for uneven inputs")
        elif self._switcher is None:
            self._set_up(ended)
        else:
            self._steps.append(ended)
            self._go_on(ended)

    # The begin

    def _set_up(self, ended: Pass) -> None:
        """Tell rank 0 about this rank, receive its plan, and begin the first block."""
        stage = ended.index - self._set_up_from
        if stage == 0:
            _synchronise(ended)
            place = own_place(self._agreement.rank)
            self._agreement.set_own(
                "ranks", (self._why_untuned(), place, gpu_of(self._model), self._traits())
            )
        elif stage == 1 and self.is_root:
            self._ranks = self._agreement.get_all("ranks")
            self._agreement.set("places", [place for _, place, *_ in self._ranks])
        elif stage == 2:  # noqa: PLR2004 - the third of five passes
            places = self._agreement.get("places")
            self._agreement.set_own("hosts", own_host(self._agreement.rank, places))
        elif stage == 3 and self.is_root:  # noqa: PLR2004 - the fourth
            self._agreement.set(f"plan/{ended.index}", self._plan(ended))
        elif stage == 4:  # noqa: PLR2004 - the last
            self._begin(self._agreement.get(f"plan/{ended.index - 1}"), ended)

    def _why_untuned(self) -> str:
        if self._is_watch:
            return why_unwatchable(self._model)
        return why_untunable(self._model)

    def _traits(self) -> set[str]:
        """Return the kinds of gradients of this rank that no hook understands."""
        traits = set()
        for parameter in self._clock.registered:
            if parameter.is_complex():
                traits.add("complex")
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                traits.add("sparse")
        for module in self._model.module.modules():
            if getattr(module, "sparse", False) is True:
                traits.add("sparse")
        return traits

    def _plan(self, ended: Pass) -> tuple[str, list[str], Instruction] | None:
        """Return why there is no tuning, else the settings and the first block; None: not yet."""
        from commbench.live.director import Director
        from commbench.live.watch_director import WatchDirector

        hosts = self._agreement.get_all("hosts")
        reasons, places, gpus, traits = zip(*self._ranks, strict=True)
        for reason in reasons:
            if reason:
                return reason, [], Instruction(Order.END)
        if not self._may_begin(self):
            return None
        try:
            facts: LiveFacts = {
                "framework": self.framework,
                "torch": torch.__version__,
                "own_hook": bool(own_hooks(self._model)),
                "traits": sorted(set().union(*traits)),
                "session": conditions_of(places, gpus, hosts),
            }
            director = WatchDirector if self._is_watch else Director
            self._director = director(self._model, self.options, self._original_of(ended), facts)
            instruction = self._director.next_instruction(WARM_UP_PASSES)
        except Exception as error:  # noqa: BLE001 - the training goes on
            return f"its run could not be begun: {error}", [], Instruction(Order.END)
        keys = [setting.key for setting in self._director.settings]
        return "", keys, self._in_passes(instruction)

    def _begin(self, plan: tuple[str, list[str], Instruction] | None, ended: Pass) -> None:
        if plan is None:
            self._set_up_from = ended.index + WAITING_PASSES
            return
        reason, keys, instruction = plan
        if reason:
            self.release(reason)
            return
        self._settings = [TrainingCase.from_key(key) for key in keys]
        self._switcher = Switcher(
            self._model,
            self._settings[0],
            self._clock.registered,
            file_hooks=self.options.file_hooks,
        )
        if self.options.witness:
            with contextlib.suppress(OSError):  # the command waits on another host
                Path(self.options.witness).touch()
        if instruction.order is Order.BLOCK:
            self._open_block(instruction, ended)
        else:
            self._finish(instruction)

    def _original_of(self, ended: Pass) -> TrainingCase:
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
            accumulation=max(1, len(ended.forwards)),
        )

    # Blocks

    def _in_passes(self, instruction: Instruction) -> Instruction:
        """Return an instruction whose steps are passes, with those in which ranks try a setting."""
        period = 1 if self._is_watch else period_of(self._signatures)
        steps = period * (instruction.steps + 1)
        return instruction._replace(steps=max(steps, AGREEING + 1), period=period)

    def _open_block(self, instruction: Instruction, ended: Pass) -> None:
        self._block += 1
        self._begun = ended.index + 1
        self._end = ended.index + instruction.steps
        self._period = instruction.period
        self._steps, self._is_sent = [], False

    def _go_on(self, ended: Pass) -> None:
        """Do what is due in a block."""
        at = ended.index - self._end
        if at < TOLD and self._awaited is None:
            return
        _synchronise(ended)
        if self.is_root and self._awaited is not None and ended.index >= self._begun:
            self._take_times()
        if at == TOLD and self.is_root:
            self._agreement.set(f"told/{self._end}", self._next_instruction(ended))
        elif at == TRIED:
            self._try(self._agreement.get(f"told/{self._end}"))
        elif at == DECIDED and self.is_root and self._told is not None:
            self._agreement.set(f"decided/{self._end}", self._decision())
        elif at == 0:
            self._turn(ended)

    def _next_instruction(self, ended: Pass) -> Instruction | None:
        """Return what follows the block; None if that depends on its times."""
        assert self._director is not None  # noqa: S101 - on rank 0
        begun = self._set_up_from - WARM_UP_PASSES
        step = (ended.index - begun) // self._period
        try:
            instruction: Instruction | None
            if self._is_sent:
                instruction = self._director.next_instruction(step)
            else:
                instruction = self._director.instruction_ahead(step)
        except Exception as error:  # noqa: BLE001 - the training goes on
            instruction = self._director.give_up(error)
        if instruction is None:
            return None
        if instruction.order is not Order.BLOCK:
            return instruction._replace(recommendation=self._director.recommendation)
        return self._in_passes(instruction)

    def _try(self, instruction: Instruction | None) -> None:
        """Make the reducer of a setting and drop it; say whether this rank can."""
        self._told = instruction
        if instruction is None:
            return
        setting, is_trial = self._asked(instruction)
        failure = ""
        if self._is_change(setting, is_trial=is_trial):
            try:
                self._used_switcher.prepare(setting, is_trial=is_trial).drop()
            except Exception as error:  # noqa: BLE001 - the setting is left out
                failure = str(error) or type(error).__name__
        self._agreement.set_own(f"able/{self._end}", failure)
        self._has_promised = not failure

    def _decision(self) -> str:
        """Return ``yes``, ``no`` if a rank cannot, or ``leave`` if one takes part no more."""
        assert self._director is not None  # noqa: S101 - on rank 0
        assert self._told is not None  # noqa: S101 - as above
        try:
            failures = self._agreement.get_all(f"able/{self._end}")
        except AbsentError as error:
            self._director.give_up(error)
            return "leave"
        for failure in failures:
            if failure:
                self._director.refuse(self._settings[self._told.setting], failure)
                return "no"
        return "yes"

    def _turn(self, ended: Pass) -> None:
        """Exchange the reducer as decided, send the times, and begin the next block."""
        decision = "wait"
        instruction = self._told
        if instruction is not None:
            decision = self._agreement.get(f"decided/{self._end}")
        if not self._is_sent and decision != "leave":
            self._send_times()
        if decision == "yes" and instruction is not None:
            setting, is_trial = self._asked(instruction)
            self._exchange(setting, is_trial=is_trial)
        self._told, self._has_promised = None, False
        if decision == "leave":
            self._close()
        elif decision != "yes":
            self._end += AGREEING
            self._begun = ended.index + 1
        elif instruction is not None and instruction.order is Order.BLOCK:
            self._open_block(instruction, ended)
        elif instruction is not None:
            self._finish(instruction)

    def _send_times(self) -> None:
        """Hand the block's times to rank 0."""
        self._is_sent = True
        buckets = bucket_bytes(self._model)
        if self._parts is not None:
            times = self._parts.times(self._steps, len(buckets))
        else:
            times = pass_times(self._steps)
        self._agreement.set_own(f"times/{self._block}", times)
        if self.is_root:
            losses = [[float(loss) for loss in step.losses] for step in self._steps]
            first = self._steps[0].index // self._period
            self._awaited = self._block, first, self._period, losses, buckets

    def _take_times(self) -> None:
        """Give the times of all ranks to the director."""
        assert self._director is not None  # noqa: S101 - on rank 0
        assert self._awaited is not None  # noqa: S101 - asked before
        (block, first, period, losses, buckets), self._awaited = self._awaited, None
        gathered = np.stack(self._agreement.get_all(f"times/{block}"))
        gathered, losses = in_steps(gathered, losses, period)
        self._director.add_block(gathered, losses, at=first, buckets=buckets)

    # The reducer

    @property
    def _used_switcher(self) -> Switcher:
        assert self._switcher is not None  # noqa: S101 - made in the set-up
        return self._switcher

    def _asked(self, instruction: Instruction) -> tuple[TrainingCase, bool]:
        return self._settings[instruction.setting], instruction.order is Order.BLOCK

    def _is_change(self, setting: TrainingCase, *, is_trial: bool) -> bool:
        switcher = self._used_switcher
        if setting != switcher.current:
            return True
        return switcher.is_trial and not is_trial

    def _exchange(self, setting: TrainingCase, *, is_trial: bool) -> None:
        """Put a setting in use; every rank does so behind the same pass."""
        if not self._is_change(setting, is_trial=is_trial):
            return
        switcher = self._used_switcher
        try:
            prepared = switcher.prepare(setting, is_trial=is_trial)
        except Exception:  # noqa: BLE001 - it could be made two passes ago, and others rely on it
            prepared = switcher.prepare(setting, is_trial=is_trial)
        switcher.commit(prepared)
        self._is_rebuilding = True
        if self._parts is not None and prepared.hook is not None:
            self._parts.observe(prepared.hook)

    # The end

    def _finish(self, instruction: Instruction) -> None:
        """Leave the training alone, after the exchange."""
        self.recommendation = instruction.recommendation
        director = self._director
        self._close()
        if instruction.order is Order.STOP:
            if director is not None:
                director.wait()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # torch aborts at exit while a process group is open

    def _fail(self, error: Exception) -> None:
        """Give up: say so, and do nothing more than what other ranks rely on."""
        if self._is_failing:
            return
        self._is_failing = True
        rank = dist.get_rank() if dist.is_initialized() else 0
        reason = f"{self.doing} failed on rank {rank}: {error!r}"
        if self.is_root or not isinstance(error, AbsentError):  # that rank has said why
            say(f"{reason}. The training goes on.")
        self._conclude("failed", reason)

    def _keep_promise(self, index: int) -> None:
        """Exchange the reducer where the others do, then close.

        A rank that cannot read the decision takes it as yes: a no needs a second failure.
        """
        if not self._has_promised or self._told is None:
            self._close()
            return
        if index < self._end:
            return
        self._has_promised = False
        decision = "yes"
        with contextlib.suppress(Exception):
            decision = self._agreement.get(f"decided/{self._end}")
        if decision == "yes":
            setting, is_trial = self._asked(self._told)
            with contextlib.suppress(Exception):
                self._exchange(setting, is_trial=is_trial)
        self._close()

    def _conclude(self, ending: str, reason: str) -> None:
        with contextlib.suppress(Exception):
            if self._director is not None:
                self._director.conclude(ending, reason)

    def _close(self) -> None:
        """Remove everything that the tuning has added but the reducer in use.

        The clock stays until the buckets of a new reducer are rebuilt, behind its first pass.
        """
        self.is_over = True
        if self._parts is not None:
            self._parts.close()
        if not self._is_rebuilding:
            self._clock.close()
        self._model.__dict__.pop("join_hook", None)
        self._model.__dict__.pop("__getstate__", None)
        if self._director is not None:
            self._director.close()


def _say_if_too_short(reference: weakref.ref[LiveTuning]) -> None:
    """Say that a training ended before the first block."""
    tuning = reference()
    if tuning is None or tuning.is_over or tuning.has_run or not tuning.is_root:
        return
    needed = WARM_UP_PASSES + AGREEING + 1
    if 0 < tuning.passes < needed:
        say(
            f"the training made {counted(tuning.passes, 'backward pass')} with"
            f" synchronisation, and {tuning.doing} begins after {needed}."
        )


def _synchronise(ended: Pass) -> None:
    """Wait until a GPU has reached the end of a pass: then the other ranks have begun it."""
    if hasattr(ended.ended, "synchronize"):
        ended.ended.synchronize()


def pass_times(steps: Sequence[Pass]) -> NDArray[np.float64]:
    """Return milliseconds of each pass and of the gap in it, shape (passes, 2)."""
    times = np.zeros((len(steps), 2))
    for row, step in enumerate(steps):
        times[row] = elapsed_ms(step.resumed, step.ended), step.gap_ns / 1e6
    return times


def in_steps(
    times: NDArray[np.float64], losses: Sequence[Sequence[float]], period: int
) -> tuple[NDArray[np.float64], list[list[float]]]:
    """Return times and losses of steps of several passes each.

    The step in which ranks have tried the next setting is left out.

    Args:
        times: of passes, shape (ranks, passes, columns).
        losses: of each pass.
        period: passes of a step.
    """
    ranks, passes, columns = times.shape
    steps = passes // period
    summed = times[:, : steps * period].reshape(ranks, steps, period, columns).sum(axis=2)
    together = []
    for step in range(steps):
        of_step: list[float] = []
        for of_pass in losses[step * period : (step + 1) * period]:
            of_step += of_pass
        together.append(of_step)
    disturbed = min((passes - 1 + DECIDED) // period, steps - 1)
    del together[disturbed]
    return np.delete(summed, disturbed, axis=1), together
