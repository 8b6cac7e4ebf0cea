"""``python -m commbench.lab run --hosts 2 --rate 1gbit -- COMMAND``: an emulated cluster without the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from commbench.errors import CommbenchError
from commbench.lab import MAX_HOSTS, NOT_EMULATED, RATE_HINT, run_in_lab


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command in a lab; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m commbench.lab", epilog=NOT_EMULATED)
    run = parser.add_subparsers(required=True).add_parser("run", epilog=NOT_EMULATED)
    run.add_argument("--hosts", type=int, default=2, help=f"How many hosts to emulate, at most {MAX_HOSTS}.")
    run.add_argument("--rate", default="1gbit", help=f"The rate of each host's link: {RATE_HINT}.")
    run.add_argument("--ranks-per-host", type=int, default=1, help="Slots of each host in the hostfile.")
    run.add_argument("command", nargs="+", help="The program to run on the first host, after --.")
    given = parser.parse_args(arguments)
    try:
        return run_in_lab(given.hosts, given.rate, given.command, ranks_per_host=given.ranks_per_host)
    except CommbenchError as error:
        sys.stderr.write(f"commbench: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
