"""Tests of NCCL's log while operations run, on a library that writes as NCCL does when it is told to begin again."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commbench.backends import nccl_library as nccl_runtime
from commbench.backends.nccl_library import NcclLog, loaded_library, set_defaults, variables_set, version_text

CHANNEL = "x NCCL INFO Channel 00/0 : 0[0] -> 1[0] via {}\n"
CHOSEN = "x NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}\n"


class Library:
    """NCCL as far as its log goes: it opens the file of its variables when it first has something to say.

    Args:
        resets: under which names it exports what has it begin again.
    """

    def __init__(self, *resets: str) -> None:
        for name in resets:
            setattr(self, name, self.begin_again)
        self._file: Path | None = None
        self._subsystems: set[str] = set()

    def begin_again(self) -> None:
        """Read the variables again when there is something to say."""
        self._file = None

    def say(self, subsystem: str, line: str) -> None:
        """Write where and if the variables say so; a file is begun again, as by fopen(.., "w")."""
        if self._file is None:
            self._file = Path(os.environ["NCCL_DEBUG_FILE"])
            self._subsystems = set(os.environ["NCCL_DEBUG_SUBSYS"].split(","))
            self._file.write_text("")
        if subsystem in self._subsystems:
            with self._file.open("a") as file:
                file.write(line)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Library]:
    """A loaded library, and no variables of NCCL but ours."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        del os.environ[name]
    found = Library("ncclResetDebugInit")
    monkeypatch.setattr(nccl_runtime, "loaded_library", lambda: found)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield found
    os.environ.clear()
    os.environ.update(before)


def test_operations_are_logged_only_around_untimed_calls(library: Library, tmp_path: Path) -> None:
    """Read the algorithm, keep every transport, and leave no file behind."""
    log = NcclLog()
    log.enable()
    library.say("INIT", CHANNEL.format("SHM/direct"))
    assert "SHM/direct" == log.transport()
    with log.recording() as heard:
        library.say("INIT", CHANNEL.format("NET/Socket/0"))
        library.say("TUNING", CHOSEN)
    assert {"all_reduce": "tree/ll/2ch"} == heard
    library.say("TUNING", CHOSEN)
    assert "" == Path(os.environ["NCCL_DEBUG_FILE"]).read_text()
    assert "NET/Socket+SHM/direct" == log.transport()
    with log.recording() as heard:
        pass
    assert {} == heard
    log.remove()
    assert [] == list(tmp_path.iterdir())


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("beside", [{}, {"ncclResetDebugInit": lambda: None}])
def test_newer_libraries_are_reset_by_the_newer_function(
    beside: dict[str, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Support the newer name alone, or beside an old function without effect."""
    newer = Library("ncclResetDebugInitInternal")
    vars(newer).update(beside)
    monkeypatch.setattr(nccl_runtime, "loaded_library", lambda: newer)
    log = NcclLog()
    log.enable()
    newer.say("INIT", CHANNEL.format("SHM/direct"))
    with log.recording() as heard:
        newer.say("TUNING", CHOSEN)
    assert {"all_reduce": "tree/ll/2ch"} == heard


def test_a_log_of_somebody_else_is_left_alone(library: Library, tmp_path: Path) -> None:
    """Change no variable of a person who has NCCL log, and remove nothing."""
    theirs = tmp_path / "mine.log"
    asked = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_FILE": str(theirs)}
    os.environ.update(asked)
    log = NcclLog()
    log.enable()
    with log.recording() as heard:
        library.say("ALL", CHANNEL.format("P2P/CUMEM"))
    log.remove()
    assert ({}, "P2P/CUMEM") == (heard, log.transport())
    assert asked == {name: os.environ[name] for name in asked}
    assert theirs.exists()


def test_a_library_that_cannot_begin_again_is_not_asked(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hear nothing from what is older than 2.24, or not loaded."""
    monkeypatch.setattr(nccl_runtime, "loaded_library", lambda: None)
    log = NcclLog()
    log.enable()
    before = os.environ["NCCL_DEBUG_FILE"]
    library.say("INIT", CHANNEL.format("NVLS"))
    with log.recording() as heard:
        library.say("TUNING", CHOSEN)
    assert ({}, before) == (heard, os.environ["NCCL_DEBUG_FILE"])


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set them for a while, and leave them as they were, also after an error."""
    monkeypatch.setenv("NCCL_ALGO", "ring")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    seen = []

    def fail() -> None:
        with variables_set({"NCCL_ALGO": "tree", "NCCL_PROTO": "ll"}):
            seen.extend([os.environ["NCCL_ALGO"], os.environ["NCCL_PROTO"]])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ["tree", "ll"] == seen
    assert ("ring", None) == (os.environ["NCCL_ALGO"], os.environ.get("NCCL_PROTO"))
    set_defaults({"NCCL_ALGO": "tree"})
    assert "ring" == os.environ["NCCL_ALGO"]


@pytest.mark.parametrize(("number", "text"), [(22809, "2.28.9"), (23007, "2.30.7"), (2708, "2.7.8"), (21805, "2.18.5")])
def test_versions_are_read(number: int, text: str) -> None:
    """Read both of NCCL's ways to number its versions."""
    assert text == version_text(number)


def test_of_several_libraries_none_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take the one library that is loaded, however many of its segments are mapped, and none of two."""
    loadable = re.search(r"(/\S*libc\.so\S*)", Path("/proc/self/maps").read_text())
    assert loadable
    maps, libraries = tmp_path / "maps", [tmp_path / name / "libnccl.so.2" for name in ("torch", "cupy")]
    for path in libraries:
        path.parent.mkdir()
        path.symlink_to(loadable[1])
    monkeypatch.setattr(nccl_runtime, "_MAPS", maps)
    found = []
    for number in range(3):
        maps.write_text("".join(f"7f00-7f01 r-xp 00000000 08:01 42    {path}\n" * 2 for path in libraries[:number]))
        found.append(loaded_library() is not None)
    assert [False, True, False] == found
