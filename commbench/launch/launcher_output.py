"""What launchers write when a rank dies or cannot start."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from commbench.findings import Finding

#: Host and process number of each rank.
Processes = Mapping[int, tuple[str, int]]
#: Message of a rank's communication library that lost its connection to another rank: this rank is
#: a victim.
CONNECTION_LOST = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken ?pipe|timed out|closed by peer|socket"
    r" closed",
    re.IGNORECASE,
)
_TORCHRUN = (
    r"rank +: (?P<rank>\d+) \(local_rank: \d+\) exitcode +: (-(?P<signal>\d+)|(?P<status>\d+))"
    r" \(pid: \d+\)"
)
_INTEL_MPI = (
    r"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+) = KILLED BY SIGNAL: (?P<signal>\d+)"
)
#: How a rank has ended, in the words of each launcher; the first pattern that is found counts.
_EXITS = (
    r"rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?P<signal>\d+)",
    # without MPI_Finalize, as by os._exit(0)
    r"due to process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exiting(?P<status>)",
    _TORCHRUN,
    r"Process name: \[.+?,(?P<rank>\d+)\] Exit code: (?P<status>\d+)",
    r"MPI_ABORT was invoked on rank (?P<rank>\d+)",
    # srun names tasks host by host, the first to end first; of tasks that srun ended itself it says
    # "Terminated"
    (
        r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)[\d,-]*:"
        r" (Exited with exit code (?P<status>\d+)|(?P<word>[A-Z][A-Za-z ]*))"
    ),
    _INTEL_MPI,
    # Hydra of MPICH names processes
    r"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+).*?EXIT (CODE|STATUS): (?P<signal>\d+)",
)
_SRUN_SIGNALS = {signal.strsignal(number): int(number) for number in signal.valid_signals()} | {
    "Out Of Memory": 9
}
_OPENMPI_PEER = re.compile(r"peer process has unexpectedly disconnected\..*?Peer host: (\S+)")
_OPENMPI_VICTIM = re.compile(
    r"An error occurred in Socket closed.*?reported by process \[\d+,(\d+)\]"
)
#: The host whose daemon Open MPI has lost.
LOST_DAEMON = re.compile(
    r"lost communication with a remote daemon\..*?Remote daemon: \S+ on node (\S+)", re.DOTALL
)
#: Errors with a remedy, by the code of the clause about them; the first that is found counts.
_REMEDIES = {
    "host_unresolved": r"Could not resolve hostname (?P<host>[^\s:]+)",
    "host_unresolved_here": (
        r"IPv\d network addresses of \((?P<host>[^,]+), \d+\) cannot be retrieved"
    ),
    "loopback_down": r"pmix_ifinit: unable to find network interfaces",
    "ssh_refused": r"connect to host (?P<host>\S+) port \d+: Connection refused",
    "ssh_unreachable": (
        r"connect to host (?P<host>\S+) port \d+: (?P<why>No route to host|Network is"
        r" unreachable|[\w ]*timed out)"
    ),
    "ssh_denied": r"(?P<host>\S+): Permission denied \((?P<why>[^)]*)\)",
    "ssh_key_unknown": r"Host key verification failed",
    "ssh_missing": (
        r"agent program \S+.{0,80}not found|plm.{0,40}rsh.{0,80}(?:ssh|rsh).{0,40}not found"
    ),
    "lab_host_missing": r"there is no emulated host '(?P<host>[^']*)'",
    "daemon_not_started": (
        r"(?:daemon failed to report back after being spawned.*?Remote host: |Unable to run"
        r" bstrap_proxy on )(?P<host>\S+)"
    ),
    "slots_missing": r"There are not enough slots available",
    "program_missing": (
        r"could not access an executable: Executable: (?P<path>\S+) Node: (?P<host>\S+)"
    ),
    "module_missing": r"No module named '?(?P<module>commbench|mpi4py|torch)\b",
    "port_in_use": r"port: (?P<port>\d+).{0,80}EADDRINUSE",
    "some_port_in_use": r"EADDRINUSE|address already in use",
    "shared_memory_full": (
        r"not enough space for /dev/shm|No space left on"
        r" device.{0,60}/dev/shm|/dev/shm.{0,60}No space left"
    ),
    "disk_full": r"No space left on device|PMIX_ERR_FILE_WRITE_FAILURE",
    "directory_refused": (
        r"unable to create the desired directory: Directory: (?P<path>\S+) Error: (?P<why>[\w -]+?)"
        r" Please"
    ),
    "mpi_init_failed": r"An error occurred in MPI_Init",
}


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """The end of a rank, as the launcher reports it."""

    rank: int | None
    host: str
    """Empty if unknown."""
    signal: int
    """The signal that ended it, 0 if none did; SIGTERM is how launchers end the other ranks."""
    status: int
    is_late: bool = False
    """Whether the launcher noticed another rank's end before."""

    @property
    def is_killed(self) -> bool:
        """Whether a signal ended the rank that the launcher did not send."""
        return self.signal not in {0, signal.SIGTERM}


def one_line(lines: Sequence[str]) -> str:
    """Return lines as one, its white space reduced."""
    return " ".join(" ".join(lines).split())


def find_exit(text: str, processes: Processes) -> RankExit | None:
    """Return the exit that ended the launch; None if the launcher reports none.

    Args:
        text: all that was written, see `one_line`.
        processes: host and process number of each rank, for launchers that name these only.
    """
    for pattern in _EXITS:
        exits = [_read_exit(match.groupdict(), processes) for match in re.finditer(pattern, text)]
        if not exits:
            continue
        if pattern is _TORCHRUN:  # the first failure that it observed comes last
            exits = [exits[-1], *exits[:-1]]
        if pattern is _INTEL_MPI:
            exits = _without_victims(exits)
        for index, each in enumerate(exits):
            if each.is_killed:
                is_late = pattern is _TORCHRUN and index > 0  # it may notice a victim first
                return replace(each, is_late=is_late)
        for each in exits:
            if each.status or "srun" not in pattern:
                return each
    return None


def _without_victims(exits: list[RankExit]) -> list[RankExit]:
    """Return the exits that Intel MPI did not cause: it lists ranks by number, also those that it
    has killed itself.
    """
    causes = [each for each in exits if each.signal != signal.SIGKILL]
    if causes or len(exits) == 1:
        return causes or exits
    return [replace(exits[0], rank=None, host="")]


def _read_exit(groups: Mapping[str, str | None], processes: Processes) -> RankExit:
    """Return the exit that the groups of a pattern in `_EXITS` describe."""
    host, number = groups.get("host") or "", int(groups.get("signal") or 0)
    word = groups.get("word") or ""
    if word:
        name = word.split(" srun")[0].split(" slurmstepd")[0].strip()
        number = _SRUN_SIGNALS.get(name, 0)
    status = int(groups.get("status") or -number or 0)
    if not (number or word or "status" in groups):
        status = 1  # of MPI_Abort
    if groups.get("pid"):
        rank = _rank_of(int(groups["pid"] or 0), host, processes)
    else:
        rank = int(groups["rank"] or 0)
    return RankExit(rank=rank, host=host, signal=number, status=status)


def _rank_of(pid: int, host: str, processes: Processes) -> int | None:
    """Return the rank of a process on a host: in containers, processes of several hosts can have
    the same number.
    """
    ranks, on_host = [], []
    for rank, (name, number) in processes.items():
        if number == pid:
            ranks.append(rank)
            if _without_domain(name) == _without_domain(host):
                on_host.append(rank)
    candidates = on_host or ranks
    if len(candidates) == 1:
        return candidates[0]
    return None


def _without_domain(host: str) -> str:
    return host.partition(".")[0]


def find_lost_peer(text: str, processes: Processes) -> tuple[int | None, str] | None:
    """Return rank and host of the rank to which others lost their connection, from Open MPI's
    message; None without one.

    mpirun names the rank that first lost its connection to it.
    """
    match = _OPENMPI_PEER.search(text)
    victims = {int(rank) for rank in _OPENMPI_VICTIM.findall(text)}
    if not match and not victims:
        return None
    peer = match[1] if match else ""
    candidates = []
    for rank, (host, _) in processes.items():
        is_candidate = rank not in victims
        if peer:
            is_candidate = host == peer
        if is_candidate:
            candidates.append(rank)
    if len(candidates) != 1:
        return None, peer
    return candidates[0], peer or processes[candidates[0]][0]


def find_remedy(lines: Sequence[str]) -> Finding | None:
    """Return why ranks could not start; None without a known error in the output."""
    text = one_line(lines)
    for code, pattern in _REMEDIES.items():
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            return Finding(code, numbers=match.groupdict())
    return None


def find_warning(lines: Sequence[str]) -> Finding | None:
    """Return the cause that slows down a successful launch; None without a known warning in the
    output.
    """
    if "not enough space for /dev/shm" in one_line(lines):
        return Finding("shared_memory_unused")
    return None


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that has a word in it, for output of no known form; empty without."""
    for line in reversed(lines):
        if re.search(r"\w", line):
            return line.strip()[:200]
    return ""
