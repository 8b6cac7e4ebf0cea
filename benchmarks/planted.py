"""Does commbench find a link that lost a tenth of its rate? Runs over Gloo on two emulated hosts
(Linux, root).

``python benchmarks/planted.py`` makes the launches of three runs in turn: ``a`` and ``control``
over a link of 1 Gbit/s and ``b`` over one of 900 Mbit/s; then it compares both others with ``a`` as
``commbench compare`` does. Exit code 0 if all cases of ``b`` are called slower and none of
``control`` is called different, 1 if not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

from keeping import add_out, empty_out, end, write_facts
from rich.console import Console

from commbench.analysis.comparison import ComparisonTable, compare
from commbench.cli.terminal import make_console
from commbench.errors import LaunchError
from commbench.report.comparison import render_comparison
from commbench.report.comparison.formats import ComparisonRow, comparison_rows
from commbench.results.tables import csv_text
from commbench.stats import Verdict

COMMBENCH = (sys.executable, "-m", "commbench")
SIDES = ("a", "b", "control")
LONGEST_S = 300
#: In which a lab that is asked to end takes itself down.
CLEANING_S = 60


@dataclass(frozen=True, kw_only=True)
class PlantedRow(ComparisonRow):
    """A line of comparisons.csv."""

    run: str = ""


def turns(launches: int) -> list[tuple[int, str]]:
    """Which run makes which launch, in an order that changes: whatever drifts meets all alike."""
    return [
        (launch, side)
        for launch in range(1, launches + 1)
        for side in SIDES[launch % len(SIDES) :] + SIDES[: launch % len(SIDES)]
    ]


def measure(out: Path, side: str, launch: int, rate: str, sizes: str) -> None:
    """Add a launch to a run, in a lab of its own.

    Raises:
        LaunchError: it did not end well.
    """
    inner = [
        *(
            *COMMBENCH,
            "run",
            "-c",
            "all_reduce",
            "--backend",
            "gloo",
            "--sizes",
            sizes,
            "--budget",
            "standard",
        ),
        *("--launches", str(launch), "--out", str(out / side)),
    ]
    with (out / f"{side}.log").open("a") as log:
        code = run_within(
            [*COMMBENCH, "lab", "run", "--hosts", "2", "--rate", rate, "--", *inner], log, LONGEST_S
        )
    if code is None:
        raise LaunchError(
            f"Launch {launch} of run {side} was ended after {LONGEST_S} s; see {out / side}.log."
        )
    if code:
        raise LaunchError(
            f"Launch {launch} of run {side} ended with code {code}; see {out / side}.log."
        )


def run_within(command: Sequence[str], log: IO[str], longest_s: float) -> int | None:
    """Run a command and return its exit code.

    None where it takes too long and is asked to end, which cleans up.
    """
    with subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            return process.wait(longest_s)
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            process.wait(CLEANING_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return None


def judge(tables: Mapping[str, ComparisonTable]) -> bool:
    """Whether the loss is found in every case, and nothing where nothing was lost."""
    planted, control = tables["b"].counts, tables["control"].counts
    found = planted[Verdict.SLOWER] == sum(planted.values()) > 0
    return found and not control[Verdict.SLOWER] and not control[Verdict.FASTER]


def write(out: Path, options: argparse.Namespace, tables: Mapping[str, ComparisonTable]) -> None:
    """Write comparisons.csv and planted.json."""
    rows = [
        PlantedRow(run=side, **{f.name: getattr(row, f.name) for f in fields(ComparisonRow)})
        for side, table in tables.items()
        for row in comparison_rows(table, table.margin)
    ]
    (out / "comparisons.csv").write_text(csv_text(rows, [f.name for f in fields(PlantedRow)]))
    facts = {
        "rates": {"a": options.rate, "control": options.rate, "b": options.reduced},
        "launches": options.launches,
        "counts": {
            side: {str(v): n for v, n in table.counts.items()} for side, table in tables.items()
        },
        "differences": {side: list(map(str, table.differences)) for side, table in tables.items()},
        "as_expected": judge(tables),
    }
    write_facts(out / "planted.json", "planted", facts)


def check(options: argparse.Namespace) -> int:
    """Measure, compare and judge; return the exit code."""
    out = empty_out(options.out, "planted")
    out.mkdir(parents=True, exist_ok=True)
    messages, console = make_console(sys.stderr), make_console()
    for launch, side in turns(options.launches):
        measure(out, side, launch, options.reduced if side == "b" else options.rate, options.sizes)
        messages.print(f"run {side}: launch {launch} of {options.launches} done")
    tables = {side: compare(out / "a", out / side, force=side == "b") for side in ("b", "control")}
    write(out, options, tables)
    return _show(tables, console)


def _show(tables: Mapping[str, ComparisonTable], console: Console) -> int:
    for table in tables.values():
        console.print(render_comparison(table))
    as_expected = judge(tables)
    console.print("as expected" if as_expected else "not as expected")
    return 0 if as_expected else 1


def main() -> None:
    """Read the command line and leave with the exit code."""
    parser = argparse.ArgumentParser(
        description="Compare runs over links of which one lost some of its rate."
    )
    parser.add_argument(
        "--rate", default="1gbit", help="rate of the link of a and control (default 1gbit)"
    )
    parser.add_argument(
        "--reduced", default="900mbit", help="rate of the link of b (default 900mbit)"
    )
    parser.add_argument(
        "--launches", type=int, default=10, help="launches of each run (default 10)"
    )
    parser.add_argument("--sizes", default="1M,4M,16M", help="message sizes")
    add_out(parser, "planted")
    options = parser.parse_args()
    if options.launches < 1:
        parser.error(f"--launches is {options.launches}; give at least 1")
    end("planted", lambda: check(options))


if __name__ == "__main__":
    main()
