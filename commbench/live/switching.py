"""Exchanges the reducer of a DDP model between two steps: another bucket size, switch or hook.

A second DDP object is made around the same module, and its attributes replace those of the first.
Everyone who holds the first object goes on with the new reducer; the destructor of the old reducer
removes its autograd hooks. Parameters, optimiser state and gradients stay untouched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.plan.arguments import ddp_arguments, known_name, setting_of_model
from commbench.ddp.plan.cases import SWITCHES, Switch, TrainingCase
from commbench.ddp.plan.layout import MIB, caps_bytes
from commbench.errors import InputError
from commbench.hooks import Hook, make_hook
from commbench.hooks.registry import hook_source

#: The first torch whose DDP objects can be made without communication.
OLDEST_TORCH = "2.7"
#: Attributes of the wrapper that hold what the script and its framework have set, not DDP's own
#: state.
_KEPT = (
    *vars(nn.Module()),
    "require_backward_grad_sync",
    "require_forward_param_sync",
    "_ddp_sink_clone",
    "bucket_bytes_cap",  # torch.compile divides a graph inside DDP by it, whenever it compiles
    "modules_buffers",  # without any at its construction, DDP broadcasts no later ones
    "named_module_buffers",
)
#: Default hooks of torch that halve the bytes.
_HALVING_HOOKS = (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook)
#: Why a model with any other hook is left alone.
OTHER_HOOK = (
    "its own communication hook is not one of torch's default hooks, so it may keep a state for"
    " each bucket, or not exchange with all ranks in each step"
)
#: Why a model with a hook of commbench is left alone that drops parts of gradients.
LOSSY_HOOK = (
    "its own communication hook drops parts of gradients, and the buckets decide which ones"
)
#: Why a hook with several dependent collectives is not tried over Gloo.
OWN_GROUPS = (
    "over Gloo hook {} needs process groups of its own, which all ranks would have to make at the"
    " same time: try it by commbench tune --workload"
)
#: Why a compiled DDP object is left alone.
COMPILED = "torch.compile was applied to the DDP object, and its graph follows the buckets"
#: Why another DDP object would average fewer gradients.
MOVED = "parameters whose gradients DDP averages are no longer in the model"
#: Why another DDP object would average other gradients, or in another memory format.
CHANGED = "the script has changed the type or the memory format of parameters"
#: Why a model is left alone whose gradients no reducer of DDP averages.
BY_COMPILED_AUTOGRAD = "compiled autograd reduces its gradients"
#: Attributes of a DDP object that another reducer would not heed, and what they mean.
_UNTUNABLE = {
    "mixed_precision": "DDP's own mixed precision is in use",
    "_delay_all_reduce_params": "the all-reduce of some parameters is delayed",
    "_use_python_reducer": BY_COMPILED_AUTOGRAD,
}
#: Arguments of DDP's constructor, but for the switches, that it keeps under the same name.
_SAME_NAME = (
    "device_ids",
    "output_device",
    "dim",
    "process_group",
    "skip_all_reduce_unused_params",
)


def _known_arguments() -> Mapping[str, inspect.Parameter]:
    """Return the arguments that this torch's DDP takes."""
    return inspect.signature(DistributedDataParallel.__init__).parameters


def live_switches() -> list[Switch]:
    """Return the switches that can change between two steps and that this torch has."""
    known = _known_arguments()
    return [switch for switch in SWITCHES if switch.is_live and switch.argument in known]


def why_unwatchable(ddp_model: DistributedDataParallel) -> str:
    """Return why the steps of the model cannot be watched, as a clause; empty if they can."""
    if ddp_model._join_config.enable:  # noqa: SLF001 - the only way
        return "the script uses join() for uneven inputs"
    if not _has_safe_hook(ddp_model):
        return OTHER_HOOK
    return ""


def why_untunable(ddp_model: DistributedDataParallel) -> str:
    """Return why the reducer of the model cannot be exchanged, as a clause; empty if it can."""
    reason = why_unwatchable(ddp_model)
    if reason:
        return reason
    if "init_sync" not in _known_arguments():
        return f"torch {torch.__version__} is too old for it: update to {OLDEST_TORCH} or newer"
    if type(ddp_model) is not DistributedDataParallel:
        return f"its class {type(ddp_model).__name__} extends DistributedDataParallel"
    if any(isinstance(hook, Hook) and hook.effect == "lossy" for _, hook in own_hooks(ddp_model)):
        return LOSSY_HOOK
    return _why_unknown(ddp_model)


def _why_unknown(ddp_model: DistributedDataParallel) -> str:
    """Return what the model has that another reducer would not heed."""
    for attribute, reason in _UNTUNABLE.items():
        if getattr(ddp_model, attribute, None):
            return reason
    for parameter in ddp_model.module.parameters():
        if hasattr(parameter, "_in_backward_optimizers"):
            return "an optimiser steps inside its backward pass"
        if hasattr(parameter, "device_mesh"):
            return "its parameters are DTensors"
    return ""


def why_held(
    ddp_model: DistributedDataParallel, registered: Sequence[nn.Parameter], *, is_kept: bool
) -> str:
    """Return why gradients must stay where they are, as a clause; empty if they may move.

    Another reducer has other buckets, so gradients that are views of them become other tensors.

    Args:
        ddp_model: the script's model, after a backward pass.
        registered: the parameters that DDP has registered.
        is_kept: whether the script keeps the gradients of a step until the next one.
    """
    if not set(registered) <= set(ddp_model.module.parameters()):
        return MOVED
    if not ddp_model.gradient_as_bucket_view:
        return ""
    free = nn.Parameter(torch.zeros(1))
    free.grad = torch.zeros(1)
    references = sys.getrefcount(free.grad)  # of a gradient that nobody else has; torch decides
    for parameter in registered:
        if parameter.grad is not None and sys.getrefcount(parameter.grad) > references:
            is_kept = True
    if is_kept:
        return "the script keeps its gradients, and they are views of DDP's buckets"
    return ""


def why_untimed(ddp_model: DistributedDataParallel) -> str:
    """Return why a hook cannot time the buckets of the model, as a clause; empty if it can."""
    if ddp_model._get_ddp_logging_data().get("comm_hook"):  # noqa: SLF001 - the only way
        return "the script has a communication hook of its own, which stays in use"
    if traits_of(ddp_model, ()):
        return "the model has sparse gradients"
    return why_untunable(ddp_model)


def traits_of(ddp_model: DistributedDataParallel, registered: Sequence[nn.Parameter]) -> set[str]:
    """Return the kinds of gradients that no hook understands."""
    traits = set()
    if any(getattr(module, "sparse", False) is True for module in ddp_model.module.modules()):
        traits.add("sparse")
    for parameter in registered:
        if parameter.is_complex():
            traits.add("complex")
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            traits.add("sparse")
    return traits


def is_compiled(ddp_model: DistributedDataParallel) -> bool:
    """Return whether torch.compile was applied to the DDP object, not just to the model inside.

    Call it in the forward pass of the object: the wrapper that torch.compile returns is looked for
    among the callers. The garbage collector knows the wrapper, too, but to list its objects breaks
    tuples that other threads are making. Only frames of torch are looked into: what is read of a
    frame stays alive with it, and the script's may hold a model that it wants to let go.
    """
    if getattr(ddp_model, "_compiled_call_impl", None) is not None:
        return True
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the only way
    while dynamo is not None and frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch."):
            caller = frame.f_locals.get("self")
            is_compiled_module = isinstance(caller, dynamo.OptimizedModule)
            if is_compiled_module and getattr(caller, "_orig_mod", None) is ddp_model:
                return True
        frame = frame.f_back
    return False


def _has_safe_hook(ddp_model: DistributedDataParallel) -> bool:
    """Return whether every pass needs all ranks, and any buckets do.

    That holds without a hook, with torch's default hooks on the group of DDP, and with commbench's;
    but see `LOSSY_HOOK`.
    """
    hooks = own_hooks(ddp_model)
    if not hooks:
        # The logged data name a hook of DDP's C++ part, too.
        return not ddp_model._get_ddp_logging_data().get("comm_hook")  # noqa: SLF001
    for function, state in hooks:
        is_default = function in {default_hooks.allreduce_hook, *_HALVING_HOOKS}
        is_on_group = state is None or state is ddp_model.process_group
        if not isinstance(state, Hook) and not (is_default and is_on_group):
            return False
    return True


def own_hooks(ddp_model: DistributedDataParallel) -> tuple[tuple[Any, Any], ...]:
    """Return the communication hooks that were registered on the model, as (function, state)."""
    return tuple(getattr(ddp_model, "_comm_hooks", ()))


def arguments_of(
    ddp_model: DistributedDataParallel, case: TrainingCase, *, is_trial: bool = False
) -> dict[str, Any]:
    """Return the keyword arguments of another DDP object around the same module.

    Args:
        ddp_model: the script's model.
        case: the setting; of its switches only those that can change between two steps count.
        is_trial: give the sizes as a list, if torch takes lists. The rebuilt buckets are the same,
            and DDP makes several buckets already in the first step. Without a list that step has
            one bucket and hides nothing.
    """
    known = _known_arguments()
    arguments = {"init_sync": False}
    for name in _SAME_NAME:
        if name in known and hasattr(ddp_model, name):
            arguments[name] = getattr(ddp_model, name)
    setting = setting_of_model(ddp_model)
    for switch in live_switches():
        setting[switch.name] = getattr(case, switch.name)
    setting["bucket_cap_mb"] = case.bucket_cap_mb
    wanted = ddp_arguments(dataclasses.replace(case, **setting))
    if is_trial and "bucket_cap_mb_list" in known:
        wanted.pop("bucket_cap_mb", None)
        wanted["bucket_cap_mb_list"] = [cap / MIB for cap in caps_bytes(case.bucket_cap_mb)]
    for argument, value in wanted.items():
        arguments[known_name(argument, known)] = value
    return arguments


class Spare(DistributedDataParallel):  # type: ignore[misc] # torch is not typed here
    """A DDP object that commbench makes for its reducer; the script never sees it."""


class Switcher:
    """Exchanges the reducer of one DDP model.

    Args:
        ddp_model: the script's model.
        original: its present setting.
        registered: the parameters that DDP has registered at its construction.
        file_hooks: those that may be tried, see `commbench.hooks.registry.find_file_hooks`.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        original: TrainingCase,
        registered: Sequence[nn.Parameter],
        *,
        file_hooks: Sequence[str] = (),
    ) -> None:
        self.original = original
        self.hook: Hook | None = None
        """The hook that the setting in use has added; None: the script's own hook, if any."""
        self.in_use = original
        """The setting of the present reducer."""
        self._is_trial = False
        """Whether the present reducer was made for a trial."""
        self._registered = registered
        self._layouts = _layouts(registered)
        self._own_hooks = own_hooks(ddp_model)
        self._file_hooks = file_hooks

    def attempt(
        self, ddp_model: DistributedDataParallel, case: TrainingCase, *, is_trial: bool
    ) -> None:
        """Make the reducer of a setting and drop it: none may live through a backward pass beside
        the one in use.

        Args:
            ddp_model: the script's model, here and below.
            case: the setting.
            is_trial: see `arguments_of`.

        Raises:
            Exception: DDP or the hook refuses.
        """
        if not self._serves(case, is_trial=is_trial):
            spare, hook = self._prepare(ddp_model, case, is_trial=is_trial)
            if hook is not None:
                hook.close()
            spare.__dict__ = {}

    def exchange(
        self, ddp_model: DistributedDataParallel, case: TrainingCase, *, is_trial: bool
    ) -> bool:
        """Put a setting in use that `attempt` could make; return whether that is another one.

        The wrapper keeps the attributes that the script has set.
        """
        if self._serves(case, is_trial=is_trial):
            return False
        try:
            spare, hook = self._prepare(ddp_model, case, is_trial=is_trial)
        except Exception:  # noqa: BLE001 - the other ranks rely on it
            spare, hook = self._prepare(ddp_model, case, is_trial=is_trial)
        residuals: Mapping[str, torch.Tensor] = {}
        memory = getattr(self.hook, "memory", None)
        if memory is not None:
            residuals = memory.state()["residual"]
        kept = {name: value for name, value in vars(ddp_model).items() if name in _KEPT}
        ddp_model.__dict__ = {**vars(ddp_model), **vars(spare), **kept}
        spare.__dict__ = {}  # the model alone owns the reducer
        if self.hook is not None:
            self.hook.close()
        self.hook, self.in_use, self._is_trial = hook, case, is_trial
        parameters = dict(ddp_model.module.named_parameters())
        for name, residual in residuals.items():
            _add_once(parameters[name], residual)
        return True

    def _serves(self, case: TrainingCase, *, is_trial: bool) -> bool:
        """Return whether the present reducer serves a setting."""
        return case == self.in_use and (is_trial or not self._is_trial)

    def _prepare(
        self, ddp_model: DistributedDataParallel, case: TrainingCase, *, is_trial: bool
    ) -> tuple[Spare, Hook | None]:
        """Make the reducer of a setting, without communication, and the hook that it adds.

        DDP had registered the parameters that were trainable when the script made its model.
        """
        arguments = arguments_of(ddp_model, case, is_trial=is_trial)
        if not set(self._registered) <= set(ddp_model.module.parameters()):
            raise LookupError(MOVED)
        if _layouts(self._registered) != self._layouts:
            raise LookupError(CHANGED)
        with _trainable(ddp_model.module, self._registered):
            spare = Spare(ddp_model.module, **arguments)
        if case.hook == self.original.hook:
            for function, state in self._own_hooks:
                spare.register_comm_hook(state, function)
            return spare, None
        source = hook_source(case.hook, self._file_hooks)
        hook = make_hook(source, density=case.density, options=case.options)
        assert hook is not None  # noqa: S101 - only the original may be without a hook
        if hook.runs_in_order and ddp_model.device.type == "cpu":
            raise InputError(OWN_GROUPS.format(case.hook_name))
        hook.register(spare)
        return spare, hook


def _layouts(parameters: Sequence[nn.Parameter]) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Return the type and the strides of each parameter, which DDP gives to its buckets."""
    return [(parameter.dtype, parameter.stride()) for parameter in parameters]


@contextlib.contextmanager
def _trainable(module: nn.Module, registered: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let exactly the registered parameters be trainable."""
    before = {parameter: parameter.requires_grad for parameter in module.parameters()}
    try:
        chosen = set(registered)
        for parameter in before:
            parameter.requires_grad_(parameter in chosen)
        yield
    finally:
        for parameter, flag in before.items():
            parameter.requires_grad_(flag)


def _add_once(parameter: nn.Parameter, residual: torch.Tensor) -> None:
    """Add a residual to the parameter's next gradient, so that the next step sends it."""

    def add(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        return gradient + residual

    handle = parameter.register_hook(add)
