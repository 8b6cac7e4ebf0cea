"""Recording of a trace in a user's own training script (`record_gradients`) or by making the steps
(`record`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from commbench.ddp.checks import check_parameters, checked_step, endless, first_batch
from commbench.ddp.local_step import (
    LocalStep,
    batch_length,
    default_optimizer,
    local_step,
    median_step,
    trainable,
)
from commbench.ddp.plan.workload import check_all_used, named
from commbench.ddp.traces import DTYPES, Conditions, Trace, TracedParameter
from commbench.ddp.watching import Iteration, Watch
from commbench.errors import InputError
from commbench.system.host import cpu_model

#: First steps that do not count: they allocate memory, and DDP builds its buckets.
SKIPPED = 2
#: A median needs at least this number of steps.
FEWEST = 3


def record_gradients(
    model: nn.Module, path: str | Path | None = None, *, batch: int | None = None, name: str = ""
) -> Recording:
    """Record the times at which a model's gradients are ready, while a user's own loop trains it.

    ::

        with commbench.record_gradients(ddp_model, "my_model.json"):
            for inputs, labels in itertools.islice(loader, 12):
                train_step(ddp_model, inputs, labels)

    ``commbench train --workload trace:my_model.json`` then trains a replay of it anywhere, without
    model and data. Any
    loop works that calls the model and then ``backward()``: with DDP or without, with accumulation,
    a GradScaler, a closure, several forward passes. The first two steps do not count, 3 more are
    needed, and recording stops after 100 backward passes. The hooks only read a clock: they do not
    change results, send messages or wait. The end of the block removes them.

    ``forward_ms`` lasts from the model's forward pass to the gradient of its output. It includes
    the forward and backward pass of the loss. ``backward_ms`` ends with the last gradient, not with
    DDP's exchange, and includes the local work of DDP and hooks between gradients. ``optimizer_ms``
    is the time of ``optimizer.step()``. All times are of this process. On CUDA they come from
    events in the model's stream (tested on CPUs only).

    Args:
        model: a module, inside DDP or not, compiled or not.
        path: the file to write when the block ends, on rank 0 only if torch.distributed is in use;
            None: no file.
        batch: samples in one backward pass; None: the first dimension of the model's first tensor.
        name: the trace's name; default: the name of the file or of the model's class.

    Raises:
        InputError: at once, if the model or the arguments are unsuitable; at the end of the block,
            if it had too few steps, or a gradient was absent or sparse. An exception in the block
            passes unchanged.
    """
    return Recording(model, path, batch=batch, name=name)


class Recording:
    """A recording of `record_gradients`, running or finished."""

    def __init__(
        self, model: nn.Module, path: str | Path | None, *, batch: int | None, name: str
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"record_gradients was given a {type(model).__name__}: give the torch.nn.Module you"
                " train."
            )
        if batch is not None and batch < 1:
            raise InputError(f"A batch of {batch} samples was given: give 1 or more.")
        self._outer = model.module if isinstance(model, DistributedDataParallel) else model
        self._model = _bare(model)
        self._parameters = trainable(self._model)
        check_parameters(self._model)
        _check_traceable(self._parameters)
        self._path = None if path is None else Path(path)
        if self._path is not None and not self._path.absolute().parent.is_dir():
            raise InputError(
                f"The trace cannot be written to {path}: make the directory first, or give another."
            )
        self._batch, self._name = batch, name or (self._path.stem if self._path else "")
        self._watch: Watch | None = None
        self._trace: Trace | None = None
        #: Number of training steps in the trace, without the first ones.
        self.steps = 0

    def __enter__(self) -> Recording:  # noqa: PYI034 - typing.Self needs Python 3.11
        if self._watch is not None:
            raise InputError(
                "A recording can be made only once: call record_gradients again for another."
            )
        self._watch = Watch(self._outer, self._parameters)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        assert self._watch is not None  # noqa: S101 - entered before
        self._watch.close()
        if kind is not None:
            return
        self._conclude(self._watch)
        if self._path is not None:
            self.save(self._path)

    @property
    def trace(self) -> Trace:
        """The recorded trace.

        Raises:
            InputError: the block has not ended, or it failed.
        """
        if self._trace is None:
            raise InputError(
                "Nothing is recorded until the block of record_gradients has ended well: ask"
                " after it."
            )
        return self._trace

    def save(self, path: str | Path) -> None:
        """Write the trace to a file, on rank 0 only.

        Raises:
            InputError: there is no trace, or the file cannot be written.
        """
        trace = self.trace
        if dist.is_available() and dist.is_initialized() and dist.get_rank():
            return
        try:
            trace.save(Path(path))
        except OSError as error:
            raise InputError(
                f"The trace cannot be written to {path} ({error}): give another path."
            ) from error

    def _conclude(self, watch: Watch) -> None:
        iterations = watch.iterations()[SKIPPED:]
        self._check(watch, iterations)
        passes = [backward for iteration in iterations for backward in iteration.passes]
        step = dataclasses.replace(
            median_step([backward.step() for backward in passes]),
            optimizer_ms=float(np.median([iteration.optimizer_ms for iteration in iterations])),
        )
        self.steps = len(iterations)
        batches = [
            sum(forward.batch for forward in each.forwards) for each in passes if each.forwards
        ]
        self._trace = trace_of(
            self._model,
            step,
            name=self._name,
            batch=self._batch or int(np.median(batches)),
            recorded=self._conditions(iterations, step),
        )

    def _conditions(self, iterations: Sequence[Iteration], step: LocalStep) -> Conditions:
        passes = int(np.median([len(iteration.passes) for iteration in iterations]))
        method = (
            f"median of {len(iterations)} steps of a training script, {passes} backward pass"
            f"{'es' if passes > 1 else ''} each, every gradient timed when it was accumulated"
        )
        method += "" if step.optimizer_ms else "; no step of an optimizer was seen"
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        return {**conditions(self._model, method), "ranks": ranks}

    def _check(self, watch: Watch, iterations: Sequence[Iteration]) -> None:
        """Raise InputError if the recording cannot be replayed."""
        if watch.sparse:
            raise InputError(
                f"{named(list(watch.sparse))} got a sparse gradient, which commbench does not"
                " exchange: make it dense."
            )
        if not watch.passes and watch.has_stray:
            raise InputError(
                "Gradients came, but no forward pass of the model was seen before them: give"
                " record_gradients the module that the loop calls, and let it return tensors or"
                " tuples, lists, dicts, dataclasses of them."
            )
        if len(iterations) < FEWEST:
            steps = len(watch.iterations())
            raise InputError(
                f"{steps} training steps with a backward pass were seen and {SKIPPED + FEWEST} are"
                f" needed, of which the first {SKIPPED} are not counted: make more steps of the"
                " loop inside the block."
            )
        passes = [backward for iteration in iterations for backward in iteration.passes]
        if unused := [
            name for name in self._parameters if any(name not in each.ready for each in passes)
        ]:
            absent = max(sum(name not in each.ready for each in passes) for name in unused)
            raise InputError(
                f"{named(unused)} got no gradient in {absent} of {len(passes)} backward passes, and"
                " DDP would wait for it: use all in the loss, or set requires_grad to False."
            )


def _check_traceable(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise InputError if a trace cannot hold a parameter."""
    for name, parameter in parameters.items():
        if str(parameter.dtype).removeprefix("torch.") not in DTYPES or not parameter.numel():
            raise InputError(
                f"The parameter {name} is of type {parameter.dtype} and shape"
                f" {tuple(parameter.shape)}, which a trace cannot hold: record a model whose"
                f" parameters have elements of {', '.join(DTYPES)}."
            )


def _bare(model: Any) -> nn.Module:  # noqa: ANN401 - the wrappers are untyped
    """Return the module without the wrappers of DDP and torch.compile, which rename its
    parameters.
    """
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod  # noqa: SLF001 - attributes of the wrappers
    return model


def record(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batches: Iterable[Any],
    *,
    steps: int = 9,
    name: str = "",
    optimizer: Callable[[Iterable[Any]], Optimizer] | None = None,
) -> Trace:
    """Train a model for ``2 + steps`` steps and return the medians of the last ``steps`` as a
    trace.

    The batches are cycled; the optimiser is as in `commbench.ddp.plan.workload.Workload`. The model
    is changed.

    Raises:
        InputError: the model, the loss or the batches are unsuitable (see `commbench.ddp.checks`).
    """
    batch = batch_length(first_batch(batches))
    optimizer_in_use, source = (
        (optimizer or default_optimizer)(trainable(model).values()),
        endless(batches),
    )
    check_all_used(checked_step(model, loss, next(source), optimizer_in_use))
    times = [local_step(model, loss, next(source), optimizer_in_use) for _ in range(1 + steps)][1:]
    step = median_step(times)
    method = f"median of {steps} training steps, each gradient timed when it was accumulated"
    return trace_of(model, step, name=name, batch=batch, recorded=conditions(model, method))


def trace_of(
    model: nn.Module, step: LocalStep, *, name: str, batch: int, recorded: Conditions
) -> Trace:
    """Return the trace of a model's trainable parameters and of one step."""
    return Trace(
        name=name or type(model).__name__.lower(),
        device="cuda" if any(parameter.is_cuda for parameter in model.parameters()) else "cpu",
        batch=batch,
        forward_ms=step.forward_ms,
        backward_ms=step.backward_ms,
        optimizer_ms=step.optimizer_ms,
        parameters=tuple(
            TracedParameter(
                name=parameter_name,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                ready_ms=min(step.ready_ms[parameter_name], step.backward_ms),
            )
            for parameter_name, parameter in trainable(model).items()
        ),
        recorded=recorded,
    )


def conditions(model: nn.Module, method: str) -> Conditions:
    """Return the method, processor and software of a recording."""
    cuda = next((parameter.device for parameter in model.parameters() if parameter.is_cuda), None)
    processor = {"gpu": torch.cuda.get_device_name(cuda)} if cuda else {"cpu": cpu_model()}
    return {
        "how": method,
        **processor,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
