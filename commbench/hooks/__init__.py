"""DDP communication hooks as a library, registered on any DDP model in one line."""

from commbench.errors import InputError

try:
    import torch as _torch  # noqa: F401 - to say in one sentence what is missing
except ImportError as error:
    raise InputError("Communication hooks need PyTorch, which is not installed: pip install torch.") from error

from commbench.hooks.base import BucketMarks, BucketTimes, Hook
from commbench.hooks.dense import BF16, FP16, PassThrough
from commbench.hooks.guard import Guard
from commbench.hooks.powersgd import PowerSGD
from commbench.hooks.randomk import RandomK
from commbench.hooks.registry import HOOKS, make_hook
from commbench.hooks.topk import TopK

__all__ = [
    "BF16",
    "FP16",
    "HOOKS",
    "BucketMarks",
    "BucketTimes",
    "Guard",
    "Hook",
    "PassThrough",
    "PowerSGD",
    "RandomK",
    "TopK",
    "make_hook",
]
