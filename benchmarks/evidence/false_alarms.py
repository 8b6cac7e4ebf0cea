"""Does ``commbench compare`` see differences where there are none, and does it find one that is
there? Runs whose launches take turns.

``python benchmarks/evidence/false_alarms.py equal`` measures the same suite twice, in the order
A B B A ..., and counts the cases that are called different. Exit code 0 if these are at most 5 % of
all, 1 if more.

``python benchmarks/evidence/false_alarms.py planted`` measures Gloo on two emulated hosts (root):
``a`` and ``control`` over a link of 1 Gbit/s and ``b`` over one of 900 Mbit/s. Exit code 0 if all
cases of ``b`` are called slower than ``a`` and none of ``control`` different, 1 if not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from keeping import add_out, empty_out, end, run, write_facts

from commbench.analysis.comparison import ComparisonTable, compare
from commbench.cli.conduct import Task
from commbench.cli.options import Settings
from commbench.cli.request import Place, make_request
from commbench.cli.terminal import Display, make_console
from commbench.collectives.cases import Sweep
from commbench.collectives.suites import Suite
from commbench.errors import InputError, LaunchError
from commbench.launch.conductor import conduct
from commbench.launch.launchers.base import Launcher
from commbench.launch.launchers.choice import check_slots, choose_launcher
from commbench.report.comparison import (
    COMPARISON_COLUMNS,
    comparison_rows,
    render_comparison,
)
from commbench.results import Store
from commbench.results.plan import fixed_settings, single_stage
from commbench.results.tables import rows_csv
from commbench.stats import Verdict
from commbench.stats.budgets import BUDGETS

RANKS = 2
#: Short: what is tested is how launches are compared, and it is launches that differ.
SLICE_S = 0.08
ALLOWED = 0.05
LONGEST_S = 300
#: In which a lab that is asked to end takes itself down.
CLEANING_S = 60
COMMBENCH = (sys.executable, "-m", "commbench")
#: The comparisons of a check, by name.
Tables = Mapping[str, ComparisonTable]


class QuietDisplay(Display):
    """Shows what goes wrong: every launch looks like a run's last."""

    def finish_launch(self, seconds: float) -> None:
        """Do nothing."""


def turns(sides: Sequence[str], launches: int) -> list[tuple[int, str]]:
    """Return number and run of each launch, in an order that changes, so that drift meets all
    runs alike: of two runs A B B A.
    """
    order = []
    for launch in range(launches):
        place = launch % len(sides)
        for side in (*sides[place:], *sides[:place]):
            order.append((launch, side))
    return order


def count_different(tables: Tables) -> tuple[int, int]:
    """Return how many cases are called faster or slower, and how many there are."""
    different = cases = 0
    for table in tables.values():
        different += table.counts[Verdict.FASTER] + table.counts[Verdict.SLOWER]
        cases += sum(table.counts.values())
    return different, cases


# ------------------------------------------------------------------------------------- equal runs


def measure_pair(folder: Path, suite: Suite, launches: int, launcher: Launcher) -> ComparisonTable:
    """Measure the same twice, into ``folder``/a and ``folder``/b, and compare.

    Raises:
        LaunchError: a launch did not end well.
    """
    display = QuietDisplay(make_console(sys.stderr))
    budget = replace(BUDGETS["standard"], launches=launches, slice_s=SLICE_S)
    requests = {}
    stores = {}
    with ExitStack() as stack:
        for side in ("a", "b"):  # each with a seed of its own
            place = Place(ranks=RANKS, ranks_here=RANKS)
            request, _ = make_request(place, suite, Settings(), budget)
            header = {**Task(name=suite.name, request=request).header(), "argv": sys.argv}
            requests[side] = request
            stores[side] = stack.enter_context(Store.open(folder / side, header))
        for launch, side in turns(("a", "b"), launches):
            # A run of one launch more than there are has only that one to make. Both sides keep
            # what the very first launch found, so that they differ in name only.
            next_budget = replace(budget, launches=launch + 1)
            fixed = fixed_settings(stores["a"].records, next_budget)
            request = replace(requests[side], budget=next_budget, fixed=fixed)
            stage = single_stage(request)
            code = conduct(stage, stores[side], launcher, display, fail_fast=True)
            if code:
                reason = stores[side].info.get("reason") or "wrong data"
                raise LaunchError(
                    f"Launch {launch + 1} of run {side} ended with code {code}: {reason}"
                )
            sys.stderr.write(f"run {side}: launch {launch + 1} of {launches} done\n")
    return compare(folder / "a", folder / "b")


def check_equal(options: argparse.Namespace, out: Path) -> tuple[Tables, bool]:
    """Measure all pairs; return their comparisons, and whether few cases are called different.

    Raises:
        InputError: no case could be measured.
    """
    launcher = choose_launcher("mpirun")
    check_slots(RANKS, launcher)
    sweep = Sweep(
        operations=tuple(options.operations.split(",")),
        sizes=options.sizes,
        backends=tuple(options.backends.split(",")),
    )
    suite = Suite(name="equal", sweeps=[sweep])
    tables = {}
    for number in range(1, options.pairs + 1):
        name = f"pair{number}"
        tables[name] = measure_pair(out / name, suite, options.launches, launcher)
    different, cases = count_different(tables)
    if not cases:
        raise InputError("No case could be measured; look into the runs for the reasons.")
    print(f"{different} of {cases} cases called different (at most {100 * ALLOWED:g} % allowed)")
    return tables, different <= ALLOWED * cases


# ------------------------------------------------------------------------------------ a slow link


def measure(out: Path, side: str, launch: int, rate: str, sizes: str) -> None:
    """Add a launch to a run, in a lab of its own.

    Raises:
        LaunchError: it did not end well.
    """
    case = ("run", "-c", "all_reduce", "--backend", "gloo", "--sizes", sizes)
    effort = ("--budget", "standard", "--launches", str(launch + 1), "--out", str(out / side))
    lab = (*COMMBENCH, "lab", "run", "--hosts", "2", "--rate", rate, "--")
    cleaning = ("timeout", "--kill-after", str(CLEANING_S), str(LONGEST_S))
    run([*cleaning, *lab, *COMMBENCH, *case, *effort], timeout_s=2 * LONGEST_S)


def check_planted(options: argparse.Namespace, out: Path) -> tuple[Tables, bool]:
    """Measure and compare; return the comparisons, and whether exactly the loss is found."""
    rates = {"a": options.rate, "b": options.reduced, "control": options.rate}
    for launch, side in turns(list(rates), options.launches):
        measure(out, side, launch, rates[side], options.sizes)
        sys.stderr.write(f"run {side}: launch {launch + 1} of {options.launches} done\n")
    tables = {
        "b": compare(out / "a", out / "b", force=True),
        "control": compare(out / "a", out / "control"),
    }
    planted = tables["b"].counts
    is_found = planted[Verdict.SLOWER] == sum(planted.values()) > 0
    false_alarms, _ = count_different({"control": tables["control"]})
    return tables, is_found and not false_alarms


# ------------------------------------------------------------------------------------------- both


def check(options: argparse.Namespace) -> int:
    """Measure, compare, write comparisons.csv and false_alarms.json; return the exit code."""
    out = empty_out(options.out, "false_alarms")
    out.mkdir(parents=True, exist_ok=True)
    checks = {"equal": check_equal, "planted": check_planted}
    tables, as_expected = checks[options.check](options, out)
    rows = []
    for name, table in tables.items():
        make_console().print(render_comparison(table))
        rows += [{**row, "run": name} for row in comparison_rows(table, table.margin)]
    (out / "comparisons.csv").write_text(rows_csv(rows, [*COMPARISON_COLUMNS, "run"]))
    different, cases = count_different(tables)
    counts = {}
    differences = {}
    for name, table in tables.items():
        counts[name] = table.counts
        differences[name] = [asdict(difference) for difference in table.differences]
    facts = {
        "different": different,
        "cases": cases,
        "counts": counts,
        "differences": differences,
        "as_expected": as_expected,
    }
    write_facts(out / "false_alarms.json", "false_alarms", facts)
    print("as expected" if as_expected else "not as expected")
    return int(not as_expected)


def main() -> None:
    """Read the command line and leave with the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="check", required=True)
    equal = commands.add_parser("equal", help="the same suite measured twice")
    equal.add_argument("--pairs", type=int, default=1, help="pairs of runs (default 1)")
    equal.add_argument("--operations", default="all_reduce,all_gather,latency")
    equal.add_argument("--sizes", default="8,512,4K,64K,512K,4M", help="message sizes")
    equal.add_argument("--backends", default="mpi,gloo")
    planted = commands.add_parser("planted", help="a link that lost some of its rate")
    planted.add_argument("--rate", default="1gbit", help="of the link of a and control")
    planted.add_argument("--reduced", default="900mbit", help="of the link of b")
    planted.add_argument("--sizes", default="1M,4M,16M", help="message sizes")
    for command in (equal, planted):
        command.add_argument("--launches", type=int, default=10, help="of each run (default 10)")
        add_out(command, "false_alarms")
    options = parser.parse_args()
    if options.launches < 1:
        parser.error(f"--launches is {options.launches}; give at least 1")
    end("false_alarms", lambda: check(options))


if __name__ == "__main__":
    main()
