"""The settings that a live tuning tries: the script's own first, then other bucket sizes, bucket views and hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import nn

from commbench.analysis.prediction.bucketing import candidate_caps, unique_layouts
from commbench.ddp.plan.cases import SWEEP, TrainingCase
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts
from commbench.hooks.registry import parse_hook
from commbench.live.options import LiveOptions

#: Bucket sizes that are tried without a hook, and with each hook that is allowed besides.
CAPS, CAPS_WITH_HOOK = 7, 4


def settings_of(
    original: TrainingCase, model: nn.Module, options: LiveOptions, *, has_own_hook: bool
) -> list[TrainingCase]:
    """Return the settings to try, the script's own first; no two differ only in a size that makes the same buckets.

    A script with a communication hook of its own keeps it: then no other hook is tried. Nor is one tried with a
    GradScaler, whose scale a hook would have to know.
    """
    facts = _facts_of(model)
    plain = [_with_cap(original, cap) for cap in _caps(original, options, facts, CAPS)]
    plain.append(dataclasses.replace(original, bucket_view=not original.bucket_view))
    keeps_hook = has_own_hook or original.precision == "amp-fp16"
    hooks = [] if keeps_hook else [parse_hook(hook) for hook in options.allow if hook != "none"]
    caps = _caps(original, options, facts, CAPS_WITH_HOOK)
    compressed = [dataclasses.replace(_with_cap(original, cap), **hook) for hook in hooks for cap in caps]
    return list(dict.fromkeys([original, *plain, *compressed]))


def _caps(original: TrainingCase, options: LiveOptions, facts: WorkloadFacts, most: int) -> Sequence[str]:
    """Return the bucket sizes to try, the script's own first."""
    if options.bucket_cap_mb:
        return unique_layouts([original.bucket_cap_mb, *options.bucket_cap_mb], facts)
    return unique_layouts([original.bucket_cap_mb, *candidate_caps(facts, most=most)], facts)


def _with_cap(case: TrainingCase, cap: str) -> TrainingCase:
    return dataclasses.replace(case, bucket_cap_mb=cap, phase=SWEEP)


def _facts_of(model: nn.Module) -> WorkloadFacts:
    """Return the sizes of the model's gradients; they are taken to be ready in the reverse order of registration."""
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
