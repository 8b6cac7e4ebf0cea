"""Shared by the cupy and torch NCCL backends: version, variables, log parsing, event timing."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from commbench.collectives.algorithms import COPY, SYMMETRIC, Choice
from commbench.collectives.operations import OPERATIONS
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.timing.device import DeviceClock, EventTimer
from commbench.engine.timing.loops import Progress, Timer
from commbench.engine.timing.sync import Synchroniser, SyncPlan

#: E.g. ``Channel 00/02 : 0[0] -> 1[1] via P2P/CUMEM``; of a network the kind and the adapter's number follow.
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : .* via (?P<how>(?:P2P|SHM|NET)(?:/[A-Za-z]+)?)")
#: E.g. ``AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}``, since 2.24 on the first rank only.
_CHOSEN = re.compile(
    r"(?P<name>\w+)(?: \[[\w ]+\])?: \d+ Bytes -> "
    r"(?:Algo (?P<algorithm>\w+) proto (?P<protocol>\w+) channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}"
    r"|Kernel (?P<kernel>\w+)|(?P<copy>cudaMemcpy|.*RMA proxy))"
)
#: Its names of the operations that it logs.
_OPERATIONS = {
    "".join(map(str.capitalize, name.split("_"))): name
    for name, entry in OPERATIONS.items()
    if entry.has_nccl_algorithms
}
_DUPLICATE = re.compile(r"Duplicate GPU detected : rank (\d+) and rank (\d+) both on CUDA device")


def transports_in(log: str) -> list[str]:
    """What carries this rank's channels, e.g. ``NET/Socket``, ``SHM/direct``, ``P2P/CUMEM``; each once, sorted.

    Read from the lines that NCCL writes with ``NCCL_DEBUG=INFO`` and ``NCCL_DEBUG_SUBSYS=INIT`` when ranks connect
    (NCCL 2.28: transport/net.cc, shm.cc, p2p.cc). They do not say in which communicator. What it says there of NVLS is
    what the GPUs could do.
    """
    return sorted({match["how"] for match in _CHANNEL.finditer(log)})


def algorithms_in(log: str) -> dict[str, str]:
    """How each operation was carried last, e.g. ``{"all_reduce": "ring/ll/2ch"}``; those alone that the log tells.

    Read from the lines that NCCL writes with ``NCCL_DEBUG_SUBSYS=TUNING`` (NCCL 2.28: enqueue.cc). Kernels on
    symmetric memory are told by name, ``symmetric/allreduce_agxll_r``, and GPUs' copy engines as ``copy``.
    """
    return {_OPERATIONS[found["name"]]: _said(found) for found in _CHOSEN.finditer(log) if found["name"] in _OPERATIONS}


def _said(found: re.Match[str]) -> str:
    if found["copy"]:
        return COPY
    if found["kernel"]:
        return f"{SYMMETRIC}{found['kernel'].lower()}"
    channels = int(found["high"]) - int(found["low"]) + 1
    algorithm, protocol = (found[name].lower().replace("_", "") for name in ("algorithm", "protocol"))
    return str(Choice(algorithm=algorithm, protocol=protocol, channels=channels))


def duplicates_in(log: str) -> tuple[int, int] | None:
    """The two ranks that NCCL has refused because they are on one GPU of one host; None where it has not.

    It says so as a warning, so that any ``NCCL_DEBUG`` but none shows it (NCCL 2.28: init.cc).
    """
    found = _DUPLICATE.search(log)
    return (int(found[1]), int(found[2])) if found else None


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


class NcclHeard(Communicator, DeviceClock):
    """A communicator on a GPU over NCCL; each has an ``_heard`` and a ``_failed`` of its own."""

    loops = ("event",)
    syncs = ("auto", "barrier", "none")
    own_threads = True  # as far as ranks that wait are concerned: the device works by itself
    _control: Control
    _heard: dict[str, str]
    """How the operation of the last case that was verified was carried; empty where nothing says so."""
    _failed: bool
    """Whether NCCL has refused something here."""

    def transport(self) -> str:
        """What this rank's channels go by, e.g. ``NET/Socket``, as NCCL's log has it; empty where it is elsewhere.

        Those of every communicator of this process so far: the log does not tell them apart.
        """
        return "self" if self.size == 1 else LOG.transport()

    def algorithm(self, operation: str) -> str:
        """As NCCL's log had it when the case was verified: its first rank alone tells."""
        return self._heard.get(operation, "")

    @contextmanager
    def watched(self, *, replayed: bool = False) -> Iterator[None]:
        """See `Communicator.watched`; NCCL's communicators are of no use after an error."""
        before = self._heard if replayed else {}
        try:
            with LOG.hearing() as heard:
                yield
        except RuntimeError:
            self._failed, self._heard = True, {}
            raise
        self._heard = dict(heard) or before

    def abort(self) -> None:
        """Give up what cannot end in order any more, its groups first."""
        for part in self.parts:
            part.abort()

    @property
    def parts(self) -> list[NcclHeard]:
        """The communicators of this rank's groups."""
        return [part for part in self._splits.values() if isinstance(part, NcclHeard)]

    @property
    def failed(self) -> bool:
        """Whether NCCL has refused something here or in a group."""
        return self._failed or any(part.failed for part in self.parts)

    def has_failed(self) -> bool:
        """Whether it has `failed` on any rank: one may fail alone, in capturing, and all must give it up; together."""
        return any(gather_everywhere(self._control, self.failed))

    def timer(self, loop: str, plan: SyncPlan, progress: Progress) -> Timer:  # noqa: ARG002 - there is one loop
        """Events on the stream of the operations."""
        return EventTimer(Synchroniser(self._control, plan, patient=True), self, progress)
