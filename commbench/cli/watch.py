"""The command ``watch``: where the steps of a person's own training go."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Annotated

import typer

from commbench.cli.request import check_counts, default_out
from commbench.cli.separator import command_behind
from commbench.cli.train import short_name
from commbench.cli.tune import check_time_limit
from commbench.errors import InputError
from commbench.live.command import attach_to, find_program, name_of
from commbench.live.options import LiveOptions, checked_then

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Run directory; by default results/TIME-watch-NAME-HOST."
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        metavar="N",
        help="Optimiser steps to watch after a short warm-up; by default 200.",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="S", help="Seconds after which watching ends."),
]
ThenName = Annotated[
    str,
    typer.Option(
        "--then",
        metavar="WHAT",
        help=(
            "What follows: go-on trains on, with nothing left of commbench; stop ends all ranks"
            " with exit code 0."
        ),
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
    find_program(command, "watch")
    workload = name_of(command)
    options = LiveOptions(
        out=str((out or default_out(short_name("watch", workload))).absolute()),
        workload=workload,
        mode="watch",
        steps=steps,
        time_limit_s=time_limit,
        then=checked_then(then),
        argv=("commbench", *sys.argv[1:]),
        invocation=uuid.uuid4().hex,
    )
    return attach_to(command, options)
