"""The commands ``report`` and ``env``, which read runs and this machine."""

from __future__ import annotations

import itertools
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from commbench.analysis.expectations import judge, read_expectations
from commbench.cli.command_line import Given, check_needed, refuse, takes_options
from commbench.cli.options import Expect, Format, LinkRate, opt
from commbench.cli.presentation import (
    check_style,
    print_model,
    print_run,
    print_unfinished,
)
from commbench.cli.request import default_out
from commbench.cli.terminal import make_console, print_json
from commbench.errors import InputError
from commbench.launch.facts import emulated_conditions
from commbench.launch.probe import probe_mpi
from commbench.report.advice import Conditions, advise
from commbench.report.columns import plain_table
from commbench.report.explain import explain
from commbench.report.page import write_page
from commbench.report.page.conditions import environment_tables, fact_of
from commbench.report.topology import render_topology, topology_remarks
from commbench.results import load_run
from commbench.results.files import refusing
from commbench.system.host import collect_host, usable_cpus
from commbench.system.process import without_collector
from commbench.system.software import collect_versions, git_commit
from commbench.system.topology import collect_topology
from commbench.system.variables import relevant_variables


@takes_options
@without_collector()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories: one, or several to compare."),
    ],
    output_format: Format = "table",
    out: Annotated[
        Path | None,
        opt(
            "--out",
            (
                "Directory of the page; by default the run itself, for several runs a new one in"
                " results/."
            ),
            "DIR",
        ),
    ] = None,
    model: Annotated[
        bool,
        opt("--model", "Print only the network model: start-up times, rates, and their error."),
    ] = False,
    explained: Annotated[
        str | None,
        opt("--explain", "Print only what a flag, its mark or a column means.", "NAME"),
    ] = None,
    expect: Expect = None,
    link: LinkRate = "",
    *,
    given: Given,
) -> int:
    """Print a run's rows and draw its page, report.html.

    Needs neither torch nor MPI.

    Several runs are overlaid on one page. With --format the rows are printed and no page is drawn.
    With --expect the page of a run says which expectations it meets, as commbench check does.
    """
    if explained:
        typer.echo("\n".join(explain(explained)))
        return 0
    check_style(output_format)
    if output_format == "table":
        given = [each for each in given if each != "--format"]
    refuse(given, "--model", ("--format",), "whose numbers model.json has")
    check_needed(given, "--link", "--expect")
    for option in ("--model", "--format"):
        refuse(given, option, ("--out",), "which writes no page")
    for option in ("--model", "--format", "--expect"):
        if option in given and len(paths) > 1:
            raise InputError(f"{option} works only with one run; {len(paths)} were named.")
    runs = [load_run(path) for path in paths]
    answers = []
    if expect:
        answers = judge(runs[0], read_expectations(expect), link)
    console = make_console()
    if model:
        print_model(runs[0], console)
    elif output_format != "table":
        print_run(runs[0], output_format, console)
        print_unfinished(runs[0], make_console(sys.stderr))
    else:
        folder = out or (runs[0].path if len(runs) == 1 else default_out("report"))
        with refusing(folder, InputError):  # before anything is printed
            folder.mkdir(parents=True, exist_ok=True)
        if len(runs) == 1:
            print_run(runs[0], "table", console)
            print_unfinished(runs[0], console)
        console.print(f"Page: {write_page(runs, folder, answers)}", soft_wrap=True)
    return 0


def env(
    as_json: Annotated[bool, opt("--json", "Print the facts as JSON.")] = False,
    with_mpi: Annotated[
        bool,
        opt(
            "--mpi/--no-mpi",
            ("Start two MPI ranks and report the library, its transport and the time of MPI_Init."),
        ),
    ] = True,
    topology: Annotated[
        bool,
        opt(
            "--topology", "Print only sockets, NUMA nodes, GPUs, network adapters and their links."
        ),
    ] = False,
) -> int:
    """Print what a run records about this machine.

    Ends with advice on conditions that distort measurements.
    """
    if topology:
        return _print_topology(as_json=as_json)
    host, versions, variables = collect_host(), collect_versions(), relevant_variables(os.environ)
    mpi = (
        probe_mpi() if with_mpi else {}
    )  # in separate processes: a broken MPI must not end this one
    facts = {
        "host": host,
        "versions": versions,
        "variables": variables,
        "git_commit": git_commit(Path(__file__).parent),
        "mpi": mpi,
    }
    if as_json:
        print_json(facts)
        return 0
    console = make_console()
    environment = {"hosts": [host], "versions": versions, "variables": variables}
    for table in environment_tables(environment):
        console.print(table)
    if mpi:
        lines = itertools.starmap(fact_of, mpi.items())
        console.print(plain_table(["fact", "value"], lines, title="MPI"))
    conditions = Conditions(host=host, transport=mpi.get("on_host"), versions=versions)
    advice = list(advise(conditions))
    console.print(
        "Advice" if advice else "No advice: no known condition here distorts measurements.",
        style="bold",
    )
    for item in advice:
        console.print(f"- {item.in_full}")
    return 0


def _print_topology(*, as_json: bool) -> int:
    host, cpus = socket.gethostname(), usable_cpus()
    topology = collect_topology(emulated=emulated_conditions())
    if as_json:
        remarks = [str(remark) for remark in topology_remarks(topology, cpus)]
        facts = {"host": host, "topology": topology, "remarks": remarks}
        print_json(facts)
        return 0
    console = make_console()
    for part in render_topology(host, topology, cpus):
        console.print(part)
    return 0
