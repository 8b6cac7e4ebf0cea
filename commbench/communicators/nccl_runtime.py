"""NCCL as it is loaded into this process: its version, its log, and what its variables are while something is made."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from commbench.communicators.nccl_log import algorithms_in, duplicates_in, transports_in

_MAPS = Path("/proc/self/maps")
_OWN_LOG = "commbench-nccl-"
#: What has NCCL read the settings of its log again; newer versions know both names, and are to drop the second.
_RESETS = ("ncclResetDebugInitInternal", "ncclResetDebugInit")


def loaded_library() -> ctypes.CDLL | None:
    """The library that this process has loaded, be it torch's or cupy's; None where it has loaded none, or several.

    Of several it is not known whose is whose, and all write to the same log.
    """
    maps = _MAPS.read_text(errors="replace") if _MAPS.is_file() else ""
    found = set(re.findall(r"\s(/\S*libnccl\.so\S*)", maps))
    return ctypes.CDLL(found.pop()) if len(found) == 1 else None


def loaded_version() -> str:
    """E.g. ``NCCL 2.28.9``: of what is loaded, not of what torch was built with; ``NCCL`` where it cannot be asked."""
    library, number = loaded_library(), ctypes.c_int()
    if library is None or library.ncclGetVersion(ctypes.byref(number)):
        return "NCCL"
    return f"NCCL {version_text(number.value)}"


def version_text(number: int) -> str:
    """NCCL's version number as people write it: 22809 is 2.28.9, and before 2.9 it was 2708 for 2.7.8."""
    major, rest = divmod(number, 10_000) if number >= 10_000 else divmod(number, 1000)  # noqa: PLR2004 - NCCL's rule
    return f"{major}.{rest // 100}.{rest % 100}"


def set_missing(variables: Mapping[str, str]) -> None:
    """Set variables that nobody has set."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Other values of variables while a communicator is made: it reads some of them then, and only then."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class NcclLog:
    """What NCCL logs in this process, into files of ours; where somebody else has it log, that is left alone.

    By itself it is asked for what it says when ranks connect. What it says of every operation costs time: that is
    asked for only around calls that are not timed, which NCCL allows since 2.24 (`_RESETS`). Each time it begins a file
    anew, so that each gets a name of its own.
    """

    def __init__(self) -> None:
        self._files = 0
        self._transports: set[str] = set()

    def ask(self) -> None:
        """Have it log, before it reads its settings."""
        if "NCCL_DEBUG" not in os.environ:
            os.environ["NCCL_DEBUG"] = "INFO"
            self._begin("INIT")

    def transport(self) -> str:
        """What this rank's channels go by, e.g. ``NET/Socket``; empty where that is not known."""
        self._take_in()
        return "+".join(sorted(self._transports))

    def duplicates(self) -> tuple[int, int] | None:
        """See `duplicates_in`."""
        return duplicates_in(self._take_in())

    @contextmanager
    def hearing(self) -> Iterator[dict[str, str]]:
        """Hear, in the end, what carried the operations inside: `algorithms_in`; nothing where that is not possible."""
        heard: dict[str, str] = {}
        library = loaded_library() if self._is_own else None
        reset = next((getattr(library, name) for name in _RESETS if hasattr(library, name)), None)
        if reset is None:
            yield heard
            return
        self._begin("INIT,TUNING")
        reset()
        try:
            yield heard
        finally:
            heard |= algorithms_in(self._take_in())
            self._begin("INIT")
            reset()

    def remove(self) -> None:
        """Take in what is there, and remove the file."""
        if self._is_own:
            self._take_in()
            self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return Path(os.environ.get("NCCL_DEBUG_FILE", ""))

    @property
    def _is_own(self) -> bool:
        return self._path.name.startswith(_OWN_LOG)

    def _begin(self, subsystems: str) -> None:
        """Go on in a new file."""
        self.remove()
        self._files += 1
        name = f"{_OWN_LOG}{os.getpid()}-{self._files}.log"
        os.environ["NCCL_DEBUG_SUBSYS"] = subsystems
        os.environ["NCCL_DEBUG_FILE"] = str(Path(tempfile.gettempdir()) / name)

    def _take_in(self) -> str:
        """The text of the present file, whose transports are kept."""
        text = self._path.read_text(errors="replace") if self._path.is_file() else ""
        self._transports.update(transports_in(text))
        return text


#: This process's.
LOG = NcclLog()
