"""What does one call cost the host? The ways to NCCL beside each other, on one rank.

``python benchmarks/host_call_cost.py`` queues small operations on a GPU one after the other, without waiting for them,
and says how long the host takes for each: by NCCL itself and through torch.distributed, in alternating rounds. Exit
code 0 if the 95 % interval of every operation by NCCL itself ends below 10 us, else 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.table import Table

from commbench.cases import Case
from commbench.collectives import OPERATIONS
from commbench.communicators import open_backend
from commbench.communicators.base import Communicator
from commbench.control import Control, run_threads
from commbench.errors import CommbenchError, InputError, UnsupportedError
from commbench.options import split_names
from commbench.preparation import prepare
from commbench.stats import median, median_interval
from commbench.tables import csv_text
from commbench.terminal import make_console
from commbench.timing.loops import quiet_interpreter

BACKENDS = "nccl,torch-nccl"
#: Of these the cost is judged.
JUDGED, MOST_US = "nccl", 10.0
ELEMENTS = 2
#: Calls that are queued before anybody waits: fewer than a stream takes before the host has to.
CALLS = 200
ROUNDS = 50


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operation on one backend; the median over rounds of the mean of a round's calls."""

    backend: str
    operation: str
    rounds: int
    calls: int
    host_us: float
    host_us_ci_low: float
    host_us_ci_high: float


def queued(communicator: Communicator, operation: str) -> Callable[[], float] | None:
    """What times one round of an operation, in microseconds a call; None where one rank cannot have it."""
    entry = OPERATIONS[operation]
    case = Case(
        backend=communicator.backend,
        operation=operation,
        message_bytes=4 * ELEMENTS,
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


def measure(backends: Sequence[str], rounds: int, control: Control) -> list[Row]:
    """Time every operation that moves data, backends in turn."""
    communicators = {name: open_backend(name, control) for name in backends}
    names = [name for name, entry in OPERATIONS.items() if entry.moves_data and not entry.overlaps]
    made = {(name, operation): queued(c, operation) for operation in names for name, c in communicators.items()}
    timed: dict[tuple[str, str], list[float]] = {key: [] for key, call in made.items() if call}
    for number in range(-1, rounds):  # the first warms up
        for key in sorted(timed, reverse=bool(number % 2)):
            with quiet_interpreter():
                lasted_us = made[key]()  # type: ignore[misc] # None is left out above
            if number >= 0:
                timed[key].append(lasted_us)
    for communicator in communicators.values():
        communicator.close()
    return [_row(*key, seen) for key, seen in timed.items()]


def _row(backend: str, operation: str, seen: Sequence[float]) -> Row:
    interval = median_interval(seen)
    assert interval is not None  # noqa: S101 - fewer rounds are refused
    return Row(
        backend=backend,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the CSV where asked, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default=BACKENDS, help=f"backends (default {BACKENDS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of {CALLS} calls (default {ROUNDS})")
    parser.add_argument("--out", type=Path, help="a CSV file for the figures")
    options = parser.parse_args(arguments)
    try:
        if options.rounds < 6:  # noqa: PLR2004 - an interval of 95 % needs so many
            raise InputError(f"--rounds {options.rounds} was asked for; give 6 or more.")
        backends = split_names(options.backend) or ()
        rows = run_threads(1, lambda control: measure(backends, options.rounds, control))[0]
    except CommbenchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    make_console().print(table(rows))
    if options.out:
        columns = [field.name for field in fields(Row)]
        options.out.write_text(csv_text(rows, columns), encoding="utf-8")
    return int(any(row.host_us_ci_high >= MOST_US for row in rows if row.backend == JUDGED))


if __name__ == "__main__":
    sys.exit(main())
