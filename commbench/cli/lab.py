"""The commands of the emulated cluster: ``lab run``, ``up``, ``exec``, ``status``, ``link``,
``down``.
"""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commbench.cli.command_line import takes_options
from commbench.cli.options import opt
from commbench.cli.terminal import make_console
from commbench.errors import InputError
from commbench.fields import option
from commbench.launch.lab.labs import (
    DEFAULT_NAME,
    NOT_EMULATED,
    Lab,
    check_machine,
    find_all,
    run_in_lab,
    start_lab,
)
from commbench.launch.lab.plan import MAX_HOSTS, RATE_HINT, LabPlan, format_rate
from commbench.units import counted

app = typer.Typer(
    help=(
        "Emulate a cluster on this Linux machine.\n\n"
        "Network namespaces with links of a shaped rate; needs root."
    ),
    no_args_is_help=True,
)


@dataclass(frozen=True, kw_only=True)
class LabShape:
    """The hosts and links of a lab."""

    hosts: int = option(2, "--hosts", metavar="N", about=f"Hosts to emulate, at most {MAX_HOSTS}.")
    rate: str = option(
        "1gbit", "--rate", metavar="RATE", about=f"Rate of each host's link: {RATE_HINT}."
    )
    ranks_per_host: int = option(1, "--ranks-per-host", metavar="N", about="Slots of each host.")
    slow: list[str] | None = option(
        None,
        "--slow",
        metavar="HOST=RATE",
        about="A different rate for one host's link, both ways; may be repeated.",
    )
    racks: int = option(
        1,
        "--racks",
        metavar="K",
        about="Connect the hosts to K rack switches, in order, and the racks to a core switch.",
    )
    uplink: str | None = option(
        None,
        "--uplink",
        metavar="RATE",
        about="Rate of each rack's uplink, both ways; by default the rate of a host.",
    )


Name = Annotated[str, opt("--name", "Name of the lab; several can run at once.", "NAME")]


@app.command(epilog=NOT_EMULATED)
@takes_options
def run(
    *,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="The command to run on the first host, after --."),
    ],
    shape: LabShape,
    name: Annotated[
        str | None,
        opt("--name", "Name of the lab; by default a new one.", "NAME"),
    ] = None,
) -> int:
    """Emulate a cluster, run a command on its first host, and remove the cluster.

    The exit code is the command's.
    """
    return run_in_lab(LabPlan.parse(**vars(shape)), command, name)


@app.command(epilog=NOT_EMULATED)
@takes_options
def up(
    *,
    shape: LabShape,
    name: Annotated[str, opt("--name", "What to call the lab.", "NAME")] = DEFAULT_NAME,
) -> int:
    """Start an emulated cluster that stays until `commbench lab down`, even after this terminal
    closes.
    """
    plan = LabPlan.parse(**vars(shape))
    lab = start_lab(plan, name)
    console = make_console()
    _print(lab, console)
    lines = (
        f"commbench lab exec --name {lab.name} -- COMMAND  runs a command on {plan.hosts[0].name}",
        f"commbench lab down {lab.name}  ends everything; commbench lab --help  what else there is",
    )
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)
    console.print(NOT_EMULATED, soft_wrap=True)
    return 0


@app.command("exec")
def execute(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="The command to run on the host, after --."),
    ],
    host: Annotated[str | None, opt("--host", "The host; by default the first.", "HOST")] = None,
    name: Name = DEFAULT_NAME,
) -> int:
    """Run a command on a host of a running lab, as `lab run` does; the exit code is the command's.

    Processes that the command started end with it.
    """
    check_machine()
    return Lab.find(name).execute(command, host=host)


@app.command()
def status(
    name: Annotated[str | None, opt("--name", "Name of the lab; by default all.", "NAME")] = None,
) -> int:
    """List the running labs: hosts, links, racks, start time and processes."""
    check_machine()
    console = make_console()
    if name is not None:
        _print(Lab.find(name), console)
        return 0
    labs = find_all()
    if not labs:
        console.print("There is no emulated cluster; `commbench lab up` starts one.")
    for lab in labs:
        with contextlib.suppress(InputError):  # it ended a moment ago
            _print(lab, console)
    return 0


@app.command()
def link(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Whose link.")],
    state: Annotated[
        str,
        typer.Argument(
            metavar="down|up|RATE", help="down cuts it, up restores it, a rate changes it."
        ),
    ],
    name: Name = DEFAULT_NAME,
) -> int:
    """Cut a host's link, restore it, or change its rate, both ways, while the lab runs, to see how
    programs react.
    """
    check_machine()
    Lab.find(name).set_link(host, state)
    return 0


@app.command()
def down(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help=f"Which lab; by default {DEFAULT_NAME}.")
    ] = None,
    everything: Annotated[bool, opt("--all", "Remove all labs that `lab up` has started.")] = False,
) -> int:
    """Remove a lab and end all its processes; returns when it is gone."""
    check_machine()
    if everything and name is not None:
        raise InputError(f"The lab {name!r} and --all were both given; choose one of them.")
    if everything:
        labs = [lab for lab in find_all() if lab.stays]
    else:
        labs = [Lab.find(name or DEFAULT_NAME)]
    for lab in labs:
        lab.end()
        make_console().print(f"The emulated cluster {lab.name} has ended.")
    return 0


def _print(lab: Lab, console: Console) -> None:
    """Print a lab: its shape, and its hosts with their processes, one on each line."""
    plan, running = lab.plan, lab.running()
    end = "its command ends"
    if lab.stays:
        end = f"`commbench lab down {lab.name}`"
    title = (
        f"{lab.name}: {counted(len(plan.hosts), 'emulated host')}, process {lab.pid}, since"
        f" {lab.since:%Y-%m-%d %H:%M:%S} until {end}"
    )
    console.print(title, soft_wrap=True, style="bold")
    if plan.racks > 1:
        console.print(f"{plan.racks} racks with uplinks of {format_rate(plan.uplink_bps)}")
    table = Table(box=None, pad_edge=False)
    for column in ("host", "address", "rate", "rack", "slots", "runs"):
        table.add_column(column, overflow="fold")
    for host in plan.hosts:
        rate = "cut"
        if host.is_up:
            rate = format_rate(host.rate_bps)
        commands = []
        for process in running:
            if process.host == host.name:
                commands.append(f"{shlex.join(process.command)} ({process.pid})")
        facts = (host.name, host.address, rate, str(host.rack), str(host.slots))
        table.add_row(*facts, Text("\n".join(commands) or "nothing"))
    console.print(table)
