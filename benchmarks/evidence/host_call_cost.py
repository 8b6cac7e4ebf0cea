"""What does one call cost the host? The ways to NCCL beside each other.

``host_call_cost.py`` starts two ranks, which share the GPU where there is only
one. They queue small
collectives one after the other, without waiting for them, and say how long the host takes for each:
by NCCL itself and through torch.distributed, in alternating rounds, of which the slower rank's
counts. Exit code 0 if the 95 % interval of every collective by NCCL itself ends below 10 us, else
1.

With ``--ranks 1`` nothing is judged, for NCCL then starts no kernel: of one rank a reduction in
place does nothing, and all else is a copy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NoReturn

from rich.table import Table

from commbench.backends import connect_control, open_backend
from commbench.cli.terminal import make_console
from commbench.collectives.cases import Case
from commbench.collectives.operations import OPERATIONS, Operation
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.setup import prepare
from commbench.engine.timing.loops import quiet_interpreter
from commbench.errors import CommbenchError, InputError, LaunchError
from commbench.fields import as_names
from commbench.findings import UnsupportedError
from commbench.launch.identity import identify
from commbench.launch.launchers import Placement, choose_launcher
from commbench.launch.rank import leave
from commbench.results.tables import csv_text
from commbench.stats import median, median_interval

BACKENDS = "nccl,torch-nccl"
#: Of these the cost is judged.
JUDGED, MOST_US = "nccl", 10.0
RANKS = 2
ELEMENTS = 2
#: Calls that are queued before anybody waits. Ranks that share a GPU take turns on it, so that each
#: lasts milliseconds.
CALLS = 20
ROUNDS = 50
#: Rounds between two writings of the rows; an interval of 95 % needs so many.
BLOCK = 6


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operation on one backend.

    The median over rounds of the mean of a round's calls, on the slowest rank.
    """

    backend: str
    ranks: int
    ranks_per_gpu: int | None
    operation: str
    rounds: int
    calls: int
    host_us: float
    host_us_ci_low: float
    host_us_ci_high: float


def is_one_call(entry: Operation) -> bool:
    """Whether an operation is one call of the library on every rank."""
    return (
        entry.kind == "collective"
        and entry.moves_data
        and not entry.overlaps
        and not entry.algorithm
    )


def queued(communicator: Communicator, entry: Operation) -> Callable[[], float] | None:
    """What times one round of an operation, in microseconds a call.

    None where the backend cannot have it.
    """
    case = Case(
        backend=communicator.backend,
        operation=entry.name,
        message_bytes=4 * ELEMENTS * communicator.size,
        dtype="float32",
        redop="sum" if entry.reduces else None,
        root=0 if entry.rooted else None,
        in_place=entry.default_in_place if entry.has_in_place else None,
    )
    try:
        prepared = prepare(case, communicator)
    except UnsupportedError:
        return None
    run = prepared.calls[0].run

    def round_us() -> float:
        communicator.complete()
        begun = time.perf_counter_ns()
        for _ in range(CALLS):
            run()
        lasted_us = (time.perf_counter_ns() - begun) / 1e3
        communicator.complete()
        return lasted_us / CALLS

    return round_us


def measure(backends: Sequence[str], rounds: int, control: Control, out: Path | None) -> list[Row]:
    """Time every collective, backends in turn, all ranks together; the same rows on every rank.

    Rank 0 writes the rows so far to ``out`` after every `BLOCK` rounds.
    """
    communicators = {name: open_backend(name, control) for name in backends}
    entries = filter(is_one_call, OPERATIONS.values())
    made = {
        (name, entry.name): queued(c, entry)
        for entry in entries
        for name, c in communicators.items()
    }
    timed: dict[tuple[str, str], list[float]] = {key: [] for key, call in made.items() if call}
    rows: list[Row] = []
    for number in range(-1, rounds):  # the first warms up
        for key in sorted(timed, reverse=bool(number % 2)):
            with quiet_interpreter():
                lasted_us = made[key]()  # type: ignore[misc] # None is left out above
            if number >= 0:
                timed[key].append(lasted_us)
        done = number + 1
        if done == rounds or (done and done % BLOCK == 0):
            rows = _slowest_rows(communicators, gather_everywhere(control, timed))
            if out and control.rank == 0:
                columns = [field.name for field in fields(Row)]
                out.write_text(csv_text(rows, columns), encoding="utf-8")
    for communicator in communicators.values():
        communicator.close()
    return rows


def _slowest_rows(
    communicators: Mapping[str, Communicator],
    of_ranks: Sequence[Mapping[tuple[str, str], Sequence[float]]],
) -> list[Row]:
    """Return the rows of the slowest rank of each round."""
    rows = []
    for backend, operation in of_ranks[0]:
        of_rounds = zip(*(timed[backend, operation] for timed in of_ranks), strict=True)
        slowest = [max(of_round) for of_round in of_rounds]
        rows.append(_row(communicators[backend], operation, slowest))
    return rows


def _row(communicator: Communicator, operation: str, seen: Sequence[float]) -> Row:
    interval = median_interval(seen)
    assert interval is not None  # noqa: S101 - fewer rounds are refused
    return Row(
        backend=communicator.backend,
        ranks=communicator.size,
        ranks_per_gpu=communicator.ranks_per_gpu,
        operation=operation,
        rounds=len(seen),
        calls=CALLS,
        host_us=median(seen),
        host_us_ci_low=interval.low,
        host_us_ci_high=interval.high,
    )


def table(rows: Sequence[Row]) -> Table:
    """Operations down, backends side by side."""
    backends = list(dict.fromkeys(row.backend for row in rows))
    shown = Table(title="What a call costs the host, us [95 % CI]", title_justify="left", box=None)
    shown.add_column("operation")
    for backend in backends:
        shown.add_column(backend, justify="right")
    for operation in dict.fromkeys(row.operation for row in rows):
        found = {row.backend: row for row in rows if row.operation == operation}
        cells = [_cell(found[name]) if name in found else "" for name in backends]
        shown.add_row(operation, *cells)
    return shown


def _cell(row: Row) -> str:
    return f"{row.host_us:.2f} [{row.host_us_ci_low:.2f}, {row.host_us_ci_high:.2f}]"


def remark(rows: Sequence[Row]) -> str:
    """What has to be known about the ranks to read the figures; empty where nothing."""
    if all(row.ranks == 1 for row in rows):
        return "Nothing is judged: on one rank NCCL starts no kernel. Use --ranks 2."
    if any((row.ranks_per_gpu or 1) > 1 for row in rows):
        return (
            "Ranks share a GPU: NCCL goes by TCP, and its calls also hand work to the threads that"
            " send."
        )
    return ""


def start_ranks(options: argparse.Namespace) -> list[Row]:
    """Measure on ranks of their own.

    Raises:
        InputError: they cannot be started, or a backend cannot be opened.
        LaunchError: they ended without a result.
    """
    launcher = choose_launcher(placement=Placement(oversubscribe=True))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        program = [
            __file__,
            "--backend",
            options.backend,
            "--rounds",
            str(options.rounds),
            "--found",
            str(file),
        ]
        if options.out:
            program += ["--out", str(options.out.absolute())]
        done = subprocess.run(
            launcher.command(options.ranks, program),
            env={**os.environ, **launcher.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        if not file.exists():
            last = (done.stderr.strip().splitlines() or ["they say nothing"])[-1]
            raise LaunchError(
                f"The ranks ended with status {done.returncode} and without a result: {last}"
            )
        found = json.loads(file.read_text(encoding="utf-8"))
    if "refusal" in found:
        raise InputError(found["refusal"])
    return [Row(**row) for row in found["rows"]]


def be_rank(backends: Sequence[str], options: argparse.Namespace) -> NoReturn:
    """Measure as one of the ranks that were started; rank 0 writes what was found."""
    identity = identify(os.environ, "rank")
    control = connect_control(
        identity.launcher, identity.world_size, carries_mpi=identity.carries_mpi
    )
    found: dict[str, object]
    try:
        rows = measure(backends, options.rounds, control, options.out)
        found = {"rows": [asdict(row) for row in rows]}
    except InputError as error:
        found = {"refusal": str(error)}
    if control.rank == 0:
        options.found.write_text(json.dumps(found), encoding="utf-8")
    control.close()
    leave(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default=BACKENDS, help=f"backends (default {BACKENDS})")
    parser.add_argument(
        "--ranks", type=int, default=RANKS, help=f"how many ranks call (default {RANKS})"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"rounds of {CALLS} calls (default {ROUNDS})"
    )
    parser.add_argument("--out", type=Path, help="a CSV file, renewed while measuring")
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end the ranks too
    try:
        if options.rounds < BLOCK:
            raise InputError(f"--rounds {options.rounds} was asked for; give {BLOCK} or more.")
        if options.ranks < 1:
            raise InputError(f"--ranks {options.ranks} was asked for; give 1 or more.")
        backends = as_names(options.backend)
        if options.found:
            be_rank(backends, options)
        rows = start_ranks(options)
    except CommbenchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    console = make_console()
    console.print(table(rows))
    if said := remark(rows):
        console.print(said, soft_wrap=True)
    judged = [row for row in rows if row.backend == JUDGED and row.ranks > 1]
    return int(any(row.host_us_ci_high >= MOST_US for row in judged))


if __name__ == "__main__":
    sys.exit(main())
