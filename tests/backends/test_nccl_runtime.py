"""Tests of NCCL's log during operations, on a simulated library whose log can be reset."""

import os
import tempfile
from pathlib import Path

import pytest

from commbench.backends.nccl_library import (
    NcclLog,
    set_defaults,
    variables_set,
    version_text,
)

CHANNEL = "x NCCL INFO Channel 00/0 : 0[0] -> 1[0] via {}\n"
CHOSEN = "x NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}\n"


class Library:
    """Simulates NCCL's log file; exports the reset function under the names in ``resets``."""

    def __init__(self, *resets: str) -> None:
        for name in resets:
            setattr(self, name, self.begin_again)
        self._file = None
        self._subsystems = set()

    def begin_again(self) -> None:
        """Read the variables again before the next line."""
        self._file = None

    def say(self, subsystem: str, line: str) -> None:
        """Write a line if the variables enable its subsystem.

        Truncate a reopened file, as fopen(.., "w") does.
        """
        if self._file is None:
            self._file = Path(os.environ["NCCL_DEBUG_FILE"])
            self._subsystems = set(os.environ["NCCL_DEBUG_SUBSYS"].split(","))
            self._file.write_text("")
        if subsystem in self._subsystems:
            with self._file.open("a") as file:
                file.write(line)


pytestmark = pytest.mark.usefixtures("without_nccl_variables")


@pytest.fixture
def library(monkeypatch, stub, tmp_path):
    """Return a loaded library, with NCCL's variables removed."""
    simulated = Library("ncclResetDebugInit")
    stub("commbench.backends.nccl_library.loaded_library", simulated)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return simulated


def test_operations_are_logged_only_around_untimed_calls(library, tmp_path):
    """Log only around untimed calls, keep every transport and setting, and remove the file."""
    log = NcclLog()
    log.enable()
    library.say("INIT", CHANNEL.format("SHM/direct"))
    library.say("ENV", "x NCCL INFO NCCL_ALGO set by environment to Ring\n")
    assert "SHM/direct" == log.transport()
    with log.recording() as algorithms:
        library.say("INIT", CHANNEL.format("NET/Socket/0"))
        library.say("ENV", "x NCCL INFO NCCL_PROTO set by environment to LL.\n")
        library.say("TUNING", CHOSEN)
    assert {"all_reduce": "tree/ll/2ch"} == algorithms
    library.say("TUNING", CHOSEN)
    assert "" == Path(os.environ["NCCL_DEBUG_FILE"]).read_text()
    assert "NET/Socket+SHM/direct" == log.transport()
    with log.recording() as algorithms:
        pass
    assert {} == algorithms
    log.remove()
    assert [] == list(tmp_path.iterdir())
    assert {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"} == log.settings()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("beside", [{}, {"ncclResetDebugInit": lambda: None}])
def test_newer_libraries_are_reset_by_the_newer_function(beside, stub):
    """Use the newer reset function, alone or beside the older one."""
    newer = Library("ncclResetDebugInitInternal")
    vars(newer).update(beside)
    stub("commbench.backends.nccl_library.loaded_library", newer)
    log = NcclLog()
    log.enable()
    newer.say("INIT", CHANNEL.format("SHM/direct"))
    with log.recording() as algorithms:
        newer.say("TUNING", CHOSEN)
    assert {"all_reduce": "tree/ll/2ch"} == algorithms


def test_a_log_of_somebody_else_is_left_alone(library, tmp_path):
    """Keep the variables and the log file of a person who logs NCCL."""
    log_file = tmp_path / "mine.log"
    settings = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_FILE": str(log_file)}
    os.environ.update(settings)
    log = NcclLog()
    log.enable()
    with log.recording() as algorithms:
        library.say("ALL", CHANNEL.format("P2P/CUMEM"))
    log.remove()
    assert ({}, "P2P/CUMEM") == (algorithms, log.transport())
    assert settings == {name: os.environ[name] for name in settings}
    assert log_file.exists()


def test_a_library_that_cannot_begin_again_is_not_asked(library, stub):
    """Read no algorithm from a library before 2.24 or one not loaded."""
    stub("commbench.backends.nccl_library.loaded_library", None)
    log = NcclLog()
    log.enable()
    before = os.environ["NCCL_DEBUG_FILE"]
    library.say("INIT", CHANNEL.format("NVLS"))
    with log.recording() as algorithms:
        library.say("TUNING", CHOSEN)
    assert ({}, before) == (algorithms, os.environ["NCCL_DEBUG_FILE"])


def test_variables_are_put_back(monkeypatch):
    """Set variables temporarily, and restore them after an error too."""
    monkeypatch.setenv("NCCL_ALGO", "ring")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    values = []

    def fail() -> None:
        with variables_set({"NCCL_ALGO": "tree", "NCCL_PROTO": "ll"}):
            values.extend([os.environ["NCCL_ALGO"], os.environ["NCCL_PROTO"]])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ["tree", "ll"] == values
    assert "ring" == os.environ["NCCL_ALGO"]
    assert os.environ.get("NCCL_PROTO") is None
    set_defaults({"NCCL_ALGO": "tree"})
    assert "ring" == os.environ["NCCL_ALGO"]


@pytest.mark.parametrize(
    ("number", "text"), [(22809, "2.28.9"), (23007, "2.30.7"), (21805, "2.18.5")]
)
def test_versions_are_read(number, text):
    """Format NCCL's version numbers."""
    assert text == version_text(number)
