"""Directs the tuning or watching of one DDP model while it trains, and cannot harm the training.

The clock is the synchronised backward pass (`commbench.live.passes`). What ranks agree on they hand
over through the store (`commbench.live.agreement`): there is no collective and no wait. The last
passes of a block agree on what follows:

- `TELL`: rank 0 writes the next instruction;
- `TRY`: every rank reads it, tries the setting, and writes whether it can;
- `DECIDE`: rank 0 writes whether all can;
- `EXCHANGE`: every rank reads that, and writes the block's times, which rank 0 reads after the next
  pass.

Every rank exchanges the reducer when its next forward pass that is synchronised begins: until then
the script may call ``backward()`` again for a graph that it has kept, and the first pass of a
reducer with a static graph must be synchronised.

If the next setting depends on the times of this block, rank 0 tells None, and the block goes on for
four passes more, which are not timed. The warm-up is the first block; in its last passes ranks also
tell rank 0 about themselves.

Rank 0 alone has a programme (`commbench.live.programme`), which plans the blocks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.buckets import bucket_bytes
from commbench.ddp.plan.arguments import setting_of_model
from commbench.ddp.plan.cases import TrainingCase
from commbench.hooks.base import StateDict
from commbench.hooks.feedback import is_finite
from commbench.launch.facts import Place, own_host, own_place
from commbench.launch.signals import deferring
from commbench.live.agreement import AbsentError, Agreement, Instruction, Measured
from commbench.live.conditions import conditions_of, gpu_of
from commbench.live.imports import python_first
from commbench.live.options import DOING, LiveOptions, say
from commbench.live.passes import (
    PRE_FORWARD,
    SYNC_BUFFERS,
    Pass,
    Passes,
    of_steps,
    pass_times,
    period_of,
)
from commbench.live.switching import (
    COMPILED,
    Switcher,
    is_compiled,
    own_hooks,
    traits_of,
    why_held,
    why_untunable,
    why_unwatchable,
)
from commbench.live.watch_steps import times_of
from commbench.units import counted

if TYPE_CHECKING:
    from commbench.live.programme import Programme
    from commbench.results.recommendation import Recommendation

#: Passes before the end of a block in which ranks agree, and of the warm-up in which rank 0 learns
#: where they run and what they train.
PLACE, SHARE, DESCRIBE, TELL, TRY, DECIDE, EXCHANGE = range(-6, 1)
#: Passes in which ranks agree on a setting.
AGREEING = 4
#: Passes before that in the warm-up: memory is allocated, kernels are chosen, DDP rebuilds its
#: buckets, and the period of the training shows.
WARM_UP_PASSES = 8
#: Passes after which a model asks again whether it may begin, while another one is tuned.
WAITING_PASSES = 20
#: Methods of DDP by which a script changes what was agreed on, and why that ends the tuning.
INTERVENTIONS = {
    "join_hook": "the script uses join(), and ranks that are out of data cannot take part",
    "register_comm_hook": "the script registers a communication hook",
    "_register_builtin_comm_hook": "the script registers a communication hook",
    "_set_static_graph": "the script declares its graph to be static",
    "_update_process_group": "the script changes its process group",
}
#: What the tuning puts beside the attributes of the model.
ADDED = (*INTERVENTIONS, "__getstate__", SYNC_BUFFERS, PRE_FORWARD)
#: Why a model of one rank is left alone.
ALONE = "it trains on one rank, which exchanges no gradients"
#: Why a model is left alone whose backward passes are made in another way.
UNSEEN = (
    "its backward passes cannot be seen: call loss.backward() or torch.autograd.backward(loss), not"
    " a function that was imported from torch.autograd"
)
#: Why a model is left alone that a group of other ranks trains.
OTHER_GROUP = "rank 0 does not train it, and only the models of rank 0 have results"


class Director:
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

    most_passes: ClassVar[int] = 0
    """Synchronised backward passes of the model of this process that has made most."""
    is_any_over: ClassVar[bool] = False
    """Whether that holds for a model of this process, see ``is_over``."""

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        options: LiveOptions,
        *,
        framework: str = "",
        may_begin: Callable[[Director], bool] | None = None,
    ) -> None:
        self.options = options
        self.recommendation: Recommendation | None = None
        """The conclusion, on every rank."""
        self.is_over = False
        """Whether nothing of the tuning is left in the training but the reducer in use."""
        self.passes = 0
        """Synchronised backward passes so far."""
        self.doing = DOING[options.mode]
        """What is done, for people."""
        self._framework = framework
        self._may_begin = may_begin
        self._reference = weakref.ref(ddp_model)
        self._agreement = Agreement(ddp_model)
        self.is_root = self._agreement.rank == 0
        """Whether this rank decides."""
        self._programme: Programme | None = None
        self._places: Sequence[Place] = ()
        self._switcher: Switcher | None = None
        self._signatures: list[tuple[int, int]] = []
        self._steps: list[Pass] = []
        """Passes of the block under way that are over."""
        self._first = 0
        """The first pass of the block."""
        self._end = WARM_UP_PASSES + AGREEING
        """The pass behind which the next block begins."""
        self._origin = 0
        """The pass from which steps are counted."""
        self._period = 1
        self._is_sent = True
        """Whether rank 0 has the times of the block; those of the warm-up are of no use."""
        self._is_rebuilding = self._is_failing = self._is_ending = False
        self._told: Instruction | None = None
        """The instruction that this rank has tried."""
        self._has_promised = False
        """Whether the other ranks rely on this one for the exchange."""
        self._due: Instruction | None = None
        """The instruction with which the next synchronised forward pass begins."""
        self._awaited: Measured | None = None
        """The block whose times rank 0 reads next."""
        self._is_watched = options.mode == "watch"
        """Whether parts of steps are timed, and nothing is tuned."""
        clock = Passes(
            ddp_model, self._after_pass, self._before_forward, is_watched=self._is_watched
        )
        self._clock = weakref.ref(clock)
        self._registered = clock.registered
        for name in INTERVENTIONS:
            ddp_model.__dict__[name] = functools.partial(self._give_way, name)
        ddp_model.__dict__["__getstate__"] = self._state
        if self.is_root:
            atexit.unregister(_say_if_too_short)  # once for all models
            atexit.register(_say_if_too_short, self.doing)

    def release(self, reason: str) -> None:
        """End the tuning for a reason that all ranks have between the same two passes."""
        if self.is_over:
            return
        with contextlib.suppress(Exception):
            if self._switcher is not None:
                self._due = Instruction(self._switcher.original)
                self._exchange()
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

    @property
    def _model(self) -> DistributedDataParallel:
        """The script's model, which alone keeps this object alive."""
        return self._reference()

    def _give_way(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Leave the model alone before a method of `INTERVENTIONS`, which all ranks call.

        Before the first step nothing was agreed on yet; but join() changes the steps that follow.
        """
        if self.passes or name == "join_hook":
            with deferring(), python_first(), contextlib.suppress(Exception):
                self.release(INTERVENTIONS[name])
                self._exchange()  # if the decision has just been made
                if name == "join_hook":
                    self._is_rebuilding = False  # ranks without data rebuild at another place
                    self._close()
        return getattr(type(self._model), name)(self._model, *arguments, **keywords)

    def _state(self) -> Any:
        """Return the state of the model for copies and pickles, without the tuning.

        A subclass may return something else than a dictionary: that is its own.
        """
        of_class: Any = type(self._model)
        own = of_class.__getstate__(self._model)
        if not isinstance(own, dict):
            return own
        state: StateDict = {**own}
        for name in ADDED:
            state.pop(name, None)
        return state

    # Entries from the training, which never raise

    def _before_forward(self) -> None:
        if self.passes and self._due is None:
            return
        with deferring(), python_first():
            try:
                self._exchange()
                if not self.passes and not self.is_over:
                    self._release_unseen()
            except Exception as error:  # noqa: BLE001 - it must not fail the training
                self._fail(error)

    def _release_unseen(self) -> None:
        """End the tuning before the first pass if none would be seen, or needed."""
        clock = self._clock()
        if self._agreement.size == 1:
            self.release(ALONE)
        elif is_compiled(self._model):
            self.release(f"{COMPILED}; torch.compile may be applied to the model inside DDP")
        elif clock is not None and clock.is_blind():
            self.release(UNSEEN)

    def _after_pass(self, ended: Pass) -> None:
        """Do what is due after a synchronised pass."""
        self.passes = ended.index + 1
        Director.most_passes = max(Director.most_passes, self.passes)
        self._signatures.append(ended.signature)
        self._steps.append(ended)
        first = TELL
        if self._switcher is None:
            first = PLACE
        is_point = self._awaited is not None or ended.index >= self._end + first
        if is_point or self._is_rebuilding or self._is_failing:
            with deferring(), python_first():
                self._act(ended, is_point=is_point)

    def _act(self, ended: Pass, *, is_point: bool) -> None:
        """Use the new reducer, go on with the protocol at its points, or leave."""
        try:
            if self._is_rebuilding:
                self._is_rebuilding = False
                self._rebuild()  # if an exception of the script's has prevented it
            if self._is_ending:
                self._end_process()
            if self.is_over:
                self._close()
            elif is_point and not self._is_failing:
                self._handle(ended)
        except Exception as error:  # noqa: BLE001 - whatever fails here must not fail the training
            self._fail(error)
        if self._is_failing:
            self._keep_promise(ended.index)

    def _handle(self, ended: Pass) -> None:
        """Go on with the protocol."""
        point = ended.index - self._end
        if hasattr(ended.ended, "synchronize"):
            ended.ended.synchronize()  # when a GPU has come here, the other ranks have begun
        if self._awaited is not None and self._programme is not None:
            awaited, self._awaited = self._awaited, None
            times = np.stack(self._agreement.get_all("times"))
            self._programme.take(awaited._replace(times=times))
        if point < TELL and self._switcher is None:
            self._introduce(point)
        elif point == TELL and self.is_root:
            self._tell(ended)
        elif point == TRY:
            self._try()
        elif point == DECIDE and self.is_root and self._told is not None:
            self._decide(self._told)
        elif point == EXCHANGE:
            self._turn()

    # The points of the protocol

    def _introduce(self, point: int) -> None:
        """Tell rank 0 about this rank, at the end of the warm-up."""
        rank = self._agreement.rank
        if point == PLACE:
            self._agreement.set_own("places", (self._agreement.token, own_place(rank)))
        elif point == SHARE and self.is_root:
            self._agreement.set("places", self._agreement.get_all("places"))
        elif point == DESCRIBE:
            tokens, self._places = zip(*self._agreement.get("places"), strict=True)
            self._agreement.enter(tokens)
            reason = why_unwatchable(self._model)
            if not self._is_watched:
                reason = why_untunable(self._model)
            host = own_host(rank, self._places)
            traits = traits_of(self._model, self._registered)
            self._agreement.set_own("ranks", (reason, gpu_of(self._model), host, traits))

    def _tell(self, ended: Pass) -> None:
        """Write what follows the block; None if that depends on its times."""
        step = (ended.index - self._origin) // self._period
        instruction: Instruction | None
        if self._programme is None:
            instruction = self._first_instruction(ended, step)
        else:
            try:
                instruction = self._programme.instruct(step, is_ahead=not self._is_sent)
            except Exception as error:  # noqa: BLE001 - the training goes on
                instruction = self._programme.give_up(error)
        if instruction is not None and instruction.steps:
            period = 1
            if not self._is_watched:
                period = period_of(self._signatures)
            passes = max(period * (instruction.steps + 1), AGREEING + 1)  # and one to try a setting
            instruction = instruction._replace(passes=passes, period=period)
        self._agreement.set(f"told/{self._end}", instruction)

    def _first_instruction(self, ended: Pass, step: int) -> Instruction | None:
        """Return why there is no tuning, or the first block; None: not yet."""
        original = self._original_of(ended)
        reasons, gpus, hosts, traits = zip(*self._agreement.get_all("ranks"), strict=True)
        held = why_held(self._model, self._registered, is_kept=ended.keeps_gradients)
        if held and not self._is_watched:
            reasons = (*reasons, held)
        if dist.get_rank() != 0 and self._may_begin is not None:
            reasons = (*reasons, OTHER_GROUP)
        for reason in reasons:
            if reason:
                return Instruction(original, reason=reason)
        if self._may_begin is not None and not self._may_begin(self):
            return None
        try:
            from commbench.live.run import Facts
            from commbench.live.tune import Tune
            from commbench.live.watch import Watch

            parameters = self._model.module.parameters()
            facts = Facts(
                original=original,
                parameters=sum(p.numel() for p in parameters if p.requires_grad),
                framework=self._framework,
                has_own_hook=bool(own_hooks(self._model)),
                traits=sorted(set().union(*traits)),
                held=held,
                session=conditions_of(self._places, gpus, hosts),
            )
            if self._is_watched:
                self._programme = Watch(self._model, self.options, facts)
            else:
                self._programme = Tune(self._model, self.options, facts)
            return self._programme.instruct(step, is_ahead=False)
        except Exception as error:  # noqa: BLE001 - the training goes on
            why = str(error).rstrip(".")
            return Instruction(original, reason=f"its run could not be begun: {why}")

    def _original_of(self, ended: Pass) -> TrainingCase:
        """Return the script's own setting in the words of ``ddp.csv``."""
        group, device = self._model.process_group, self._model.device
        return TrainingCase(
            workload=self.options.workload,
            world_size=group.size(),
            batch_per_rank=ended.batch,
            # A group may have several backends.
            backend=group._get_backend(device).name(),  # noqa: SLF001
            precision=ended.precision,
            **setting_of_model(self._model),
            accumulation=max(1, len(ended.forwards)),
        )

    def _try(self) -> None:
        """Make the reducer of a setting and drop it; say whether this rank can."""
        told = self._told = self._agreement.get(f"told/{self._end}")
        if told is None:
            return
        if told.reason:
            self.release(told.reason)
            return
        if self._switcher is None:
            self._switcher = Switcher(
                self._model, told.setting, self._registered, file_hooks=self.options.file_hooks
            )
            if self.options.witness:
                with contextlib.suppress(OSError):  # the command waits on another host
                    Path(self.options.witness).touch()
        failure = ""
        try:
            self._switcher.attempt(self._model, told.setting, is_trial=told.steps > 0)
        except Exception as error:  # noqa: BLE001 - the setting is left out
            failure = str(error) or type(error).__name__
        self._agreement.set_own(f"able/{self._end}", failure)
        self._has_promised = not failure

    def _decide(self, told: Instruction) -> None:
        """Write ``yes``, ``no`` if a rank cannot, or ``leave`` if one takes part no more."""
        assert self._programme is not None  # noqa: S101 - on rank 0
        decision = "yes"
        try:
            failures = self._agreement.get_all(f"able/{self._end}")
        except AbsentError as error:
            self._fail(error)
            decision = "leave"
        else:
            for failure in filter(None, failures):
                self._programme.refuse(told.setting, failure)
                decision = "no"
                if told.setting == self._programme.settings[0] and not told.steps:
                    decision = "leave"  # no other setting is left to end with
                break
        self._agreement.set(f"decided/{self._end}", decision)

    def _turn(self) -> None:
        """Send the times, exchange the reducer as decided, and begin the next block."""
        told, decision = self._told, "wait"
        if told is not None:
            decision = self._agreement.get(f"decided/{self._end}")
        if not self._is_sent and decision != "leave":
            self._send_times()
        if decision == "yes":
            self._due = told
        self._told, self._has_promised = None, False
        self._steps = []
        if decision == "leave":
            self._close()
        elif told is None and self._switcher is None:  # another model is tuned
            self._end += WAITING_PASSES
            self._origin += WAITING_PASSES
        elif told is None or decision == "no":
            self._end += AGREEING
        elif told.steps:
            self._first = self._end + 1
            self._end += told.passes
            self._period = told.period
            self._is_sent = False
        else:
            self.recommendation = told.recommendation
            self._is_ending = told.ends_process
            self._close()

    def _send_times(self) -> None:
        """Hand the block's times to rank 0."""
        self._is_sent = True
        buckets = bucket_bytes(self._model)
        if self._is_watched:
            timed = 0
            if self._switcher is not None and self._switcher.hook is not None:
                timed = len(buckets)
            is_serial = self._model.device.type == "cuda"
            times = times_of(self._steps, timed, is_serial=is_serial)
        else:
            times = pass_times(self._steps)
        times = of_steps(times, self._period)
        self._agreement.set_own("times", times)
        if self.is_root:
            at = self._first // self._period
            self._awaited = Measured(times, at, buckets, self._has_finite_gradients())

    def _has_finite_gradients(self) -> bool:
        """Return whether the hook in use has left finite gradients; true without a hook."""
        if self._switcher is None or self._switcher.hook is None:
            return True
        for parameter in self._registered:
            if parameter.grad is not None and not is_finite(parameter.grad):
                return False
        return True

    def _exchange(self) -> None:
        """Put the setting that is due in use; every rank does so between the same two passes."""
        due, self._due = self._due, None
        if due is None or self._switcher is None:
            return
        if self._switcher.exchange(self._model, due.setting, is_trial=due.steps > 0):
            self._is_rebuilding = True
            clock = self._clock()
            if clock is not None:
                clock.call_inside(self._rebuild)
                if self._is_watched and self._switcher.hook is not None:
                    clock.observe(self._switcher.hook)

    def _rebuild(self) -> None:
        """Rebuild the buckets of a new reducer, inside a backward pass: that is a collective.

        DDP would do so in the next forward pass, which a rank may make alone. A rank that calls
        ``backward()`` by another name does not see the end of it before that.
        """
        with deferring(), python_first():
            try:
                self._model.reducer._rebuild_buckets()  # noqa: SLF001 - the only way
            except Exception as error:  # noqa: BLE001 - it must not fail the training
                self._fail(error)

    # The end

    def _end_process(self) -> None:
        """End the process one pass after the decision: then no rank needs this one to read it."""
        if self._programme is not None:
            self._programme.run.wait()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the script has closed it, or put None there
                stream.flush()
        os._exit(0)  # torch aborts at exit while a process group is open

    def _fail(self, error: Exception) -> None:
        """Give up: say so, and do nothing more than what other ranks rely on."""
        if self._is_failing:
            return
        self._is_failing = True
        rank = 0
        if dist.is_initialized():
            rank = dist.get_rank()
        reason = f"{self.doing} failed on rank {rank}: {error!r}"
        if self.is_root or not isinstance(error, AbsentError):  # that rank has said why
            follows = "The training goes on."
            if self._switcher is not None and self._switcher.in_use != self._switcher.original:
                # Without this rank no other setting can be agreed on.
                follows = "The training goes on with a setting that was tried, not its own."
            say(f"{reason}. {follows}")
        self._conclude("failed", reason)

    def _keep_promise(self, index: int) -> None:
        """Exchange the reducer where the others do, then close.

        A rank that cannot read the decision takes it as yes: a no needs a second failure.
        """
        if self._told is not None and self._has_promised:
            if index < self._end:
                return
            self._has_promised = False
            decision = "yes"
            with contextlib.suppress(Exception):
                decision = self._agreement.get(f"decided/{self._end}")
            if decision == "yes":
                self._due = self._told
        self._close()

    def _conclude(self, ending: str, reason: str) -> None:
        with contextlib.suppress(Exception):
            if self._programme is not None:
                self._programme.run.conclude(ending, reason)

    def _close(self) -> None:
        """Remove everything that the tuning has added but the reducer in use.

        The clock stays until the last reducer is in use and has rebuilt its buckets, behind its
        first pass, and until the process ends if it is to.
        """
        self.is_over = Director.is_any_over = True
        if self._programme is not None:
            self._programme.run.close()
        clock = self._clock()
        is_needed = self._due is not None or self._is_rebuilding or self._is_ending
        if clock is not None and not is_needed:
            self._switcher = None
            clock.close()
            for name in ADDED:
                vars(self._model).pop(name, None)


def director_of(ddp_model: DistributedDataParallel) -> Director | None:
    """Return who tunes or watches a model already; None if nobody does."""
    intervention = getattr(vars(ddp_model).get("join_hook"), "func", None)
    director = getattr(intervention, "__self__", None)
    if isinstance(director, Director):
        return director
    return None


def _say_if_too_short(doing: str) -> None:
    """Say that every training of this process ended before the first block."""
    needed = WARM_UP_PASSES + AGREEING + 1
    if Director.most_passes < needed and not Director.is_any_over:
        say(
            f"commbench saw {counted(Director.most_passes, 'backward pass')} with"
            f" synchronisation, and {doing} begins after {needed}."
        )
