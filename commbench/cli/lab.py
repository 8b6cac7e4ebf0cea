"""The commands of the emulated cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from commbench.lab import MAX_HOSTS, NOT_EMULATED, RATE_HINT, run_in_lab

app = typer.Typer(
    help="Emulate a cluster on this Linux machine: network namespaces with links of a shaped rate; needs root.",
    no_args_is_help=True,
)


@app.command(epilog=NOT_EMULATED)
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run on the first host, after --.")],
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", help=f"Hosts to emulate, at most {MAX_HOSTS}.")] = 2,
    rate: Annotated[
        str, typer.Option("--rate", metavar="RATE", help=f"Rate of each host's link: {RATE_HINT}.")
    ] = "1gbit",
    ranks_per_host: Annotated[
        int, typer.Option("--ranks-per-host", metavar="N", help="Slots of each host in the hostfile.")
    ] = 1,
) -> int:
    """Run a command on the first of several emulated hosts; its exit code is this one's."""
    return run_in_lab(hosts, rate, command, ranks_per_host=ranks_per_host)
