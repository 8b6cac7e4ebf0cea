"""Tunes the DDP models of a process: those that ``site/sitecustomize.py`` hands over, or one that a
script names.

`commbench tune -- COMMAND` puts that file on PYTHONPATH. The process imports this module when it
makes the first model or engine, so torch is loaded already.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from torch import cuda
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.hooks.registry import find_file_hooks
from commbench.live.director import Director, director_of
from commbench.live.options import (
    AUTO,
    VARIABLE,
    LiveOptions,
    Then,
    checked_caps,
    checked_hooks,
    checked_then,
    say,
)
from commbench.live.switching import BY_COMPILED_AUTOGRAD, Spare
from commbench.results.recommendation import Choice, Recommendation
from commbench.system.software import git_commit

#: The packages of the engines that are not tuned, and their usual names.
ENGINES = {"torch.distributed.fsdp": "FSDP", "deepspeed": "DeepSpeed", "horovod": "Horovod"}
#: Libraries that make DDP objects for a script, the outermost first.
FRAMEWORKS = ("transformers", "lightning", "pytorch_lightning", "accelerate")
#: Packages that make every DDP object on a stream of its own, whether or not steps are captured.
ON_OWN_STREAMS = frozenset({"lightning", "pytorch_lightning", "lightning_fabric"})


def take(instance: object) -> str:
    """Begin to tune a DDP model.

    Return a clause that states why the object is not tuned, else an empty text.
    """
    if isinstance(instance, Spare):
        return ""
    if isinstance(instance, DistributedDataParallel):
        try:
            reason = why_untouchable(instance)
            if not reason:
                adopt(instance, LiveOptions.loads(os.environ[VARIABLE]))
        except Exception as error:  # noqa: BLE001 - whatever fails here must not fail the training
            return f"commbench could not begin ({type(error).__name__}: {error})"
        return reason
    name = type(instance).__name__
    for base in type(instance).__mro__:
        for package, engine in ENGINES.items():
            if base.__module__.startswith(package):
                name = engine
    return f"{name} exchanges gradients itself, without the buckets of DDP"


def why_untouchable(ddp_model: DistributedDataParallel) -> str:
    """Return why nothing may be added to a training, as a clause; empty if something may.

    The hooks that commbench adds cannot be compiled, and compiled autograd compiles all hooks.

    To wait for an event ends the capture of a CUDA graph with an error. A model whose steps are
    captured has to be made on a stream of its own. Lightning makes every model so.
    """
    if getattr(ddp_model, "_use_python_reducer", False):
        return BY_COMPILED_AUTOGRAD
    device = ddp_model.device
    if device.type != "cuda" or not ON_OWN_STREAMS.isdisjoint(_packages()):
        return ""
    if cuda.current_stream(device) != cuda.default_stream(device):
        return "its model was made on a stream of its own, as one whose steps are a CUDA graph is"
    return ""


def adopt(ddp_model: DistributedDataParallel, options: LiveOptions) -> None:
    """Tune the model, after those that train already."""
    queue = _queues.setdefault(options, _Queue(options))
    Director(ddp_model, options, framework=_framework(), may_begin=queue.may_begin)


def autotune(
    ddp_model: DistributedDataParallel,
    *,
    out: str | os.PathLike[str] | None = None,
    bucket_cap_mb: str | Sequence[str | float] = AUTO,
    allow: Sequence[str] = ("none",),
    accept_loss: bool = False,
    steps: int | None = None,
    time_limit: float | None = None,
    then: Then = "go-on",
    workload: str = "",
    seed: int = 0,
) -> Tuning:
    """Find the best bucket size of a DDP model while it trains, and train on with it.

    ::

        model = DistributedDataParallel(model)
        tuning = commbench.autotune(model, out="results/mine")
        for batch in loader:  # the script's own loop, unchanged
            ...

    Call it on all ranks, before the first step. Short blocks of steps use one setting each;
    parameters end as without tuning as long as ``allow`` names no hook. Whatever fails, the
    training goes on.

    Args:
        ddp_model: the model, inside DDP.
        out: the run directory; default: ``results/tune-NAME`` in the working directory. Rank 0
            writes it.
        bucket_cap_mb: MiB such as ``25``, ``default``, or lists such as ``1+5+25``; ``auto``: one
            for each different layout of the model's buckets.
        allow: hooks to try, as ``--hook`` takes them; ``none`` is DDP without a hook, and
            ``FILE.py:CALLABLE`` a hook of your own.
        accept_loss: whether lossy hooks of ``allow`` may be recommended; otherwise only their
            speedup is stated.
        steps: optimiser steps after which tuning ends; None: when it is decided.
        time_limit: seconds after which tuning ends; None: no limit.
        then: ``go-on`` trains on with the best setting; ``stop`` ends all ranks with exit code 0
            after the decision.
        workload: name of the training; default: that of the script.
        seed: of the order of blocks.

    Raises:
        InputError: the model is not inside DDP, or an argument is not understood.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise InputError(
            f"autotune was given a {type(ddp_model).__name__}: give it the DistributedDataParallel"
            " object you train."
        )
    hooks = checked_hooks(allow)
    name = workload or Path(sys.argv[0]).name or type(ddp_model.module).__name__
    if out is None:
        out = f"results/tune-{Path(name).stem}"
    if isinstance(bucket_cap_mb, str):
        bucket_cap_mb = [bucket_cap_mb]
    commit = None
    if dist.get_rank(ddp_model.process_group) == 0:  # it alone writes the run
        commit = git_commit(Path(__file__).parent)
    options = LiveOptions(
        out=str(Path(out).absolute()),
        workload=name,
        bucket_cap_mb=checked_caps(bucket_cap_mb),
        allow=tuple(hooks),
        file_hooks=find_file_hooks(hooks),
        accept_loss=accept_loss,
        steps=steps,
        time_limit_s=time_limit,
        then=checked_then(then),
        seed=seed,
        argv=tuple(sys.argv),
        git_commit=commit,
    )
    director = director_of(ddp_model)
    if director is None:
        director = Director(ddp_model, options)
    elif director.is_root:
        say(f"{director.doing} of this model has begun already, so autotune begins no other.")
    return Tuning(director)


class Tuning:
    """The tuning that `autotune` has begun."""

    def __init__(self, director: Director) -> None:
        self._director = director

    @property
    def done(self) -> bool:
        """Whether tuning is over."""
        return self._director.is_over

    @property
    def recommendation(self) -> Recommendation | None:
        """The conclusion, on every rank; None before it, and if there is none."""
        return self._director.recommendation

    @property
    def best(self) -> Choice | None:
        """The best setting; None before the conclusion."""
        if self.recommendation is None:
            return None
        return self.recommendation.best


def _framework() -> str:
    """Return the library that makes the DDP object now, from the functions under way.

    Empty: the script itself.
    """
    packages = _packages()
    for name in FRAMEWORKS:
        if name in packages:
            return name.removeprefix("pytorch_")
    return ""


def _packages() -> set[str]:
    """Return the packages of the functions under way."""
    packages = set()
    frame = inspect.currentframe()
    while frame is not None:
        packages.add(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back
    return packages


class _Queue:
    """The trainings of this process under one set of options: one is tuned at a time, in the order
    in which models train.
    """

    def __init__(self, options: LiveOptions) -> None:
        self._options = options
        self._current: weakref.ref[Director] | None = None
        """The one that is tuned, on rank 0."""
        self._runs = 0
        """Run directories that were begun."""
        self._seen: dict[int, int] = {}
        """Passes of the current model when another one asked before."""

    def may_begin(self, director: Director) -> bool:
        """Return on rank 0 whether a model is the next one; give it a directory of its own."""
        current = None
        if self._current is not None:
            current = self._current()  # None if its model is gone
        if current is not None and not current.is_over:
            seen = self._seen.get(id(director))
            self._seen[id(director)] = current.passes
            if seen is None or current.passes > seen:
                return False
            current.abandon("its model trains no more, and another DDP model of the script does")
        self._current = weakref.ref(director)
        self._seen = {}
        self._runs += 1
        if self._runs > 1:
            out = f"{self._options.out}-{self._runs}"
            director.options = dataclasses.replace(self._options, out=out)
        return True


#: Those of this process, by their options.
_queues: dict[LiveOptions, _Queue] = {}
