"""Reports of an MPI library: the collective component of a communicator, and whether it accepts GPU
memory.

Open MPI prints the component when it creates a communicator. We capture that text before it reaches
the terminal.
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

T = TypeVar("T")

#: The variable with the verbosity of Open MPI's collective components; if it is set already, we
#: leave it unchanged.
VERBOSE = "OMPI_MCA_coll_base_verbose"
#: The variable in which Open MPI's launchers tell a process its rank.
_RANK = "OMPI_COMM_WORLD_RANK"
#: A verbosity at which the components open output streams; its unusual value identifies these
#: streams.
_OPENING_LEVEL = 7
#: The verbosity at which Open MPI prints the component of a new communicator.
_SELECTION_LEVEL = 9
#: The numbers of all streams that Open MPI can have.
_STREAMS = range(64)
#: The variable with the file descriptor of the streams' output, in place of stderr.
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
    """Finds the collective component that Open MPI selects for a new communicator.

    The components are verbose only while a communicator is created: some would print for every
    operation, within the measured time. Their text never reaches stderr, which carries heartbeats
    and the reason why a process ended.

    Args:
        library: the MPI library; only Open MPI has the functions.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._streams: list[int] = []
        self._channel = -1

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Capture the components' text while MPI is initialised inside, and forward other text to
        stderr.

        A grep process forwards it, because grep survives if MPI_Init ends this process. Ranks
        other than 0, whose components nobody records, start without.
        """
        is_first = os.environ.get(_RANK, "0") == "0"
        can_be_quiet = hasattr(self._library, "opal_output_set_verbosity")
        if VERBOSE in os.environ or not is_first or not can_be_quiet:
            yield
            return
        with subprocess.Popen(
            ["grep", "--line-buffered", "-Ev", _ANSWER], stdin=subprocess.PIPE, stdout=2
        ) as grep:
            assert grep.stdin is not None  # noqa: S101 - it is a pipe
            self._channel = os.dup(grep.stdin.fileno())
            os.environ |= {VERBOSE: str(_OPENING_LEVEL), _CHANNEL: str(self._channel)}
            try:
                yield
            finally:
                os.dup2(2, self._channel, inheritable=False)
                del os.environ[VERBOSE], os.environ[_CHANNEL]
        level_of = self._library.opal_output_get_verbosity
        self._streams = [stream for stream in _STREAMS if level_of(stream) == _OPENING_LEVEL]
        self._set_verbosity(0)

    def with_component(self, make: Callable[[], T]) -> tuple[T, str]:
        """Create a communicator.

        Return it and the component that Open MPI prefers for it, empty if unknown.
        """
        if not self._streams:
            return make(), ""
        report = Captured()
        try:
            with captured(self._channel) as report:
                self._set_verbosity(_SELECTION_LEVEL)
                communicator = make()
        finally:
            self._set_verbosity(0)
            pass_on(report.text)
        return communicator, parse_component(report.text)

    def _set_verbosity(self, level: int) -> None:
        for stream in self._streams:
            self._library.opal_output_set_verbosity(stream, level)


def pass_on(report: str) -> None:
    """Write the lines of a report that do not concern selection to stderr."""
    other_lines = "".join(
        line for line in report.splitlines(keepends=True) if not _ANSWER_LINE.match(line)
    )
    if other_lines:
        os.write(2, other_lines.encode(errors="replace"))


def parse_component(report: str) -> str:
    """Return the enabled component of the highest priority, e.g.

    ``han``; empty if the report names none.
    """
    enabled = re.findall(r"selecting\s+(\w+), priority\s+(\d+), Enabled", report)
    return max(enabled, key=lambda entry: int(entry[1]))[0] if enabled else ""


def takes_gpu_memory(
    library: Any,
) -> bool:
    """Return whether an initialised MPI library reports that it accepts addresses in the memory of
    NVIDIA's GPUs.

    Open MPI and MPICH have MPIX_Query_cuda_support; MPICH's result depends on MPIR_CVAR_ENABLE_GPU.
    Older versions of MPICH have only MPIX_GPU_query_support. A library with neither function counts
    as one that denies: it would use such an address as one in host memory.
    """
    query = getattr(library, "MPIX_Query_cuda_support", None)
    if query is not None:
        return bool(query())
    query, answer = getattr(library, "MPIX_GPU_query_support", None), ctypes.c_int()
    return query is not None and query(_GPU_CUDA, ctypes.byref(answer)) == 0 and bool(answer.value)
