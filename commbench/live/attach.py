"""Takes the models and engines that a process of the training makes, as ``site/sitecustomize.py``
hands them over.

`commbench tune -- COMMAND` puts that file on PYTHONPATH. The process imports this module when it
makes the first of them, so torch is loaded already.
"""

from __future__ import annotations

import os

from torch.nn.parallel import DistributedDataParallel

from commbench.live.adopt import adopt
from commbench.live.options import VARIABLE, LiveOptions
from commbench.live.switching import makes_own_models

#: The packages of the engines that are not tuned, and their usual names.
ENGINES = {"torch.distributed.fsdp": "FSDP", "deepspeed": "DeepSpeed", "horovod": "Horovod"}


def take(instance: object) -> str:
    """Begin to tune a DDP model.

    Return a clause that states why the object is not tuned, else an empty text.
    """
    if isinstance(instance, DistributedDataParallel):
        return "" if makes_own_models() else _adopt(instance)
    modules = [f"{base.__module__}." for base in type(instance).__mro__]
    engines = (
        name
        for package, name in ENGINES.items()
        for module in modules
        if module.startswith(f"{package}.")
    )
    return (
        f"{next(engines, type(instance).__name__)} exchanges gradients itself, without the buckets"
        " of DDP"
    )


def _adopt(ddp_model: DistributedDataParallel) -> str:
    """Tune a model; return why that failed, else an empty text."""
    try:
        adopt(ddp_model, LiveOptions.loads(os.environ[VARIABLE]))
    except Exception as error:  # noqa: BLE001 - whatever fails here must not fail the training
        return f"commbench could not begin ({type(error).__name__}: {error})"
    return ""
