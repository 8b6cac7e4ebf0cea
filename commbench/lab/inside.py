"""The first process of an emulated cluster: builds hosts and links, runs the command on the first host, ends with it.

It is process 1 of a process namespace and holds the lab's network and mount namespaces. So whatever way it ends, the
kernel ends every process of the lab with it, and takes away the namespaces, links and mounts, which nobody else holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from commbench.errors import InputError
from commbench.lab import agent
from commbench.lab.network import build_network, cannot, run_program
from commbench.lab.plan import HostPlan, LabPlan

#: What makes a process a host ($1: its name, $2: the lab's directory), run in fresh namespaces. Memory under /dev/shm
#: is a host's own, /sys shows its own interfaces, and the machine's InfiniBand devices are out of reach.
_HOST = """
set -e
printf %s "$1" > /proc/sys/kernel/hostname
mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm
mount -t sysfs sysfs "$2/sys"
mount --bind "$2/sys/class/net" /sys/class/net
mount --bind "$2/sys/devices/virtual/net" /sys/devices/virtual/net
umount -l "$2/sys"
if [ -d /dev/infiniband ]; then mount -t tmpfs none /dev/infiniband; fi
if [ -d /proc/sys/net/ipv6 ]; then echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; fi
echo up
exec sleep infinity > /dev/null 2>&1
"""


class Lab:
    """The lab from within.

    Args:
        plan: what to build.
        directory: an empty directory, the same for all hosts; a private file system is mounted over it.
    """

    def __init__(self, plan: LabPlan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._command: subprocess.Popen[bytes] | None = None

    def build(self) -> None:
        """Make the files, hosts and links.

        Raises:
            InputError: this machine cannot.
        """
        run_program(["mount", "-t", "tmpfs", "-o", "mode=755", "commbench-lab", str(self._directory)])
        self._write("hosts", self._plan.hosts_file())
        self._write("hostfile", self._plan.hostfile())
        run_program(["mount", "--bind", str(self._directory / "hosts"), "/etc/hosts"])
        (self._directory / "sys").mkdir()
        pids = self._start_hosts()
        self._write("pids", json.dumps(pids))
        self._write("agent", f'#!/bin/sh\nexec {shlex.join(self._agent("ssh"))} "$@"\n', mode=0o755)
        build_network(self._plan, pids)

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self._directory / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)

    def _agent(self, form: str) -> list[str]:
        return [sys.executable, "-I", "-S", agent.__file__, str(self._directory / "pids"), form]

    def _start_hosts(self) -> dict[str, int]:
        """Start one process a host, which holds the host's namespaces; return their ids by host name."""
        self._holders = {host.name: self._start_host(host) for host in self._plan.hosts}
        for holder in self._holders.values():
            _wait_until_up(holder)
        return {name: holder.pid for name, holder in self._holders.items()}

    def _start_host(self, host: HostPlan) -> subprocess.Popen[str]:
        kinds = ("--net", "--uts", "--ipc", "--mount")
        command = ["unshare", *kinds, "sh", "-c", _HOST, "host", host.name, str(self._directory)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def start(self, command: Sequence[str]) -> None:
        """Start the command on the first host."""
        environment = self._plan.environment(os.environ, self._directory)
        self._command = subprocess.Popen([*self._agent("exec"), self._plan.hosts[0].name, *command], env=environment)

    def follow(self, connection: socket.socket) -> None:
        """Pass on the signals that come as bytes; at their end, or where there is no command yet, end the lab."""
        while number := connection.recv(1):
            if self._command is None:
                os._exit(128 + number[0])
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self._command.pid, number[0])  # no method of Popen: it would reap the command unseen by wait()
        os._exit(128 + signal.SIGKILL)

    def wait(self) -> int:
        """Reap processes until the command has ended; return its exit code, 128 + n after signal n."""
        if self._command is None:
            raise RuntimeError
        while True:
            pid, status = os.wait()  # also those whose parents have ended before them
            if pid == self._command.pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


def _wait_until_up(holder: subprocess.Popen[str]) -> None:
    """Wait for a host to say that it is up.

    Raises:
        InputError: it has ended instead.
    """
    if holder.stdout and holder.stdout.readline() == "up\n":
        return
    raise InputError(cannot("unshare", holder.stderr.read() if holder.stderr else ""))


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a lab; ``arguments``: the number of the connection to the outside, the directory, the plan, the command."""
    descriptor, directory, plan, *command = arguments
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    lab = Lab(LabPlan.from_json(plan), Path(directory))
    threading.Thread(target=lab.follow, args=(connection,), daemon=True).start()
    try:
        lab.build()
        lab.start(command)
    except InputError as error:
        connection.sendall(f"{error}\n".encode())
        os._exit(error.exit_code)
    connection.sendall(b"\n")
    os._exit(lab.wait())


if __name__ == "__main__":
    main(sys.argv[1:])
