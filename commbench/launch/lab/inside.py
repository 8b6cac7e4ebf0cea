"""The first process of an emulated cluster: builds hosts and links, and runs until the cluster
ends.

It is process 1 of a process namespace and holds the lab's network and mount namespaces. So however
it ends, the kernel ends every process of the lab with it, and removes the namespaces, links and
mounts, which no other process holds. Its command line names the lab.
"""

from __future__ import annotations

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
from commbench.launch.lab.plan import DIRECTORY, PLAN, LabPlan

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


def build(plan: LabPlan) -> None:
    """Make the files, hosts and links of a lab, from within.

    Raises:
        InputError: this machine cannot emulate a cluster.
    """
    run_program(["mount", "-t", "tmpfs", "-o", "mode=755", "commbench-lab", str(DIRECTORY)])
    addresses = [f"{host.address} {host.name}\n" for host in plan.hosts]
    _write("hosts", "".join(["127.0.0.1 localhost\n", *addresses]))
    _write("hostfile", "".join(f"{host.name} slots={host.slots}\n" for host in plan.hosts))
    run_program(["mount", "--bind", str(DIRECTORY / "hosts"), "/etc/hosts"])
    (DIRECTORY / "sys").mkdir()
    words = ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation=slave", "sh", "-c"]
    holders = {}
    for host in plan.hosts:  # the process that holds the namespaces of a host
        holders[host.name] = subprocess.Popen(
            [*words, _HOST, "host", host.name, str(DIRECTORY)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    pids = {}
    for name, holder in holders.items():
        assert holder.stdout is not None  # noqa: S101 - it is a pipe
        if holder.stdout.readline() != "up\n":
            raise InputError(emulation_error("unshare", holder.communicate()[1]))
        pids[name] = holder.pid
    _write("pids", json.dumps(pids))
    ssh = _write("agent", f'#!/bin/sh\nexec {shlex.join(agent.call(DIRECTORY, "ssh"))} "$@"\n')
    ssh.chmod(0o755)
    build_network(plan, pids)
    _write("new", plan.to_json()).rename(DIRECTORY / PLAN)  # it shows that the lab is up


def _write(name: str, text: str) -> Path:
    path = DIRECTORY / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    return path


def follow(connection: socket.socket, may_stay: threading.Event) -> None:
    """End the lab when the process that started it has ended, unless it stays and is up."""
    connection.recv(1)
    if not may_stay.is_set():
        os._exit(128 + signal.SIGKILL)


def main(arguments: Sequence[str]) -> NoReturn:
    """Be a lab's first process; does not return.

    Args:
        arguments: the name, ``stays`` or ``ends``, the number of the connection to the process that
            starts the lab, and the plan as JSON.
    """
    _, life, descriptor, plan = arguments
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    may_stay = threading.Event()
    threading.Thread(target=follow, args=(connection, may_stay), daemon=True).start()
    try:
        build(LabPlan.from_json(plan))
    except InputError as error:
        connection.sendall(f"{error}\n".encode())
        os._exit(error.exit_code)
    except Exception:  # noqa: BLE001 - a bug of ours cannot be reported otherwise
        connection.sendall(traceback.format_exc().encode())
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    if life == "stays":
        may_stay.set()
    connection.sendall(b"\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
