"""The commands that read: runs that have been measured, and this machine."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from commbench.advice import advise
from commbench.environment import collect_host, collect_versions, git_commit, relevant_variables
from commbench.errors import InputError
from commbench.launch.facts import emulated_conditions, usable_cpus
from commbench.launch.probe import probe_mpi
from commbench.parameters import Format
from commbench.presentation import check_style, facts_table, print_run, print_unfinished
from commbench.report.model import render_model
from commbench.report.topology import render_topology, topology_remarks
from commbench.store import load_run
from commbench.terminal import make_console
from commbench.topology import collect_topology


def report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output_format: Format = "table",
    model: Annotated[
        bool,
        typer.Option("--model", help="Print the model of the network alone: start-up times, rates, and their error."),
    ] = False,
) -> int:
    """Print a run's rows again, from its files; needs neither torch nor MPI."""
    check_style(output_format)
    if model and output_format != "table":
        raise InputError(f"--model has no format {output_format}; the run's model.json has all its numbers.")
    run = load_run(path)
    if model:
        make_console().print(render_model(run.model))
        return 0
    print_run(run, output_format, make_console())
    print_unfinished(run, make_console(sys.stderr) if output_format != "table" else make_console())
    return 0


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
    with_mpi: Annotated[
        bool, typer.Option("--mpi/--no-mpi", help="Start two MPI ranks to see the library, its transport and MPI_Init.")
    ] = True,
    topology: Annotated[
        bool, typer.Option("--topology", help="Print sockets, NUMA nodes, GPUs, network adapters and their links only.")
    ] = False,
) -> int:
    """Print what a record would state about this machine, and what to do about it."""
    if topology:
        return _print_topology(as_json=as_json)
    host, versions, variables = collect_host(), collect_versions(), relevant_variables(os.environ)
    mpi = probe_mpi() if with_mpi else {}  # in processes of its own: a broken MPI must not take this one along
    facts: dict[str, Any] = {
        "host": host,
        "versions": versions,
        "variables": variables,
        "git_commit": git_commit(Path(__file__).parent),
        "mpi": mpi,
    }
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=1, default=str) + "\n")
        return 0
    console = make_console()
    for title, part in (
        ("This host", host),
        ("MPI", mpi),
        ("Versions", versions),
        ("Variables that matter", variables),
    ):
        console.print(facts_table(title, part))
    advice = advise(
        host,
        ranks=None,
        transport=mpi.get("on_host"),
        mpi_init_s=mpi.get("init_s"),
        mpi_library=mpi.get("library"),
        versions=versions,
        variables=variables,
    )
    console.print("Advice" if advice else "No advice: nothing here is known to spoil measurements.", style="bold")
    for item in advice:
        console.print(f"- {item}", markup=False)
    return 0


def _print_topology(*, as_json: bool) -> int:
    host, cpus = socket.gethostname(), usable_cpus()
    topology = collect_topology(emulated=emulated_conditions())
    if as_json:
        facts = {"host": host, "topology": topology, "remarks": topology_remarks(topology, cpus)}
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
        return 0
    console = make_console()
    for part in render_topology(host, topology, cpus):
        console.print(part)
    return 0
