"""A configuration as Python that can be pasted into a training script."""

from __future__ import annotations

import json
from collections.abc import Mapping

from commbench.ddp.plan.cases import TrainingCase
from commbench.hooks.registry import find_hook

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
    if not case.is_plain:
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


def live_snippet(case: TrainingCase, own: TrainingCase, *, framework: str = "") -> str:
    """The change to a person's own script that makes it train as in ``case``.

    Args:
        case: the configuration to change to.
        own: the script's own setting.
        framework: the library that makes the DDP object: ``transformers``, ``accelerate``, ``lightning``; empty: the
            script.
    """
    arguments = _changed_arguments(case, own)
    lines = _WRITERS[framework](arguments) if arguments else []
    if case.hook != own.hook:
        lines += [*_hook_import(case), *_registration(case, framework)]
    return "\n".join(lines or ["# nothing to change: keep the script as it is"]) + "\n"


def _changed_arguments(case: TrainingCase, own: TrainingCase) -> dict[str, str]:
    """Return the arguments of DDP that differ, as Python; None takes one back."""
    arguments = {}
    if case.bucket_cap_mb != own.bucket_cap_mb:
        caps = [f"{cap:.12g}" for cap in case.caps_mb]
        name = "bucket_cap_mb_list" if len(caps) > 1 else "bucket_cap_mb"
        arguments[name] = f"[{', '.join(caps)}]" if len(caps) > 1 else "".join(caps) or "None"
    if case.bucket_view != own.bucket_view:
        arguments["gradient_as_bucket_view"] = str(case.bucket_view)
    if case.static_graph != own.static_graph:
        arguments["static_graph"] = str(case.static_graph)
    return arguments


def _joined(arguments: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def _for_script(arguments: Mapping[str, str]) -> list[str]:
    return ["# add these arguments to the call of DistributedDataParallel:", f"{_joined(arguments)},"]


def _for_transformers(arguments: Mapping[str, str]) -> list[str]:
    """Return arguments of TrainingArguments, and for those that it lacks, of the DDP object that Trainer makes."""
    known = {f"ddp_{name}": value for name, value in arguments.items() if name in _OF_TRAINING_ARGUMENTS}
    other = {name: value for name, value in arguments.items() if name not in _OF_TRAINING_ARGUMENTS}
    lines = ["# add these to TrainingArguments:", f"{_joined(known)},"] if known else []
    return lines + [f"# TrainingArguments cannot set {_joined(other)}"] * bool(other)


def _for_accelerate(arguments: Mapping[str, str]) -> list[str]:
    return [
        "from accelerate import Accelerator, DistributedDataParallelKwargs",
        "",
        "# beside the arguments that you have:",
        f"accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({_joined(arguments)})])",
    ]


def _for_lightning(arguments: Mapping[str, str]) -> list[str]:
    return [
        "from lightning.pytorch.strategies import DDPStrategy",
        "",
        "# beside the arguments that you have:",
        f"trainer = Trainer(strategy=DDPStrategy({_joined(arguments)}))",
    ]


#: Arguments of DDP that TrainingArguments of transformers has too, with ``ddp_`` before the name.
_OF_TRAINING_ARGUMENTS = frozenset({"bucket_cap_mb", "static_graph"})
#: How to set arguments of DDP, by framework.
_WRITERS = {
    "": _for_script,
    "transformers": _for_transformers,
    "accelerate": _for_accelerate,
    "lightning": _for_lightning,
}


def _registration(case: TrainingCase, framework: str) -> list[str]:
    """Return the lines that register the hook on the DDP object."""
    register = _hook(case)
    if framework == "transformers":
        register = register.replace("(model", "(trainer.model_wrapped")
        return [
            "",
            "class UseHook(transformers.TrainerCallback):",
            "    def on_train_begin(self, *arguments, **keywords):",
            f"        {register}",
            "",
            "trainer.add_callback(UseHook())",
        ]
    if framework == "lightning":
        register = register.replace("(model", "(self.trainer.strategy.model")
        return ["", "# in your LightningModule:", "def on_train_start(self):", f"    {register}"]
    return ["# on the DDP object, before the first step:", register]


def _imports(case: TrainingCase) -> list[str]:
    lines = ["import torch"] if case.precision in _DTYPES else []
    lines.append("from torch.nn.parallel import DistributedDataParallel")
    return [*lines, *_hook_import(case)]


def _hook_import(case: TrainingCase) -> list[str]:
    return [] if case.is_plain else [f"from commbench.hooks import {find_hook(case.hook).class_name}"]


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
