"""The settings that a live tuning tries: the script's own first, then other bucket sizes, switches
and hooks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from commbench.analysis.prediction.bucketing import candidate_caps, unique_layouts
from commbench.ddp.plan.cases import SWEEP, TrainingCase
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts
from commbench.errors import InputError
from commbench.hooks.registry import NONE, is_file_hook, make_hook, parse_hook, split_options
from commbench.live.options import LiveOptions
from commbench.live.switching import live_switches

#: Bucket sizes that are tried without a hook, and with each hook that is allowed besides.
CAPS, CAPS_WITH_HOOK = 7, 4


def settings_of(
    original: TrainingCase,
    model: nn.Module,
    options: LiveOptions,
    *,
    has_own_hook: bool,
    traits: Sequence[str] = (),
    show: Callable[[str], object],
) -> list[TrainingCase]:
    """Return the settings to try, the script's own first.

    No two differ only in a size that makes the same buckets.

    A script with a communication hook of its own keeps it: then no other hook is tried. Nor is one
    tried with a GradScaler, whose scale a hook would have to know. ``show`` gets a sentence on each
    hook that cannot serve the model.
    """
    facts = _facts_of(model)
    plain = [_with_cap(original, cap) for cap in _caps(original, options, facts, CAPS)]
    plain += [_turned(original, switch.name) for switch in live_switches()]
    keeps_hook = has_own_hook or bool(traits) or original.precision == "amp-fp16"
    elements = sum(parameter.numel for parameter in facts.parameters)
    if traits and any(hook != NONE for hook in options.allow):
        show(f"no hook is tried, because the model has {' and '.join(traits)} gradients.")
    allowed = [] if keeps_hook else [hook for hook in options.allow if hook != NONE]
    hooks = [parse_hook(hook) for hook in allowed if _fits(hook, elements, show)]
    caps = _caps(original, options, facts, CAPS_WITH_HOOK)
    compressed = [
        dataclasses.replace(_with_cap(original, cap), **hook) for hook in hooks for cap in caps
    ]
    return list(dict.fromkeys([original, *plain, *compressed]))


def _fits(name: str, elements: int, show: Callable[[str], object]) -> bool:
    """Return whether a hook can serve a model of that number of elements; show why not.

    A hook of a user's own file is not asked.
    """
    if is_file_hook(name):
        return True
    fields = parse_hook(name)
    try:
        hook = make_hook(
            fields["hook"], density=fields["density"], options=split_options(fields["hook_options"])
        )
        assert hook is not None  # noqa: S101 - `none` is no setting of its own
        hook.check_size(elements)
    except InputError as error:
        show(f"{name} is not tried: {error}")
        return False
    return True


def _caps(
    original: TrainingCase, options: LiveOptions, facts: WorkloadFacts, most: int
) -> Sequence[str]:
    """Return the bucket sizes to try, the script's own first."""
    if options.bucket_cap_mb:
        return unique_layouts([original.bucket_cap_mb, *options.bucket_cap_mb], facts)
    return unique_layouts([original.bucket_cap_mb, *candidate_caps(facts, most=most)], facts)


def _with_cap(case: TrainingCase, cap: str) -> TrainingCase:
    return dataclasses.replace(case, bucket_cap_mb=cap, phase=SWEEP)


def _turned(case: TrainingCase, switch: str) -> TrainingCase:
    turned: dict[str, Any] = {switch: not getattr(case, switch)}
    return dataclasses.replace(case, **turned)


def _facts_of(model: nn.Module) -> WorkloadFacts:
    """Return the sizes of the model's gradients.

    They are taken to be ready in the reverse order of registration.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    parameters = tuple(
        ParameterFacts(
            name=name,
            numel=p.numel(),
            itemsize=p.element_size(),
            dtype=str(p.dtype).removeprefix("torch."),
            ready_ms=0.0,
            shape=tuple(p.shape),
        )
        for name, p in trained
    )
    return WorkloadFacts(
        parameters=parameters,
        ready_order=tuple(reversed(range(len(parameters)))),
        buffer_bytes=0,
        batch_size=1,
        forward_ms=0.0,
        backward_ms=0.0,
        optimizer_ms=0.0,
        metric="",
        target=None,
        steps=None,
    )
