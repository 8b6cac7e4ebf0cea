"""Launchers' messages when a rank dies or cannot start: the exit of a rank, and a sentence with the
remedy.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: Message of a rank's communication library that lost its connection to another rank: this rank is
#: a victim.
_CONNECTION_LOST = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken ?pipe|timed out|closed by peer|socket"
    r" closed",
    re.IGNORECASE,
)
_OPENMPI_SIGNAL = re.compile(
    r"rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+) \((.+?)\)"
)
_OPENMPI_EXIT = re.compile(r"Process name: \[.+?,(\d+)\] Exit code: (\d+)")
_OPENMPI_PEER = re.compile(r"peer process has unexpectedly disconnected\..*?Peer host: (\S+)")
_OPENMPI_VICTIM = re.compile(
    r"An error occurred in Socket closed.*?reported by process \[\d+,(\d+)\]"
)
_OPENMPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+)")
_OPENMPI_LOST = re.compile(
    r"lost communication with a remote daemon\..*?Remote daemon: \S+ on node (\S+)", re.DOTALL
)
_TORCHRUN = re.compile(r"rank +: (\d+) \(local_rank: \d+\) exitcode +: (-?\d+) \(pid: \d+\)")
_MPICH = re.compile(r"PID (\d+) RUNNING AT (\S+).*?EXIT (?:CODE|STATUS): (\d+)")
#: srun names tasks host by host, the first to end first; of tasks that srun ended itself it says
#: "Terminated".
_SRUN = re.compile(
    r"srun: error: (\S+): tasks? (\d+)[\d,-]*: (?:Exited with exit code (\d+)|([A-Z][A-Za-z ]*))"
)
_SRUN_SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()} | {
    "Out Of Memory": 9
}
#: By SIGTERM, launchers and `commbench.launch.process` end the ranks that are still alive.
_SIGTERM = 15


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """The exit of a rank, as the launcher reports it."""

    rank: int | None
    code: int
    """Exit status; negative: the signal that ended it."""
    host: str = ""
    is_late: bool = False
    """Whether the launcher noticed another rank's end before."""

    @property
    def signal(self) -> int:
        """The signal that ended the rank; 0 if none did, or if it was SIGTERM, by which ranks are
        torn down.
        """
        return -self.code if self.code < 0 and -self.code != _SIGTERM else 0


@dataclass(frozen=True, kw_only=True)
class LostPeer:
    """A rank to which others lost their connection, as Open MPI reports it."""

    host: str
    """Empty if unknown."""
    victims: frozenset[int]
    """Ranks that reported the loss."""


def is_connection_lost(message: str) -> bool:
    """Return whether a library's message says that the connection to another rank is lost."""
    return bool(_CONNECTION_LOST.search(message))


def find_exit(text: str, processes: Mapping[int, tuple[str, int]]) -> RankExit | None:
    """Return the exit that ended the launch; None if the launcher reports none.

    Args:
        text: all that was written, its white space reduced.
        processes: host and process number of each rank, for launchers that name these only.
    """
    if match := _OPENMPI_SIGNAL.search(text):
        return RankExit(rank=int(match[1]), host=match[2], code=-int(match[3]))
    if failures := [
        RankExit(rank=int(rank), code=int(code)) for rank, code in _TORCHRUN.findall(text)
    ]:
        return _choose_torchrun(failures[-1], failures[:-1])
    if match := _OPENMPI_EXIT.search(text):
        return RankExit(rank=int(match[1]), code=int(match[2]))
    if match := _OPENMPI_ABORT.search(text):
        return RankExit(rank=int(match[1]), code=1)
    if tasks := _SRUN.findall(text):
        return _choose_srun(tasks)
    return _find_hydra(text, processes)


def find_lost_daemon(text: str) -> str:
    """Return the host whose daemon mpirun has lost; empty if none."""
    match = _OPENMPI_LOST.search(text)
    return match[1] if match else ""


def find_lost_peer(text: str) -> LostPeer | None:
    """Return the rank that others lost, from Open MPI's message; None without such a message."""
    match = _OPENMPI_PEER.search(text)
    victims = frozenset(int(rank) for rank in _OPENMPI_VICTIM.findall(text))
    return LostPeer(host=match[1] if match else "", victims=victims) if match or victims else None


def _find_hydra(text: str, processes: Mapping[int, tuple[str, int]]) -> RankExit | None:
    match = _MPICH.search(text)
    if not match:
        return None
    return RankExit(
        rank=_rank_of(int(match[1]), match[2], processes), host=match[2], code=-int(match[3])
    )


def _rank_of(pid: int, host: str, processes: Mapping[int, tuple[str, int]]) -> int | None:
    """Return the rank of a process on a host: in containers, processes of several hosts can have
    the same number.
    """
    ranks = [rank for rank, (_, number) in processes.items() if number == pid]
    on_host = [
        rank for rank in ranks if _without_domain(processes[rank][0]) == _without_domain(host)
    ]
    candidates = on_host or ranks
    return candidates[0] if len(candidates) == 1 else None


def _without_domain(host: str) -> str:
    return host.partition(".")[0]


def _choose_torchrun(first: RankExit, others: Sequence[RankExit]) -> RankExit:
    """Return the failure that torchrun noticed first, or a killed rank among ``others``: it may be
    noticed later.
    """
    killed = [other for other in others if other.signal]
    return replace(killed[0], is_late=True) if first.code > 0 and killed else first


def _choose_srun(failures: Sequence[Sequence[str]]) -> RankExit | None:
    """Return the first death that srun did not cause itself, else the first exit status."""
    for host, rank, _, word in failures:
        number = _SRUN_SIGNALS.get(word.split(" srun")[0].split(" slurmstepd")[0].strip())
        if number is not None and number != _SIGTERM:
            return RankExit(rank=int(rank), host=host, code=-number)
    exits = [
        RankExit(rank=int(rank), host=host, code=int(code))
        for host, rank, code, _ in failures
        if code
    ]
    return exits[0] if exits else None


# ----------------------------------------------------------------------------------------- remedies

#: A pattern for all that was written, its white space reduced, and the sentence for it; the first
#: match counts.
_REMEDIES = tuple(
    (re.compile(pattern, re.IGNORECASE), sentence)
    for pattern, sentence in (
        (
            r"Could not resolve hostname (?P<host>[^\s:]+)",
            "the host name {host} does not resolve; correct the hostfile or the name service",
        ),
        (
            r"IPv\d network addresses of \((?P<host>[^,]+), \d+\) cannot be retrieved",
            "the host name {host} does not resolve; correct /etc/hosts or the name service",
        ),
        (
            r"pmix_ifinit: unable to find network interfaces",
            (
                "no network interface is up; the ranks of one host need the loopback: `ip link set"
                " lo up`"
            ),
        ),
        (
            r"connect to host (?P<host>\S+) port \d+: Connection refused",
            "host {host} refuses ssh; start its ssh server, or name another host",
        ),
        (
            (
                r"connect to host (?P<host>\S+) port \d+: (?P<why>No route to host|Network is"
                r" unreachable|[\w ]*timed out)"
            ),
            (
                "host {host} cannot be reached by ssh ({why}); check that it is up, or take it out"
                " of the hostfile"
            ),
        ),
        (
            r"(?P<host>\S+): Permission denied \((?P<why>[^)]*)\)",
            "ssh to {host} is denied ({why}); make `ssh {host} true` work without a password",
        ),
        (
            r"Host key verification failed",
            (
                "ssh does not trust a host's key; make `ssh HOST true` work for every host of the"
                " hostfile"
            ),
        ),
        (
            r"agent program \S+.{0,80}not found|plm.{0,40}rsh.{0,80}(?:ssh|rsh).{0,40}not found",
            (
                "mpirun found no ssh to reach other hosts with; install it, or name hosts of this"
                " machine only"
            ),
        ),
        (
            r"there is no emulated host '(?P<host>[^']*)'",
            "the emulated cluster has no host {host}; correct the hostfile",
        ),
        (
            r"daemon failed to report back after being spawned.*?Remote host: (?P<host>\S+)",
            (
                "mpirun could not start its daemon on host {host}; make `ssh {host} true` and the"
                " same MPI work there"
            ),
        ),
        (
            r"There are not enough slots available",
            (
                "mpirun has fewer slots than ranks were asked for; ask for fewer, or give the hosts"
                " more slots"
            ),
        ),
        (
            r"could not access an executable: Executable: (?P<path>\S+) Node: (?P<host>\S+)",
            (
                "{path} cannot be started on host {host}; install the same environment at the same"
                " path on every host"
            ),
        ),
        (
            r"No module named '?(?P<module>commbench|mpi4py|torch)\b",
            (
                "{module} is not installed for the Python that the ranks run; install the same"
                " environment on every host"
            ),
        ),
        (
            r"port: (?P<port>\d+).{0,80}EADDRINUSE",
            (
                "port {port}, on which ranks are to meet, is in use; end what holds it, or choose"
                " another one"
            ),
        ),
        (
            r"EADDRINUSE|address already in use",
            "a port on which ranks are to meet is in use; end what holds it, or choose another one",
        ),
        (
            (
                r"not enough space for /dev/shm|No space left on"
                r" device.{0,60}/dev/shm|/dev/shm.{0,60}No space left"
            ),
            (
                "/dev/shm is full, which ranks of one host need to exchange messages in memory;"  # noqa: S108 - not a file of ours
                " make room there"
            ),
        ),
        (
            r"No space left on device",
            (
                "a disk that ranks or their launcher write to is full; make room, in TMPDIR first"
                " of all"
            ),
        ),
    )
)
_SHM = re.compile(r"not enough space for /dev/shm")


def explain(lines: Sequence[str]) -> str:
    """Return a clause on why ranks could not start; empty without a known error in the output."""
    text = " ".join(" ".join(lines).split())
    for pattern, sentence in _REMEDIES:
        if match := pattern.search(text):
            return sentence.format_map(match.groupdict())
    return ""


def find_warning(lines: Sequence[str]) -> str:
    """Return a clause on the cause that slows down a successful launch.

    Empty without a known warning in the output.
    """
    if _SHM.search(" ".join(" ".join(lines).split())):
        return (
            "/dev/shm is full, so ranks of one host could not exchange messages in memory;"  # noqa: S108 - not ours
            " make room there"
        )
    return ""


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that has a word in it, after a colon, for output of no known form.

    Empty without any.
    """
    lines_with_words = [line.strip() for line in lines if re.search(r"\w", line)]
    return f": {lines_with_words[-1][:200]}" if lines_with_words else ""
