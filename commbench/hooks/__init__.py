"""DDP communication hooks as a library; one line registers a hook on any DDP model.

`options` and `catalogue` declare hooks, `registry` reads and writes them, without torch. The
classes that do the work need it, so they are imported on first use. May import backends, engine,
collectives and the packages below them; must not import ddp or anything above.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from commbench.errors import InputError
from commbench.hooks.options import HookSpec
from commbench.hooks.registry import HOOKS, make_hook

if TYPE_CHECKING:
    from commbench.hooks.base import Hook
    from commbench.hooks.dense import BF16, FP16, PassThrough
    from commbench.hooks.int8 import Int8
    from commbench.hooks.own import Guard
    from commbench.hooks.powersgd import PowerSGD
    from commbench.hooks.topk import TopK

__all__ = [
    "BF16",
    "FP16",
    "HOOKS",
    "Guard",
    "Hook",
    "HookSpec",
    "Int8",
    "PassThrough",
    "PowerSGD",
    "TopK",
    "make_hook",
]

#: The module of each class that needs torch.
_MODULES = {
    "Guard": "own",
    "Hook": "base",
    "make_file_hook": "own",
    **{hook.__name__: hook.module for hook in HOOKS.values() if hook.module},
}


def __getattr__(name: str) -> object:
    """Import a class on first use.

    Raises:
        InputError: PyTorch is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch  # noqa: F401 - a missing torch becomes one sentence
    except ImportError as error:
        raise InputError(
            "Communication hooks need PyTorch, which is not installed: pip install torch."
        ) from error
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
