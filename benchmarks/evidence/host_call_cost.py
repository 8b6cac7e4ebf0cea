"""What does one call cost the host? The ways to NCCL beside each other.

``host_call_cost.py`` starts two ranks, which share the GPU where there is only one: NCCL then goes
by TCP, and its calls also hand work to the threads that send. They queue small
collectives one after the other, without waiting for them, and say how long the host takes for each:
by NCCL itself and through torch.distributed, in alternating rounds, of which the slower rank's
counts. Exit code 0 if the 95 % interval of every collective by NCCL itself ends below 10 us, else
1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from keeping import build_table, end, run_ranks

from commbench.backends import connect_control, open_backend
from commbench.cli.terminal import make_console
from commbench.collectives.cases import Case
from commbench.collectives.operations import OPERATIONS, Operation
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.setup import prepare
from commbench.engine.timing.loops import quiet_interpreter
from commbench.errors import InputError
from commbench.fields import as_names
from commbench.findings import UnsupportedError
from commbench.launch.identity import identify
from commbench.launch.launchers.base import Placement
from commbench.launch.launchers.choice import choose_launcher
from commbench.launch.rank import leave
from commbench.stats import median_interval

BACKENDS = "nccl,torch-nccl"
#: Of these the cost is judged.
JUDGED, MOST_US = "nccl", 10.0
RANKS = 2
ELEMENTS = 2
#: Calls that are queued before anybody waits. Ranks that share a GPU take turns on it, so that each
#: lasts milliseconds.
CALLS = 20
ROUNDS = 50
#: An interval of 95 % needs so many.
LEAST_ROUNDS = 6


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


def measure(backends: Sequence[str], rounds: int, control: Control) -> list[dict[str, Any]]:
    """Time every collective, backends in turn, all ranks together.

    Return a row for each operation on each backend, the same on every rank: the median over rounds
    of the mean of a round's calls, on the slowest rank.
    """
    communicators = {name: open_backend(name, control) for name in backends}
    rounds_us: dict[tuple[str, str], Callable[[], float]] = {}
    for entry in filter(is_one_call, OPERATIONS.values()):
        for name, communicator in communicators.items():
            call = queued(communicator, entry)
            if call is not None:
                rounds_us[name, entry.name] = call
    timed: dict[tuple[str, str], list[float]] = {key: [] for key in rounds_us}
    for number in range(-1, rounds):  # the first warms up
        for key in sorted(timed, reverse=bool(number % 2)):
            with quiet_interpreter():
                lasted_us = rounds_us[key]()
            if number >= 0:
                timed[key].append(lasted_us)
    of_ranks = gather_everywhere(control, timed)
    rows = []
    for backend, operation in timed:
        seen = np.max([each[backend, operation] for each in of_ranks], axis=0)
        interval = median_interval(seen)
        assert interval is not None  # noqa: S101 - fewer rounds are refused
        communicator = communicators[backend]
        rows.append(
            {
                "backend": backend,
                "ranks": communicator.size,
                "ranks_per_gpu": communicator.ranks_per_gpu,
                "operation": operation,
                "rounds": rounds,
                "calls": CALLS,
                "host_us": float(np.median(seen)),
                "host_us_ci_low": interval.low,
                "host_us_ci_high": interval.high,
            }
        )
    for communicator in communicators.values():
        communicator.close()
    return rows


def be_rank(backends: Sequence[str], rounds: int) -> NoReturn:
    """Measure as one of the ranks that were started; rank 0 prints what was found."""
    identity = identify(os.environ, "rank")
    control = connect_control(
        identity.launcher, identity.world_size, carries_mpi=identity.carries_mpi
    )
    rows = measure(backends, rounds, control)
    if control.rank == 0:
        sys.stdout.write(json.dumps(rows) + "\n")
    control.close()
    leave(0)


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default=BACKENDS, help=f"backends (default {BACKENDS})")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"rounds of {CALLS} calls (default {ROUNDS})"
    )
    parser.add_argument("--out", type=Path, help="a CSV file")
    parser.add_argument("--be-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end the ranks too
    if options.rounds < LEAST_ROUNDS:
        raise InputError(f"--rounds {options.rounds} was asked for; give {LEAST_ROUNDS} or more.")
    backends = as_names(options.backend)
    if options.be_rank:
        be_rank(backends, options.rounds)
    launcher = choose_launcher(placement=Placement(oversubscribe=True))
    words = f"--be-rank --backend {options.backend} --rounds {options.rounds}"
    rows = run_ranks(launcher, RANKS, [__file__, *words.split()])
    if options.out:
        pd.DataFrame(rows).to_csv(options.out, index=False)
    make_console().print(build_table(rows))
    judged = [row["host_us_ci_high"] for row in rows if row["backend"] == JUDGED]
    return int(max(judged, default=0.0) >= MOST_US)


if __name__ == "__main__":
    end("host_call_cost", main)
