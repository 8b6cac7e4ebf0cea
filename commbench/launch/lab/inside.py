"""The first process of an emulated cluster: builds hosts and links, and runs until the cluster
ends.

It is process 1 of a process namespace and holds the lab's network and mount namespaces. So however
it ends, the kernel ends every process of the lab with it, and removes the namespaces, links and
mounts, which no other process holds.
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
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from commbench.errors import InputError
from commbench.launch.lab import agent
from commbench.launch.lab.network import build_network, emulation_error, run_program
from commbench.launch.lab.plan import ANSWER, PLAN, STAY, STAYS, HostPlan, LabPlan

#: The script that turns a process in fresh namespaces into a host ($1: its name, $2: the lab's
#: directory). A host has its own memory under /dev/shm and its own interfaces in /sys; the
#: machine's InfiniBand devices are out of reach.
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


class Builder:
    """Builds a lab, from within.

    Args:
        plan: the lab to build.
        directory: an empty directory, the same for all hosts; a private file system is mounted over
            it.
    """

    def __init__(self, plan: LabPlan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._holders: dict[str, subprocess.Popen[str]] = {}

    def build(self) -> None:
        """Make the files, hosts and links.

        Raises:
            InputError: this machine cannot emulate a cluster.
        """
        run_program(
            ["mount", "-t", "tmpfs", "-o", "mode=755", "commbench-lab", str(self._directory)]
        )
        self._write("hosts", self._plan.hosts_file())
        self._write("hostfile", self._plan.hostfile())
        run_program(["mount", "--bind", str(self._directory / "hosts"), "/etc/hosts"])
        (self._directory / "sys").mkdir()
        pids = self._start_hosts()
        self._write("pids", json.dumps(pids))
        self._write(
            "agent",
            f'#!/bin/sh\nexec {shlex.join(agent.call(self._directory, "ssh"))} "$@"\n',
            mode=0o755,
        )
        build_network(self._plan, pids)
        self._write(PLAN, self._plan.to_json())

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self._directory / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)

    def _start_hosts(self) -> dict[str, int]:
        """Start a process for each host, which holds the host's namespaces.

        Return their ids by host name.
        """
        self._holders = {host.name: self._start_host(host) for host in self._plan.hosts}
        for holder in self._holders.values():
            _wait_until_up(holder)
        return {name: holder.pid for name, holder in self._holders.items()}

    def _start_host(self, host: HostPlan) -> subprocess.Popen[str]:
        namespaces = ("--net", "--uts", "--ipc", "--mount", "--propagation=slave")
        command = [
            "unshare",
            *namespaces,
            "sh",
            "-c",
            _HOST,
            "host",
            host.name,
            str(self._directory),
        ]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _wait_until_up(holder: subprocess.Popen[str]) -> None:
    """Wait until a host is up.

    Raises:
        InputError: its process has ended instead.
    """
    if holder.stdout and holder.stdout.readline() == "up\n":
        return
    raise InputError(emulation_error("unshare", holder.stderr.read() if holder.stderr else ""))


def follow(connection: socket.socket, directory: Path) -> None:
    """End the lab when the connection closes, unless `STAY` has arrived before."""
    if connection.recv(1) != STAY:
        os._exit(128 + signal.SIGKILL)
    (directory / STAYS).touch()
    connection.sendall(STAY)
    connection.close()


def main(arguments: Sequence[str]) -> NoReturn:
    """Be a lab's first process; does not return.

    Args:
        arguments: the numbers of three descriptors (the connection to the process that starts the
            lab, the socket of the lab's name, the lock on the directory), the directory, and the
            plan as JSON.
    """
    *descriptors, directory, plan = arguments
    for descriptor in map(int, descriptors):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - its second parameter
    connection, listener = (socket.socket(fileno=int(descriptor)) for descriptor in descriptors[:2])
    threading.Thread(target=follow, args=(connection, Path(directory)), daemon=True).start()
    try:
        Builder(LabPlan.from_json(plan), Path(directory)).build()
    except InputError as error:
        connection.sendall(f"{error}\n".encode())
        os._exit(error.exit_code)
    except Exception:  # noqa: BLE001 - a bug of ours cannot be reported otherwise
        connection.sendall(traceback.format_exc().encode())
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    listener.listen()  # from now on the lab is found by its name
    connection.sendall(b"\n")
    while True:
        with contextlib.suppress(OSError), listener.accept()[0] as caller:
            caller.send(ANSWER)  # the kernel tells the caller our process id


if __name__ == "__main__":
    main(sys.argv[1:])
