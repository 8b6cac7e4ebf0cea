"""A person's own hook, ``FILE.py:CALLABLE``: a hook of DDP, or a factory of one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from commbench.errors import InputError
from commbench.hooks.base import Hook
from commbench.hooks.guard import Guard
from commbench.hooks.registry import file_hook_name
from commbench.system.user_files import failure, load_callable
from commbench.units import counted

#: A hook of DDP requires its state and a bucket, a factory requires nothing.
_HOOK_ARGUMENTS, _FACTORY_ARGUMENTS = 2, 0


def check_file_hook(text: str) -> None:
    """Import the file and inspect the callable; call nothing.

    Raises:
        InputError: it cannot be imported, or the callable is neither a hook nor a factory.
    """
    _load(text)


def make_file_hook(text: str) -> Hook:
    """Return the hook of ``FILE.py:CALLABLE`` inside `Guard`.

    A factory is called for each hook that is made.

    Raises:
        InputError: as for `check_file_hook`, or the factory fails or returns no hook.
    """
    function, is_factory = _load(text)
    name = file_hook_name(text)
    if not is_factory:
        return _guarded(function, None, name)
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise InputError(f"The factory {name} failed ({failure(error)}): correct it.") from error
    if isinstance(returned, Hook):
        return returned
    state, hook = (
        returned if isinstance(returned, tuple) and len(returned) == 2 else (None, returned)  # noqa: PLR2004 - state and hook
    )
    if not callable(hook):
        raise InputError(
            f"The factory {name} returned a value of type {type(returned).__name__}: return a hook"
            " of (state, bucket), or the pair (state, hook)."
        )
    return _guarded(hook, state, name)


def _guarded(hook: Callable[[Any, Any], Any], state: object, name: str) -> Guard:
    """Return the checked hook under the name that results use."""
    guard = Guard(hook, state)
    guard.name = name  # type: ignore[misc] # a class attribute of other hooks
    return guard


@functools.cache
def _load(text: str) -> tuple[Callable[..., Any], bool]:
    """Return the callable and whether it is a factory; the file is imported once."""
    function = load_callable(text, "hook")
    required = _required_arguments(function)
    if required not in {_HOOK_ARGUMENTS, _FACTORY_ARGUMENTS}:
        raise InputError(
            f"{text} requires {counted(required, 'argument')}: a hook requires two, state and"
            " bucket; a factory requires none and returns the hook, or the pair (state, hook)."
        )
    return function, required == _FACTORY_ARGUMENTS


def _required_arguments(function: Callable[..., Any]) -> int:
    """Return how many arguments have no default value.

    Compiled functions without a signature count as hooks.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _HOOK_ARGUMENTS
    optional = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return sum(each.default is each.empty and each.kind not in optional for each in parameters)
