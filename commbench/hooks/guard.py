"""`Guard`: runs a user's own hook and checks every result before DDP gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from commbench.errors import InputError
from commbench.findings import UnsupportedError
from commbench.hooks.base import Finish, Hook, Stopwatch
from commbench.hooks.message import BucketShape, Message


class Guard(Hook):
    """A checked hook: ``Guard(my_hook).register(ddp_model)``, where ``my_hook(state, bucket)`` is a
    hook for DDP.

    Without it, DDP crashes if a hook returns None and silently accepts a result that is too long or
    of the wrong type. After an error in a hook, every later step fails with an internal assertion.
    """

    name: ClassVar[str] = "own"

    def __init__(self, hook: Callable[[Any, Any], Any], state: object = None) -> None:
        if not callable(hook):
            raise InputError(
                f"Guard was given a {type(hook).__name__}: pass a function of (state, bucket)."
            )
        self._hook = hook
        self._state = state
        self.name = getattr(hook, "__name__", type(hook).__name__)  # type: ignore[misc] # a class attribute of other hooks

    def launch(
        self, bucket: dist.GradBucket, watch: Stopwatch
    ) -> tuple[torch.futures.Future, Finish]:
        """Call the hook; its whole run time counts as encoding."""
        watch.started()
        try:
            future = self._hook(self._state, bucket)
        except Exception as error:
            raise InputError(
                f"Hook {self.name} raised {type(error).__name__} ({error}) on bucket"
                f" {bucket.index()}: see its traceback, fix it and start again."
            ) from error
        watch.encoded()
        if isinstance(future, torch._C.Future):  # noqa: SLF001 - the base of all of torch's futures has no public name
            return future, lambda value: value
        raise InputError(
            f"Hook {self.name} returned"
            f" {'None' if future is None else f'a {type(future).__name__}'} for bucket"
            f" {bucket.index()}: it must return a torch Future."
        )

    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:  # noqa: ARG002 - the bucket does not determine the messages
        """Raise UnsupportedError: the bytes of a user's own hook can only be measured."""
        raise UnsupportedError("hook_bytes_unknown", hook=self.name)
