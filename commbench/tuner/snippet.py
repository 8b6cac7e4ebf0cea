"""A configuration as Python that can be pasted into a training script."""

from __future__ import annotations

import json
from collections.abc import Sequence

from commbench.ddp.plan.arguments import ddp_arguments
from commbench.ddp.plan.cases import TrainingCase
from commbench.hooks.registry import find_hook
from commbench.system.env import variables_of

_DTYPES = {"amp-bf16": "torch.bfloat16", "amp-fp16": "torch.float16"}


def snippet_of(case: TrainingCase, *, device: str = "cpu") -> str:
    """Return the lines that train ``model`` as in ``case``: DDP, its hook, and changes around a
    step.

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
    if case.compile:
        setup.append("model = torch.compile(model)")
    if case.compile == "python_reducer":
        steps.append(
            "# loss.backward() inside `with"
            " torch._dynamo.compiled_autograd._enable(torch.compile):`"
        )
    if case.accumulation > 1:
        steps.append(f"# step the optimiser every {case.accumulation} batches;")
        steps.append("# all but the last of these run inside `with model.no_sync():`")
    if case.precision in _DTYPES:
        steps += [
            f'with torch.autocast("{kind}", dtype={_DTYPES[case.precision]}):',
            "    loss = ...  # forward pass",
        ]
    return "\n".join([*imports, "", *setup, *steps]) + "\n"


def env_snippet(env: str) -> str:
    """Return the lines that give a process the variables of ``env``, see `commbench.system.env`."""
    lines = [
        (
            f"os.environ.pop({json.dumps(name)}, None)"
            if value is None
            else f"os.environ[{json.dumps(name)}] = {json.dumps(value)}"
        )
        for name, value in variables_of(env).items()
    ]
    return "\n".join(
        ["import os", "", "# on every rank, before torch is imported:", *lines, "", ""]
    )


def keep_snippet(*, unused_parameters: bool = False) -> str:
    """Return the line that keeps DDP's default, with a search for unused parameters if the model
    needs it.
    """
    search = ", find_unused_parameters=True" if unused_parameters else ""
    return f"model = torch.nn.parallel.DistributedDataParallel(model{search})  # keep the default\n"


def live_snippet(case: TrainingCase, own: TrainingCase, *, framework: str = "") -> str:
    """Return the change to a training script that makes it train as in ``case``.

    Args:
        case: the configuration to change to.
        own: the script's own setting.
        framework: library that makes the DDP object: ``transformers``, ``accelerate``,
            ``lightning``; empty: the script.
    """
    given, wanted = ddp_arguments(own), ddp_arguments(case)
    lines = []
    for name in given:
        if name not in wanted:
            lines.append(f"# leave out the argument {name} that the script gives")
    added = []
    for name, value in wanted.items():
        if given.get(name) == value:
            continue
        if name in _KNOWN_ARGUMENTS.get(framework, wanted):
            added.append(_argument(name, value))
        else:
            lines.append(f"# {framework} cannot set {_argument(name, value)}")
    if added:
        lines += _WRITERS[framework](added)
    if case.hook != own.hook:
        lines += [*_hook_import(case), *_registration(case, framework)]
    return "\n".join(lines or ["# nothing to change: keep the script as it is"]) + "\n"


def _argument(name: str, value: bool | float | list[float]) -> str:
    """Return an argument of DDP as Python."""
    if isinstance(value, list):
        return f"{name}=[{', '.join(f'{each:.12g}' for each in value)}]"
    if isinstance(value, bool):
        return f"{name}={value}"
    return f"{name}={value:.12g}"


def _for_script(arguments: Sequence[str]) -> list[str]:
    return ["# add to the call of DistributedDataParallel:", f"{', '.join(arguments)},"]


def _for_transformers(arguments: Sequence[str]) -> list[str]:
    return ["# add to TrainingArguments:", f"ddp_{', ddp_'.join(arguments)},"]


def _for_accelerate(arguments: Sequence[str]) -> list[str]:
    handler = f"DistributedDataParallelKwargs({', '.join(arguments)})"
    return [
        "from accelerate import Accelerator, DistributedDataParallelKwargs",
        "",
        "# beside the arguments that you have:",
        f"accelerator = Accelerator(kwargs_handlers=[{handler}])",
    ]


def _for_lightning(arguments: Sequence[str]) -> list[str]:
    return [
        "from lightning.pytorch.strategies import DDPStrategy",
        "",
        "# beside the arguments that you have:",
        f"trainer = Trainer(strategy=DDPStrategy({', '.join(arguments)}))",
    ]


#: Arguments that DDP has since torch 2.13.
_NEW_ARGUMENTS = ("bucket_cap_mb_list", "forward_sync_buffers", "batched_grad_copy")
#: How to set arguments of DDP, by framework.
_WRITERS = {
    "": _for_script,
    "transformers": _for_transformers,
    "accelerate": _for_accelerate,
    "lightning": _for_lightning,
}
#: Arguments of DDP that a framework lets one set, if not all; in transformers their names begin
#: with ``ddp_``.
_KNOWN_ARGUMENTS = {
    "transformers": frozenset({"bucket_cap_mb", "static_graph", "find_unused_parameters"}),
    "accelerate": frozenset(
        {"bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"}
    ),
}


def _registration(case: TrainingCase, framework: str) -> list[str]:
    """Return the lines that register the hook on the DDP object."""
    register = _hook(case)
    if framework == "transformers":
        register = register.replace("(model", "(trainer.model_wrapped")
        return [
            "",
            "import transformers",
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
    lines = ["import torch"] if case.precision in _DTYPES or case.compile else []
    lines.append("from torch.nn.parallel import DistributedDataParallel")
    return [*lines, *_hook_import(case)]


def _hook_import(case: TrainingCase) -> list[str]:
    name = "make_hook" if case.is_file_hook else find_hook(case.hook).__name__
    return [] if case.is_plain else [f"from commbench.hooks import {name}"]


def _ddp(case: TrainingCase) -> list[str]:
    lines = []
    if case.compile:
        lines.append(
            f"torch._dynamo.config.optimize_ddp = {json.dumps(case.compile)}  # before the DDP"
            " object is made"
        )
    given = ddp_arguments(case)
    newer = [name for name in _NEW_ARGUMENTS if name in given]
    if len(newer) == 1:
        lines.append(f"# {newer[0]} needs torch 2.13")
    elif newer:
        lines.append(f"# {' and '.join(newer)} need torch 2.13")
    arguments = ["model"]
    for name, value in given.items():
        arguments.append(_argument(name, value))
    lines.append(f"model = DistributedDataParallel({', '.join(arguments)})")
    return lines


def _hook(case: TrainingCase) -> str:
    arguments = [] if case.density is None else [f"density={case.density:g}"]
    arguments += [f"{name}={_literal(text)}" for name, text in case.options.items()]
    scaler = ", scaler=scaler" if case.precision == "amp-fp16" else ""
    if case.is_file_hook:
        return (
            f"make_hook({json.dumps(case.hook)}).register(model{scaler})  # with the path of your"
            " file"
        )
    return f"{find_hook(case.hook).__name__}({', '.join(arguments)}).register(model{scaler})"


def _literal(text: str) -> str:
    """Return an option's text as Python: a boolean, a number or a string."""
    truths = {"true": "True", "yes": "True", "false": "False", "no": "False"}
    if text.lower() in truths:
        return truths[text.lower()]
    try:
        float(text)
    except ValueError:
        return json.dumps(text)
    return text
