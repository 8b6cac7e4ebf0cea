"""The options that commands share: name, type, default and help text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, get_origin

import typer

from commbench.collectives.algorithms import ALGORITHMS, PROTOCOLS
from commbench.collectives.backends import BACKENDS
from commbench.collectives.cases import BUFFERS, IN_PLACE, LOOPS, MODES, SYNCS
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS, REDOPS
from commbench.collectives.patterns import PATTERNS
from commbench.interop.conventions import CONVENTIONS
from commbench.launch.launchers import LAUNCHERS
from commbench.launch.launchers.base import BINDINGS
from commbench.report.text_formats import STYLES
from commbench.results import load_run


def join_names(names: Iterable[str]) -> str:
    """Return names separated by commas, as help texts and messages list them."""
    return ", ".join(names)


Collective = Annotated[
    str | None,
    typer.Option(
        "--collective",
        "-c",
        metavar="NAMES",
        help=f"Operations, comma-separated: {join_names(OPERATIONS)}.",
    ),
]
Sizes = Annotated[
    str | None,
    typer.Option(
        "--sizes",
        metavar="SIZES",
        help=(
            "Message sizes as a list or as ranges: 8,1K,64K, or 8:64M (factor 2), or 8:64M:4. K, M"
            " and G are 1024-based. A size is the larger of a rank's send and receive buffer, as in"
            " nccl-tests."
        ),
    ),
]
MinBytes = Annotated[
    str | None,
    typer.Option(
        "-b", "--min-bytes", metavar="SIZE", help="Smallest message size, as in nccl-tests."
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        "-e", "--max-bytes", metavar="SIZE", help="Largest message size; without -b the only size."
    ),
]
StepFactor = Annotated[
    int | None,
    typer.Option(
        "-f",
        "--step-factor",
        metavar="N",
        help=(
            "Factor between sizes; 2 by default. nccl-tests adds 1 MiB instead; its option -i does"
            " not exist here."
        ),
    ),
]
OsuRange = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--message-size",
        metavar="[MIN:]MAX",
        help=(
            "Range of sizes in OSU's spelling, with MIN 4 B by default. Sizes are counted as for"
            " --sizes."
        ),
    ),
]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        metavar="EXPR|FILE",
        help=(
            "What the run should meet, e.g. 'all_reduce@16M: busbw >= 0.8*link'; or a file with one"
            " a line and # before comments. Repeatable."
        ),
    ),
]
LinkRate = Annotated[
    str,
    typer.Option(
        "--link",
        metavar="RATE",
        help=(
            "Rate of a host's link for --expect, e.g. 200gbit; by default the rate that the run"
            " states."
        ),
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend", metavar="NAMES", help=f"Backends, comma-separated: {join_names(BACKENDS)}."
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        "-d",
        metavar="NAMES",
        help=f"Element types, comma-separated: {join_names(DTYPES)}.",
    ),
]
Redop = Annotated[
    str | None,
    typer.Option(
        "--redop", "-o", metavar="NAMES", help=f"Reductions, comma-separated: {join_names(REDOPS)}."
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="RANKS",
        help="Root ranks of broadcast, reduce, gather, scatter and fan patterns.",
    ),
]
InPlace = Annotated[
    str | None,
    typer.Option(
        "--in-place",
        metavar="WHICH",
        help=(
            f"Whether send and receive buffer are the same: {join_names(IN_PLACE)}. By default"
            " all_reduce and reduce are in place, the other operations are not."
        ),
    ),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        metavar="NAMES",
        help=f"Which ranks communicate with which: {join_names(PATTERNS)}.",
    ),
]
WorldSizes = Annotated[
    str | None,
    typer.Option(
        "--world-sizes",
        "--world-size",
        metavar="RANKS",
        help=(
            "Scaling study: measure every case on each of these numbers of ranks, e.g. 2,4,8, and"
            " report how time grows. The first ranks of the run take part; the others wait."
        ),
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        metavar="NAMES",
        help=(
            "NCCL's algorithm, protocol and number of channels, each optional: e.g."
            f" auto,ring,tree/ll,ring/simple/8ch (algorithms: {join_names(ALGORITHMS)}; protocols:"
            f" {join_names(PROTOCOLS)}). A combination that NCCL does not support gets a row with"
            " the reason."
        ),
    ),
]
Sync = Annotated[
    str | None,
    typer.Option(
        "--sync",
        metavar="HOW",
        help=(
            f"How ranks start an operation together: {join_names(SYNCS)}. auto: at an agreed"
            " instant if the ranks share a clock or their clocks agree well enough, else after a"
            " dissemination barrier; Gloo: after a barrier."
        ),
    ),
]
Loop = Annotated[
    str | None,
    typer.Option(
        "--loop",
        metavar="LOOP",
        help=f"Timed loop: {join_names(LOOPS)}. auto: native if the backend has such a loop.",
    ),
]
Cadence = Annotated[
    str | None,
    typer.Option(
        "--cadence",
        metavar="NAMES",
        help=(
            f"How operations follow each other: {join_names(MODES)}. isolated: ranks start each"
            " operation together; pipelined: without waiting, as with --sync none; graph: a CUDA"
            " graph replays a sequence (NCCL); persistent: each operation starts a request that"
            " was initialised once, by MPI_Allreduce_init (MPI)."
        ),
    ),
]
BufferKinds = Annotated[
    str | None,
    typer.Option(
        "--buffers",
        metavar="NAMES",
        help=(
            f"Message buffers: {join_names(BUFFERS)}. hot (default): the same buffers in each"
            " repetition; rotated: buffers take turns and together exceed the last-level cache"
            " (GPU: L2); registered and symmetric: memory that NCCL knows beforehand (torch-nccl)."
        ),
    ),
]
AsTool = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="TOOL",
        help=(
            f"Measure as another tool does: {join_names(CONVENTIONS)}. The output is its text (imb:"
            " the table). The tool decides on sizes and how they are counted, element type, in or"
            " out of place, how operations follow each other, warm-up and repetitions; an option"
            " that is given replaces that part. all_reduce by default."
        ),
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--ranks",
        metavar="N",
        help=(
            "Number of ranks. By default one for each slot; on this machine alone one for each GPU"
            " if there are at least 2, else at most 8."
        ),
    ),
]
BudgetName = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="NAME",
        help=(
            "Launches, and the half-width of the 95 % interval to aim at: quick (6 launches, 5 %),"
            " standard (10, 2 %) or rigorous (20, 1 %)."
        ),
    ),
]
Launches = Annotated[
    int | None,
    typer.Option("--launches", metavar="R", help="Number of launches; by default the budget's."),
]
Visits = Annotated[
    int | None,
    typer.Option(
        "--visits",
        metavar="N",
        help=(
            "The most visits of a case per launch, separate stretches of time spread over the"
            " launch; by default the budget's. 1 measures each case in one stretch."
        ),
    ),
]
Energy = Annotated[
    float | None,
    typer.Option(
        "--energy",
        metavar="S",
        help=(
            "Repeat each case back to back for S more seconds to measure its energy (2 or more with"
            " GPUs). Without this option energy is that of the timed repetitions with the waiting"
            " between them, which are often too short for the meters."
        ),
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUES",
        help=(
            "Environment variable of the ranks and its values, e.g. NCCL_ALGO=Ring,Tree,default;"
            " default leaves it out, and \\, is a comma within a value. Each start of the ranks has"
            " one value, in shuffled order. Repeatable: all combinations are measured, and the"
            " first one twice as a control."
        ),
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="S", help="Time limit of the whole run in seconds."),
]
CaseTimeout = Annotated[
    float,
    typer.Option(
        "--case-timeout",
        metavar="S",
        help="Seconds without progress after which a case counts as hung.",
    ),
]
FailFast = Annotated[
    bool,
    typer.Option(
        "--fail-fast",
        help="End the run at the first case that fails or hangs; by default the run goes on.",
    ),
]
SoakTime = Annotated[
    str | None,
    typer.Option(
        "--soak",
        metavar="TIME",
        help=(
            "Measure the same cases for so long, e.g. 20min or 2h, in one launch after another."
            " timeline.csv has the medians and the slowest rank over wall-clock time; events.csv"
            " names spikes, of the system or of one rank, and failed launches, each with its time;"
            " drift.csv has the trend. A launch that fails is no end."
        ),
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Directory of the results. The same command with the same DIR resumes the run.",
    ),
]
Like = Annotated[
    Path | None,
    typer.Option(
        "--like",
        metavar="RUN",
        help="Use the batch sizes and warm-ups of this run, so that all cases can be compared.",
    ),
]
Hostfile = Annotated[
    Path | None,
    typer.Option(
        "--hostfile", metavar="FILE", help="Hosts and slots, in the format of your mpirun."
    ),
]
Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        help="Allow more ranks than slots. Rows of ranks that share CPUs are flagged.",
    ),
]
LauncherName = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME",
        help=(
            f"Program that starts the ranks: {join_names(LAUNCHERS)}, or its path. By default the"
            " first one found."
        ),
    ),
]
LauncherArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher-arg",
        metavar="WORDS",
        help=(
            'Further options for the launcher, unchanged, e.g. --launcher-arg "--mca btl tcp,self".'
            " Repeatable."
        ),
    ),
]
RanksPerNode = Annotated[
    int | None,
    typer.Option(
        "--ranks-per-node", metavar="K", help="Ranks on each host; by default its number of slots."
    ),
]
BindTo = Annotated[
    str | None,
    typer.Option(
        "--bind-to",
        metavar="WHAT",
        help=(
            f"CPUs to bind each rank to: {join_names(BINDINGS)}. By default a core if there is one"
            " for each rank; a NUMA node for ranks that train."
        ),
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        "--interface",
        metavar="NAME",
        help="Network interface for MPI over TCP, Gloo and NCCL; by default each library chooses.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="N", help="Seed of the random order of cases; run.json records it."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="List the cases and an upper estimate of the time; measure nothing."
    ),
]
Format = Annotated[
    str,
    typer.Option("--format", metavar="STYLE", help=f"Format of rows: table, {join_names(STYLES)}."),
]
RoleName = Annotated[
    str | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help=(
            "Role of this process: conductor (starts ranks) or rank (was started by a launcher that"
            " commbench does not recognise)."
        ),
    ),
]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The conditions of a run besides its cases.

    Each field from `commbench.cli.options` is an option.

    ``--help`` lists the options in this order.
    """

    ranks: Ranks = None
    time_limit: TimeLimit = None
    case_timeout: CaseTimeout = 60.0
    fail_fast: FailFast = False
    out: Out = None
    hostfile: Hostfile = None
    oversubscribe: Oversubscribe = False
    launcher: LauncherName = None
    launcher_arg: LauncherArguments = None
    ranks_per_node: RanksPerNode = None
    bind_to: BindTo = None
    interface: Interface = None
    seed: Seed = None
    dry_run: DryRun = False
    role: RoleName = None
    prints_rows: bool = True
    """Whether the rows are printed at the end; False leaves stdout to the command."""
    style: str = "table"
    """The output format of rows; only some commands have an option for it."""

    def seed_or_resumed(self) -> int | None:
        """Return the given seed, else the seed of the run to resume, whose order of cases
        continues.
        """
        if self.seed is not None or self.out is None or not (self.out / "run.json").is_file():
            return self.seed
        seed = load_run(self.out).info.get("seed")
        return seed if isinstance(seed, int) else None


def takes_settings(command: Callable[Concatenate[Settings, ...], int]) -> Callable[..., int]:
    """Decorate a command whose first parameter is the settings: the command line takes their
    options instead.

    They follow the command's own options. typer finds the options of a command in its signature and
    annotations.
    """
    _, *command_options = inspect.signature(command, eval_str=True).parameters.values()
    fields = inspect.signature(Settings, eval_str=True).parameters.values()
    settings_options = [field for field in fields if get_origin(field.annotation) is Annotated]

    @functools.wraps(command)
    def command_line(**values: Any) -> int:  # noqa: ANN401 - a value of any option
        settings = Settings(**{option.name: values.pop(option.name) for option in settings_options})
        return command(settings, **values)

    options = [*command_options, *settings_options]
    command_line.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # documented override
    command_line.__annotations__ = {option.name: option.annotation for option in options}
    return command_line
