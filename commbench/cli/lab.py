"""The commands of the emulated cluster: ``lab run``, ``up``, ``exec``, ``status``, ``link``,
``down``.
"""

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
    help=(
        "Emulate a cluster on this Linux machine.\n\n"
        "Network namespaces with links of a shaped rate; needs root."
    ),
    no_args_is_help=True,
)

Hosts = Annotated[
    int, typer.Option("--hosts", metavar="N", help=f"Hosts to emulate, at most {MAX_HOSTS}.")
]
Rate = Annotated[
    str, typer.Option("--rate", metavar="RATE", help=f"Rate of each host's link: {RATE_HINT}.")
]
RanksPerHost = Annotated[
    int, typer.Option("--ranks-per-host", metavar="N", help="Slots of each host.")
]
Slow = Annotated[
    list[str] | None,
    typer.Option(
        "--slow",
        metavar="HOST=RATE",
        help="A different rate for one host's link, both ways; may be repeated.",
    ),
]
Racks = Annotated[
    int,
    typer.Option(
        "--racks",
        metavar="K",
        help="Connect the hosts to K rack switches, in order, and the racks to a core switch.",
    ),
]
Uplink = Annotated[
    str | None,
    typer.Option(
        "--uplink",
        metavar="RATE",
        help="Rate of each rack's uplink, both ways; by default the rate of a host.",
    ),
]


Name = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the lab; several can run at once.")
]


@app.command(epilog=NOT_EMULATED)
def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="The command to run on the first host, after --."),
    ],
    hosts: Hosts = 2,
    rate: Rate = "1gbit",
    ranks_per_host: RanksPerHost = 1,
    slow: Slow = None,
    racks: Racks = 1,
    uplink: Uplink = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the lab; by default a new one."),
    ] = None,
) -> int:
    """Emulate a cluster, run a command on its first host, and remove the cluster.

    The exit code is the command's.
    """
    plan = LabPlan.parse(
        hosts, rate, ranks_per_host=ranks_per_host, slow=slow or (), racks=racks, uplink=uplink
    )
    return run_in_lab(plan, command, name)


@app.command(epilog=NOT_EMULATED)
def up(
    hosts: Hosts = 2,
    rate: Rate = "1gbit",
    ranks_per_host: RanksPerHost = 1,
    slow: Slow = None,
    racks: Racks = 1,
    uplink: Uplink = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What to call the lab.")
    ] = DEFAULT_NAME,
) -> int:
    """Start an emulated cluster that stays until `commbench lab down`, even after this terminal
    closes.
    """
    plan = LabPlan.parse(
        hosts, rate, ranks_per_host=ranks_per_host, slow=slow or (), racks=racks, uplink=uplink
    )
    lab = start_lab(plan, name)
    option, console = _option(lab), make_console()
    _print(lab, console)
    for use, purpose in (
        (f"exec{option} -- COMMAND", f"runs a command on {plan.hosts[0].name}, or on --host HOST"),
        (f"link{option} HOST down", "cuts a host's link; up restores it, a rate changes it"),
        (f"status{option}", "shows the hosts and their processes"),
        (f"down {name}", "ends everything"),
    ):
        console.print(f"  commbench lab {use}  {purpose}", markup=False, soft_wrap=True)
    console.print(NOT_EMULATED, soft_wrap=True)
    return 0


@app.command("exec")
def execute(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="The command to run on the host, after --."),
    ],
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="The host; by default the first.")
    ] = None,
    name: Name = DEFAULT_NAME,
) -> int:
    """Run a command on a host of a running lab, as `lab run` does; the exit code is the command's.

    Processes that the command started end with it.
    """
    check_machine()
    return Lab.find(name).execute(command, host=host)


@app.command()
def status(
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the lab; by default all.")
    ] = None,
) -> int:
    """List the running labs: hosts, links, racks, start time and processes."""
    check_machine()
    console = make_console()
    if name is not None:
        _print(Lab.find(name), console)
        return 0
    labs = find_all()
    if not labs:
        console.print("There is no emulated cluster; `commbench lab up` starts one.", markup=False)
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
    check_machine(shaped=state not in {"up", "down"})
    Lab.find(name).set_link(host, state)
    return 0


@app.command()
def down(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help=f"Which lab; by default {DEFAULT_NAME}.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all labs that `lab up` has started.")
    ] = False,
) -> int:
    """Remove a lab and end all its processes; returns when it is gone."""
    check_machine()
    if everything and name is not None:
        raise InputError(f"The lab {name!r} and --all were both given; choose one of them.")
    for lab in (
        [lab for lab in find_all() if lab.stays] if everything else [Lab.find(name or DEFAULT_NAME)]
    ):
        lab.end()
        make_console().print(f"The emulated cluster {lab.name} has ended.", markup=False)
    check_machine()  # also remains of earlier labs
    return 0


def _option(lab: Lab) -> str:
    return "" if lab.name == DEFAULT_NAME else f" --name {lab.name}"


def _print(lab: Lab, console: Console) -> None:
    """Print a lab: its shape, and its hosts with their processes, one on each line."""
    plan, running = lab.plan, lab.running()
    uplinks = (
        f", {plan.racks} racks with uplinks of {format_rate(plan.uplink_bps)}"
        if plan.racks > 1
        else ""
    )
    end = f"until `commbench lab down {lab.name}`" if lab.stays else "until its command ends"
    head = f"{lab.name}: {counted(len(plan.hosts), 'emulated host')}{uplinks}, process {lab.pid}, "
    console.print(
        f"{head}since {lab.since:%Y-%m-%d %H:%M:%S} {end}",
        markup=False,
        soft_wrap=True,
        style="bold",
    )
    table = Table(box=None, pad_edge=False)
    for column in ("host", "address", "rate", "rack", "slots", "runs"):
        table.add_column(column, overflow="fold")
    for host in plan.hosts:
        rate = format_rate(host.rate_bps) if host.is_up else "cut"
        commands = [
            f"{shlex.join(process.command)} ({process.pid})"
            for process in running
            if process.host == host.name
        ]
        facts = (host.name, host.address, rate, str(host.rack), str(host.slots))
        table.add_row(*facts, Text("\n".join(commands) or "nothing"))
    console.print(table)
