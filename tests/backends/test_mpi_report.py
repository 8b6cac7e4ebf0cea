"""Tests of Open MPI's verbose output: the component is read from it, and other output is passed
on.
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from launching import finished
from places import HERE

from commbench.backends.mpi_report import (
    VERBOSE,
    ComponentQuery,
    captured,
    parse_component,
    takes_gpu_memory,
)

REPORT = """\
[n0:12] coll:base:comm_select: new communicator: MPI COMM 3 DUP FROM 0 (cid 3)
[n0:12] (3/MPI COMM 3 DUP FROM 0): no underlying reduce; disqualifying myself
[n0:12] coll:base:comm_select: selecting       adapt, priority  40, Disabled
[n0:12] coll:base:comm_select: selecting       basic, priority  10, Enabled
[n0:12] coll:base:comm_select: selecting         han, priority  35, Enabled
[n0:12] coll:base:comm_select: selecting       tuned, priority  30, Enabled
"""


def answer_with(answer: Any, value: int, code: int = 0) -> int:
    """Write the value through a pointer, as MPICH does, and return a code."""
    answer._obj.value = value
    return code


def test_the_preferred_component_is_the_enabled_one_of_highest_priority():
    """Parse the report of Open MPI 5, and return nothing for other text."""
    assert "han" == parse_component(REPORT)
    assert "" == parse_component("something else")


class FakeOpenMpi:
    """Simulates Open MPI's output streams and verbosity levels."""

    def __init__(self) -> None:
        self.levels = {3: 30}
        self.channel = 2

    def start(self) -> None:
        """Open a stream at the level set in the environment, as MPI_Init does."""
        if VERBOSE in os.environ:
            self.levels[5] = int(os.environ[VERBOSE])
            self.channel = int(os.environ.get("OPAL_OUTPUT_STDERR_FD", "2"))
        self.make()

    def make(self) -> str:
        """Create a communicator."""
        if self.levels.get(5):
            os.write(self.channel, REPORT.encode())
        os.write(self.channel, b"a warning\n")
        return "made"

    def opal_output_get_verbosity(self, stream: int) -> int:
        """Return the level of a stream."""
        return self.levels.get(stream, -1)

    def opal_output_set_verbosity(self, stream: int, level: int) -> None:
        """Set the level of a stream."""
        self.levels[stream] = level


@pytest.fixture
def library(monkeypatch):
    """Return Open MPI before its start, without verbosity in the environment."""
    monkeypatch.delenv(VERBOSE, raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    return FakeOpenMpi()


def test_other_words_are_passed_on(library):
    """Remove only the requested report from stderr."""
    inquiry = ComponentQuery(library)
    with captured(2) as captured_stderr:
        with inquiry.starting():
            library.start()
        assert ("made", "han") == inquiry.with_component(library.make)
    assert 2 * "a warning\n" == captured_stderr.text


def test_stderr_stays_free(library):
    """Write heartbeats to stderr at once, also during MPI's start and the creation of a
    communicator.
    """
    inquiry = ComponentQuery(library)
    for around in (inquiry.starting, lambda: captured(inquiry._channel)):
        with captured(2) as captured_stderr:
            reader = os.dup(2)
            with around():
                library.start()
                os.write(2, b"@commbench heartbeat\n")
                assert b"@commbench heartbeat\n" in os.pread(reader, 1000, 0)
            os.close(reader)
        assert "@commbench heartbeat\n" in captured_stderr.text


def test_components_are_quiet_but_while_a_communicator_is_made(library):
    """Lower the component's verbosity after a communicator is created, also after an error."""
    inquiry = ComponentQuery(library)
    with captured(2), inquiry.starting():
        library.start()
    assert {3: 30, 5: 0} == library.levels

    def fail() -> None:
        library.make()
        raise ValueError(library.levels[5])

    with captured(2) as captured_stderr, pytest.raises(ValueError, match="9"):
        inquiry.with_component(fail)
    assert {3: 30, 5: 0} == library.levels
    assert "a warning\n" == captured_stderr.text


def test_a_person_s_own_question_is_left_alone(library, monkeypatch):
    """Change nothing if the person set Open MPI's verbosity."""
    monkeypatch.setenv(VERBOSE, "100")
    inquiry = ComponentQuery(library)
    with captured(2) as captured_stderr:
        with inquiry.starting():
            library.start()
        assert ("made", "") == inquiry.with_component(library.make)
    assert 2 * f"{REPORT}a warning\n" == captured_stderr.text


@pytest.mark.parametrize(("queried", "rank"), [(object(), "0"), (FakeOpenMpi(), "1")])
def test_other_libraries_and_other_ranks_are_asked_nothing(monkeypatch, queried, rank):
    """Set no variable for a library without these functions, nor on a rank other than 0."""
    monkeypatch.delenv(VERBOSE, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    inquiry = ComponentQuery(queried)
    with inquiry.starting():
        assert VERBOSE not in os.environ
    assert ("made", "") == inquiry.with_component(lambda: "made")


DYING = """
import os
from test_mpi_report import FakeOpenMpi, ComponentQuery
library = FakeOpenMpi()
with ComponentQuery(library).starting():
    library.start()
    os.write(library.channel, b"no such fabric")
    os.kill(os.getpid(), 9)
"""


def test_last_words_of_a_start_survive_the_process(monkeypatch):
    """Pass on output written before MPI_Init killed the process, also an unfinished line."""
    monkeypatch.delenv(VERBOSE, raising=False)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
    }
    done = finished(sys.executable, "-c", DYING, env=environment)
    assert -9 == done.returncode
    assert "a warning\nno such fabric" == done.stderr.strip()


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        (SimpleNamespace(), False),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 1), True),
        (
            SimpleNamespace(
                MPIX_Query_cuda_support=lambda: 0, MPIX_GPU_query_support=lambda *_: 1 / 0
            ),
            False,
        ),
        (
            SimpleNamespace(
                MPIX_GPU_query_support=lambda kind, answer: answer_with(answer, int(kind == 0))
            ),
            True,
        ),
        (SimpleNamespace(MPIX_GPU_query_support=lambda _, answer: answer_with(answer, 0)), False),
        (
            SimpleNamespace(
                MPIX_GPU_query_support=lambda _, answer: answer_with(answer, 1, code=3)
            ),
            False,
        ),
    ],
)
def test_gpu_memory_needs_a_positive_answer_of_the_library(library, expected):
    """Query Open MPI's function, else MPICH's older one; without an answer return False."""
    assert expected is takes_gpu_memory(library)
