"""A configuration as Python that can be pasted into a training script."""

from __future__ import annotations

import json
from itertools import starmap

from commbench.ddp.plan.arguments import ddp_arguments
from commbench.ddp.plan.cases import TrainingCase
from commbench.hooks.registry import find_hook, read_hook
from commbench.system.env import variables_of

_DTYPES = {"amp-bf16": "torch.bfloat16", "amp-fp16": "torch.float16"}


def snippet_of(case: TrainingCase, *, device: str = "cpu") -> str:
    """Return the lines that train ``model`` as in ``case``: DDP, its hook, and changes around a
    step.

    Args:
        case: a configuration with DDP.
        device: as in ``ddp.csv``: ``cpu``, or a GPU's name.
    """
    kind = "cuda"
    if device in {"", "cpu"}:
        kind = "cpu"
    imports = []
    setup, steps = [_ddp(case)], []
    if case.precision in _DTYPES or case.compile:
        imports.append("import torch")
    imports.append("from torch.nn.parallel import DistributedDataParallel")
    if case.compile:
        mode = json.dumps(case.compile)
        setup.insert(
            0, f"torch._dynamo.config.optimize_ddp = {mode}  # before the DDP object is made"
        )
    if case.precision == "amp-fp16":
        setup.append(f'scaler = torch.amp.GradScaler("{kind}")')
        steps.append("# scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()")
    if not case.is_plain:
        imports.append(_hook_import(case))
        setup.append(_registration(case, "model"))
    if case.compile:
        setup.append("model = torch.compile(model)")
    if case.compile == "python_reducer":
        enabled = "torch._dynamo.compiled_autograd._enable(torch.compile)"
        steps.append(f"# loss.backward() inside `with {enabled}:`")
    if case.accumulation > 1:
        steps.append(f"# step the optimiser every {case.accumulation} batches;")
        steps.append("# all but the last of these run inside `with model.no_sync():`")
    if case.precision in _DTYPES:
        steps.append(f'with torch.autocast("{kind}", dtype={_DTYPES[case.precision]}):')
        steps.append("    loss = ...  # forward pass")
    return "\n".join([*imports, "", *setup, *steps]) + "\n"


def env_snippet(env: str) -> str:
    """Return the lines that give a process the variables of ``env``, see `commbench.system.env`."""
    lines = ["import os", "", "# on every rank, before torch is imported:"]
    for name, value in variables_of(env).items():
        if value is None:
            lines.append(f"os.environ.pop({json.dumps(name)}, None)")
        else:
            lines.append(f"os.environ[{json.dumps(name)}] = {json.dumps(value)}")
    return "\n".join([*lines, "", ""])


def keep_snippet(*, unused_parameters: bool = False) -> str:
    """Return the line that keeps DDP's default, with a search for unused parameters if the model
    needs it.
    """
    arguments = "model"
    if unused_parameters:
        arguments = "model, find_unused_parameters=True"
    return f"model = torch.nn.parallel.DistributedDataParallel({arguments})  # keep the default\n"


def live_snippet(case: TrainingCase, own: TrainingCase, *, framework: str = "") -> str:
    """Return the change to a training script that makes it train as in ``case``.

    Args:
        case: the configuration to change to.
        own: the script's own setting.
        framework: library that makes the DDP object: ``transformers``, ``accelerate``,
            ``lightning``; empty: the script.
    """
    given, wanted = ddp_arguments(own), ddp_arguments(case)
    text = ""
    for name in given:
        if name not in wanted:
            text += f"# leave out the argument {name} that the script gives\n"
    added = []
    for name, value in wanted.items():
        if given.get(name) == value:
            continue
        if name in _KNOWN_ARGUMENTS.get(framework, wanted):
            added.append(_argument(name, value))
        else:
            text += f"# {framework} cannot set {_argument(name, value)}\n"
    if added:
        arguments, prefixed = ", ".join(added), ", ddp_".join(added)
        text += _ADDITIONS[framework].format(arguments=arguments, prefixed=prefixed)
    if case.hook != own.hook:
        if not case.is_plain:
            text += f"{_hook_import(case)}\n"
        registration = _registration(case, _MODELS.get(framework, "model"))
        template = _REGISTRATIONS.get(framework, _OTHER_REGISTRATION)
        text += template.format(registration=registration)
    return text or "# nothing to change: keep the script as it is\n"


def _argument(name: str, value: bool | float | list[float]) -> str:
    """Return an argument of DDP as Python."""
    if isinstance(value, list):
        return f"{name}=[{', '.join(f'{each:.12g}' for each in value)}]"
    if isinstance(value, bool):
        return f"{name}={value}"
    return f"{name}={value:.12g}"


#: Arguments that DDP has since torch 2.13.
_NEW_ARGUMENTS = ("bucket_cap_mb_list", "forward_sync_buffers", "batched_grad_copy")
#: How to set arguments of DDP, by framework.
_ADDITIONS = {
    "": """\
# add to the call of DistributedDataParallel:
{arguments},
""",
    "transformers": """\
# add to TrainingArguments:
ddp_{prefixed},
""",
    "accelerate": """\
from accelerate import Accelerator, DistributedDataParallelKwargs

# beside the arguments that you have:
accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({arguments})])
""",
    "lightning": """\
from lightning.pytorch.strategies import DDPStrategy

# beside the arguments that you have:
trainer = Trainer(strategy=DDPStrategy({arguments}))
""",
}
#: How to register a hook, by framework, and the name of the DDP object there.
_REGISTRATIONS = {
    "transformers": """\

import transformers

class UseHook(transformers.TrainerCallback):
    def on_train_begin(self, *arguments, **keywords):
        {registration}

trainer.add_callback(UseHook())
""",
    "lightning": """\

# in your LightningModule:
def on_train_start(self):
    {registration}
""",
}
_OTHER_REGISTRATION = """\
# on the DDP object, before the first step:
{registration}
"""
_MODELS = {"transformers": "trainer.model_wrapped", "lightning": "self.trainer.strategy.model"}
#: Arguments of DDP that a framework lets one set, if not all; in transformers their names begin
#: with ``ddp_``.
_KNOWN_ARGUMENTS = {
    "transformers": frozenset({"bucket_cap_mb", "static_graph", "find_unused_parameters"}),
    "accelerate": frozenset(
        {"bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"}
    ),
}


def _hook_import(case: TrainingCase) -> str:
    if case.is_file_hook:
        return "from commbench.hooks import make_hook"
    return f"from commbench.hooks import {find_hook(case.hook).__name__}"


def _ddp(case: TrainingCase) -> str:
    """Return the line that makes the DDP object, below what it needs."""
    given = ddp_arguments(case)
    newer = [name for name in _NEW_ARGUMENTS if name in given]
    arguments = ", ".join(["model", *starmap(_argument, given.items())])
    line = f"model = DistributedDataParallel({arguments})"
    if len(newer) == 1:
        return f"# {newer[0]} needs torch 2.13\n{line}"
    if newer:
        return f"# {' and '.join(newer)} need torch 2.13\n{line}"
    return line


def _registration(case: TrainingCase, model: str) -> str:
    """Return the line that registers the hook on a DDP object of that name."""
    arguments = [model]
    if case.precision == "amp-fp16":
        arguments.append("scaler=scaler")
    register = f"register({', '.join(arguments)})"
    if case.is_file_hook:
        return f"make_hook({json.dumps(case.hook)}).{register}  # with the path of your file"
    hook = read_hook(case.hook, density=case.density, options=case.options)
    names = list(case.options)
    if case.density is not None:
        names.insert(0, "density")
    options = ", ".join(f"{name}={getattr(hook, name)!r}" for name in names)
    return f"{type(hook).__name__}({options}).{register}"
