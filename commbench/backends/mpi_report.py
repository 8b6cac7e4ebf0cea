"""What an MPI library says of itself: Open MPI when it makes a communicator, caught before it reaches the terminal."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from commbench.collectives.operations import find_operation

T = TypeVar("T")

#: How much Open MPI's collective components say; where a person has asked, all is left to her.
VERBOSE = "OMPI_MCA_coll_base_verbose"
#: Lets them open streams for their words, and is so odd that the streams are known by it.
_OPENING = 7
#: Lets them say which of them a new communicator gets.
_ASKING = 9
#: It never has more streams than these.
_STREAMS = range(64)
#: Where it writes what its components say, instead of stderr.
_CHANNEL = "OPAL_OUTPUT_STDERR_FD"
#: How an answer to our question looks, to Python and to grep alike.
_ANSWER = r"^\[[^]]*\] (coll:|.*disqualifying myself)"
_OURS = re.compile(_ANSWER)
#: MPIX_GPU_SUPPORT_CUDA (MPICH's mpi.h).
_GPU_CUDA = 0


class Captured:
    """What was written."""

    text = ""


@contextmanager
def captured(descriptor: int) -> Iterator[Captured]:
    """Collect what libraries write to a file descriptor, also what C keeps in buffers, as it does but on terminals."""
    found, flush_c = Captured(), ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush_c(None)
    saved = os.dup(descriptor)
    with tempfile.TemporaryFile() as scratch:
        os.dup2(scratch.fileno(), descriptor)
        try:
            yield found
        finally:
            sys.stdout.flush()
            flush_c(None)
            os.dup2(saved, descriptor)
            os.close(saved)
            scratch.seek(0)
            found.text = scratch.read().decode(errors="replace")


class Inquiry:
    """Asks Open MPI which collective component a new communicator gets, and nothing at other times.

    Components asked so also tell of operations, some of each one, within the time that is measured.
    What they say never comes by stderr, which stays free for heartbeats and for the reason of a process's end.

    Args:
        library: has Open MPI's functions, where it is Open MPI.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._streams: list[int] = []
        self._channel = -1

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Initialise MPI inside; what its components say that is no answer of ours is passed on, whatever happens.

        That is done by a process of its own, which outlives this one where MPI_Init ends it.
        """
        if VERBOSE in os.environ or not self._can_be_quiet:
            yield
            return
        with subprocess.Popen(["grep", "--line-buffered", "-Ev", _ANSWER], stdin=subprocess.PIPE, stdout=2) as rest:
            assert rest.stdin is not None  # noqa: S101 - it is a pipe
            self._channel = os.dup(rest.stdin.fileno())
            os.environ |= {VERBOSE: str(_OPENING), _CHANNEL: str(self._channel)}
            try:
                yield
            finally:
                os.dup2(2, self._channel, inheritable=False)
                del os.environ[VERBOSE], os.environ[_CHANNEL]
        self._streams = [stream for stream in _STREAMS if self._library.opal_output_get_verbosity(stream) == _OPENING]
        self._say(0)

    def with_component(self, make: Callable[[], T]) -> tuple[T, str]:
        """Make a communicator: it, and the component that Open MPI prefers in it, empty where it does not say."""
        if not self._streams:
            return make(), ""
        report = Captured()
        try:
            with captured(self._channel) as report:
                self._say(_ASKING)
                made = make()
        finally:
            self._say(0)
            pass_on(report.text)
        return made, parse_component(report.text)

    @property
    def _can_be_quiet(self) -> bool:
        return all(hasattr(self._library, f"opal_output_{verb}_verbosity") for verb in ("get", "set"))

    def _say(self, level: int) -> None:
        for stream in self._streams:
            self._library.opal_output_set_verbosity(stream, level)


def pass_on(report: str) -> None:
    """Write what is not an answer to our question to stderr."""
    foreign = "".join(line for line in report.splitlines(keepends=True) if not _OURS.match(line))
    if foreign:
        os.write(2, foreign.encode(errors="replace"))


def parse_component(report: str) -> str:
    """The enabled component of the highest priority, e.g. ``han``; empty where the report names none."""
    enabled = re.findall(r"selecting\s+(\w+), priority\s+(\d+), Enabled", report)
    return max(enabled, key=lambda found: int(found[1]))[0] if enabled else ""


def algorithm_of(component: str, operation: str) -> str:
    """What carries a collective, e.g. ``coll/han``; empty where the preferred component may not have it."""
    return f"coll/{component}" if component in find_operation(operation).open_mpi_components else ""


def takes_gpu_memory(library: Any) -> bool:  # noqa: ANN401 - a ctypes library, of functions without types
    """Whether an initialised MPI library says that it takes addresses in the memory of NVIDIA's GPUs.

    Open MPI and MPICH answer MPIX_Query_cuda_support, MPICH by what MPIR_CVAR_ENABLE_GPU allows; older ones of MPICH
    have MPIX_GPU_query_support alone. What has neither, or says no, would read such an address as the host's.
    """
    query = getattr(library, "MPIX_Query_cuda_support", None)
    if query is not None:
        return bool(query())
    query, answer = getattr(library, "MPIX_GPU_query_support", None), ctypes.c_int()
    return query is not None and query(_GPU_CUDA, ctypes.byref(answer)) == 0 and bool(answer.value)
