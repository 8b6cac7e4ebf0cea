"""Does commbench read the same as another tool? Both measure in turn, and each case has a ratio.

``peers.py --as imb -c all_reduce --sizes 8:64K -n 2 -- mpirun -n 2 IMB-MPI1
-msglog 3:16 allreduce``

The words behind ``--`` start the tool; the words before it are options of ``commbench run``. A
round runs both, in an order that alternates, each with one launch. A ratio is commbench's mean over
repetitions and ranks divided by the tool's, the median over rounds. Both must use the same MPI.
Exit code 0 if the 95 % interval of every ratio reaches into 5 % around 1, 1 if not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from keeping import add_out, empty_out, end, own_environment, write_facts
from rich.table import Table

from commbench.cli.terminal import make_console
from commbench.engine.records import Record
from commbench.errors import InputError, LaunchError
from commbench.interop.imports import ImportOptions, Source, import_outputs
from commbench.results import load_run
from commbench.stats import ratio_interval
from commbench.units import format_size, format_time

TOLERANCE = 0.05
TIMEOUT_S = 600.0
#: Operation and size in bytes.
Key = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A case that both have measured; times in microseconds, one for each round."""

    operation: str
    message_bytes: int
    theirs_us: Sequence[float]
    ours_us: Sequence[float]
    ratio: float
    """Ours divided by theirs."""
    low: float
    high: float

    @property
    def is_close(self) -> bool:
        """Whether the interval reaches into the tolerance around 1."""
        return self.low <= 1 + TOLERANCE and self.high >= 1 - TOLERANCE


def compare(theirs: Sequence[dict[Key, float]], ours: Sequence[dict[Key, float]]) -> list[Compared]:
    """Return the cases that both have in each round.

    Raises:
        InputError: there is none.
    """
    keys = [key for key in ours[0] if all(key in times for times in (*theirs, *ours))]
    if not keys:
        raise InputError(
            "No case was measured by both; give both the same operation, sizes and number of ranks."
        )
    compared = []
    for operation, message_bytes in keys:
        sides = [[times[operation, message_bytes] for times in side] for side in (theirs, ours)]
        ratio, interval = ratio_interval(*sides, seed=1)
        compared.append(
            Compared(
                operation=operation,
                message_bytes=message_bytes,
                theirs_us=sides[0],
                ours_us=sides[1],
                ratio=ratio,
                low=interval.low,
                high=interval.high,
            )
        )
    return compared


def times_of(text: str, name: str, ranks: int | None) -> dict[Key, float]:
    """Return the mean over repetitions and ranks of each case in a tool's text, in microseconds.

    Args:
        text: what the tool printed.
        name: of the text, in messages.
        ranks: number of ranks, if the text does not state it.
    """
    source = Source(name=name, data=text.encode())
    records = import_outputs([source], options=ImportOptions(ranks=ranks)).records
    return {
        (record.case.operation, record.case.message_bytes): _mean_us(record) for record in records
    }


def _mean_us(record: Record) -> float:
    return float((record.rank_mean_us or record.times_us)[0])


def own_times(path: Path) -> dict[Key, float]:
    """Return the mean over repetitions and ranks of each case of a run, in microseconds."""
    return {
        (row.operation, row.message_bytes or 0): row.time_us_mean
        for row in load_run(path).rows
        if row.time_us_mean is not None
    }


def run(command: Sequence[str], file: Path) -> str:
    """Run a command, keep its output in a file, and return it.

    Raises:
        LaunchError: it failed.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{command[0]} cannot be run ({error}).") from error
    file.write_text(done.stdout)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise LaunchError(f"{' '.join(command)} ended with {done.returncode}: {' '.join(last)}")
    return done.stdout


def main() -> int:
    """Measure in turn, print a table and keep it; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Compare commbench with another tool, measured in turn."
    )
    parser.add_argument(
        "--rounds", type=int, default=10, help="how often both are run (default 10)"
    )
    parser.add_argument("-n", type=int, default=2, help="number of ranks of commbench (default 2)")
    add_out(parser, "peers")
    words = sys.argv[1:]
    if "--" not in words:
        raise InputError(
            "No command of the other tool was given; put it behind --, as in -- mpirun -n 2"
            " osu_latency."
        )
    place = words.index("--")
    options, own_words = parser.parse_known_args(words[:place])
    theirs_command = words[place + 1 :]
    if options.rounds < 2 or not theirs_command:  # noqa: PLR2004 - one round has no spread
        raise InputError("Give --rounds of at least 2, and a command behind --.")
    out = empty_out(options.out, "peers")
    out.mkdir(parents=True, exist_ok=True)
    theirs: list[dict[Key, float]] = []
    ours: list[dict[Key, float]] = []
    ours_command = [
        sys.executable,
        "-m",
        "commbench",
        "run",
        "-n",
        str(options.n),
        "--launches",
        "1",
        *own_words,
    ]
    for number in range(options.rounds):
        path = out / f"run_{number}"
        commands = {"theirs": theirs_command, "ours": [*ours_command, "--out", str(path)]}
        for side in ("theirs", "ours") if number % 2 else ("ours", "theirs"):
            text = run(commands[side], out / f"{side}_{number}.txt")
            if side == "theirs":
                theirs.append(times_of(text, "theirs.txt", options.n))
            else:
                ours.append(own_times(path))
        sys.stderr.write(f"round {number + 1} of {options.rounds}\n")
    compared = compare(theirs, ours)
    facts = {
        "theirs": theirs_command,
        "rounds": options.rounds,
        "cases": [asdict(case) for case in compared],
    }
    write_facts(out / "peers.json", "peers", {**own_environment(), **facts})
    table = Table("operation", "size", "theirs", "commbench", "ratio [95 % interval]", "")
    for case in compared:
        typical = [
            format_time(1e-6 * sorted(times)[len(times) // 2])
            for times in (case.theirs_us, case.ours_us)
        ]
        ratio = f"{case.ratio:.3f} [{case.low:.3f}, {case.high:.3f}]"
        size, verdict = format_size(case.message_bytes), "" if case.is_close else "different"
        table.add_row(case.operation, size, *typical, ratio, verdict)
    close = sum(case.is_close for case in compared)
    make_console(sys.stdout).print(
        table, f"{close} of {len(compared)} cases are within 5 % or within noise: {out}"
    )
    return 0 if close == len(compared) else 1


if __name__ == "__main__":
    end("peers", main)
