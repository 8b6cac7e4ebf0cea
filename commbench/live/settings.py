"""The settings that a live tuning tries: the script's own first, then other bucket sizes, switches
and hooks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import nn

from commbench.ddp.models import parameter_facts
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.layout import candidate_caps, unique_layouts
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError
from commbench.hooks.registry import NONE, make_hook, parse_hook
from commbench.live.options import LiveOptions, say
from commbench.live.run import Facts
from commbench.live.switching import live_switches

#: Bucket sizes that are tried without a hook, and with each hook that is allowed besides.
CAPS, CAPS_WITH_HOOK = 7, 4


def settings_of(facts: Facts, model: nn.Module, options: LiveOptions) -> list[TrainingCase]:
    """Return the settings to try, the script's own first; say which hook cannot serve the model.

    No two differ only in a size that makes the same buckets.

    A script with a communication hook of its own keeps it: then no other hook is tried. Nor is one
    tried with a GradScaler, whose scale a hook would have to know.
    """
    parameters = parameter_facts(model)
    reverse = tuple(reversed(range(len(parameters))))  # the usual order of backward passes
    workload = WorkloadFacts(parameters=parameters, ready_order=reverse)
    original = facts.original
    hooks = [hook for hook in options.allow if hook != NONE]
    if hooks and facts.traits:
        say(f"no hook is tried, because the model has {' and '.join(facts.traits)} gradients.")
    if facts.traits or facts.has_own_hook or original.precision == "amp-fp16":
        hooks = []
    settings = [original]
    for cap in _caps(original, options, workload, CAPS):
        settings.append(dataclasses.replace(original, bucket_cap_mb=cap))
    switches = live_switches()
    if _has_gradient_hooks(model):
        switches = []  # they may change gradients that DDP copies late if it copies in batches
    for switch in switches:
        turned: dict[str, Any] = {switch.name: not getattr(original, switch.name)}
        settings.append(dataclasses.replace(original, **turned))
    elements = sum(parameter.numel for parameter in parameters)
    for hook in hooks:
        hooked = dataclasses.replace(original, **parse_hook(hook))
        if _fits(hooked, elements):
            for cap in _caps(original, options, workload, CAPS_WITH_HOOK):
                settings.append(dataclasses.replace(hooked, bucket_cap_mb=cap))
    return list(dict.fromkeys(settings))


def _has_gradient_hooks(model: nn.Module) -> bool:
    """Return whether the script has registered hooks on the gradients of parameters.

    Live tuning has one on each parameter that DDP has registered.
    """
    for parameter in model.parameters():
        # Neither has a public name.
        if parameter._backward_hooks or len(parameter._post_accumulate_grad_hooks or ()) > 1:  # noqa: SLF001
            return True
    return False


def _fits(case: TrainingCase, elements: int) -> bool:
    """Return whether the hook of a setting can serve a model of that number of elements; say why
    not.

    A hook of a user's own file is not asked.
    """
    if case.is_file_hook:
        return True
    try:
        hook = make_hook(case.hook, density=case.density, options=case.options)
        assert hook is not None  # noqa: S101 - `none` is no setting of its own
        hook.check_size(elements)
    except InputError as error:
        say(f"{case.hook_name} is not tried: {error}")
        return False
    return True


def _caps(
    original: TrainingCase, options: LiveOptions, workload: WorkloadFacts, most: int
) -> Sequence[str]:
    """Return the bucket sizes to try, the script's own first."""
    caps = options.bucket_cap_mb or candidate_caps(workload, most=most)
    return unique_layouts([original.bucket_cap_mb, *caps], workload)
