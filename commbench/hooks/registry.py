"""Hooks by name, with options as text: how a command line makes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from commbench.errors import InputError
from commbench.hooks.base import Hook
from commbench.hooks.dense import BF16, FP16, PassThrough
from commbench.hooks.powersgd import PowerSGD
from commbench.hooks.randomk import RandomK
from commbench.hooks.topk import TopK
from commbench.units import TRUTH

HOOKS: Mapping[str, type[Hook]] = MappingProxyType(
    {hook.name: hook for hook in (PassThrough, FP16, BF16, TopK, RandomK, PowerSGD)}
)
#: What stands for DDP without a hook.
NONE = "none"
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def make_hook(name: str, *, density: float | None = None, options: Mapping[str, str] = _NO_OPTIONS) -> Hook | None:
    """Make the hook of this name, or None for ``none``; ``options`` are its keyword arguments, written as text.

    Raises InputError for an unknown name or option, for a value that cannot be read, and for a density outside (0, 1].
    """
    if name == NONE:
        known: Mapping[str, Any] = {}
    elif name in HOOKS:
        known = _parameters(HOOKS[name])
    else:
        raise InputError(f"Hook {name!r} is unknown: choose one of {', '.join((NONE, *HOOKS))}.")
    arguments: dict[str, Any] = {}
    if density is not None:
        if "density" not in known:
            raise InputError(f"Hook {name} was given density {density:g} and takes none: leave it out.")
        arguments["density"] = density
    for key, text in options.items():
        if key not in known or key in arguments:
            raise InputError(f"Hook {name} has no option {key!r}: it takes {', '.join(known) or 'none'}.")
        arguments[key] = _read(name, key, text, known[key])
    return HOOKS[name](**arguments) if name in HOOKS else None


def _parameters(hook: type[Hook]) -> dict[str, Any]:
    """The keyword arguments of a hook and their types."""
    hints = get_type_hints(hook.__init__)
    return {name: hints[name] for name in list(inspect.signature(hook).parameters)}


def _read_numbers(text: str) -> tuple[float, ...]:
    """Numbers between commas, or as on the command line, where commas separate hooks, between plus signs."""
    return tuple(float(word) for word in text.replace("+", ",").split(","))


def _read(hook: str, key: str, text: str, kind: Any) -> Any:  # noqa: ANN401 - a type, and a value of it
    """The value a text stands for."""
    readers: dict[Any, tuple[Callable[[str], Any], str]] = {
        bool: (lambda word: TRUTH[word.lower()], "true or false"),
        int: (int, "a whole number"),
        float: (float, "a number"),
        Sequence[float]: (_read_numbers, "a list such as 0.25+0.06"),
    }
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        readers[kind] = (lambda word: choices[choices.index(word)], " or ".join(choices))
    read, wanted = readers[kind]
    try:
        return read(text)
    except (KeyError, ValueError) as error:
        raise InputError(f"Hook {hook} was given {key}={text}: it takes {wanted}.") from error
