"""Fields of dataclasses that are options of the command line, and how their texts are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any

from commbench.errors import InputError, check_choice, find_entry

_SWITCHES = {"off": (False,), "on": (True,), "both": (False, True)}


def option(
    default: Any,
    *spellings: str,
    about: str,
    metavar: str | None = None,
    read: Callable[[str], Any] | None = None,
    kind: Any = str,
    choices: tuple[str, Collection[str]] | None = None,
    **checks: Any,
) -> Any:
    """Return a field of a dataclass that is an option of the command line.

    Args:
        default: of the field; where it is a text to read, the help shows it.
        spellings: of the option, such as ``-n`` and ``--ranks``.
        about: its text in the help.
        metavar: the name of its value in the help.
        read: makes the value from the text on the command line; None: the text is the value.
        kind: the type of the option where only given values count, see
            `commbench.cli.command_line.takes_options`.
        choices: what a value is, and its possible values; see `check_choices`.
        checks: how `typer.Option` reads and checks the value: ``parser``, ``min``, ``max``.
    """
    value, text = default, None
    if read is not None and isinstance(default, str):
        value, text = read(default), default
    metadata = {
        "spellings": spellings,
        "read": read,
        "kind": kind,
        "text": text,
        "choices": choices,
        "shown": {"metavar": metavar, "help": about, **checks},
    }
    return dataclasses.field(default=value, metadata=metadata)


def check_choices(options: Any) -> None:
    """Check the fields whose `option` has choices.

    Raises:
        InputError: a value is none of them; the message lists them.
    """
    for field in dataclasses.fields(options):
        choices = field.metadata.get("choices")
        values = getattr(options, field.name)
        if choices is None or values is None:
            continue
        if isinstance(values, str):
            values = [values]
        for value in values:
            check_choice(choices[0], value, choices[1])


def join_names(names: Iterable[str]) -> str:
    """Return names separated by commas, as help texts and messages list them."""
    return ", ".join(names)


def as_names(text: str) -> tuple[str, ...]:
    """Return ``a,b`` as a tuple.

    Raises:
        InputError: a name is empty.
    """
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise InputError(f"{text!r} has an empty name between commas; write names as a,b,c.")
    return names


def as_numbers(text: str) -> tuple[int, ...]:
    """Return ``1,4`` as a tuple of numbers.

    Raises:
        InputError: an item is empty or not a whole number.
    """
    names = as_names(text)
    try:
        return tuple(map(int, names))
    except ValueError:
        raise InputError(f"{text} is not a list of whole numbers; write e.g. 2,4.") from None


def as_switch(text: str) -> tuple[bool, ...]:
    """Return the values of a setting that is ``off``, ``on`` or ``both``.

    Raises:
        InputError: the text is none of these.
    """
    return find_entry("setting", text, _SWITCHES)
