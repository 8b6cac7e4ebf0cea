"""The clock of live tuning and watching: backward passes that DDP synchronises.

Every rank makes the same number of them in the same order, because DDP itself needs that. Forward
passes, optimiser steps, evaluations and saves may differ between ranks.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from commbench.ddp.models import batch_length
from commbench.hooks.base import Hook, Stopwatch
from commbench.hooks.step_clock import Mark, clock_of, elapsed_ms

#: Passes whose signatures decide the period, and the share of them that may differ from it.
SIGNATURES, IRREGULAR_SHARE = 64, 0.1
#: Marks of a pass that is taken to have no end.
MOST_MARKS = 10000
#: DDP's method that broadcasts the buffers of a module, such as the statistics of BatchNorm, and
#: the one with which each forward pass begins.
SYNC_BUFFERS, PRE_FORWARD = "_sync_buffers", "_pre_forward"
#: See the name in ``site/sitecustomize.py``.
SKIPPED = "importlib._bootstrap: commbench"


class Harmless:
    """Suppresses exceptions, except those that the script's own signal handlers raise.

    Python calls these between any two statements, such as commbench's.
    """

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Suppress an exception of commbench."""
        if not isinstance(error, Exception):
            return False
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return not any(map(_handles_signal, frames))


def _handles_signal(frame: FrameType) -> bool:
    """Return whether a function handles a signal: Python gives it the frame that it interrupts."""
    names, rest, _, values = inspect.getargvalues(frame)
    arguments = [values.get(name) for name in names]
    others = values.get(rest or "")
    if isinstance(others, tuple):
        arguments.extend(others)
    return frame.f_back is not None and any(value is frame.f_back for value in arguments)


@dataclass(kw_only=True)
class Pass:
    """What one rank did from the end of a synchronised backward pass to the end of the next one."""

    index: int
    """Its number, from 0."""
    resumed: Mark = None
    """When commbench had returned to the script after the pass before; None in the first."""
    ended: Mark = None
    """The end of the synchronised backward pass."""
    gap_ns: int = 0
    """Host time from the last pass or optimiser step to the first forward pass: loading data,
    evaluating and saving fall into it."""
    batch: int = 1
    """First dimension of the first tensor given to the model."""
    keeps_gradients: bool = False
    """Whether the script still had gradients of the pass before at the first backward pass, or may
    have had them, if another thread than that of the forward pass made it."""
    precision: str = "fp32"
    """Of the first forward pass, as ``ddp.csv`` writes it."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """Of each backward pass, as given to ``backward()``; on the device."""
    forwards: list[Mark] = field(default_factory=list)
    """The begin of each forward pass with gradients, those without synchronisation too."""
    backwards: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Begin and end of each outermost call of ``backward()``."""
    updates: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Begin and end of each optimiser step."""
    broadcasts: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Of a watched training: begin and end of each broadcast of buffers, which DDP makes before a
    forward pass."""
    buckets: list[Stopwatch] = field(default_factory=list)
    """Of a watched training: those that the pass-through hook has sent."""
    last_gradient: Mark = None
    """Of a watched training: when the last gradient was accumulated."""
    signature: tuple[int, int] = (0, 0)
    """Changes of the first parameter, and forward passes; see `period_of`."""


def period_of(signatures: Sequence[tuple[int, int]]) -> int:
    """Return after how many passes a training repeats what it does between them.

    A step of sharpness-aware minimisation has two synchronised passes, one with accumulated
    gradients may have more. 1 if nothing repeats.
    """
    latest = signatures[-SIGNATURES:]
    for period in range(1, len(latest) // 2 + 1):
        differing = sum(map(operator.ne, latest, latest[period:]))
        if differing <= IRREGULAR_SHARE * (len(latest) - period):
            return period
    return 1


def pass_times(passes: Sequence[Pass]) -> NDArray[np.float64]:
    """Return milliseconds of each pass and of the gap in it, and its loss, shape (passes, 3)."""
    times = np.full((len(passes), 3), np.nan)
    for row, each in zip(times, passes, strict=True):
        row[:2] = elapsed_ms(each.resumed, each.ended), each.gap_ns / 1e6
        if each.losses:
            with Harmless():  # one may be a complex number, or of a class that has no float
                row[2] = sum(map(float, each.losses))
    return times


def of_steps(times: NDArray[np.float64], period: int) -> NDArray[np.float64]:
    """Return the sums over steps of some passes each, without the step in which a setting was
    tried: behind the last pass but two.
    """
    passes, columns = times.shape
    steps = passes // period
    summed = times[: steps * period].reshape(steps, period, columns).sum(axis=1)
    disturbed = min((passes - 2) // period, steps - 1)
    return np.delete(summed, disturbed, axis=0)


class Passes:
    """Calls a function after each synchronised backward pass of a model.

    The model alone keeps this object alive, and nothing here keeps the model alive.

    Args:
        ddp_model: the model that is trained.
        on_pass: gets the pass that is over; it must not raise.
        on_forward: called before each forward pass with gradients that DDP is to synchronise; it
            must not raise.
        is_watched: whether broadcasts of buffers and last gradients get marks, too.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        on_pass: Callable[[Pass], None],
        on_forward: Callable[[], None],
        *,
        is_watched: bool = False,
    ) -> None:
        own = ddp_model._module_parameters  # noqa: SLF001 - DDP has no public list
        self.registered = [parameter for parameter in own if parameter.requires_grad]
        """The parameters that DDP has registered."""
        self._ids = set(map(id, self.registered))
        self.fired: collections.deque[nn.Parameter] = collections.deque(maxlen=1)
        """The last parameter whose gradient was accumulated in the backward pass under way."""
        self.clock = clock_of(ddp_model)
        self.open = Pass(index=0)
        """The pass under way."""
        self._is_called = False
        """Whether a call of ``backward()`` was seen."""
        self._reference = weakref.ref(ddp_model)
        self._hook: Hook | None = None
        """Its buckets get marks."""
        if is_watched:
            ddp_model.__dict__[SYNC_BUFFERS] = self._broadcast
        self._on_pass = on_pass
        self._on_forward = on_forward
        self._idle_since_ns = time.perf_counter_ns()
        self._is_armed = False
        self._thread = 0
        """The thread of the last forward pass; others may train other models."""
        self._version = self._present_version()
        self._begun: Mark = None
        self._update_begun: Mark = None
        # A hook of the module would miss a script that calls `forward` itself.
        ddp_model.__dict__[PRE_FORWARD] = torch.compiler.disable(self._pre_forward)
        handles = []
        self._gradient: collections.deque[Mark] = collections.deque(maxlen=1)
        """Of a watched training: when the last gradient was accumulated."""
        note_gradient = _ignoring_argument(map(self._gradient.append, iter(self.clock, None)))
        for parameter in self.registered:
            handles.append(parameter.register_post_accumulate_grad_hook(self.fired.append))
            if is_watched:
                handles.append(parameter.register_post_accumulate_grad_hook(note_gradient))
        self._task = -1
        """The last backward pass, as autograd numbers them, that `end_inside` has seen."""
        self._inside_handles: list[RemovableHandle] = []
        """Of the hooks of `call_inside`."""
        self._remove_hooks = weakref.finalize(self, _remove, handles, self._inside_handles)
        self._remove_hooks.atexit = False
        _Calls.observe(self)

    def observe(self, hook: Hook) -> None:
        """Take the marks of a hook's buckets from now on."""
        self._hook = hook
        hook.observer = self._note_bucket

    def call_inside(self, function: Callable[[], None]) -> None:
        """Call a function once DDP has all gradients of the next synchronised backward pass, before
        that returns to the script, by whatever name the script has called it.

        The function may be called before that pass, too, and more than once.
        """
        queue = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001 - no other
        end_inside = torch.compiler.disable(_end_inside)
        end = functools.partial(end_inside, weakref.ref(self), function)
        add = functools.partial(queue, functools.partial(queue, end))  # behind DDP's own callback
        hook = _ignoring_argument(iter(add, 0))  # never 0
        for parameter in self.registered:
            if parameter.requires_grad:  # a script may freeze some for a while
                handle = parameter.register_post_accumulate_grad_hook(hook)
                self._inside_handles.append(handle)

    def end_inside(self, function: Callable[[], None]) -> None:
        """Call a function if DDP waits for no gradients, once in a backward pass."""
        task = torch._C._current_graph_task_id()  # noqa: SLF001 - the only way
        if task != self._task:
            self._task = task
            with Harmless():
                if self._is_reduced():
                    function()

    def is_blind(self) -> bool:
        """Return whether gradients were accumulated without a call of ``backward()``."""
        return bool(self.fired) and not self._is_called and not _is_in_backward()

    def close(self) -> None:
        """Take no more marks; closing twice is harmless."""
        self._remove_hooks()
        _Calls.ignore(self)
        if self._hook is not None:
            self._hook.observer = None

    def _note_bucket(self, marks: Stopwatch) -> None:
        self.open.buckets.append(marks)

    @property
    def _model(self) -> DistributedDataParallel:
        """The script's model, which alone keeps this object alive."""
        return self._reference()

    def _broadcast(self) -> None:
        """Broadcast the buffers, in place of DDP's method."""
        begin = self.clock()
        getattr(type(self._model), SYNC_BUFFERS)(self._model)
        self.open.broadcasts.append((begin, self.clock()))

    def _pre_forward(self, *inputs: object, **keywords: object) -> Any:
        """Do what is due before a forward pass, then what DDP does."""
        model = self._model
        self._before_forward(model, inputs, keywords)
        return getattr(type(model), PRE_FORWARD)(model, *inputs, **keywords)

    def _before_forward(
        self, model: nn.Module, inputs: tuple[object, ...], keywords: Mapping[str, object]
    ) -> None:
        if not torch.is_grad_enabled():
            return
        self._thread = threading.get_ident()
        if model.require_backward_grad_sync:
            if self._is_called and not _is_in_backward():
                if self._is_armed:
                    self.after_backward(None)  # of a pass whose end was interrupted, or not seen
                self.fired.clear()
            self._is_armed = True
        with Harmless():
            self._forget_much()
            self.open.forwards.append(self.clock())
            if len(self.open.forwards) == 1:
                self.open.gap_ns = time.perf_counter_ns() - self._idle_since_ns
                self.open.precision = _precision_on(self.registered[0].device.type)
                self.open.batch = max(1, batch_length((inputs, keywords)))
        if model.require_backward_grad_sync:
            self._on_forward()

    def before_update(self, optimizer: Optimizer, *_: object) -> None:
        """Take the begin of an optimiser step."""
        if self._is_of_model(optimizer):
            self._update_begun = self.clock()

    def after_update(self, optimizer: Optimizer, *_: object) -> None:
        """Take the end of an optimiser step."""
        if self._is_of_model(optimizer):
            self._forget_much()
            self.open.updates.append((self._update_begun, self.clock()))
            if not self.open.forwards:
                self._idle_since_ns = time.perf_counter_ns()

    def _is_of_model(self, optimizer: Optimizer) -> bool:
        """Return whether the optimiser updates parameters of the model."""
        for group in optimizer.param_groups:
            if not self._ids.isdisjoint(map(id, group["params"])):
                return True
        return False

    def _may_be_called(self) -> bool:
        """Return whether a call of ``backward()`` by this thread may belong to the model.

        Each thread may train a model of its own. A call in another thread than the forward pass
        belongs to the model if it accumulates the model's gradients and overlaps no other call.
        """
        thread = threading.get_ident()
        return self._thread == thread or _Calls.threads == {thread}

    def before_backward(self) -> None:
        """Take the begin of an outermost call of ``backward()``."""
        self._is_called = True
        if not self._may_be_called():
            return
        self._begun = self.clock()
        if not self.open.backwards:  # scripts may remove gradients behind the forward pass
            # The thread of the forward pass may be changing gradients: who else reads them crashes.
            is_other = self._thread != threading.get_ident()
            self.open.keeps_gradients = is_other or self.registered[-1].grad is not None

    def after_backward(self, tensors: object) -> None:
        """Take the end of an outermost call of ``backward()``."""
        if not self.fired or not self._may_be_called():
            return
        with Harmless():
            self._forget_much()
            self.open.ended = self.clock()
            self.open.backwards.append((self._begun, self.open.ended))
            if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                self.open.losses.append(tensors.detach().clone())  # scripts average it in place
        if not self._is_armed or not self._is_reduced():
            self.fired.clear()
            return
        with Harmless():
            version = self._present_version()
            self.open.signature = version - self._version, len(self.open.forwards)
            self._version = version
            if self._gradient:
                self.open.last_gradient = self._gradient.pop()
        following = Pass(index=self.open.index + 1)
        # Until here an interrupted pass counts at the next forward pass.
        self._is_armed = False
        _remove(self._inside_handles)
        ended, self.open = self.open, following
        self._on_pass(ended)
        self.fired.clear()
        with Harmless():
            self.open.resumed = self.clock()
            self._idle_since_ns = time.perf_counter_ns()

    def _is_reduced(self) -> bool:
        """Return whether DDP has all gradients: outputs without a common parameter may have a
        backward pass each.
        """
        try:
            self._model.reducer._check_reducer_finalized()  # noqa: SLF001 - the only way
        except RuntimeError:
            return False
        return True

    def _forget_much(self) -> None:
        """Forget the pass under way if it does not end, so that it takes no memory: a script may
        train the module, or exchange gradients, by itself.
        """
        marks = len(self.open.forwards) + len(self.open.backwards) + len(self.open.updates)
        if marks > MOST_MARKS:
            self.open = Pass(index=self.open.index, resumed=self.open.resumed)

    def _present_version(self) -> int:
        """Return a count of the changes in place of the first parameter."""
        return int(self.registered[0]._version)  # noqa: SLF001 - autograd's own count


def _is_in_backward() -> bool:
    """Return whether this thread is inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 - the only way


def _ignoring_argument(results: Iterator[None]) -> Callable[[object], object]:
    """Return a hook on gradients that returns the next result.

    It has no Python code: there the handler of a signal could raise before DDP has all gradients.
    """
    return functools.partial(next, results)


def _end_inside(reference: weakref.ref[Passes], function: Callable[[], None]) -> None:
    passes = reference()
    if passes is not None:
        passes.end_inside(function)


def _remove(*lists: list[RemovableHandle]) -> None:
    for handles in lists:
        while handles:
            handles.pop().remove()


class _Calls:
    """Tells observers of optimiser steps, and of calls of ``backward()``, which has no hooks."""

    threads: ClassVar[set[int]] = set()
    """Threads with an outermost call since no call was under way."""
    _under_way: ClassVar[set[int]] = set()
    """Those whose call has not ended."""
    _observers: ClassVar[weakref.WeakValueDictionary[int, Passes]] = weakref.WeakValueDictionary()
    """By ``id``, in the order in which their models were made."""
    _wrapper: Any = None
    """What stands in place of ``torch.autograd.backward``."""
    _handles: list[RemovableHandle] = []  # noqa: RUF012 - one for the process

    @classmethod
    def observe(cls, observer: Passes) -> None:
        """Tell ``observer`` of each outermost call and each optimiser step from now on."""
        if torch.autograd.backward is not cls._wrapper:
            cls._wrapper = torch.autograd.backward = _wrapped(torch.autograd.backward)
            # TorchScript knows the function that stood there before, and compiles any other one.
            torch.jit._builtins._register_builtin(cls._wrapper, "aten::backward")  # noqa: SLF001
        if not cls._handles:
            tell = torch.compiler.disable(cls.tell)
            before = functools.partial(tell, Passes.before_update)
            after = functools.partial(tell, Passes.after_update)
            cls._handles.append(register_optimizer_step_pre_hook(before))
            cls._handles.append(register_optimizer_step_post_hook(after))
        cls._observers[id(observer)] = observer

    @classmethod
    def ignore(cls, observer: Passes) -> None:
        """Tell ``observer`` no more; with the last one torch's own function is back."""
        cls._observers.pop(id(observer), None)
        if cls._observers:
            return
        if torch.autograd.backward is cls._wrapper:
            torch.autograd.backward = cls._wrapper.__wrapped__
        while cls._handles:
            cls._handles.pop().remove()

    @classmethod
    def tell(cls, method: Callable[..., None], *arguments: object) -> None:
        """Call a method of every observer, in the order in which their models were made."""
        for reference in cls._observers.valuerefs():  # a copy: other threads may add to it
            observer = reference()
            if observer is not None:
                with Harmless():
                    method(observer, *arguments)

    @classmethod
    def begin(cls) -> None:
        """Note and tell the begin of an outermost call."""
        cls._under_way.add(threading.get_ident())
        cls.threads.add(threading.get_ident())
        cls.tell(Passes.before_backward)

    @classmethod
    def end(cls, tensors: object) -> None:
        """Tell and note the end of an outermost call."""
        cls.tell(Passes.after_backward, tensors)
        cls._under_way.discard(threading.get_ident())
        if not cls._under_way:
            cls.threads.clear()


def _wrapped(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.autograd.backward`` with observers of the outermost call.

    A script may compile the function that calls it: what commbench does there is not compiled.
    """
    begin = torch.compiler.disable(_Calls.begin)
    end = torch.compiler.disable(_Calls.end)

    def call(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        if _is_in_backward():  # an inner call
            return backward(tensors, *arguments, **keywords)
        begin()
        try:
            return backward(tensors, *arguments, **keywords)
        finally:  # the handler of a signal may raise when the gradients are exchanged
            end(tensors)

    call.__code__ = call.__code__.replace(co_filename=SKIPPED)
    return functools.update_wrapper(call, backward)


def _precision_on(device: str) -> str:
    """Return the precision of a forward pass that begins now, as ``ddp.csv`` writes it."""
    if torch.is_autocast_enabled(device):
        if torch.get_autocast_dtype(device) is torch.bfloat16:
            return "amp-bf16"
        return "amp-fp16"
    accelerate = sys.modules.get("accelerate.state")  # sets autocast inside the forward pass
    if accelerate is not None:
        mixed = accelerate.AcceleratorState._shared_state.get("_mixed_precision")  # noqa: SLF001
        if mixed in {"fp16", "bf16"}:
            return f"amp-{mixed}"
    return "fp32"
