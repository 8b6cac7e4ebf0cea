"""The labs that are up, each found by its name: its plan, the commands that run there, its links,
its end.

Every lab mounts its files over the same directory, so that the environment of a program does not
differ from lab to lab. Each lab shares a lock on that directory. A directory that no lab locks is
left over from killed labs: the next call removes it.

The name of a lab is an abstract socket. Such names live in the machine's network namespace, not
among its files, and the kernel frees a name when the lab ends. A killed lab leaves none behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import select
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import psutil

from commbench.errors import InputError
from commbench.launch.lab.network import change_link
from commbench.launch.lab.plan import ANSWER, DIRECTORY, PLAN, STAYS, HostPlan, LabPlan, parse_rate
from commbench.launch.lab.visit import (
    PASSED_ON,
    RunningCommand,
    caught,
    check_command,
    running_commands,
    visit,
)

#: The name of a lab if a person gives none.
DEFAULT_NAME = "lab"
_PREFIX = "commbench-lab/"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_CREDENTIALS = struct.Struct("3i")
_TIMEOUT_S = 10


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A lab that is up; each method and property looks at its present state."""

    name: str
    pid: int
    """The id of its first process."""

    @classmethod
    def find(cls, name: str = DEFAULT_NAME) -> Lab:
        """Return the lab of a name.

        Raises:
            InputError: there is no such lab.
        """
        if pid := first_process(name):
            return cls(name=name, pid=pid)
        option = "" if name == DEFAULT_NAME else f" --name {name}"
        others = ", ".join(lab.name for lab in find_all())
        there = f" (there is {others})" if others else ""
        raise InputError(
            f"There is no emulated cluster called {name!r}{there}; start it by `commbench lab"
            f" up{option}`."
        )

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Raise an `InputError` if the lab ends inside.

        Raises:
            InputError: the lab has ended.
        """
        try:
            yield
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess) as error:
            raise InputError(
                f"The emulated cluster {self.name!r} has just ended; start it again."
            ) from error

    @property
    def _files(self) -> Path:
        """The lab's own directory, as its processes see it."""
        return Path(f"/proc/{self.pid}/root{DIRECTORY}")

    @property
    def plan(self) -> LabPlan:
        """The present plan of the lab.

        Raises:
            InputError: the lab has just ended, as in the other methods.
        """
        with self._running(), (self._files / PLAN).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return LabPlan.from_json(file.read())

    @property
    def stays(self) -> bool:
        """Whether it is up until it is taken down.

        Else it ends with the command that it was made for.
        """
        return (self._files / STAYS).exists()

    @property
    def since(self) -> datetime:
        """The time when it was started, in local time."""
        with self._running():
            return datetime.fromtimestamp(psutil.Process(self.pid).create_time()).astimezone()

    def running(self) -> list[RunningCommand]:
        """Return the commands that run there."""
        with self._running():
            return running_commands(self.pid)

    def execute(self, command: Sequence[str], *, host: str | None = None) -> int:
        """Run a command on a host, by default the first host.

        Return its exit code, 128 + n after signal n.

        When the command or this process ends, all descendants of the command end. Signals to this
        process are passed on.

        Raises:
            InputError: no such host or command.
        """
        check_command(command)
        plan = self.plan
        with caught(PASSED_ON) as signals:
            return visit(self.pid, plan, plan.host(host).name, command, signals)

    def set_link(self, host: str, state: str) -> None:
        """Cut a host's link (``down``), restore it (``up``), or give it another rate, while the lab
        runs.

        Programs that already run there have read the old conditions; programs that start from now
        on read the new ones.

        Raises:
            InputError: no such host, an unknown state, or a machine that cannot change the link.
        """
        with self._running(), (self._files / PLAN).open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            plan = LabPlan.from_json(file.read())
            before = plan.host(host)
            after = _changed_link(before, state)
            holder = json.loads((self._files / "pids").read_text(encoding="utf-8"))[before.name]
            lab = ("nsenter", f"--target={self.pid}")
            on_host = (
                *lab,
                "--pid",
                "--mount",
                "--",
                "nsenter",
                f"--target={holder}",
                "--net",
                "--",
            )
            change_link(before, after, on_switch=(*lab, "--net", "--"), on_host=on_host)
            file.seek(0)
            file.truncate()
            file.write(plan.with_host(after).to_json())

    def end(self) -> None:
        """End the lab and everything that runs there; return when it has ended."""
        with (
            contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess),
            contextlib.ExitStack() as handles,
        ):
            processes = [os.pidfd_open(pid) for pid in (psutil.Process(self.pid).ppid(), self.pid)]
            for handle in processes:
                handles.callback(os.close, handle)
            signal.pidfd_send_signal(processes[-1], signal.SIGKILL)
            for handle in processes:
                select.select([handle], [], [])


def find_all() -> list[Lab]:
    """Return all labs that are up, sorted by name."""
    pids = ((name, first_process(name)) for name in names())
    return [Lab(name=name, pid=pid) for name, pid in pids if pid]


def _changed_link(host: HostPlan, state: str) -> HostPlan:
    if state in {"up", "down"}:
        return replace(host, is_up=state == "up")
    try:
        return replace(host, rate_bps=parse_rate(state))
    except InputError as error:
        raise InputError(f"{str(error).rstrip('.')}; or up or down.") from error


# -------------------------------------------------------------------------------------------- names


def reserve(name: str | None) -> tuple[str, socket.socket]:
    """Reserve a name, a fresh one for None.

    Return it with its socket, which must be handed to the lab.

    Raises:
        InputError: the name is malformed or in use.
    """
    if name is None:
        name = f"run-{secrets.token_hex(4)}"
    if not _NAME.fullmatch(name):
        raise InputError(
            f"The name {name!r} cannot be a lab's; choose up to 40 letters, digits, dots, dashes"
            " and underscores."
        )
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"\0{_PREFIX}{name}")
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise InputError(
            f"An emulated cluster called {name!r} is there already; "
            f"end it by `commbench lab down {name}`, or choose another --name."
        ) from error
    return name, listener


def names() -> list[str]:
    """Return the names in use, sorted."""
    paths = (
        line.split()[-1] for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    )
    start = f"@{_PREFIX}"
    return sorted({path.removeprefix(start) for path in paths if path.startswith(start)})


def first_process(name: str) -> int | None:
    """Return the id of a lab's first process.

    None if there is no lab of that name, or it is not up yet.
    """
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_TIMEOUT_S)
        try:
            caller.connect(f"\0{_PREFIX}{name}")
            if caller.recv(1) != ANSWER:
                return None
        except OSError:
            return None
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return pid if uid == 0 else None  # any user may bind such a name, but only root makes labs


# ---------------------------------------------------------------------------------------- directory


@contextlib.contextmanager
def locked_directory() -> Iterator[int]:
    """Make the labs' directory if it is missing.

    Yield a shared lock on it, held as long as a descriptor is open.

    Raises:
        InputError: the directory cannot be made.
    """
    handle = _lock()
    try:
        yield handle
    finally:
        os.close(handle)
        remove_unused_directory()


def remove_unused_directory() -> None:
    """Remove the labs' directory if no lab holds its lock."""
    try:
        handle = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # there is none
        return
    with contextlib.suppress(OSError):  # labs hold it, or another process removed it first
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_in_place(handle):
            DIRECTORY.rmdir()
    os.close(handle)


def _lock() -> int:
    while True:
        try:
            DIRECTORY.mkdir(mode=0o755, exist_ok=True)
            handle = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # removed by a lab that has just ended
            continue
        except OSError as error:
            raise InputError(
                f"An emulated cluster needs the directory {DIRECTORY}: {error.strerror}; remove it."
            ) from error
        fcntl.flock(handle, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if _is_in_place(handle):
                return handle
        os.close(handle)  # removed between opening and locking


def _is_in_place(handle: int) -> bool:
    """Return whether an open directory is still the one at `DIRECTORY`."""
    return os.path.samestat(DIRECTORY.stat(), os.fstat(handle))
