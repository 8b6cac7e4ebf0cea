"""Shared by scripts on real ranks: connect, report results to the test and exit."""

import json
import os
import sys
from typing import NoReturn

from commbench.backends import connect_control
from commbench.engine.control import Control


def connect() -> Control:
    """Return the control plane of all ranks that mpirun has started."""
    return connect_control("mpirun", int(os.environ["OMPI_COMM_WORLD_SIZE"]))


def report(results: object) -> None:
    """Print the results as one line of JSON; the test reads the last line."""
    sys.stdout.write("\n" + json.dumps(results) + "\n")
    sys.stdout.flush()


def report_and_exit(results: object, control: Control) -> NoReturn:
    """Report on rank 0, close the control plane and exit without the interpreter's shutdown."""
    if control.rank == 0:
        report(results)
    control.close()
    os._exit(0)
