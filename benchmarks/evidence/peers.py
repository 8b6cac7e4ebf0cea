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
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keeping import add_out, build_table, empty_out, end, own_environment, run, write_facts

from commbench.cli.terminal import make_console
from commbench.errors import InputError
from commbench.interop.imports.gathering import Source, import_outputs
from commbench.interop.imports.reading import ImportOptions
from commbench.results import load_run
from commbench.stats import median, ratio_interval

TOLERANCE = 0.05
TIMEOUT_S = 600.0
#: Operation and size in bytes.
Key = tuple[str, int]


def compare(
    theirs: Sequence[dict[Key, float]], ours: Sequence[dict[Key, float]]
) -> list[dict[str, Any]]:
    """Return a row for each case that both have in each round: the medians of both in microseconds,
    and the ratio of ours to theirs; ``is_close`` if its interval reaches into the tolerance.

    Raises:
        InputError: there is none.
    """
    rows = []
    for key in ours[0]:
        if all(key in times for times in (*theirs, *ours)):
            sides = [[times[key] for times in side] for side in (theirs, ours)]
            ratio, interval = ratio_interval(*sides)
            row: dict[str, Any] = {"operation": key[0], "message_bytes": key[1]}
            row |= {"theirs_us": median(sides[0]), "ours_us": median(sides[1]), "ratio": ratio}
            row |= {"ratio_ci_low": interval.low, "ratio_ci_high": interval.high}
            row["is_close"] = interval.low <= 1 + TOLERANCE and interval.high >= 1 - TOLERANCE
            rows.append(row)
    if not rows:
        raise InputError(
            "No case was measured by both; give both the same operation, sizes and number of ranks."
        )
    return rows


def times_of(text: str, name: str, ranks: int) -> dict[Key, float]:
    """Return the mean over repetitions and ranks of each case in a tool's text, in microseconds.

    Args:
        text: what the tool printed.
        name: of the text, in messages.
        ranks: number of ranks, for a text that does not state it.
    """
    source = Source(name=name, data=text.encode())
    times = {}
    for record in import_outputs([source], options=ImportOptions(ranks=ranks)).records:
        key = record.case.operation, record.case.message_bytes
        times[key] = float((record.rank_mean_us or record.times_us)[0])
    return times


def own_times(path: Path) -> dict[Key, float]:
    """Return the mean over repetitions and ranks of each case of a run, in microseconds."""
    return {
        (row.operation, row.message_bytes or 0): row.time_us_mean
        for row in load_run(path).rows
        if row.time_us_mean is not None
    }


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
    if options.rounds < 2 or not theirs_command:  # one round has no spread
        raise InputError("Give --rounds of at least 2, and a command behind --.")
    out = empty_out(options.out, "peers")
    out.mkdir(parents=True, exist_ok=True)
    theirs: list[dict[Key, float]] = []
    ours: list[dict[Key, float]] = []
    line = f"-m commbench run -n {options.n} --launches 1"
    ours_command = [sys.executable, *line.split(), *own_words]
    for number in range(options.rounds):
        path = out / f"run_{number}"
        commands = {"theirs": theirs_command, "ours": [*ours_command, "--out", str(path)]}
        for side in ("theirs", "ours") if number % 2 else ("ours", "theirs"):
            text = run(commands[side], timeout_s=TIMEOUT_S)
            (out / f"{side}_{number}.txt").write_text(text)
            if side == "theirs":
                theirs.append(times_of(text, "theirs.txt", options.n))
            else:
                ours.append(own_times(path))
        sys.stderr.write(f"round {number + 1} of {options.rounds}\n")
    rows = compare(theirs, ours)
    facts = {"theirs": theirs_command, "rounds": options.rounds, "cases": rows}
    write_facts(out / "peers.json", "peers", {**own_environment(), **facts})
    make_console(sys.stdout).print(build_table(rows))
    close = sum(row["is_close"] for row in rows)
    sys.stdout.write(f"{close} of {len(rows)} cases are within 5 % or within noise: {out}\n")
    return int(close < len(rows))


if __name__ == "__main__":
    end("peers", main)
