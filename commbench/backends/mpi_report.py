"""Facts that an MPI library reports: the collective component of a communicator, and whether it takes GPU memory.

Open MPI prints the component when it makes a communicator. We catch that text before it reaches the terminal.
"""

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

#: The verbosity of Open MPI's collective components; if a person has set it, we leave it.
VERBOSE = "OMPI_MCA_coll_base_verbose"
#: A verbosity at which they open output streams; by this unusual value we recognise these streams.
_OPENING_LEVEL = 7
#: The verbosity at which they print which component a new communicator gets.
_SELECTION_LEVEL = 9
#: The numbers of all streams that Open MPI can have.
_STREAMS = range(64)
#: The variable with the file descriptor of their output, in place of stderr.
_CHANNEL = "OPAL_OUTPUT_STDERR_FD"
#: The lines that `_SELECTION_LEVEL` causes, as a regular expression for Python and for grep.
_ANSWER = r"^\[[^]]*\] (coll:|.*disqualifying myself)"
_ANSWER_LINE = re.compile(_ANSWER)
#: MPIX_GPU_SUPPORT_CUDA (MPICH's mpi.h).
_GPU_CUDA = 0


class Captured:
    """Text that was written to a file descriptor."""

    text = ""


@contextmanager
def captured(descriptor: int) -> Iterator[Captured]:
    """Collect the text that libraries write to a file descriptor, including text in C's buffers."""
    output, flush_c = Captured(), ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush_c(None)
    saved = os.dup(descriptor)
    with tempfile.TemporaryFile() as scratch:
        os.dup2(scratch.fileno(), descriptor)
        try:
            yield output
        finally:
            sys.stdout.flush()
            flush_c(None)
            os.dup2(saved, descriptor)
            os.close(saved)
            scratch.seek(0)
            output.text = scratch.read().decode(errors="replace")


class ComponentQuery:
    """Queries which collective component Open MPI gives a new communicator.

    The components are verbose only while a communicator is made: some would print for every operation, within the
    measured time. Their text never reaches stderr, which carries heartbeats and the reason of a process's end.

    Args:
        library: the MPI library; only Open MPI has the functions.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._streams: list[int] = []
        self._channel = -1

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Initialise MPI inside; text of its components that is not about selection is passed on to stderr.

        A grep process does that, because it outlives this process if MPI_Init ends this process.
        """
        if VERBOSE in os.environ or not self._can_be_quiet:
            yield
            return
        with subprocess.Popen(["grep", "--line-buffered", "-Ev", _ANSWER], stdin=subprocess.PIPE, stdout=2) as grep:
            assert grep.stdin is not None  # noqa: S101 - it is a pipe
            self._channel = os.dup(grep.stdin.fileno())
            os.environ |= {VERBOSE: str(_OPENING_LEVEL), _CHANNEL: str(self._channel)}
            try:
                yield
            finally:
                os.dup2(2, self._channel, inheritable=False)
                del os.environ[VERBOSE], os.environ[_CHANNEL]
        self._streams = [
            stream for stream in _STREAMS if self._library.opal_output_get_verbosity(stream) == _OPENING_LEVEL
        ]
        self._set_verbosity(0)

    def with_component(self, make: Callable[[], T]) -> tuple[T, str]:
        """Return a new communicator and the component that Open MPI prefers in it, empty if unknown."""
        if not self._streams:
            return make(), ""
        report = Captured()
        try:
            with captured(self._channel) as report:
                self._set_verbosity(_SELECTION_LEVEL)
                made = make()
        finally:
            self._set_verbosity(0)
            pass_on(report.text)
        return made, parse_component(report.text)

    @property
    def _can_be_quiet(self) -> bool:
        return all(hasattr(self._library, f"opal_output_{verb}_verbosity") for verb in ("get", "set"))

    def _set_verbosity(self, level: int) -> None:
        for stream in self._streams:
            self._library.opal_output_set_verbosity(stream, level)


def pass_on(report: str) -> None:
    """Write the lines of a report that are not about selection to stderr."""
    foreign = "".join(line for line in report.splitlines(keepends=True) if not _ANSWER_LINE.match(line))
    if foreign:
        os.write(2, foreign.encode(errors="replace"))


def parse_component(report: str) -> str:
    """Return the enabled component of the highest priority, e.g. ``han``; empty if the report names none."""
    enabled = re.findall(r"selecting\s+(\w+), priority\s+(\d+), Enabled", report)
    return max(enabled, key=lambda entry: int(entry[1]))[0] if enabled else ""


def algorithm_of(component: str, operation: str) -> str:
    """Return the component of a collective, e.g. ``coll/han``; empty if the preferred component may lack it."""
    return f"coll/{component}" if component in find_operation(operation).open_mpi_components else ""


def takes_gpu_memory(library: Any) -> bool:  # noqa: ANN401 - a ctypes library, of functions without types
    """Whether an initialised MPI library states that it accepts addresses in the memory of NVIDIA's GPUs.

    Open MPI and MPICH answer MPIX_Query_cuda_support, MPICH as MPIR_CVAR_ENABLE_GPU allows. Older versions of MPICH
    have MPIX_GPU_query_support only. A library with neither, or that denies, would read such an address as the host's.
    """
    query = getattr(library, "MPIX_Query_cuda_support", None)
    if query is not None:
        return bool(query())
    query, answer = getattr(library, "MPIX_GPU_query_support", None), ctypes.c_int()
    return query is not None and query(_GPU_CUDA, ctypes.byref(answer)) == 0 and bool(answer.value)
