"""Environment variables as an axis of a run: every launch gives its ranks one combination of
values.

A combination is a text such as ``NCCL_ALGO=Ring;NCCL_PROTO=default``, as in the column ``env``. A
variable with the value ``default`` is not set. The first combination is measured twice; its
repetition, the A/A control, ends in `AGAIN`.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from commbench.errors import InputError
from commbench.system.variables import is_of_one_rank, looks_secret

#: The value that leaves a variable out.
DEFAULT = "default"
#: Ends the name of the control.
AGAIN = " (again)"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SEPARATOR = re.compile(r"(?<!\\),")
_HOME = Path(__file__).parents[2]


def safe_path() -> dict[str, str]:
    """Return the variable by which ``python -m`` imports nothing from the working directory, where
    a person may have a ``token.py``; Python 3.10 does not know it.

    Empty if this process itself has commbench from there.
    """
    if sys.path[0] == str(_HOME):
        return {}
    return {"PYTHONSAFEPATH": "1"}


def parse_env(options: Sequence[str]) -> tuple[str, ...]:
    r"""Return the combinations of values, the first one and its control first.

    None without options.

    Args:
        options: as ``--env`` takes them: ``NAME=a,b,default``; a comma within a value is written
            ``\,``.

    Raises:
        InputError: a name or value cannot be used, or is given twice.
    """
    if not options:
        return ()
    axes = {}
    for option in options:
        name, has_values, values = option.partition("=")
        _check_name(name, option)
        if name in axes:
            raise InputError(
                f"--env {name} was given twice; list its values in one option, as in {name}=a,b."
            )
        axes[name] = _parse_values(name, values if has_values else "")
    combinations = [
        ";".join(f"{name}={value}" for name, value in zip(axes, values, strict=True))
        for values in itertools.product(*axes.values())
    ]
    return (combinations[0], combinations[0] + AGAIN, *combinations[1:])


def _check_name(name: str, option: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--env {option!r} does not begin with the name of a variable; write NAME=a,b,default."
        )
    if looks_secret(name):
        raise InputError(
            f"--env {name} names what may be a secret, and results state the values; leave it out."
        )
    if is_of_one_rank(name):
        raise InputError(
            f"--env {name} was asked for, and the launcher sets it for each rank; leave it out."
        )


def _parse_values(name: str, text: str) -> list[str]:
    values = [part.strip().replace("\\,", ",") for part in _SEPARATOR.split(text)]
    if not all(values):
        raise InputError(
            f"--env {name} has {'an empty value' if text else 'no values'}; write"
            f" {name}=a,b,default."
        )
    for value in values:
        if values.count(value) > 1:
            raise InputError(
                f"--env {name} has the value {value} twice; the first value is repeated by itself."
            )
        if looks_secret(value, is_value=True):
            raise InputError(
                f"A value of --env {name} may be a secret, and results state the values; leave it"
                " out."
            )
        if ";" in value or not value.isprintable() or value.endswith(AGAIN):
            raise InputError(
                f"--env {name} has the value {value!r}; the column env cannot hold a semicolon, a"
                f" control character or the ending{AGAIN}."
            )
    return values


def variables_of(env: str) -> dict[str, str | None]:
    """Return the variables of a combination by name; None for a variable that is not set."""
    pairs = (pair.partition("=") for pair in env.removesuffix(AGAIN).split(";") if pair)
    return {name: None if value == DEFAULT else value for name, _, value in pairs}


def is_control(env: str) -> bool:
    """Return whether the combination is the repetition of the first one."""
    return env.endswith(AGAIN)
