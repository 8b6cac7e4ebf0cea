"""Code that the cupy and torch NCCL backends share: version, variables, log parsing, event
timing.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from commbench.collectives.algorithms import AUTO, COPY, SYMMETRIC, Choice
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import Group
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.timing.device import DeviceClock, EventTimer
from commbench.engine.timing.loops import Progress, Timer
from commbench.engine.timing.sync import Synchroniser
from commbench.findings import UnsupportedError

#: E.g. ``Channel 00/02 : 0[0] -> 1[1] via P2P/CUMEM``; after NET follow the network and the
#: adapter's number.
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : .* via (?P<how>(?:P2P|SHM|NET)(?:/[A-Za-z]+)?)")
#: E.g. ``AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}``, since 2.24 on the
#: first rank only.
_SELECTION = re.compile(
    r"(?P<name>\w+)(?: \[[\w ]+\])?: \d+ Bytes -> "
    r"(?:Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r" channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}"
    r"|Kernel (?P<kernel>\w+)|(?P<copy>cudaMemcpy|.*RMA proxy))"
)
#: Our names of the operations by the names in NCCL's log.
_OPERATIONS = {
    "".join(map(str.capitalize, name.split("_"))): name
    for name, entry in OPERATIONS.items()
    if entry.has_nccl_algorithms
}
#: E.g. ``NCCL_ALGO set by environment to Ring.``, once a variable when NCCL first reads it.
_SETTING = re.compile(
    r"\b(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*?)\.?\s*$", re.MULTILINE
)


def transports_in(log: str) -> list[str]:
    """Return the transports of this rank's channels, e.g.

    ``NET/Socket``, ``SHM/direct``; each once, sorted.

    Read from the lines that NCCL writes with ``NCCL_DEBUG=INFO`` and ``NCCL_DEBUG_SUBSYS=INIT``
    when ranks connect (NCCL 2.28: transport/net.cc, shm.cc, p2p.cc). They do not name the
    communicator. Their lines about NVLS state only whether the GPUs support it.
    """
    return sorted({match["how"] for match in _CHANNEL.finditer(log)})


def algorithms_in(log: str) -> dict[str, str]:
    """Return the last algorithm of each operation in the log, e.g.

    ``{"all_reduce": "ring/ll/2ch"}``.

    Read from the lines that NCCL writes with ``NCCL_DEBUG_SUBSYS=TUNING`` (NCCL 2.28: enqueue.cc).
    Kernels on symmetric memory have their name, ``symmetric/allreduce_agxll_r``, and GPUs' copy
    engines are ``copy``.
    """
    return {
        _OPERATIONS[line["name"]]: _algorithm(line)
        for line in _SELECTION.finditer(log)
        if line["name"] in _OPERATIONS
    }


def _algorithm(line: re.Match[str]) -> str:
    if line["copy"]:
        return COPY
    if line["kernel"]:
        return f"{SYMMETRIC}{line['kernel'].lower()}"
    channels = int(line["high"]) - int(line["low"]) + 1
    algorithm, protocol = (
        line[name].lower().replace("_", "") for name in ("algorithm", "protocol")
    )
    return str(Choice(algorithm=algorithm, protocol=protocol, channels=channels))


def settings_in(log: str) -> dict[str, str]:
    """Return by name the environment variables that NCCL has read, with their values.

    Read from the lines that NCCL writes with ``NCCL_DEBUG_SUBSYS=ENV`` (NCCL 2.28: misc/param.cc,
    graph/tuning.cc).
    """
    return {match["name"]: match["value"] for match in _SETTING.finditer(log)}


ANY_ALGORITHM = Choice()
_MAPS = Path("/proc/self/maps")
_OWN_LOG = "commbench-nccl-"
#: Functions that make NCCL read the settings of its log again; newer versions have both and will
#: drop the second.
_RESETS = ("ncclResetDebugInitInternal", "ncclResetDebugInit")


def loaded_library() -> ctypes.CDLL | None:
    """Return the NCCL library that this process has loaded, torch's or cupy's.

    None if it has none or several.

    Several libraries cannot be told apart, and all write to the same log.
    """
    maps = _MAPS.read_text(errors="replace") if _MAPS.is_file() else ""
    paths = set(re.findall(r"\s(/\S*libnccl\.so\S*)", maps))
    return ctypes.CDLL(paths.pop()) if len(paths) == 1 else None


def loaded_version() -> str:
    """Return the version of the loaded NCCL, e.g.

    ``NCCL 2.28.9``, not that of torch's build; ``NCCL`` if unknown.
    """
    library, number = loaded_library(), ctypes.c_int()
    if library is None or library.ncclGetVersion(ctypes.byref(number)):
        return "NCCL"
    return f"NCCL {version_text(number.value)}"


def version_text(number: int) -> str:
    """Return NCCL's version number as text: 22809 is 2.28.9; before 2.9, 2708 is 2.7.8."""
    scale = 10_000 if number >= 10_000 else 1000  # NCCL's rule
    major, rest = divmod(number, scale)
    return f"{major}.{rest // 100}.{rest % 100}"


def set_defaults(variables: Mapping[str, str]) -> None:
    """Set those environment variables that are not set yet."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while a communicator is created inside: NCCL reads some of them
    only then.
    """
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
    """NCCL's log of this process, in temporary files.

    A log that is configured already stays unchanged.

    By default NCCL logs only how ranks connect. Its log of every operation takes time, so we enable
    it only around calls that are not timed, which NCCL allows since 2.24 (`_RESETS`). NCCL
    truncates its file at each change, so each change gets a new file name.
    """

    def __init__(self) -> None:
        self._files = 0
        self._transports: set[str] = set()
        self._settings: dict[str, str] = {}

    def enable(self) -> None:
        """Enable the log unless one is configured; call this before NCCL reads its settings."""
        if "NCCL_DEBUG" not in os.environ:
            os.environ["NCCL_DEBUG"] = "INFO"
            self._begin("INIT,ENV")

    def settings(self) -> dict[str, str]:
        """Return by name the environment variables that NCCL has read, see `settings_in`."""
        self._read_log()
        return self._settings

    def transport(self) -> str:
        """Return the transports of this rank's channels, e.g. ``NET/Socket``; empty if unknown."""
        self._read_log()
        return "+".join(sorted(self._transports))

    @contextmanager
    def recording(self) -> Iterator[dict[str, str]]:
        """Yield a mapping.

        At the end it gets the algorithms of the operations inside, if NCCL can log them.
        """
        algorithms: dict[str, str] = {}
        library = loaded_library() if self._is_own else None
        reset = next((getattr(library, name) for name in _RESETS if hasattr(library, name)), None)
        if reset is None:
            yield algorithms
            return
        self._begin("INIT,ENV,TUNING")
        reset()
        try:
            yield algorithms
        finally:
            algorithms |= algorithms_in(self._read_log())
            self._begin("INIT,ENV")
            reset()

    def remove(self) -> None:
        """Read the file and remove it."""
        if self._is_own:
            self._read_log()
            self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return Path(os.environ.get("NCCL_DEBUG_FILE", ""))

    @property
    def _is_own(self) -> bool:
        return self._path.name.startswith(_OWN_LOG)

    def _begin(self, subsystems: str) -> None:
        """Log to a new file."""
        self.remove()
        self._files += 1
        name = f"{_OWN_LOG}{os.getpid()}-{self._files}.log"
        os.environ["NCCL_DEBUG_SUBSYS"] = subsystems
        os.environ["NCCL_DEBUG_FILE"] = str(Path(tempfile.gettempdir()) / name)

    def _read_log(self) -> str:
        """Return the text of the current file, and remember its transports and settings."""
        text = self._path.read_text(errors="replace") if self._path.is_file() else ""
        self._transports.update(transports_in(text))
        self._settings.update(settings_in(text))
        return text


#: The log of this process.
LOG = NcclLog()


class NcclBase(Communicator, DeviceClock):
    """A communicator on a GPU over NCCL, of all ranks of the launch or of ``members``."""

    loops = ("event",)
    syncs = ("auto", "barrier", "none")
    idle_alone = True
    own_threads = True  # waiting ranks need no core: the device works by itself

    def __init__(self, control: Control, members: Group, choice: Choice) -> None:
        self._control = control
        self._members = members or tuple(range(control.size))
        self._choice = choice
        self.rank = self._members.index(control.rank)
        self.size = len(self._members)
        self._by_algorithm: dict[str, NcclBase] = {}
        self._algorithms: dict[str, str] = {}
        """The algorithm of each operation in the last verified case; empty if the log names
        none."""
        self._failed = False
        """Whether a call of NCCL failed here."""

    @abstractmethod
    def by_choice(self, choice: Choice) -> NcclBase:
        """Make the communicator of all ranks with an algorithm; collective."""

    def using(self, algorithm: str) -> Communicator:
        """Return a communicator with that algorithm, which NCCL reads when it creates one."""
        if algorithm == AUTO:
            return self
        communicator = self._by_algorithm.get(algorithm)
        if communicator is None or communicator.has_failed():
            if communicator is not None:
                communicator.abort()
            try:
                communicator = self.by_choice(Choice.parse(algorithm))
            except RuntimeError as error:
                raise UnsupportedError(
                    "communicator_not_made", algorithm=algorithm, error=str(error)
                ) from error
            self._by_algorithm[algorithm] = communicator
        return communicator

    def close(self) -> None:
        """Close the communicators of groups and algorithms, and free the graphs.

        Since 2.26 NCCL waits for the graphs that hold its operations, possibly without end.
        """
        for communicator in self._by_algorithm.values():
            if communicator.has_failed():
                communicator.abort()
            else:
                communicator.close()
        super().close()
        self.complete()
        gc.collect()

    def transport(self) -> str:
        """Return the transports of this rank's channels in NCCL's log, e.g.

        ``NET/Socket``; empty if it is not ours.

        They cover all communicators of this process so far: the log does not name the communicator.
        """
        return "self" if self.size == 1 else LOG.transport()

    def algorithm(self, operation: str) -> str:
        """Return the algorithm in NCCL's log when the case was verified.

        Only the first rank logs it.
        """
        return self._algorithms.get(operation, "")

    @contextmanager
    def watched(self, *, replayed: bool = False) -> Iterator[None]:
        """See `Communicator.watched`; a communicator of NCCL is unusable after an error."""
        before = self._algorithms if replayed else {}
        try:
            with LOG.recording() as algorithms:
                yield
        except RuntimeError:
            self._failed, self._algorithms = True, {}
            raise
        self._algorithms = dict(algorithms) or before

    def abort(self) -> None:
        """Abort the communicators, the groups first.

        After an error of NCCL they cannot be closed: closing may hang. torch cannot abort any.
        """
        for part in self.parts:
            part.abort()

    @property
    def parts(self) -> list[NcclBase]:
        """The communicators of this rank's groups."""
        return [part for part in self._splits.values() if isinstance(part, NcclBase)]

    @property
    def failed(self) -> bool:
        """Whether a call of NCCL failed here or in a group."""
        return self._failed or any(part.failed for part in self.parts)

    def has_failed(self) -> bool:
        """Return whether the communicator `failed` on any rank.

        Collective, as all ranks must abort together.
        """
        return any(gather_everywhere(self._control, self.failed))

    def timer(self, loop: str, sync: Synchroniser, progress: Progress) -> Timer:
        """Return the timer that records events on the stream of the operations."""
        return EventTimer(sync, self, progress)
