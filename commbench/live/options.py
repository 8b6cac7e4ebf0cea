"""The options of a live run, as the command passes them to the ranks of the person's own training,
and what these ranks print.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from commbench.ddp.plan.cases import canonical_cap
from commbench.errors import InputError, check_choice
from commbench.hooks.registry import HOOKS, find_hook, parse_hook
from commbench.schema import read_as

#: The environment variable that holds `LiveOptions` as JSON in every process of the training.
VARIABLE = "COMMBENCH_TUNE"
#: Characters of the command line that this variable holds; Linux allows 128 KiB in a variable.
MOST_CHARACTERS = 32768
#: All bucket sizes with different layouts.
AUTO = "auto"

Then = Literal["go-on", "stop"]
#: Find the best setting, or only time the parts of a step.
Mode = Literal["tune", "watch"]
#: What each mode does, for people: while it goes on, and afterwards.
DOING: Mapping[Mode, str] = {"tune": "tuning", "watch": "watching"}
DONE: Mapping[Mode, str] = {"tune": "tuned", "watch": "watched"}


def say(text: str, *, is_passing: bool = False) -> None:
    """Print a line on the stderr of the process, if anybody reads it.

    What a script has put in place of ``sys.stderr`` is for its own lines.

    A line that ``is_passing`` is only for a terminal, and the next one takes its place.
    """
    line = f"commbench: {text}"
    stream: Any = sys.__stderr__
    try:
        if stream.isatty():
            line = f"\r\x1b[K{line}"
        elif is_passing:
            return
        if not is_passing:
            line += "\n"
        stream.write(line)
        stream.flush()
    except Exception:  # noqa: BLE001, S110 - there is no stderr, or nobody reads it
        pass


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """What a live tuning may do, and where its results go."""

    out: str
    """Absolute path of the run directory."""
    workload: str
    """Name of the training, as in ``ddp.csv``."""
    mode: Mode = "tune"
    bucket_cap_mb: tuple[str, ...] = ()
    """Bucket sizes to choose from, as in ``ddp.csv``; empty: one for each different layout of
    the model's buckets."""
    allow: tuple[str, ...] = ()
    """Hooks to try beside the script's own setting, as ``--hook`` takes them."""
    file_hooks: tuple[str, ...] = ()
    """See `commbench.hooks.registry.find_file_hooks`."""
    accept_loss: bool = False
    """Whether lossy hooks may be recommended whatever they do to learning."""
    steps: int | None = None
    """Optimiser steps after which tuning ends; None: no limit but the experiment's own."""
    time_limit_s: float | None = None
    """Seconds after which tuning ends; None: no limit."""
    then: Then = "go-on"
    """What follows the decision: train on with the best setting, or end all ranks."""
    seed: int = 0
    """Of the order of blocks."""
    argv: tuple[str, ...] = ()
    """The command line: of commbench, or of a script that tunes itself."""
    invocation: str = ""
    """A text by which the command finds the launches of run.json that it caused."""
    git_commit: str | None = None
    """Of commbench: git has to run outside the training, whose own children may be waited for."""
    witness: str = ""
    """Path of a file by which ranks tell the command on their host that they were tuned; empty:
    no command on this host completes the results."""

    def dumps(self) -> str:
        """Return the value of the environment variable, with the beginning of a long command
        line.
        """
        words = []
        room = MOST_CHARACTERS
        for word in self.argv:
            room -= len(json.dumps(word))
            if room < 0:
                words.append("...")
                break
            words.append(word)
        return json.dumps({**dataclasses.asdict(self), "argv": words})

    @classmethod
    def loads(cls, text: str) -> LiveOptions:
        """Read the value of the environment variable.

        Raises:
            InputError: ``text`` is something else.
        """
        try:
            return read_as(cls, json.loads(text))
        except (ValueError, InputError) as error:
            raise InputError(
                f"{VARIABLE} holds {text[:60]!r}, which commbench did not write ({error})."
            ) from error


def checked_then(text: str) -> Then:
    """Return the action after the decision, checked.

    Raises:
        InputError: it is not one of `Then`.
    """
    check_choice("value of --then", text, get_args(Then))
    return cast("Then", text)


def checked_caps(sizes: Iterable[str | float]) -> tuple[str, ...]:
    """Return bucket sizes as ``ddp.csv`` writes them; none for `AUTO`.

    Raises:
        InputError: one is not understood.
    """
    names = [str(size) for size in sizes]
    if names == [AUTO]:
        return ()
    return tuple(map(canonical_cap, names))


def checked_hooks(names: Iterable[str]) -> list[str]:
    """Return hooks that may be recommended as ``--hook`` takes them: a bare name gets its usual
    number.

    Raises:
        InputError: an unknown hook or option, or one that only measures.
    """
    hooks = []
    for name in names:
        if name in HOOKS and HOOKS[name].usual:
            hooks.append(HOOKS[name].usual)
        else:
            hooks.append(name)
    for hook in hooks:
        fields = parse_hook(hook)
        if find_hook(fields["hook"]).is_instrument:
            raise InputError(
                f"--allow {hook} is never recommended, because it sends the same as DDP without a"
                " hook; leave it out."
            )
    return hooks
