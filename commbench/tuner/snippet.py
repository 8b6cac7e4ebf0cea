"""A configuration as Python that can be pasted into a training script."""

from __future__ import annotations

import json

from commbench.ddp.plan.cases import TrainingCase
from commbench.hooks.registry import NONE, find_hook

_DTYPES = {"amp-bf16": "torch.bfloat16", "amp-fp16": "torch.float16"}


def snippet_of(case: TrainingCase, *, device: str = "cpu") -> str:
    """The lines that train ``model`` as in ``case``: DDP, its hook, and what belongs around a step.

    Args:
        case: a configuration with DDP.
        device: as in ``ddp.csv``: ``cpu``, or a GPU's name.
    """
    kind = "cpu" if device in {"", "cpu"} else "cuda"
    imports, setup, steps = _imports(case), _ddp(case), []
    if case.precision == "amp-fp16":
        setup.append(f'scaler = torch.amp.GradScaler("{kind}")')
        steps.append("# scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()")
    if case.hook != NONE:
        setup.append(_hook(case))
    if case.accumulation > 1:
        steps.append(f"# step the optimiser every {case.accumulation} batches;")
        steps.append("# all but the last of these run inside `with model.no_sync():`")
    if case.precision in _DTYPES:
        steps += [f'with torch.autocast("{kind}", dtype={_DTYPES[case.precision]}):', "    loss = ...  # forward pass"]
    return "\n".join([*imports, "", *setup, *steps]) + "\n"


def keep_snippet() -> str:
    """The lines that leave DDP as it is."""
    return "model = torch.nn.parallel.DistributedDataParallel(model)  # keep the default\n"


def _imports(case: TrainingCase) -> list[str]:
    lines = ["import torch"] if case.precision in _DTYPES else []
    lines.append("from torch.nn.parallel import DistributedDataParallel")
    if case.hook != NONE:
        lines.append(f"from commbench.hooks import {find_hook(case.hook).class_name}")
    return lines


def _ddp(case: TrainingCase) -> list[str]:
    caps = [f"{cap:.12g}" for cap in case.caps_mb]
    arguments = ["model"]
    if len(caps) == 1:
        arguments.append(f"bucket_cap_mb={caps[0]}")
    elif caps:
        arguments.append(f"bucket_cap_mb_list=[{', '.join(caps)}]")
    arguments += ["gradient_as_bucket_view=True"] if case.bucket_view else []
    arguments += ["static_graph=True"] if case.static_graph else []
    newer = ["# bucket_cap_mb_list needs torch 2.13"] if len(caps) > 1 else []
    return [*newer, f"model = DistributedDataParallel({', '.join(arguments)})"]


def _hook(case: TrainingCase) -> str:
    arguments = [] if case.density is None else [f"density={case.density:g}"]
    arguments += [f"{name}={_literal(text)}" for name, text in case.options.items()]
    scaler = ", scaler=scaler" if case.precision == "amp-fp16" else ""
    return f"{find_hook(case.hook).class_name}({', '.join(arguments)}).register(model{scaler})"


def _literal(text: str) -> str:
    """An option's text as Python: a truth value, a number or a string."""
    truths = {"true": "True", "yes": "True", "false": "False", "no": "False"}
    if text.lower() in truths:
        return truths[text.lower()]
    try:
        float(text)
    except ValueError:
        return json.dumps(text)
    return text
