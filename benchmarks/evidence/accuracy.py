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
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from keeping import add_out, empty_out, end, own_environment, write_facts
from rich.table import Table

from commbench.cli.terminal import make_console
from commbench.collectives.cases import Case, Sweep, shuffled
from commbench.engine.communicator import HostBuffer
from commbench.engine.records import FixedSettings
from commbench.engine.samples import Samples
from commbench.engine.sampling import Sampler
from commbench.engine.session import Session
from commbench.engine.setup import Prepared, prepare
from commbench.engine.timing.loops import Call, Progress, Repetitions, Timer, quiet_interpreter
from commbench.engine.timing.sync import TOLERATED_LATE, SyncPlan
from commbench.errors import CommbenchError, InputError, LaunchError, WrongDataError
from commbench.launch.launchers import Launcher, check_slots, choose_launcher, find_mpirun
from commbench.launch.process import Launched, Output
from commbench.launch.rank import leave
from commbench.results.tables import csv_text
from commbench.stats import launch_interval
from commbench.stats.budgets import BUDGETS
from commbench.units import format_size

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
LAUNCH_TIMEOUT_S = 120.0


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
    plan: SyncPlan
    library: ctypes.CDLL

    def run(self, repetitions: int, batch: int) -> Repetitions:
        """Time ``repetitions`` of ``batch`` operations.

        Raises:
            CommbenchError: MPI reported an error.
        """
        start, end = np.zeros(repetitions, dtype=np.int64), np.zeros(repetitions, dtype=np.int64)
        late = np.zeros(repetitions, dtype=np.bool_)
        task = self._task(repetitions=repetitions, batch=batch)
        task.start_ns, task.end_ns, task.late = start.ctypes.data, end.ctypes.data, late.ctypes.data
        function = getattr(self.library, f"run_{self.prepared.case.operation}")
        with quiet_interpreter():
            errors = function(ctypes.byref(task))
        if errors:
            raise CommbenchError(f"MPI reported {errors} errors in the C loop")
        return Repetitions(start_ns=start, end_ns=end, late=late)

    def _task(self, *, repetitions: int, batch: int) -> CTask:
        from mpi4py import MPI

        rank = self.communicator.rank
        send, receive = self.prepared.buffers.send, self.prepared.buffers.receive
        assert isinstance(receive, HostBuffer)  # noqa: S101 - both operations receive on both ranks
        return CTask(
            control=MPI._addressof(self.control.comm),  # noqa: SLF001 - mpi4py's way to hand its objects to C
            measured=MPI._addressof(self.communicator._comm),  # noqa: SLF001 - as above; the one that native uses
            slack_ns=self.plan.slack_ns,
            send=send.address if send else 0,
            receive=receive.address,
            count=receive.count,
            peer=RANKS - 1 - rank,
            first=rank == 0,
            batch=batch,
            repetitions=repetitions,
        )


def be_rank(options: argparse.Namespace) -> NoReturn:
    """Be one rank of one launch: rank 0 prints one line of JSON."""
    from commbench.backends.mpi import MpiCommunicator
    from commbench.backends.mpi_control import MpiControl

    control = MpiControl()
    communicator = MpiCommunicator(control)
    session = Session(control=control, budget=BUDGETS["standard"], progress=Progress())
    library = load_library(options.library)
    cases = []
    for case in shuffled(SWEEP.cases(RANKS), 0, options.launch):
        session.check(case, communicator)
        native = session.timer(case, communicator)
        python = session.timer(replace(case, loop="python"), communicator)
        prepared, plan = prepare(case, communicator), native.sync.plan
        c = CLoop(
            prepared=prepared,
            communicator=communicator,
            control=control,
            plan=plan,
            library=library,
        )
        trial = Trial(prepared=prepared, session=session, c=c, native=native, python=python)
        frozen = options.frozen.get(case.key)
        cases.append(
            trial.run(options.rounds, options.chunk, FixedSettings(**frozen) if frozen else None)
        )
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

    def run(self, rounds: int, chunk: int, frozen: FixedSettings | None) -> dict[str, Any]:
        """Alternate between the loops; what this launch says of the case, valid on rank 0.

        Args:
            rounds: rounds of five chunks; fewer where time runs out.
            chunk: repetitions in a chunk.
            frozen: warm-up and batch as the first launch chose them; None in the first launch.
        """
        calls, control = self.prepared.calls, self.session.control
        native, python = partial(self.native.run, calls), partial(self.python.run, calls)
        loops: dict[str, Loop] = {"c": self.c.run, "native": native, "python": python}
        plans = {"c": self.c.plan, "native": self.native.sync.plan, "python": self.python.sync.plan}
        self._check_data(loops)
        settled = self._settle(frozen)
        samples = {name: Samples(self.prepared.participants, spanning=True) for name in LOOPS}
        begun = time.monotonic()
        for number in range(rounds):
            for name in chunk_order(number):
                gathered = control.gather(loops[name](chunk, settled.batch))
                late = samples[name].add(gathered) if gathered else 0.0
                if control.broadcast(late) > TOLERATED_LATE:
                    plans[name].widen()
            if number and control.broadcast(time.monotonic() - begun > CASE_S):
                break  # on a busy machine a repetition can take as long as the scheduler likes
        return self._describe(samples, settled)

    def _check_data(self, loops: Mapping[str, Loop]) -> None:
        """Let each loop run the operation once and check what it delivers.

        Raises:
            WrongDataError: a loop does not do what the case says.
        """
        for name, loop in loops.items():
            once = replace(self.prepared, calls=[Call(run=partial(loop, 1, 1))])
            checked = once.verify(self.session.control, shared_clock=True)
            if checked.refusal or checked.wrong:
                found = checked.refusal or f"{checked.wrong} wrong elements"
                raise WrongDataError(f"{self.prepared.case} by the {name} loop: {found}")
        self.prepared.refill()

    def _settle(self, frozen: FixedSettings | None) -> FixedSettings:
        """Warm up and choose the batch as the engine does."""
        sampler = Sampler(
            control=self.session.control,
            timer=self.native,
            calls=self.prepared.calls,
            rule=self.session.rule,
            slice_s=self.session.budget.slice_s,
            reading_ns=self.session.reading_ns(self.native),
        )
        return sampler.warm_up(frozen)

    def _describe(self, samples: Mapping[str, Samples], settled: FixedSettings) -> dict[str, Any]:
        per = settled.batch * self.prepared.operation.operations_per_call
        times_us = {name: samples[name].slowest_us(per) for name in LOOPS}
        if self.session.control.rank == 0 and not all(times_us.values()):
            raise CommbenchError(
                f"{self.prepared.case}: no repetition of some loop started on time"
            )
        return {
            "case": self.prepared.case.key,
            "frozen": asdict(settled),
            "slack_ns": self.native.sync.plan.slack_ns,
            "repetitions": {name: samples[name].valid for name in LOOPS},
            "late_discarded": {name: samples[name].late for name in LOOPS},
            "time_us": {
                name: float(np.median(times)) if times else 0.0 for name, times in times_us.items()
            },
        }


# ------------------------------------------------------------------------------------- all launches


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case over all launches.

    Times are medians over launches of the launch's median of the slowest rank.
    """

    operation: str
    message_bytes: int
    launches: int
    batch: int
    c_us: float
    native_us: float
    python_us: float
    ratio: float
    """Native / C: median over launches of the ratio within a launch."""
    ratio_ci_low: float | None
    ratio_ci_high: float | None
    python_ratio: float
    """Python / C: median over launches of the ratio within a launch."""
    within: bool
    """Whether the interval of ``ratio`` lies within the tolerance; False where one launch gives
    no interval."""


def summarise(launches: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row a case, in the order of the sweep."""
    by_case = [{timed["case"]: timed for timed in launch["cases"]} for launch in launches]
    return [
        _summarise_case(case, [launch[case.key] for launch in by_case])
        for case in SWEEP.cases(RANKS)
    ]


def _summarise_case(case: Case, launches: Sequence[Mapping[str, Any]]) -> Row:
    c, native, python = (
        np.array([launch["time_us"][name] for launch in launches]) for name in LOOPS
    )
    interval = launch_interval(native / c)
    low = high = None
    within = False
    if interval is not None:
        low, high = interval.low, interval.high
        within = low >= 1 - TOLERANCE and high <= 1 + TOLERANCE
    return Row(
        operation=case.operation,
        message_bytes=case.message_bytes,
        launches=len(launches),
        batch=launches[0]["frozen"]["batch"],
        c_us=float(np.median(c)),
        native_us=float(np.median(native)),
        python_us=float(np.median(python)),
        ratio=float(np.median(native / c)),
        ratio_ci_low=low,
        ratio_ci_high=high,
        python_ratio=float(np.median(python / c)),
        within=within,
    )


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


def run_launch(launcher: Launcher, program: Sequence[str]) -> dict[str, Any]:
    """Start the ranks once and return what rank 0 printed.

    Raises:
        LaunchError: the launch failed or took too long.
    """
    lines: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def keep(event: Output) -> None:
        if event.source in lines:
            lines[event.source].append(event.line)

    launched = Launched(
        launcher.command(RANKS, program), {**os.environ, **launcher.environment()}, ""
    )
    end = time.monotonic() + LAUNCH_TIMEOUT_S
    try:
        while launched.returncode is None and time.monotonic() < end:
            keep(launched.next_output(0.25))
        code = launched.finish(keep) if launched.returncode is not None else None
    finally:
        launched.close()
    found = [line for line in lines["stdout"] if line.startswith('{"mpi_library"')]
    if code != 0 or not found:
        said = "\n".join(lines["stderr"][-20:])
        raise LaunchError(
            f"A launch {'took too long' if code is None else f'ended with status {code}'}:\n{said}"
        )
    result: dict[str, Any] = json.loads(found[0])
    return result


def frozen_values(launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What these launches chose for warm-up and batch, by case."""
    return {case["case"]: case["frozen"] for launch in launches for case in launch["cases"]}


def write_results(
    out: Path, rows: Sequence[Row], launches: Sequence[Mapping[str, Any]], started: str
) -> None:
    """Write accuracy.json (all launch medians and the conditions) and accuracy.csv (one line a
    case).
    """
    facts = {
        "started": started,
        "environment": {**own_environment(), "mpi_library": launches[0]["mpi_library"]},
        "ranks": RANKS,
        "tolerance": TOLERANCE,
        "within": all(row.within for row in rows),
        "cases": [asdict(row) for row in rows],
        "launches": [{"launch": number, **launch} for number, launch in enumerate(launches)],
    }
    write_facts(out / "accuracy.json", "accuracy", facts)
    (out / "accuracy.csv").write_text(csv_text(rows, [each.name for each in fields(Row)]))


def build_table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    table = Table(box=None, pad_edge=False)
    table.add_column("case", no_wrap=True)
    for name in ("C us", "native us", "native / C [95 % CI]", "within", "Python us", "/ C"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.operation} {format_size(row.message_bytes)}",
            f"{row.c_us:.3f}",
            f"{row.native_us:.3f}",
            _format_ratio(row.ratio, row.ratio_ci_low, row.ratio_ci_high),
            "yes" if row.within else "no",
            f"{row.python_us:.3f}",
            f"{row.python_ratio:.2f}",
        )
    return table


def _format_ratio(ratio: float, low: float | None, high: float | None) -> str:
    return f"{ratio:.3f}" if low is None or high is None else f"{ratio:.3f} [{low:.3f}, {high:.3f}]"


def conduct(options: argparse.Namespace) -> int:
    """Run all launches, write and show the results; return the exit code."""
    out = empty_out(options.out, "accuracy")
    launcher = choose_launcher("mpirun")
    check_slots(RANKS, launcher)
    console, started = make_console(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    launches: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(Path(folder))
        for number in range(options.launches):
            program = [
                str(Path(__file__).resolve()),
                "--rank",
                "--library",
                str(library),
                "--launch",
                str(number),
            ]
            program += ["--rounds", str(options.rounds), "--chunk", str(options.chunk)]
            program += ["--frozen", json.dumps(frozen_values(launches[:1]))]
            launches.append(run_launch(launcher, program))
            ratios = [f"{row.ratio:.3f}" for row in summarise(launches[-1:])]
            console.print(
                f"launch {number + 1} of {options.launches}: native / C {' '.join(ratios)}",
                soft_wrap=True,
            )
    rows = summarise(launches)
    out.mkdir(parents=True, exist_ok=True)
    write_results(out, rows, launches, started)
    console.print(build_table(rows))
    within = all(row.within for row in rows)
    answer = "yes" if within else "no"
    console.print(
        f"Within {100 * TOLERANCE:g} % of C in every case: {answer}. Results: {out}", soft_wrap=True
    )
    return 0 if within else 1


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
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--launch", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--frozen", type=json.loads, default={}, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("launches", "rounds", "chunk"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; give at least 1")
    return options


def main() -> None:
    """Be the conductor or a rank."""
    options = parse_options()
    if options.rank:
        be_rank(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end the ranks too
    end("accuracy", lambda: conduct(options))


if __name__ == "__main__":
    main()
