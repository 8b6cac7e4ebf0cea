"""The options that commands share."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from commbench.errors import InputError
from commbench.fields import join_names, option
from commbench.launch.launchers import LAUNCHERS
from commbench.launch.launchers.base import BINDINGS
from commbench.report.text_formats import STYLES
from commbench.results import load_run
from commbench.units import parse_duration


def opt(
    spellings: str,
    about: str,
    metavar: str | None = None,
    read: Callable[[str], Any] | None = None,
) -> Any:
    """Return an option of a command, for ``Annotated``.

    Args:
        spellings: such as ``-n --ranks``.
        about: its text in the help.
        metavar: the name of its value in the help.
        read: makes the value from the text; None: typer does, by the annotation.
    """
    return typer.Option(*spellings.split(), metavar=metavar, help=about, parser=read)


def duration(text: str) -> float:
    """Return the seconds of an option that is a duration.

    Raises:
        BadParameter: it is none; typer names the option.
    """
    try:
        return parse_duration(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


Expect = Annotated[
    list[str] | None,
    opt(
        "--expect",
        (
            "What the run should meet, e.g. 'all_reduce@16M: busbw >= 0.8*link'; or a file with one"
            " a line and # before comments. Repeatable."
        ),
        "EXPR|FILE",
    ),
]
LinkRate = Annotated[
    str,
    opt(
        "--link",
        (
            "Rate of a host's link for --expect, e.g. 200gbit; by default the rate that the run"
            " states."
        ),
        "RATE",
    ),
]
BudgetName = Annotated[
    str,
    opt(
        "--budget",
        (
            "How long to measure: quick (6 launches, aims at ±5 %), standard (10, ±2 %) or rigorous"
            " (20, ±1 %)."
        ),
        "NAME",
    ),
]
Like = Annotated[
    Path | None,
    opt(
        "--like",
        "Use the batch sizes and warm-ups of this run, so that all cases can be compared.",
        "RUN",
    ),
]
Format = Annotated[
    str,
    opt("--format", f"Format of rows: table, {join_names(STYLES)}.", "STYLE"),
]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The conditions of a run besides its cases."""

    ranks: int | None = option(
        None,
        "-n",
        "--ranks",
        metavar="N",
        about=(
            "Number of ranks. By default one for each slot; on this machine alone one for each GPU"
            " if there are at least 2, else at most 8."
        ),
    )
    time_limit: float | None = option(
        None,
        "--time-limit",
        metavar="TIME",
        about="Time limit of the whole run: seconds, or e.g. 20min.",
        read=duration,
    )
    case_timeout: float = option(
        "60",
        "--case-timeout",
        metavar="TIME",
        about="Time without progress after which a case counts as hung: seconds, or e.g. 2min.",
        read=duration,
    )
    fail_fast: bool = option(
        False,  # noqa: FBT003 - the default
        "--fail-fast",
        about="End the run at the first case that fails or hangs; by default the run goes on.",
    )
    out: Path | None = option(
        None,
        "--out",
        metavar="DIR",
        about="Directory of the results. The same command with the same DIR resumes the run.",
    )
    hostfile: Path | None = option(
        None,
        "--hostfile",
        metavar="FILE",
        about="Hosts and slots, in the format of your mpirun.",
    )
    oversubscribe: bool = option(
        False,  # noqa: FBT003 - the default
        "--oversubscribe",
        about="Allow more ranks than slots. Rows of ranks that share CPUs are flagged.",
    )
    launcher: str | None = option(
        None,
        "--launcher",
        metavar="NAME",
        about=(
            f"Program that starts the ranks: {join_names(LAUNCHERS)}, or its path. By default the"
            " first one found."
        ),
    )
    launcher_arg: list[str] | None = option(
        None,
        "--launcher-arg",
        metavar="WORDS",
        about=(
            'Further options for the launcher, unchanged, e.g. --launcher-arg "--mca btl tcp,self".'
            " Repeatable."
        ),
    )
    ranks_per_node: int | None = option(
        None,
        "--ranks-per-node",
        metavar="K",
        about="Ranks on each host; by default its number of slots.",
    )
    bind_to: str | None = option(
        None,
        "--bind-to",
        metavar="WHAT",
        about=(
            f"CPUs to bind each rank to: {join_names(BINDINGS)}. By default a core if there is one"
            " for each rank; a NUMA node for ranks that train."
        ),
    )
    interface: str | None = option(
        None,
        "--interface",
        metavar="NAME",
        about="Network interface for MPI over TCP, Gloo and NCCL; by default each library chooses.",
    )
    seed: int | None = option(
        None,
        "--seed",
        metavar="N",
        about="Seed of the random order of cases; run.json records it.",
    )
    dry_run: bool = option(
        False,  # noqa: FBT003 - the default
        "--dry-run",
        about="List the cases and an upper estimate of the time; measure nothing.",
    )
    role: str | None = option(
        None,
        "--role",
        metavar="ROLE",
        about=("Only if your launcher is not recognised: rank, or conductor (starts ranks)."),
    )
    prints_rows: bool = True
    """Whether the rows are printed at the end; False leaves stdout to the command."""
    style: str = "table"
    """The output format of rows; only some commands have an option for it."""

    def draw_seed(self) -> int:
        """Return the given seed, else that of the run to resume, whose order of cases continues,
        else a random one.
        """
        if self.seed is not None:
            return self.seed
        seed = None
        if self.out is not None and (self.out / "run.json").is_file():
            seed = load_run(self.out).info.get("seed")
        if isinstance(seed, int):
            return seed
        return secrets.randbelow(2**31)
