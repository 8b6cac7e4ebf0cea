"""Is commbench as exact as C? Its native timed loop against the same loop in plain C, and against
one in Python.

``accuracy.py`` starts two ranks ten times. In each launch every case is timed in
short chunks that alternate between the three loops, with the same buffers, slack, batch and clock,
so that drift meets all of them alike. Exit code 0 if in every case the 95 % interval of native / C
lies within 3 % of 1, 1 if not.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import pandas as pd
from keeping import (
    add_out,
    build_table,
    empty_out,
    end,
    own_environment,
    run_ranks,
    write_facts,
)

from commbench.cli.terminal import make_console
from commbench.collectives.cases import Sweep, shuffled
from commbench.engine.communicator import HostBuffer
from commbench.engine.samples import Samples
from commbench.engine.sampling import Sampler
from commbench.engine.session import Session
from commbench.engine.setup import Prepared, prepare
from commbench.engine.timing.loops import Call, Progress, Repetitions, Timer, quiet_interpreter
from commbench.engine.timing.sync import TOLERATED_LATE, Synchroniser
from commbench.errors import CommbenchError, InputError, WrongDataError
from commbench.launch.launchers.choice import check_slots, choose_launcher
from commbench.launch.launchers.mpirun import find_mpirun
from commbench.launch.rank import leave
from commbench.stats import launch_interval
from commbench.stats.budgets import BUDGETS

if TYPE_CHECKING:
    from commbench.backends.mpi import MpiCommunicator
    from commbench.backends.mpi_control import MpiControl

Loop: TypeAlias = Callable[[int, int], Repetitions]
"""(repetitions, batch) to this rank's stamps."""

HERE = Path(__file__).parent
RANKS = 2
SWEEP = Sweep(
    operations=("all_reduce", "latency"),
    sizes="8,1K,64K",
    backends=("mpi",),
    sync="round-time",
    loop="native",
)
#: MPI polls: a few nanoseconds more or less between two calls move an 8-byte round trip by 2 %, in
#: C as well.
TOLERANCE = 0.03
LOOPS = ("c", "native", "python")
#: A case that has taken so long in one launch ends after the round in hand.
CASE_S = 2.0


# ----------------------------------------------------------------------------------------- one rank


class CTask(ctypes.Structure):
    """The members of ``Loop`` in c_loop.c."""

    _fields_ = (
        ("control", ctypes.c_void_p),
        ("measured", ctypes.c_void_p),
        ("slack_ns", ctypes.c_int64),
        ("send", ctypes.c_void_p),
        ("receive", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("peer", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("repetitions", ctypes.c_int64),
        ("start_ns", ctypes.c_void_p),
        ("end_ns", ctypes.c_void_p),
        ("late", ctypes.c_void_p),
    )


@dataclass(frozen=True, kw_only=True)
class CLoop:
    """The C loop over a prepared case's own buffers, called like commbench's loops."""

    prepared: Prepared
    communicator: MpiCommunicator
    control: MpiControl
    sync: Synchroniser
    library: ctypes.CDLL

    def run(self, repetitions: int, batch: int) -> Repetitions:
        """Time ``repetitions`` of ``batch`` operations.

        Raises:
            CommbenchError: MPI reported an error.
        """
        from mpi4py import MPI

        start, end = np.zeros((2, repetitions), dtype=np.int64)
        late = np.zeros(repetitions, dtype=np.bool_)
        rank = self.communicator.rank
        send, receive = self.prepared.buffers.send, self.prepared.buffers.receive
        assert isinstance(receive, HostBuffer)  # noqa: S101 - both operations receive on both ranks
        task = CTask(
            # mpi4py hands its objects to C so; the second communicator is the native loop's.
            control=MPI._addressof(self.control.comm),  # noqa: SLF001
            measured=MPI._addressof(self.communicator._comm),  # noqa: SLF001
            slack_ns=self.sync.slack_ns,
            send=send.address if send else 0,
            receive=receive.address,
            count=receive.count,
            peer=RANKS - 1 - rank,
            first=rank == 0,
            batch=batch,
            repetitions=repetitions,
            start_ns=start.ctypes.data,
            end_ns=end.ctypes.data,
            late=late.ctypes.data,
        )
        function = getattr(self.library, f"run_{self.prepared.case.operation}")
        with quiet_interpreter():
            errors = function(ctypes.byref(task))
        if errors:
            raise CommbenchError(f"MPI reported {errors} errors in the C loop")
        return Repetitions(start_ns=start, end_ns=end, late=late)


def be_rank(options: argparse.Namespace) -> NoReturn:
    """Be one rank of one launch: rank 0 prints one line of JSON."""
    from commbench.backends.mpi import MpiCommunicator
    from commbench.backends.mpi_control import MpiControl

    control = MpiControl()
    communicator = MpiCommunicator(control)
    budget = replace(BUDGETS["standard"], visits=1)
    session = Session(control=control, budget=budget, progress=Progress())
    library = load_library(options.library)
    cases = {}
    for case in shuffled(SWEEP.cases(RANKS), 0, options.launch):
        session.check(case, communicator)
        native = session.timer(case, communicator)
        python = session.timer(replace(case, loop="python"), communicator)
        prepared = prepare(case, communicator)
        c = CLoop(
            prepared=prepared,
            communicator=communicator,
            control=control,
            sync=native.sync,
            library=library,
        )
        trial = Trial(prepared=prepared, session=session, c=c, native=native, python=python)
        cases[case.key] = trial.run(options)
    if control.rank == 0:
        sys.stdout.write(json.dumps({"mpi_library": communicator.library(), "cases": cases}) + "\n")
    communicator.close()
    control.close()
    leave(0)


def load_library(path: Path) -> ctypes.CDLL:
    """Load the compiled C loops.

    Raises:
        InputError: they call another MPI than mpi4py does.
    """
    from mpi4py import MPI

    from commbench.engine.timing.loops import address_of

    library = ctypes.CDLL(str(path))
    library.address_of_allreduce.restype = ctypes.c_ssize_t
    if library.address_of_allreduce() != address_of(ctypes.CDLL(MPI.__file__).MPI_Allreduce):
        raise InputError(
            "mpicc links another MPI than mpi4py uses; put the mpicc of mpi4py's MPI first on the"
            " PATH."
        )
    return library


def chunk_order(number: int) -> tuple[str, ...]:
    """Which loop times which chunk of a round: C and native as ABBA in one, BAAB in the next, then
    Python.
    """
    a, b = ("native", "c") if number % 2 else ("c", "native")
    return a, b, b, a, "python"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One case in one launch, timed by all three loops."""

    prepared: Prepared
    session: Session
    c: CLoop
    native: Timer
    python: Timer

    def run(self, options: argparse.Namespace) -> dict[str, Any]:
        """Alternate between the loops; what this launch says of the case, valid on rank 0.

        Args:
            options: rounds of five chunks, fewer where time runs out; repetitions in a chunk;
                operations timed together, 0: as many as `Sampler` chooses.
        """
        calls, control = self.prepared.calls, self.session.control
        native, python = partial(self.native.run, calls), partial(self.python.run, calls)
        loops: dict[str, Loop] = {"c": self.c.run, "native": native, "python": python}
        syncs = {"c": self.c.sync, "native": self.native.sync, "python": self.python.sync}
        self._check_data(loops)
        sampler = Sampler(session=self.session, timer=self.native, calls=calls)
        chosen = sampler.warm_up(None).batch
        batch = options.batch or chosen
        samples = {name: Samples(self.prepared.participants, spanning=True) for name in LOOPS}
        begun = time.monotonic()
        for number in range(options.rounds):
            for name in chunk_order(number):
                gathered = control.gather(loops[name](options.chunk, batch))
                late = samples[name].add(gathered) if gathered else 0.0
                if control.broadcast(late) > TOLERATED_LATE:
                    syncs[name].handle_late_starts()
            if number and control.broadcast(time.monotonic() - begun > CASE_S):
                break  # on a busy machine a repetition can take as long as the scheduler likes
        return self._describe(samples, batch)

    def _check_data(self, loops: Mapping[str, Loop]) -> None:
        """Let each loop run the operation once and check what it delivers.

        Raises:
            WrongDataError: a loop does not do what the case says.
        """
        for name, loop in loops.items():
            once = replace(self.prepared, calls=[Call(run=partial(loop, 1, 1))])
            wrong = sum(once.verify(self.session.control))
            if wrong:
                found = f"{wrong} wrong elements"
                raise WrongDataError(f"{self.prepared.case} by the {name} loop: {found}")
        self.prepared.refill()

    def _describe(self, samples: Mapping[str, Samples], batch: int) -> dict[str, Any]:
        per = batch * self.prepared.operation.operations_per_call
        times_us = {name: samples[name].slowest_us(per) for name in LOOPS}
        if self.session.control.rank == 0 and not all(times_us.values()):
            raise CommbenchError(
                f"{self.prepared.case}: no repetition of some loop started on time"
            )
        return {
            "batch": batch,
            "slack_ns": self.native.sync.slack_ns,
            "repetitions": {name: samples[name].valid for name in LOOPS},
            "late_discarded": {name: samples[name].late for name in LOOPS},
            "time_us": {
                name: float(np.median(times)) if times else 0.0 for name, times in times_us.items()
            },
        }


# ------------------------------------------------------------------------------------- all launches


def summarise(launches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each case, in the order of the sweep.

    Times are medians over launches of the launch's median of the slowest rank, ratios medians over
    launches of the ratio within a launch. ``within``: whether the interval of native / C lies
    within the tolerance; False where one launch gives no interval.
    """
    rows = []
    for case in SWEEP.cases(RANKS):
        timed = [launch["cases"][case.key] for launch in launches]
        c, native, python = np.array([[each["time_us"][name] for each in timed] for name in LOOPS])
        row = {
            "operation": case.operation,
            "message_bytes": case.message_bytes,
            "launches": len(launches),
            "batch": timed[0]["batch"],
            "c_us": float(np.median(c)),
            "native_us": float(np.median(native)),
            "python_us": float(np.median(python)),
            "ratio": float(np.median(native / c)),
            "ratio_ci_low": math.nan,
            "ratio_ci_high": math.nan,
            "python_ratio": float(np.median(python / c)),
        }
        interval = launch_interval(native / c)
        if interval is not None:
            row |= {"ratio_ci_low": interval.low, "ratio_ci_high": interval.high}
        is_fast = row["ratio_ci_high"] <= 1 + TOLERANCE
        row["within"] = is_fast and row["ratio_ci_low"] >= 1 - TOLERANCE
        rows.append(row)
    return rows


def compile_library(folder: Path) -> Path:
    """Compile c_loop.c with the mpicc beside the mpirun in use; return the shared library.

    Raises:
        InputError: there is no mpicc or it fails.
    """
    beside = str(Path(find_mpirun() or "").parent)
    mpicc = shutil.which("mpicc", path=beside) or shutil.which("mpicc")
    if mpicc is None:
        raise InputError(
            "The C loop needs mpicc and none was found; install the MPI's compiler wrapper."
        )
    target = folder / "c_loop.so"
    command = [mpicc, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(target), str(HERE / "c_loop.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[0]
        raise InputError(f"{mpicc} cannot compile c_loop.c ({reason}); install a C compiler.")
    return target


def conduct(options: argparse.Namespace) -> int:
    """Run all launches; write accuracy.json (all launch medians and the conditions) and
    accuracy.csv (a line for each case), and show the rows. Return the exit code.
    """
    out = empty_out(options.out, "accuracy")
    launcher = choose_launcher("mpirun")
    check_slots(RANKS, launcher)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    launches: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(Path(folder))
        words = f"--rank --library {library}"
        for name in ("rounds", "chunk", "batch"):
            words += f" --{name} {getattr(options, name)}"
        program = [str(Path(__file__).resolve()), *words.split()]
        for number in range(options.launches):
            of_launch = ["--launch", str(number)]
            launches.append(run_ranks(launcher, RANKS, [*program, *of_launch]))
            sys.stderr.write(f"launch {number + 1} of {options.launches}\n")
    rows = summarise(launches)
    within = all(row["within"] for row in rows)
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "started": started,
        "environment": {**own_environment(), "mpi_library": launches[0]["mpi_library"]},
        "ranks": RANKS,
        "tolerance": TOLERANCE,
        "within": within,
        "cases": rows,
        "launches": launches,
    }
    write_facts(out / "accuracy.json", "accuracy", facts)
    pd.DataFrame(rows).to_csv(out / "accuracy.csv", index=False)
    answer = "yes" if within else "no"
    text = f"Within {100 * TOLERANCE:g} % of C in every case: {answer}. Results: {out}"
    make_console().print(build_table(rows), text, sep="\n", soft_wrap=True)
    return int(not within)


def parse_options() -> argparse.Namespace:
    """The command line; the options that the ranks get are not shown."""
    parser = argparse.ArgumentParser(
        description="Compare commbench's native timed loop with the same loop in C."
    )
    parser.add_argument(
        "--launches", type=int, default=10, help="how often the ranks are started (default 10)"
    )
    add_out(parser, "accuracy")
    parser.add_argument(
        "--rounds", type=int, default=40, help="rounds of five chunks a case (default 40)"
    )
    parser.add_argument("--chunk", type=int, default=100, help="repetitions a chunk (default 100)")
    parser.add_argument(
        "--batch", type=int, default=0, help="operations timed together (default as `run` would)"
    )
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--launch", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Be the conductor or a rank."""
    options = parse_options()
    if options.rank:
        be_rank(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end the ranks too
    end("accuracy", lambda: conduct(options))


if __name__ == "__main__":
    main()
