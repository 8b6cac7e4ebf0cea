"""The commands of the emulated cluster."""

from __future__ import annotations

import contextlib
import shlex
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commbench.cli.terminal import make_console
from commbench.errors import InputError
from commbench.launch.lab import (
    DEFAULT_NAME,
    MAX_HOSTS,
    NOT_EMULATED,
    RATE_HINT,
    Lab,
    LabPlan,
    check_machine,
    find_all,
    format_rate,
    run_in_lab,
    start_lab,
)
from commbench.units import counted

app = typer.Typer(
    help="Emulate a cluster on this Linux machine: network namespaces with links of a shaped rate; needs root.",
    no_args_is_help=True,
)

Hosts = Annotated[int, typer.Option("--hosts", metavar="N", help=f"Hosts to emulate, at most {MAX_HOSTS}.")]
Rate = Annotated[str, typer.Option("--rate", metavar="RATE", help=f"Rate of each host's link: {RATE_HINT}.")]
RanksPerHost = Annotated[int, typer.Option("--ranks-per-host", metavar="N", help="Slots of each host in the hostfile.")]
Slow = Annotated[
    list[str] | None,
    typer.Option("--slow", metavar="HOST=RATE", help="Another rate for one host's link, both ways; may be repeated."),
]
Racks = Annotated[
    int,
    typer.Option(
        "--racks", metavar="K", help="Spread the hosts over K rack switches, in order; uplinks join them to a core."
    ),
]
Uplink = Annotated[
    str | None,
    typer.Option("--uplink", metavar="RATE", help="Rate of each rack's uplink, both ways; by default a host's rate."),
]


Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Which lab; several can be there at once.")]


@app.command(epilog=NOT_EMULATED)
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run on the first host, after --.")],
    hosts: Hosts = 2,
    rate: Rate = "1gbit",
    ranks_per_host: RanksPerHost = 1,
    slow: Slow = None,
    racks: Racks = 1,
    uplink: Uplink = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What to call the lab; by default a fresh name.")
    ] = None,
) -> int:
    """Run a command on the first of several emulated hosts; its exit code is this one's, and the lab ends with it."""
    return run_in_lab(
        hosts,
        rate,
        command,
        ranks_per_host=ranks_per_host,
        slow=slow or (),
        racks=racks,
        uplink=uplink,
        name=name,
    )


@app.command(epilog=NOT_EMULATED)
def up(
    hosts: Hosts = 2,
    rate: Rate = "1gbit",
    ranks_per_host: RanksPerHost = 1,
    slow: Slow = None,
    racks: Racks = 1,
    uplink: Uplink = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What to call the lab.")] = DEFAULT_NAME,
) -> int:
    """Start an emulated cluster that stays, also when this terminal is closed, until `commbench lab down`."""
    plan = LabPlan.parse(hosts, rate, ranks_per_host=ranks_per_host, slow=slow or (), racks=racks, uplink=uplink)
    lab = start_lab(plan, name)
    option, console = _option(lab), make_console()
    _print(lab, console)
    for use, what in (
        (f"exec{option} -- COMMAND", f"runs a command on {plan.hosts[0].name}, or on --host HOST"),
        (f"link{option} HOST down", "cuts a host's link; up or a rate in place of down mends or changes it"),
        (f"status{option}", "shows the hosts and what runs there"),
        (f"down {name}", "ends everything"),
    ):
        console.print(f"  commbench lab {use}  {what}", markup=False, soft_wrap=True)
    console.print(NOT_EMULATED, soft_wrap=True)
    return 0


@app.command("exec")
def execute(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run on the host, after --.")],
    host: Annotated[str | None, typer.Option("--host", metavar="HOST", help="Where; by default the first.")] = None,
    name: Name = DEFAULT_NAME,
) -> int:
    """Run a command on a host of a lab that is up, as `lab run` would; its exit code is this one's.

    What the command has started ends with it.
    """
    check_machine()
    return Lab.find(name).execute(command, host=host)


@app.command()
def status(
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Which lab; by default all.")] = None,
) -> int:
    """List the labs that are up: their hosts, links and racks, since when they are there, what runs."""
    check_machine()
    console = make_console()
    if name is not None:
        _print(Lab.find(name), console)
        return 0
    labs = find_all()
    if not labs:
        console.print("There is no emulated cluster; `commbench lab up` starts one.", markup=False)
    for lab in labs:
        with contextlib.suppress(InputError):  # it has just ended
            _print(lab, console)
    return 0


@app.command()
def link(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Whose link.")],
    state: Annotated[str, typer.Argument(metavar="down|up|RATE", help="Cut it, mend it, or give it another rate.")],
    name: Name = DEFAULT_NAME,
) -> int:
    """Cut a host's link, mend it, or change its rate, both ways, while the lab runs: what do programs make of it?"""
    check_machine(shaped=state not in {"up", "down"})
    Lab.find(name).set_link(host, state)
    return 0


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help=f"Which lab; by default {DEFAULT_NAME}.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All labs that `lab up` has started.")] = False,
) -> int:
    """End a lab and everything that runs there; returns when it has gone."""
    check_machine()
    if everything and name is not None:
        raise InputError(f"The lab {name!r} and --all were both given; choose one of them.")
    for lab in [lab for lab in find_all() if lab.stays] if everything else [Lab.find(name or DEFAULT_NAME)]:
        lab.end()
        make_console().print(f"The emulated cluster {lab.name} has ended.", markup=False)
    check_machine()  # what the last one has left goes, too
    return 0


def _option(lab: Lab) -> str:
    return "" if lab.name == DEFAULT_NAME else f" --name {lab.name}"


def _print(lab: Lab, console: Console) -> None:
    """Show a lab: its shape, its hosts, one a line, and what runs on each."""
    plan, running = lab.plan, lab.running()
    uplinks = f", {plan.racks} racks with uplinks of {format_rate(plan.uplink_bps)}" if plan.racks > 1 else ""
    end = f"until `commbench lab down {lab.name}`" if lab.stays else "until its command ends"
    head = f"{lab.name}: {counted(len(plan.hosts), 'emulated host')}{uplinks}, process {lab.pid}, "
    console.print(f"{head}since {lab.since:%Y-%m-%d %H:%M:%S} {end}", markup=False, soft_wrap=True, style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("host", "address", "rate", "rack", "slots", "runs"):
        table.add_column(column, overflow="fold")
    for host in plan.hosts:
        rate = format_rate(host.rate_bps) if host.is_up else "cut"
        commands = [f"{shlex.join(one.command)} ({one.pid})" for one in running if one.host == host.name]
        facts = (host.name, host.address, rate, str(host.rack), str(host.slots))
        table.add_row(*facts, Text("\n".join(commands) or "nothing"))
    console.print(table)
