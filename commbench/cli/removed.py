"""Options of earlier versions: each is refused for one version with what takes its place."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.errors import InputError

#: What to do instead, by command and option.
REMOVED: dict[str, str] = {
    "run --bisect": (
        "measure the pairs of hosts with `commbench run matrix`, or groups of ranks with --pattern"
    ),
    "run --racks": (
        "measure the pairs of hosts with `commbench run matrix`, or groups of ranks with --pattern"
    ),
    "predict --chart": "`predict` forecasts the step of each hook at the rates of `--rate`",
}


def refuse_removed(arguments: Sequence[str]) -> None:
    """Raise for the first option that an earlier version had.

    Args:
        arguments: The words after ``commbench``; those after ``--`` belong to another program.

    Raises:
        InputError: one of them is such an option of the command.
    """
    if not arguments:
        return
    command, *words = arguments
    for word in words:
        if word == "--":
            return
        option = f"{command} {word.partition('=')[0]}"
        if option in REMOVED:
            raise InputError(f"`{option}` was removed: {REMOVED[option]}.")
