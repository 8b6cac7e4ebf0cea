"""Emulated clusters that are up: their start, the commands that run there, their links, their end.

The process table is the only list of labs: the command line of a lab's first process has its name.
Every lab mounts its files over the same directory, visible to its own processes only, so that the
environment of a program does not differ from lab to lab.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import FrameType

import psutil

from commbench.errors import InputError
from commbench.launch.lab import agent
from commbench.launch.lab.network import change_link, run_program
from commbench.launch.lab.plan import DIRECTORY, PLAN, LabPlan, parse_rate
from commbench.launch.signals import FROM_KEYS, PASSED_ON, foreground_group, passing_on
from commbench.system.env import safe_path

#: What a person must know about every number from a lab.
NOT_EMULATED = (
    "Only the rate of each link is emulated: latency, jitter and loss are not, a burst of about 1"
    " ms at that rate, but at least 16 KiB, passes unshaped, and all hosts share the cores and"
    " memory of this machine."
)
#: The name of a lab if a person gives none.
DEFAULT_NAME = "lab"
#: Starts a program as process 1 of a lab, in fresh namespaces that end with it; if unshare is
#: killed, it kills that program. Later mounts of the machine appear in the lab; mounts of the lab
#: do not appear on the machine.
FRESH = [
    "unshare",
    "--mount",
    "--propagation=slave",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--",
]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_FIRST = ["-m", "commbench.launch.lab.inside"]
_VISIT = agent.call(DIRECTORY, "visit")


@dataclass(frozen=True, kw_only=True)
class RunningCommand:
    """A command that runs on an emulated host; ``pid`` is the machine's."""

    host: str
    command: Sequence[str]
    pid: int


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A lab that is up; each method and property looks at its present state."""

    name: str
    pid: int
    """The id of its first process."""
    stays: bool
    """Whether it is up until it is taken down; else it ends with the command that it was made
    for."""

    @classmethod
    def find(cls, name: str = DEFAULT_NAME) -> Lab:
        """Return the lab of a name.

        Raises:
            InputError: there is no such lab.
        """
        for lab in find_all():
            if lab.name == name:
                return lab
        raise InputError(
            f"There is no emulated cluster called {name!r}; start it by `commbench lab up --name"
            f" {name}`, or see by `commbench lab status` which there are."
        )

    @contextlib.contextmanager
    def _running(self) -> Iterator[Path]:
        """Yield the lab's own directory, as its processes see it.

        Raises:
            InputError: the lab has ended, or ends inside.
        """
        try:
            yield Path(f"/proc/{self.pid}/root{DIRECTORY}")
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess) as error:
            raise InputError(
                f"The emulated cluster {self.name!r} has just ended; start it again."
            ) from error

    @property
    def plan(self) -> LabPlan:
        """The present plan of the lab.

        Raises:
            InputError: the lab has just ended, as in the other methods.
        """
        with self._running() as files:
            return LabPlan.from_json((files / PLAN).read_text(encoding="utf-8"))

    @property
    def since(self) -> datetime:
        """The time when it was started, in local time."""
        with self._running():
            return datetime.fromtimestamp(psutil.Process(self.pid).create_time()).astimezone()

    def running(self) -> list[RunningCommand]:
        """Return the commands that run there."""
        commands = []
        with self._running():
            namespace = _pid_namespace(self.pid)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # the process has just ended
                words = process.cmdline()
                is_visit = words[3 : len(_VISIT)] == _VISIT[3:]
                if is_visit and _pid_namespace(process.pid) == namespace:
                    host, *command = words[len(_VISIT) + 2 :]
                    for child in process.children()[:1]:
                        commands.append(RunningCommand(host=host, command=command, pid=child.pid))
        return commands

    def execute(self, command: Sequence[str], *, host: str | None = None) -> int:
        """Run a command on a host, by default the first host.

        When the command or this process ends, all descendants of the command end. Signals to this
        process are passed on.

        Returns:
            The command's exit code; 128 + n if signal n has ended it.

        Raises:
            InputError: no such host or command.
        """
        _check_command(command)
        plan = self.plan
        connection, inner = socket.socketpair()
        enter = ["nsenter", f"--target={self.pid}", "--pid", "--mount", "--"]
        words = [*_VISIT, str(inner.fileno()), str(Path.cwd()), plan.host(host).name, *command]
        environment = plan.environment(os.environ, DIRECTORY)
        report = b""

        def pass_on(number: int, _: FrameType | None) -> None:
            is_of_keys = number in FROM_KEYS and report and foreground_group() == os.getpgrp()
            if not is_of_keys:
                with contextlib.suppress(OSError):  # the command has just ended
                    connection.send(bytes([number]))

        with passing_on(pass_on):
            with inner:
                # Ctrl-C reaches the whole foreground: only the command may act on it.
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
                try:
                    process = subprocess.Popen(
                        [*enter, *words], env=environment, pass_fds=[inner.fileno()]
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            with connection:  # when it closes, the command ends
                while received := connection.recv(4096):
                    report += received
            code = process.wait()
        problem = report.decode().strip()
        if problem:
            raise InputError(problem)
        if code < 0:
            return 128 - code
        return code

    def set_link(self, host: str, state: str) -> None:
        """Cut a host's link (``down``), restore it (``up``), or give it another rate, while the lab
        runs.

        Programs that already run there have read the old conditions; programs that start from now
        on read the new ones.

        Raises:
            InputError: no such host, an unknown state, or a machine that cannot change the link.
        """
        with self._running() as files, (files / "pids").open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            plan = self.plan
            before = plan.host(host)
            if state in {"up", "down"}:
                after = replace(before, is_up=state == "up")
            else:
                after = replace(before, rate_bps=parse_rate(state))
            holder = json.load(file)[before.name]
            lab = ["nsenter", f"--target={self.pid}"]
            net = ["--net", "--"]
            on_host = [*lab, "--pid", "--mount", "--", "nsenter", f"--target={holder}", *net]
            change_link(before, after, on_switch=[*lab, *net], on_host=on_host)
            new = files / "new"
            new.write_text(plan.with_host(after).to_json(), encoding="utf-8")
            new.rename(files / PLAN)

    def end(self) -> None:
        """End the lab and everything that runs there; return when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [])
            os.close(handle)


def find_all() -> list[Lab]:
    """Return all labs that are up, sorted by name."""
    labs = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # the process has just ended
            words = process.cmdline()
            is_first = words[1:3] == _FIRST and process.uids().real == 0
            if is_first and Path(f"/proc/{process.pid}/root{DIRECTORY / PLAN}").exists():
                labs.append(Lab(name=words[3], pid=process.pid, stays=words[4] == "stays"))
    return sorted(labs, key=lambda lab: lab.name)


def _pid_namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/pid").readlink()


# ------------------------------------------------------------------------------------------- start


def run_in_lab(plan: LabPlan, command: Sequence[str], name: str | None = None) -> int:
    """Run a command on the first of several emulated hosts.

    When it ends, everything in the lab ends.

    A host has its own name, network interface (10.99.x.y, both directions shaped), /dev/shm and
    System V memory; files, processes, cores and GPUs are the machine's. COMMBENCH_HOSTFILE names a
    hostfile, and mpirun reaches the hosts by an agent in place of ssh. Signals to this process are
    passed on. If this process is killed, so is the lab.

    Args:
        plan: the hosts and their links.
        command: the program and its arguments.
        name: the name of the lab while it is up; a fresh one if None.

    Returns:
        The command's exit code; 128 + n if signal n has ended it.

    Raises:
        InputError: bad name or command, no root, a missing program, or a kernel without the
            features.
    """
    _check_command(command)
    with _started(plan, name or f"run-{secrets.token_hex(4)}", "ends") as lab:
        return lab.execute(command)


def start_lab(plan: LabPlan, name: str = DEFAULT_NAME) -> Lab:
    """Start a lab that stays until `Lab.end`, even if this process and its terminal end.

    Raises:
        InputError: the name is in use, no root, a missing program, or a kernel without the
            features.
    """
    with _started(plan, name, "stays") as lab:
        return lab


def check_machine() -> None:
    """Refuse a machine that cannot emulate a cluster.

    Raises:
        InputError: this user is not root.
    """
    if os.geteuid() != 0:
        raise InputError(
            f"An emulated cluster needs root and this is user {os.geteuid()}; "
            'put sudo env PATH="$PATH" before the command.'
        )


def _check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started.

    Raises:
        InputError: no command was given, or it was not found.
    """
    if not command:
        raise InputError("No command was given to run in the emulated cluster; write it after --.")
    if shutil.which(command[0]) is None:
        raise InputError(
            f"The command {command[0]!r} was not found; give its path, or add its directory to"
            " PATH."
        )


@contextlib.contextmanager
def _started(plan: LabPlan, name: str, life: str) -> Iterator[Lab]:
    """Start a lab, yield it once it is up, and end it unless it ``stays``."""
    check_machine()
    if not _NAME.fullmatch(name):
        raise InputError(
            f"The name {name!r} cannot be a lab's; choose up to 40 letters, digits, dots, dashes"
            " and underscores."
        )
    if name in {lab.name for lab in find_all()}:
        raise InputError(
            f"An emulated cluster called {name!r} is there already; "
            f"end it by `commbench lab down {name}`, or choose another --name."
        )
    try:
        DIRECTORY.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"An emulated cluster needs the directory {DIRECTORY}: {error.strerror}; remove it."
        ) from error
    run_program([*FRESH, "true"])
    connection, inner = socket.socketpair()
    with inner:
        words = [*_FIRST, name, life, str(inner.fileno()), plan.to_json()]
        # a session of its own: no key and no closed terminal reaches it
        process = subprocess.Popen(
            [*FRESH, sys.executable, *words],
            env={**os.environ, **safe_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[inner.fileno()],
            start_new_session=True,
        )
    try:
        with connection, connection.makefile("r") as answers:  # when it closes, the lab may end
            report = answers.readline()
            if report != "\n":
                report += answers.read()
                if process.wait() == InputError.exit_code:
                    raise InputError(report.strip())
                raise RuntimeError(report or "the lab's first process has ended")
            yield Lab.find(name)
            if life == "stays":
                process.returncode = 0  # this process does not wait for it any more
    finally:
        process.wait()
