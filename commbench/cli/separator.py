"""Commands that start another program, which follows ``--``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from commbench.errors import InputError

#: The key of the command in a context.
_KEY = "commbench.command"


class StartingCommand(TyperCommand):
    """A command whose own arguments are options and end at ``--``."""

    allow_extra_args = True
    allow_interspersed_args = False

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line behind the command's name."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before ``--`` as options; keep the others for `command_behind`.

        Raises:
            InputError: a word before ``--`` is no option.
        """
        place = args.index("--") if "--" in args else len(args)
        if place < len(args):
            ctx.meta[_KEY] = args[place + 1 :]
        rest: list[str] = super().parse_args(ctx, args[:place])
        if rest:
            command = shlex.join([*rest, *args[place + 1 :]])
            raise InputError(
                f"{rest[0]} is not an option; put -- before a command to start: {ctx.command_path}"
                f" -- {command}."
            )
        return rest


def command_behind(context: typer.Context) -> Sequence[str] | None:
    """Return the command behind ``--``; None without ``--``."""
    words: Sequence[str] | None = context.meta.get(_KEY)
    return words
