"""The commands of the emulated cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from commbench.lab import MAX_HOSTS, NOT_EMULATED, RATE_HINT, run_in_lab

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


@app.command(epilog=NOT_EMULATED)
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run on the first host, after --.")],
    hosts: Hosts = 2,
    rate: Rate = "1gbit",
    ranks_per_host: RanksPerHost = 1,
    slow: Slow = None,
    racks: Racks = 1,
    uplink: Uplink = None,
) -> int:
    """Run a command on the first of several emulated hosts; its exit code is this one's."""
    return run_in_lab(hosts, rate, command, ranks_per_host=ranks_per_host, slow=slow or (), racks=racks, uplink=uplink)
