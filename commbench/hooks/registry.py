"""The hooks by name, and how they are written on a command line and in ``ddp.csv``; without
torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict

from commbench.errors import InputError, unknown_choice
from commbench.hooks import catalogue
from commbench.hooks.catalogue import FileHook, NoHook
from commbench.hooks.options import HookSpec
from commbench.system.user_files import callable_name, is_callable_of_file, split_callable

if TYPE_CHECKING:
    from commbench.hooks.base import Hook

_HOOKS = (
    catalogue.NoHook,
    catalogue.PassThrough,
    catalogue.FP16,
    catalogue.BF16,
    catalogue.Int8,
    catalogue.TopK,
    catalogue.PowerSGD,
)
#: The hooks by name, in the order in which they are listed.
HOOKS: Mapping[str, type[HookSpec]] = {hook.name: hook for hook in _HOOKS}
#: DDP without a hook.
NONE = NoHook.name
_NO_OPTIONS: Mapping[str, str] = {}


def find_hook(name: str) -> type[HookSpec]:
    """Return the declaration of a hook.

    Raises:
        InputError: no hook has this name.
    """
    if is_file_hook(name):
        return FileHook
    if name not in HOOKS:
        usages = [hook.usage() for hook in HOOKS.values()]
        raise unknown_choice("hook", name, [*usages, FileHook.name])
    return HOOKS[name]


def read_hook(
    name: str, *, density: float | None = None, options: Mapping[str, str] = _NO_OPTIONS
) -> HookSpec:
    """Return the declaration of a hook with these options, written as text; imports no torch.

    Raises:
        InputError: the name or an option is unknown, or an option does not take its value.
    """
    if is_file_hook(name):
        return FileHook(source=name)
    return find_hook(name).read(density=density, options=options)


def make_hook(
    name: str, *, density: float | None = None, options: Mapping[str, str] = _NO_OPTIONS
) -> Hook | None:
    """Make the hook of this name, or None for ``none``.

    ``options`` are its keyword arguments, written as text.

    A hook of a user's file is named with its path, see `hook_source`.

    Raises:
        InputError: as of `read_hook`, or PyTorch is not installed.
    """
    hooks = importlib.import_module("commbench.hooks")
    if is_file_hook(name):
        own: Hook = hooks.make_file_hook(name)
        return own
    hook = find_hook(name)
    if not hook.module:
        return None
    made: Hook = getattr(hooks, hook.__name__).read(density=density, options=options)
    return made


# --------------------------------------------------------------------------- hooks of a user's file


#: Returns whether a hook is a callable of a user's file: ``FILE.py:CALLABLE``.
is_file_hook = is_callable_of_file


def find_file_hooks(hooks: Iterable[str]) -> tuple[str, ...]:
    """Return the hooks of a user's files with absolute paths.

    Raises:
        InputError: a file or the name of a callable is missing, or two hooks have the same name.
    """
    paths: dict[str, str] = {}
    for hook in hooks:
        text = hook.strip()
        if not is_file_hook(text):
            continue
        file, function = split_callable(text, "hook")
        path = f"{file.absolute()}:{function}"
        other = paths.setdefault(callable_name(text), path)
        if other != path:
            raise InputError(f"Hooks {path} and {other} have the same name: rename a file.")
    return tuple(paths.values())


def hook_source(name: str, file_hooks: Iterable[str]) -> str:
    """Return what `make_hook` takes for a hook that results call ``name``: of a user's file its
    path, else the name.
    """
    return next((path for path in file_hooks if callable_name(path) == name), name)


# -------------------------------------------------------------------------------- on a command line


class HookFields(TypedDict):
    """A hook as the columns of ``ddp.csv``."""

    hook: str
    density: float | None
    hook_options: str


def parse_hook(text: str) -> HookFields:
    """Return the fields of a hook as typed: ``topk:0.01:values=float16``.

    Raises:
        InputError: an unknown hook, a missing or superfluous number, or an option that the hook
            does not take.
    """
    name, *parts = text.strip().split(":")
    if is_file_hook(text.strip()):
        return {"hook": callable_name(text.strip()), "density": None, "hook_options": ""}
    hook = find_hook(name)
    options = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            if hook.number is None:
                raise InputError(f"Hook {text!r} is not understood; write {hook.usage()}.")
            key, value = hook.number, part
        if key in options:
            raise InputError(f"Hook {text!r} names {key} twice; write each option once.")
        options[key] = value
    if hook.number is not None and hook.number not in options:
        raise InputError(f"Hook {text!r} is not understood; write {hook.usage()}.")
    made = hook.read(density=None, options=options)
    density = None
    if hook.number == "density":
        density = float(options.pop("density"))
    elif hook.number is not None:
        options[hook.number] = str(getattr(made, hook.number))
    canonical = ";".join(f"{key}={options[key]}" for key in sorted(options))
    return {"hook": name, "density": density, "hook_options": canonical}


def hook_words(hook: str, density: float | None, hook_options: str) -> str:
    """Return the text from which `parse_hook` returns these fields."""
    options = split_options(hook_options)
    words = [hook]
    if density is not None:
        words.append(f"{density:g}")
    elif hook in HOOKS and HOOKS[hook].number in options:
        words.append(options.pop(str(HOOKS[hook].number)))
    words += [f"{key}={value}" for key, value in options.items()]
    return ":".join(words)


def canonical_hook(text: str) -> str:
    """Return a hook as results name it; raise InputError as `parse_hook` does."""
    return hook_words(**parse_hook(text.strip()))


def split_options(text: str) -> dict[str, str]:
    """Parse ``key=value;...``; return the values by key."""
    return dict(pair.split("=", 1) for pair in text.split(";") if pair)
