"""Starting an emulated cluster: the machine checked, its first process begun, and gone again without a trace."""

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
from commbench.launch.lab.network import run_program
from commbench.launch.lab.plan import DIRECTORY, STAY, LabPlan
from commbench.launch.lab.registry import DEFAULT_NAME, hold, reserve, sweep
from commbench.launch.lab.signals import PASSED_ON, blocked, caught
from commbench.launch.lab.standing import Lab
from commbench.launch.lab.visit import check_command, visit

#: What a person must know about every number from a lab.
NOT_EMULATED = (
    "Only the rate of each link is emulated: latency, jitter and loss are not, a burst of about 1 ms at that rate, "
    "but at least 16 KiB, passes unshaped, and all hosts share the cores and memory of this machine."
)
#: What a lab is built with, and the packages that bring it; tc is for shaping.
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
#: Starts a program as process 1 of a lab, in fresh namespaces that end with it; killed itself, it kills that program.
#: What is mounted on the machine meanwhile comes to the lab, and nothing goes the other way.
FRESH = ("unshare", "--mount", "--propagation=slave", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--")


def run_in_lab(
    hosts: int,
    rate: str,
    command: Sequence[str],
    *,
    ranks_per_host: int = 1,
    slow: Sequence[str] = (),
    racks: int = 1,
    uplink: str | None = None,
    name: str | None = None,
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
        name: what the lab is called as long as it is there; a fresh one if None.

    Returns:
        The command's exit code; 128 + n if signal n has ended it.

    Raises:
        InputError: bad numbers, rate, name or command, no root, a program missing, or a kernel that cannot.
    """
    plan = LabPlan.parse(hosts, rate, ranks_per_host=ranks_per_host, slow=slow, racks=racks, uplink=uplink)
    check_machine(shaped=plan.is_shaped)
    check_command(command)
    with _begun(plan, name) as (beginning, signals):
        if number := beginning.wait_until_up(signals):
            return 128 + number
        return visit(beginning.lab.pid, plan, plan.host(None).name, command, signals)


def start_lab(plan: LabPlan, name: str = DEFAULT_NAME) -> Lab:
    """Start a lab that stays, whatever becomes of this process and its terminal, until `Lab.end`.

    Raises:
        InputError: there is a lab of that name, no root, a program missing, or a kernel that cannot.
    """
    check_machine(shaped=plan.is_shaped)
    with _begun(plan, name) as (beginning, signals):
        if number := beginning.wait_until_up(signals):
            sys.exit(128 + number)
        return beginning.let_stay()


def check_machine(*, shaped: bool = False) -> None:
    """Refuse what this machine lacks, and clear up what killed labs have left.

    Args:
        shaped: whether links are to get a rate.

    Raises:
        InputError: not Linux, not root, or a program missing.
    """
    if sys.platform != "linux":
        raise InputError(f"An emulated cluster needs Linux and this is {sys.platform}; run it on a Linux machine.")
    if os.geteuid() != 0:
        raise InputError(
            f"An emulated cluster needs root and this is user {os.geteuid()}; "
            'put sudo env PATH="$PATH" before the command.'
        )
    for program, package in PROGRAMS.items():
        if (shaped or program != "tc") and shutil.which(program) is None:
            raise InputError(
                f"An emulated cluster needs the program {program}, which was not found; install {package}."
            )
    sweep()


@contextlib.contextmanager
def _begun(plan: LabPlan, name: str | None) -> Iterator[tuple[_Beginning, socket.socket]]:
    """Begin a lab, and end it unless it has been told to stay; beside it come signals to this process, as bytes."""
    run_program([*FRESH, "true"])
    with hold() as lock, caught(PASSED_ON) as signals, contextlib.closing(_Beginning(plan, name, lock)) as beginning:
        yield beginning, signals


class _Beginning:
    """A lab that ends when this process does, until it is told to stay."""

    def __init__(self, plan: LabPlan, name: str | None, lock: int) -> None:
        self._name, listener = reserve(name)
        self._connection, inner = socket.socketpair()
        handed = [inner.fileno(), listener.fileno(), lock]
        words = [sys.executable, "-m", "commbench.launch.lab.inside", *map(str, handed), str(DIRECTORY), plan.to_json()]
        with inner, listener, blocked(PASSED_ON):  # a session of its own: no key and no closed terminal reaches it
            self._process = subprocess.Popen(
                [*FRESH, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=handed,
                start_new_session=True,
            )

    def wait_until_up(self, signals: socket.socket) -> int:
        """Return 0 when the lab is up, or the number of a signal that has come before.

        Raises:
            InputError: the lab could not be built.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select()]
        if signals in ready:
            return signals.recv(1)[0]
        if (said := self._connection.recv(1)) == b"\n":
            return 0
        while new := self._connection.recv(4096):
            said += new
        if self._process.wait() == InputError.exit_code:
            raise InputError(said.decode().strip())
        raise RuntimeError(said.decode() or "the lab's first process has ended")

    @property
    def lab(self) -> Lab:
        """The lab, once it is up."""
        return Lab.find(self._name)

    def let_stay(self) -> Lab:
        """Let the lab be, once it is up."""
        lab = self.lab
        self._connection.sendall(STAY)
        if self._connection.recv(1) != STAY:
            raise InputError(f"The emulated cluster {self._name!r} was ended while it began; start it again.")
        self._process.returncode = 0  # it is not this process's to wait for any more
        return lab

    def close(self) -> None:
        """End the lab, however far it has come, unless it stays."""
        self._connection.close()  # the lab ends at the end of what it reads
        self._process.wait()
