"""The life of an emulated cluster, seen from outside: checked, started, sent signals, and gone without a trace."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from commbench.errors import InputError
from commbench.lab.network import run_program
from commbench.lab.plan import LabPlan

#: What a person must know about every number from a lab.
NOT_EMULATED = (
    "Only the rate of each link is emulated: latency, jitter and loss are not, a burst of about 1 ms at that rate "
    "passes unshaped, and all hosts share the cores and memory of this machine."
)
#: What a lab is built with, and the packages that bring it; tc is for shaping.
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
#: Where a lab mounts its files, visible to its own processes only.
DIRECTORY = Path("/run/commbench-lab")
#: Starts a program as process 1 of a lab, in fresh namespaces that end with it; killed itself, it kills that program.
FRESH = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
#: Signals that are passed on to the command.
PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: Signals that a key makes; the terminal sends them to the command, too.
_FROM_KEYS = {signal.SIGINT, signal.SIGQUIT}


def run_in_lab(
    hosts: int,
    rate: str,
    command: Sequence[str],
    *,
    ranks_per_host: int = 1,
    slow: Sequence[str] = (),
    racks: int = 1,
    uplink: str | None = None,
) -> int:
    """Run a command on the first of several emulated hosts; when it ends, everything in the lab ends.

    A host has its own name, network interface (10.99.x.y, both directions shaped), /dev/shm and System V memory; files,
    processes, cores and GPUs are the machine's. COMMBENCH_HOSTFILE names a hostfile, and mpirun reaches the hosts by
    an agent in place of ssh. Signals to this process are passed on; if it is killed, the lab is killed with it.

    Args:
        hosts: how many, called host0, host1, ...
        rate: of each host's link, as tc writes it (``1gbit``, ``200mbit``), or ``none`` to leave links unshaped.
        command: the program and its arguments.
        ranks_per_host: slots of each host in the hostfile.
        slow: hosts whose link has another rate, each written ``HOST=RATE``.
        racks: switches among which the hosts are spread evenly, in order; several hang from a core switch.
        uplink: rate of each rack's link to the core, each way; without it, that of a host's link.

    Returns:
        The command's exit code; 128 + n if signal n has ended it.

    Raises:
        InputError: bad numbers, rate or command, no root, a program missing, or a kernel that cannot.
    """
    plan = LabPlan.parse(hosts, rate, ranks_per_host=ranks_per_host, slow=slow, racks=racks, uplink=uplink)
    _check_machine(plan)
    if not command:
        raise InputError("No command was given to run in the emulated cluster; write it after --.")
    if shutil.which(command[0]) is None:
        raise InputError(f"The command {command[0]!r} was not found; give its path, or add its directory to PATH.")
    run_program([*FRESH, "true"])
    with (
        _directory() as directory,
        _caught(PASSED_ON) as signals,
        contextlib.closing(_Outside(plan, directory, command)) as lab,
    ):
        return lab.wait(signals)


def _check_machine(plan: LabPlan) -> None:
    """Refuse what this machine lacks.

    Raises:
        InputError: not Linux, not root, or a program missing.
    """
    if sys.platform != "linux":
        raise InputError(f"An emulated cluster needs Linux and this is {sys.platform}; run it on a Linux machine.")
    if os.geteuid() != 0:
        raise InputError(
            f"An emulated cluster needs root and this is user {os.geteuid()}; put sudo before the command."
        )
    for program, package in PROGRAMS.items():
        if (plan.is_shaped or program != "tc") and shutil.which(program) is None:
            raise InputError(
                f"An emulated cluster needs the program {program}, which was not found; install {package}."
            )


class _Outside:
    """A running lab."""

    def __init__(self, plan: LabPlan, directory: Path, command: Sequence[str]) -> None:
        self._connection, inner = socket.socketpair()
        module = [sys.executable, "-m", "commbench.lab.inside"]
        words = [str(inner.fileno()), str(directory), plan.to_json(), *command]
        with inner, _blocked(PASSED_ON):  # Ctrl-C reaches the whole foreground: only the command may act on it
            self._process = subprocess.Popen([*FRESH, *module, *words], pass_fds=[inner.fileno()])

    def close(self) -> None:
        """End the lab, however far it has come."""
        self._connection.close()  # the lab ends at the end of what it reads
        self._process.wait()

    def wait(self, signals: socket.socket) -> int:
        """Pass on the signals that come as bytes until the lab has ended; return the command's exit code.

        Raises:
            InputError: the lab could not be built.
        """
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if signals in ready:
                    self._pass_on(signals.recv(64), started=bool(said))
                if self._connection in ready:
                    if not (new := self._connection.recv(4096)):
                        break
                    said += new
        code = self._process.wait()
        if problem := said.decode().strip():
            raise InputError(problem)
        return code if code >= 0 else 128 - code

    def _pass_on(self, numbers: bytes, *, started: bool) -> None:
        """Send signals to the command, but for one that a key has made: the terminal has sent it there already."""
        wanted = set(PASSED_ON)
        if started and _is_foreground():
            wanted -= _FROM_KEYS
        with contextlib.suppress(OSError):  # the lab has just ended
            self._connection.sendall(bytes(number for number in numbers if number in wanted))


def _is_foreground() -> bool:
    """Whether the terminal's keys send signals to this process, and so to the lab, which is in the same group."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def _blocked(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Hold signals back; a child that is started meanwhile never gets them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _caught(numbers: Iterable[signal.Signals]) -> Iterator[socket.socket]:
    """Catch signals, but for ignored ones, as bytes on a socket: none is lost, whenever it comes.

    Python allows that in its main thread only; in another one signals stay as they are.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        if threading.current_thread() is not threading.main_thread():
            yield reader
            return
        writer.setblocking(False)  # noqa: FBT003 - its only parameter
        caught = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        previous = signal.set_wakeup_fd(writer.fileno())
        before = {number: signal.signal(number, lambda *_: None) for number in caught}
        try:
            yield reader
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous)


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """Hold the empty directory over which every lab mounts files of its own; the last lab to end removes it.

    It is the same for all labs, so that the environment of a program does not differ from lab to lab. Only who lives
    holds a lock on it: the directory that a killed lab has left goes with the next lab.
    """
    handle = _locked(DIRECTORY)
    try:
        yield DIRECTORY
    finally:
        with contextlib.suppress(OSError):  # other labs live
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            DIRECTORY.rmdir()
        os.close(handle)


def _locked(path: Path) -> int:
    """Make a directory where there is none, and share a lock on it; return its descriptor.

    Raises:
        InputError: it cannot be made.
    """
    while True:
        try:
            path.mkdir(mode=0o755, exist_ok=True)
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # removed by a lab that has just ended
            continue
        except OSError as error:
            raise InputError(f"An emulated cluster needs the directory {path}: {error.strerror}; remove it.") from error
        fcntl.flock(handle, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(handle)):
                return handle
        os.close(handle)  # removed between opening and locking
