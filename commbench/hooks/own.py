"""A person's own hook: `Guard` checks every result before DDP gets it; ``FILE.py:CALLABLE`` names a
hook of DDP, or a factory of one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from commbench.errors import InputError
from commbench.hooks.base import Hook, Launched, Stopwatch
from commbench.system.user_files import callable_name, failure, load_callable
from commbench.units import counted

#: A hook of DDP requires its state and a bucket, a factory requires nothing.
_HOOK_ARGUMENTS, _FACTORY_ARGUMENTS = 2, 0


class Guard(Hook):
    """A checked hook: ``Guard(my_hook).register(ddp_model)``, where ``my_hook(state, bucket)`` is a
    hook for DDP.

    Without it, DDP crashes if a hook returns None and silently accepts a result that is too long or
    of the wrong type.
    """

    name: ClassVar[str] = "own"

    def __init__(
        self, hook: Callable[[Any, Any], Any], state: object = None, *, name: str = ""
    ) -> None:
        self._hook = hook
        self._state = state
        own_name = getattr(hook, "__name__", type(hook).__name__)
        self.name = name or own_name  # type: ignore[misc] # a class attribute of other hooks

    def launch(self, bucket: dist.GradBucket, watch: Stopwatch) -> Launched:
        """Call the hook; its whole run time counts as encoding."""
        watch.started()
        try:
            future = self._hook(self._state, bucket)
        except Exception as error:
            where = f"bucket {bucket.index()} ({failure(error)})"
            raise InputError(f"Hook {self.name} failed on {where}: correct it.") from error
        watch.encoded()
        # The base of torch's futures has no public name.
        if isinstance(future, torch._C.Future):  # noqa: SLF001
            return future, lambda value: value
        raise InputError(
            f"Hook {self.name} returned a value of type {type(future).__name__} for bucket"
            f" {bucket.index()}: it must return a torch Future."
        )


def make_file_hook(text: str) -> Hook:
    """Return the hook of ``FILE.py:CALLABLE`` inside `Guard`.

    A factory is called for each hook that is made.

    Raises:
        InputError: as of `load_file_hook`, or the factory fails or returns no hook.
    """
    function, is_factory = load_file_hook(text)
    name = callable_name(text)
    if not is_factory:
        return Guard(function, name=name)
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise InputError(f"The factory {name} failed ({failure(error)}): correct it.") from error
    if isinstance(returned, Hook):
        return returned
    state, hook = None, returned
    if isinstance(returned, tuple) and len(returned) == 2:  # state and hook
        state, hook = returned
    if not callable(hook):
        raise InputError(
            f"The factory {name} returned a value of type {type(returned).__name__}: return a hook"
            " of (state, bucket), or the pair (state, hook)."
        )
    return Guard(hook, state, name=name)


@functools.cache
def load_file_hook(text: str) -> tuple[Callable[..., Any], bool]:
    """Return the callable of a file and whether it is a factory; nothing is called.

    The file is imported once.

    Raises:
        InputError: it cannot be imported, or the callable is neither a hook nor a factory.
    """
    function = load_callable(text, "hook")
    required = _HOOK_ARGUMENTS  # of compiled functions, which have no signature
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(function).parameters.values()
        optional = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        required = sum(
            each.default is each.empty and each.kind not in optional for each in parameters
        )
    if required not in {_HOOK_ARGUMENTS, _FACTORY_ARGUMENTS}:
        raise InputError(
            f"{text} requires {counted(required, 'argument')}: a hook requires two, state and"
            " bucket; a factory requires none and returns the hook, or the pair (state, hook)."
        )
    return function, required == _FACTORY_ARGUMENTS
