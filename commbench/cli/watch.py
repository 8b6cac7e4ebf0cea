"""The command ``watch``: where the steps of a person's own training go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commbench.cli.options import opt
from commbench.cli.request import check_counts
from commbench.cli.separator import command_behind
from commbench.cli.tune import check_time_limit, start
from commbench.errors import InputError
from commbench.live.options import LiveOptions, checked_then

Out = Annotated[
    Path | None,
    opt("--out", "Run directory; by default results/TIME-watch-NAME-HOST.", "DIR"),
]
Steps = Annotated[
    int | None,
    opt("--steps", "Optimiser steps to watch after a short warm-up; by default 200.", "N"),
]
TimeLimit = Annotated[
    float | None,
    opt("--time-limit", "Seconds after which watching ends.", "S"),
]
ThenName = Annotated[
    str,
    opt(
        "--then",
        (
            "What follows: go-on trains on, with nothing left of commbench; stop ends all ranks"
            " with exit code 0."
        ),
        "WHAT",
    ),
]


def watch(
    context: typer.Context,
    out: Out = None,
    steps: Steps = None,
    time_limit: TimeLimit = None,
    then: ThenName = "go-on",
) -> int:
    """Show where the time of your training goes.

    COMMAND is what you type anyway, e.g. torchrun --nproc-per-node 8 train.py; the script stays as
    it is. Prints the time of the forward pass, the backward pass, exposed communication, the
    optimiser and the rest of a step, the rank that others wait for, and how much faster a step
    could be. commbench ends with the exit code of COMMAND.
    """
    check_counts({"--steps": steps})
    check_time_limit(time_limit)
    command = command_behind(context)
    if command is None:
        raise InputError(
            "watch takes a command behind --; write e.g. commbench watch -- torchrun train.py."
        )
    options = LiveOptions(
        out="",
        workload="",
        mode="watch",
        steps=steps,
        time_limit_s=time_limit,
        then=checked_then(then),
    )
    return start(command, out, options)
