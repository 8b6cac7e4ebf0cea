"""The options that commands share: name, type, default and meaning."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, get_origin

import typer

from commbench.collectives.algorithms import ALGORITHMS, PROTOCOLS
from commbench.collectives.backends import BACKENDS
from commbench.collectives.cases import BUFFERS, CADENCES, IN_PLACE, LOOPS, SYNCS
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS, REDOPS
from commbench.collectives.patterns import PATTERNS
from commbench.launch.launchers import LAUNCHERS
from commbench.launch.launchers.base import BINDINGS
from commbench.report.text_formats import STYLES
from commbench.results import load_run


def listed(names: Any) -> str:  # noqa: ANN401 - any iterable of names
    """Return names as a list for people."""
    return ", ".join(names)


Collective = Annotated[
    str | None,
    typer.Option("--collective", "-c", metavar="NAMES", help=f"Operations, comma-separated: {listed(OPERATIONS)}."),
]
Sizes = Annotated[
    str | None,
    typer.Option(
        "--sizes",
        metavar="SIZES",
        help="Message sizes: a list and ranges, e.g. 8,1K,64K or 8:64M (factor 2) or 8:64M:4; K, M, G are 1024-based. "
        "A size is that of nccl-tests: the larger of a rank's send and receive buffer.",
    ),
]
MinBytes = Annotated[
    str | None, typer.Option("-b", "--min-bytes", metavar="SIZE", help="Smallest size, as in nccl-tests.")
]
MaxBytes = Annotated[
    str | None, typer.Option("-e", "--max-bytes", metavar="SIZE", help="Largest size; alone: the only size.")
]
StepFactor = Annotated[
    int | None,
    typer.Option(
        "-f",
        "--step-factor",
        metavar="N",
        help="Factor between sizes; by default 2 (nccl-tests adds 1 MiB instead, its -i).",
    ),
]
OsuRange = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--message-size",
        metavar="[MIN:]MAX",
        help="As in OSU, with commbench's size units; by default MIN is 4 B.",
    ),
]
Backend = Annotated[str | None, typer.Option("--backend", metavar="NAMES", help=f"Backends: {listed(BACKENDS)}.")]
Dtype = Annotated[str | None, typer.Option("--dtype", "-d", metavar="NAMES", help=f"Element types: {listed(DTYPES)}.")]
Redop = Annotated[str | None, typer.Option("--redop", "-o", metavar="NAMES", help=f"Reductions: {listed(REDOPS)}.")]
Root = Annotated[str | None, typer.Option("--root", metavar="RANKS", help="Root ranks of rooted operations and fans.")]
InPlace = Annotated[
    str | None,
    typer.Option(
        "--in-place",
        metavar="WHICH",
        help=f"One of {listed(IN_PLACE)}; by default reductions are in place and other operations are not.",
    ),
]
Pattern = Annotated[
    str | None, typer.Option("--pattern", metavar="NAMES", help=f"Who talks to whom: {listed(PATTERNS)}.")
]
WorldSizes = Annotated[
    str | None,
    typer.Option(
        "--world-sizes",
        "--world-size",
        metavar="RANKS",
        help="Scaling study, e.g. 2,4,8: measure every case on the first 2, 4 and 8 ranks in turn, and report how "
        "time grows.",
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        metavar="NAMES",
        help="How NCCL is to carry collectives, e.g. auto,ring,tree/ll,ring/simple/8ch: algorithm, protocol, channels, "
        f"any of them ({listed(ALGORITHMS)}; {listed(PROTOCOLS)}). What it cannot do becomes a row that says so.",
    ),
]
Sync = Annotated[
    str | None,
    typer.Option(
        "--sync",
        metavar="HOW",
        help=f"How ranks start together: {listed(SYNCS)}. auto: an agreed instant if the ranks' clocks agree closely "
        "enough, else a dissemination barrier; a barrier for Gloo.",
    ),
]
Loop = Annotated[
    str | None,
    typer.Option("--loop", metavar="LOOP", help=f"Timed loop: {listed(LOOPS)}. auto: native if the backend has it."),
]
Cadence = Annotated[
    str | None,
    typer.Option(
        "--cadence",
        metavar="NAMES",
        help=f"How operations follow each other: {listed(CADENCES)}. isolated: ranks start each operation together; "
        "pipelined: back to back, as with --sync none; graph: replayed from a CUDA graph (NCCL).",
    ),
]
BufferKinds = Annotated[
    str | None,
    typer.Option(
        "--buffers",
        metavar="NAMES",
        help=f"Message buffers: {listed(BUFFERS)}. hot (default): the same buffers in each repetition; rotated: sets "
        "of buffers that exceed the last-level cache take turns; registered, symmetric: registered with NCCL "
        "(torch-nccl).",
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--ranks",
        metavar="N",
        help="Number of ranks; by default one for every slot; on one machine one for each of several GPUs, else at "
        "most 8.",
    ),
]
BudgetName = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="NAME",
        help="quick (6 launches, 5 %), standard (10, 2 %) or rigorous (20, 1 %): launches and target half-width of "
        "intervals.",
    ),
]
Launches = Annotated[
    int | None, typer.Option("--launches", metavar="R", help="Number of launches; by default from the budget.")
]
Energy = Annotated[
    float | None,
    typer.Option(
        "--energy",
        metavar="S",
        help="Repeat each case for so many seconds more (2 or more where GPUs are counted), one operation right after "
        "the other, for its energy alone; else it is that of the timed repetitions, waiting for each other included, "
        "which are often over too soon for it.",
    ),
]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", metavar="S", help="Time limit of the whole run in seconds.")
]
CaseTimeout = Annotated[
    float,
    typer.Option("--case-timeout", metavar="S", help="Seconds without progress after which a case counts as hung."),
]
FailFast = Annotated[
    bool,
    typer.Option(
        "--fail-fast", help="End the run at the first case that fails or hangs, instead of continuing without it."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Run directory; the same command with the same directory resumes the run."
    ),
]
Like = Annotated[
    Path | None,
    typer.Option(
        "--like",
        metavar="RUN",
        help="Use the batch sizes and warm-ups of this run, so that every case can be compared with it.",
    ),
]
Hostfile = Annotated[
    Path | None, typer.Option("--hostfile", metavar="FILE", help="Hosts and slots, in the format of your mpirun.")
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Allow more ranks than slots; rows whose ranks share CPUs are flagged.")
]
LauncherName = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME",
        help=f"What starts the ranks: {listed(LAUNCHERS)}, or a path; by default detected.",
    ),
]
LauncherArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher-arg",
        metavar="WORDS",
        help='Further launcher options, passed unchanged, e.g. --launcher-arg "--mca btl tcp,self"; may be repeated.',
    ),
]
RanksPerNode = Annotated[
    int | None,
    typer.Option("--ranks-per-node", metavar="K", help="Ranks on each host; by default one for every slot."),
]
BindTo = Annotated[
    str | None,
    typer.Option(
        "--bind-to",
        metavar="WHAT",
        help=f"Bind each rank to: {listed(BINDINGS)}; by default a core if there is one for each rank, and a NUMA "
        "node for training.",
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
    typer.Option("--seed", metavar="N", help="Seed of the order of cases; recorded in run.json in run.json."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the cases and the estimated time; measure nothing.")]
Format = Annotated[
    str, typer.Option("--format", metavar="STYLE", help=f"Output format of rows: table, {listed(STYLES)}.")
]
RoleName = Annotated[
    str | None,
    typer.Option("--role", metavar="ROLE", help="conductor or rank, if the launcher is not recognised."),
]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The conditions of a run besides its cases; each field from `commbench.cli.options` is an option.

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
    style: str = "table"
    """The output format of rows; only some commands have an option for it."""

    def known_seed(self) -> int | None:
        """The given seed, else the seed of the run to resume, whose order of cases continues."""
        if self.seed is not None or self.out is None or not (self.out / "run.json").is_file():
            return self.seed
        seed = load_run(self.out).info.get("seed")
        return seed if isinstance(seed, int) else None


def takes_settings(command: Callable[Concatenate[Settings, ...], int]) -> Callable[..., int]:
    """Decorate a command whose first parameter is the settings: the command line takes their options instead.

    They follow the command's own options. typer finds the options of a command in its signature and annotations.
    """
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    fields = inspect.signature(Settings, eval_str=True).parameters.values()
    shared = [field for field in fields if get_origin(field.annotation) is Annotated]

    @functools.wraps(command)
    def called(**given: Any) -> int:  # noqa: ANN401 - a value of any option
        settings = Settings(**{option.name: given.pop(option.name) for option in shared})
        return command(settings, **given)

    options = [*own, *shared]
    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # inspect's documented override
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called
