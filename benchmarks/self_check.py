"""Does commbench see differences where there are none? The same suite measured twice, as run A and
run B.

``python benchmarks/self_check.py`` makes the launches of A and B in turn (A B B A ...), compares
the two runs as ``commbench compare`` does, and counts the cases that are called different. Exit
code 0 if these are at most 5 % of all, 1 if more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path

from keeping import add_out, empty_out, end, write_facts
from rich.console import Console

from commbench.analysis.comparison import ComparisonTable, compare
from commbench.cli.options import Settings
from commbench.cli.request import Place, make_request, run_header
from commbench.cli.terminal import LineDisplay, make_console
from commbench.collectives.cases import Sweep
from commbench.collectives.suites import Suite
from commbench.errors import InputError, LaunchError
from commbench.launch.conductor import conduct
from commbench.launch.launchers import Launcher, check_slots, choose_launcher
from commbench.report.comparison import render_comparison
from commbench.report.comparison.formats import ComparisonRow, comparison_rows
from commbench.results import Store
from commbench.results.plan import RunRequest, fixed_settings, single_stage
from commbench.results.tables import csv_text
from commbench.stats import Verdict
from commbench.stats.budgets import BUDGETS, Budget

RANKS = 2
OPERATIONS = "all_reduce,all_gather,latency"
#: Short: what is tested is how launches are compared, and it is launches that differ.
SLICE_S = 0.08
ALLOWED = 0.05
SIDES = ("a", "b")


@dataclass(frozen=True, kw_only=True)
class CheckedRow(ComparisonRow):
    """A line of comparisons.csv."""

    pair: int = 0


class QuietDisplay(LineDisplay):
    """Shows what goes wrong.

    How far we are is said here, because every launch looks like a run's last.
    """

    def launch_finished(self, seconds: float) -> None:
        """Do nothing."""


def launch_order(launches: int) -> list[tuple[str, int]]:
    """Return side and number of each launch in the order ABBA, so that drift affects both sides
    alike.
    """
    return [
        (side, launch)
        for launch in range(launches)
        for side in (SIDES if launch % 2 == 0 else SIDES[::-1])
    ]


def make_side(suite: Suite, budget: Budget) -> RunRequest:
    """Return the request of one side, with a random seed, as for two independent runs."""
    return make_request(suite, Settings(), budget, Place(ranks=RANKS, ranks_here=RANKS))


def measure_pair(
    folder: Path, suite: Suite, requests: Mapping[str, RunRequest], launcher: Launcher
) -> ComparisonTable:
    """Measure both sides into ``folder``/a and ``folder``/b, launch by launch in turn, and compare
    them.

    Raises:
        LaunchError: a launch did not end well.
    """
    console = make_console(sys.stderr)
    display = QuietDisplay(console)
    argv = {"argv": ["python", "benchmarks/self_check.py", *sys.argv[1:]]}
    with ExitStack() as stack:
        stores = {
            side: stack.enter_context(
                Store.open(folder / side, {**run_header(suite.name, [request]), **argv})
            )
            for side, request in requests.items()
        }
        for side, launch in launch_order(requests["a"].budget.launches):
            # A run of one launch more than there are has only that one to make.
            budget = replace(requests[side].budget, launches=launch + 1)
            # Both sides keep what the very first launch found: one experiment, whose launches
            # differ in name only.
            fixed = fixed_settings(stores["a"].records, budget)
            request = replace(requests[side], budget=budget, fixed=fixed)
            code = conduct(single_stage(request), stores[side], launcher, display, fail_fast=True)
            if code:
                reason = stores[side].info.get("reason") or "wrong data"
                raise LaunchError(
                    f"Launch {launch + 1} of run {side} ended with code {code}: {reason}"
                )
            console.print(
                f"run {side}: launch {launch + 1} of {requests[side].budget.launches} done"
            )
    return compare(folder / "a", folder / "b")


def count_different(tables: Sequence[ComparisonTable]) -> tuple[int, int]:
    """(cases that are called faster or slower, all cases)."""
    counts = [table.counts for table in tables]
    different = sum(count[Verdict.FASTER] + count[Verdict.SLOWER] for count in counts)
    return different, sum(sum(count.values()) for count in counts)


def write_summary(out: Path, tables: Sequence[ComparisonTable]) -> None:
    """Write self_check.json, how often each verdict was given, and comparisons.csv, every case of
    every pair.
    """
    rows = [
        CheckedRow(pair=pair, **{f.name: getattr(row, f.name) for f in fields(ComparisonRow)})
        for pair, table in enumerate(tables, start=1)
        for row in comparison_rows(table, table.margin)
    ]
    (out / "comparisons.csv").write_text(csv_text(rows, [f.name for f in fields(CheckedRow)]))
    different, cases = count_different(tables)
    facts = {
        "allowed": ALLOWED,
        "cases": cases,
        "different": different,
        "pairs": [
            {str(verdict): count for verdict, count in table.counts.items()} for table in tables
        ],
    }
    write_facts(out / "self_check.json", "self_check", facts)


def show(tables: Sequence[ComparisonTable], console: Console) -> int:
    """Print the comparisons and the answer; return the exit code."""
    for table in tables:
        console.print(render_comparison(table))
    different, cases = count_different(tables)
    console.print(
        f"{different} of {cases} cases called different (at most {100 * ALLOWED:g} % allowed)"
    )
    if not cases:
        raise InputError("No case could be measured; look into the runs for the reasons.")
    return 0 if different <= ALLOWED * cases else 1


def check(options: argparse.Namespace) -> int:
    """Measure and judge all pairs; return the exit code."""
    out = empty_out(options.out, "self_check")
    launcher = choose_launcher("mpirun")
    check_slots(RANKS, launcher)
    sweep = Sweep(
        operations=tuple(options.operations.split(",")),
        sizes=options.sizes,
        backends=tuple(options.backends.split(",")),
    )
    suite = Suite(name="self_check", sweeps=[sweep])
    budget = replace(BUDGETS["standard"], launches=options.launches, slice_s=SLICE_S)
    tables = []
    for pair in range(options.pairs):
        requests = {side: make_side(suite, budget) for side in SIDES}
        tables.append(measure_pair(out / f"pair{pair + 1}", suite, requests, launcher))
    write_summary(out, tables)
    return show(tables, make_console())


def main() -> None:
    """Read the command line and leave with the exit code."""
    parser = argparse.ArgumentParser(
        description="Compare two runs of the same suite, which must not differ."
    )
    parser.add_argument(
        "--pairs", type=int, default=1, help="how many pairs of runs are compared (default 1)"
    )
    parser.add_argument(
        "--launches", type=int, default=10, help="launches of each run (default 10)"
    )
    parser.add_argument(
        "--operations", default=OPERATIONS, help=f"operations (default {OPERATIONS})"
    )
    parser.add_argument("--sizes", default="8,512,4K,64K,512K,4M", help="message sizes")
    parser.add_argument("--backends", default="mpi,gloo", help="backends (default mpi,gloo)")
    add_out(parser, "self_check")
    options = parser.parse_args()
    for name in ("pairs", "launches"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; give at least 1")
    end("self_check", lambda: check(options))


if __name__ == "__main__":
    main()
