"""What launchers and their helpers complain about when ranks cannot be started, said in one sentence each."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: What is looked for in all that was written, its white space reduced, and what it means; the first that fits counts.
_COMPLAINTS = tuple(
    (re.compile(pattern, re.IGNORECASE), sentence)
    for pattern, sentence in (
        (
            r"Could not resolve hostname (?P<host>[^\s:]+)",
            "the host name {host} does not resolve; correct the hostfile or the name service",
        ),
        (
            r"connect to host (?P<host>\S+) port \d+: Connection refused",
            "host {host} refuses ssh; start its ssh server, or name another host",
        ),
        (
            r"connect to host (?P<host>\S+) port \d+: (?P<why>No route to host|Network is unreachable|[\w ]*timed out)",
            "host {host} cannot be reached by ssh ({why}); check that it is up, or take it out of the hostfile",
        ),
        (
            r"(?P<host>\S+): Permission denied \((?P<why>[^)]*)\)",
            "ssh to {host} is denied ({why}); make `ssh {host} true` work without a password",
        ),
        (
            r"Host key verification failed",
            "ssh does not trust a host's key; make `ssh HOST true` work for every host of the hostfile",
        ),
        (
            r"agent program \S+.{0,80}not found|plm.{0,40}rsh.{0,80}(?:ssh|rsh).{0,40}not found",
            "mpirun found no ssh to reach other hosts with; install it, or name hosts of this machine only",
        ),
        (
            r"there is no emulated host '(?P<host>[^']*)'",
            "the emulated cluster has no host {host}; correct the hostfile",
        ),
        (
            r"daemon failed to report back after being spawned.*?Remote host: (?P<host>\S+)",
            "mpirun could not start its daemon on host {host}; make `ssh {host} true` and the same MPI work there",
        ),
        (
            r"There are not enough slots available",
            "mpirun has fewer slots than ranks were asked for; ask for fewer, or give the hosts more slots",
        ),
        (
            r"could not access an executable: Executable: (?P<path>\S+) Node: (?P<host>\S+)",
            "{path} cannot be started on host {host}; install the same environment at the same path on every host",
        ),
        (
            r"No module named '?(?P<module>commbench|mpi4py|torch)\b",
            "{module} is not installed for the Python that the ranks run; install the same environment on every host",
        ),
        (
            r"port: (?P<port>\d+).{0,80}EADDRINUSE",
            "port {port}, on which ranks are to meet, is in use; end what holds it, or choose another one",
        ),
        (
            r"EADDRINUSE|address already in use",
            "a port on which ranks are to meet is in use; end what holds it, or choose another one",
        ),
        (
            r"not enough space for /dev/shm|No space left on device.{0,60}/dev/shm|/dev/shm.{0,60}No space left",
            "/dev/shm is full, which ranks of one host need to exchange messages in memory; make room there",  # noqa: S108 - not a file of ours
        ),
        (
            r"No space left on device",
            "a disk that ranks or their launcher write to is full; make room, in TMPDIR first of all",
        ),
    )
)
_SHM = re.compile(r"not enough space for /dev/shm")


def explain(lines: Sequence[str]) -> str:
    """What keeps ranks from being started, as a clause of a sentence; empty where nothing known was written."""
    text = " ".join(" ".join(lines).split())
    for pattern, sentence in _COMPLAINTS:
        if found := pattern.search(text):
            return sentence.format_map(found.groupdict())
    return ""


def doubt(lines: Sequence[str]) -> str:
    """What spoils a launch that has gone through, as a clause; empty where nothing known was written."""
    if _SHM.search(" ".join(" ".join(lines).split())):
        return "/dev/shm is full, so ranks of one host could not exchange messages in memory; make room there"  # noqa: S108 - as above
    return ""
