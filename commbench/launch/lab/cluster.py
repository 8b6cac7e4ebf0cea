"""The start of an emulated cluster: the machine is checked, the lab's first process started, and
ended in any case.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence

from commbench.errors import InputError
from commbench.launch.lab.labs import (
    DEFAULT_NAME,
    Lab,
    locked_directory,
    remove_unused_directory,
    reserve,
)
from commbench.launch.lab.network import run_program
from commbench.launch.lab.plan import DIRECTORY, STAY, LabPlan
from commbench.launch.lab.visit import PASSED_ON, blocked, caught, check_command, visit

#: What a person must know about every number from a lab.
NOT_EMULATED = (
    "Only the rate of each link is emulated: latency, jitter and loss are not, a burst of about 1"
    " ms at that rate, but at least 16 KiB, passes unshaped, and all hosts share the cores and"
    " memory of this machine."
)
#: Programs that a lab needs, and the packages that bring them; only shaped links need tc.
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
#: Starts a program as process 1 of a lab, in fresh namespaces that end with it; if unshare is
#: killed, it kills that program. Later mounts of the machine appear in the lab; mounts of the lab
#: do not appear on the machine.
FRESH = (
    "unshare",
    "--mount",
    "--propagation=slave",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--",
)


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
    check_machine(shaped=plan.is_shaped)
    check_command(command)
    with _started(plan, name) as (started, signals):
        if number := started.wait_until_up(signals):
            return 128 + number
        return visit(started.lab.pid, plan, plan.host(None).name, command, signals)


def start_lab(plan: LabPlan, name: str = DEFAULT_NAME) -> Lab:
    """Start a lab that stays until `Lab.end`, even if this process and its terminal end.

    Raises:
        InputError: the name is in use, no root, a missing program, or a kernel without the
            features.
    """
    check_machine(shaped=plan.is_shaped)
    with _started(plan, name) as (started, signals):
        if number := started.wait_until_up(signals):
            sys.exit(128 + number)
        return started.let_stay()


def check_machine(*, shaped: bool = False) -> None:
    """Refuse a machine that cannot emulate a cluster, and remove the directory of labs that were
    killed.

    Args:
        shaped: whether links are to get a rate.

    Raises:
        InputError: not Linux, not root, or a missing program.
    """
    if sys.platform != "linux":
        raise InputError(
            f"An emulated cluster needs Linux and this is {sys.platform}; run it on a Linux"
            " machine."
        )
    if os.geteuid() != 0:
        raise InputError(
            f"An emulated cluster needs root and this is user {os.geteuid()}; "
            'put sudo env PATH="$PATH" before the command.'
        )
    for program, package in PROGRAMS.items():
        if (shaped or program != "tc") and shutil.which(program) is None:
            raise InputError(
                f"An emulated cluster needs the program {program}, which was not found; install"
                f" {package}."
            )
    remove_unused_directory()


@contextlib.contextmanager
def _started(plan: LabPlan, name: str | None) -> Iterator[tuple[_StartedLab, socket.socket]]:
    """Start a lab, and end it unless it was told to stay.

    Yield it with a socket of the signals to this process.
    """
    run_program([*FRESH, "true"])
    with (
        locked_directory() as lock,
        caught(PASSED_ON) as signals,
        contextlib.closing(_StartedLab(plan, name, lock)) as started,
    ):
        yield started, signals


class _StartedLab:
    """A lab that ends with this process unless it is told to stay."""

    def __init__(self, plan: LabPlan, name: str | None, lock: int) -> None:
        self._name, listener = reserve(name)
        self._connection, inner = socket.socketpair()
        fds = [inner.fileno(), listener.fileno(), lock]
        words = [
            sys.executable,
            "-m",
            "commbench.launch.lab.inside",
            *map(str, fds),
            str(DIRECTORY),
            plan.to_json(),
        ]
        with (
            inner,
            listener,
            blocked(PASSED_ON),
        ):  # a session of its own: no key and no closed terminal reaches it
            self._process = subprocess.Popen(
                [*FRESH, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
            )

    def wait_until_up(self, signals: socket.socket) -> int:
        """Return 0 when the lab is up, or the number of a signal that arrived before.

        Raises:
            InputError: the lab could not be built.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select()]
        if signals in ready:
            return signals.recv(1)[0]
        if (report := self._connection.recv(1)) == b"\n":
            return 0
        while received := self._connection.recv(4096):
            report += received
        if self._process.wait() == InputError.exit_code:
            raise InputError(report.decode().strip())
        raise RuntimeError(report.decode() or "the lab's first process has ended")

    @property
    def lab(self) -> Lab:
        """The lab, once it is up."""
        return Lab.find(self._name)

    def let_stay(self) -> Lab:
        """Let the lab stay after this process, once it is up."""
        lab = self.lab
        self._connection.sendall(STAY)
        if self._connection.recv(1) != STAY:
            raise InputError(
                f"The emulated cluster {self._name!r} was ended while it began; start it again."
            )
        self._process.returncode = 0  # this process does not wait for it any more
        return lab

    def close(self) -> None:
        """End the lab unless it stays."""
        self._connection.close()  # the lab ends when its end of the connection closes
        self._process.wait()
