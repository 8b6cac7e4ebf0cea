"""This process: its garbage collector, its peak resident memory, and the bytes that its TCP sockets
have sent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from commbench.system.files import parse_fields, read_text


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector inside: it would disturb timing, or scan many new objects
    repeatedly in vain.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def waiting_s() -> tuple[float, float]:
    """Return how long this thread has waited for a CPU, and the CPU time that the hypervisor gave
    to other guests.

    In seconds since the start of the thread and of the system; 0 if the system does not report it.
    Sources: proc(5), /proc/pid/schedstat and the field steal of /proc/stat, whose resolution is a
    tick, mostly 10 ms.
    """
    try:
        delay_ns = int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
        stolen = int(Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[_STEAL])
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    return delay_ns / 1e9, stolen / os.sysconf("SC_CLK_TCK")


#: Position of the field steal in the first line of /proc/stat, which begins with ``cpu``.
_STEAL = 8
_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs


def reset_peak_memory() -> None:
    """Reset the peak to the memory that is resident now.

    Without permission it stays the peak of the process.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")


def peak_memory_bytes() -> int | None:
    """Return the peak since the last reset, in bytes; None if the system does not report it."""
    peak = parse_fields(read_text("proc/self/status"), ":").get("VmHWM")
    return int(peak.split()[0]) * 1024 if peak else None


_TCP_INFO_BYTES = 256
#: Offset in Linux' struct tcp_info (include/uapi/linux/tcp.h): 64-bit counters of all bytes and of
#: retransmitted ones.
_BYTES_SENT = 200
#: The counters have settled once they do not change for this time.
_QUIET_S = 0.002
_SETTLING_LIMIT_S = 0.1


def sent_bytes() -> int | None:
    """Return the payload bytes sent so far by this process's open TCP sockets; None if unknown."""
    try:
        descriptors = os.listdir("/proc/self/fd")  # noqa: PTH208 - numbers, not paths
    except OSError:
        return None
    counts = []
    for descriptor in descriptors:
        count = _socket_bytes(int(descriptor))
        if count is not None:
            counts.append(count)
    return sum(counts) if counts else None


def settled_sent_bytes() -> int | None:
    """Return `sent_bytes` once the counters have settled, at the latest after a tenth of a
    second.
    """
    end = time.monotonic() + _SETTLING_LIMIT_S
    before = sent_bytes()
    while before is not None and time.monotonic() < end:
        time.sleep(_QUIET_S)
        now = sent_bytes()
        if now == before:
            break
        before = now
    return before


def _socket_bytes(descriptor: int) -> int | None:
    """Return the payload bytes that a socket has sent, without retransmissions.

    None if it is not a TCP socket.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            families = {socket.AF_INET, socket.AF_INET6}
            if duplicate.family not in families or duplicate.type != socket.SOCK_STREAM:
                return None
            info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # closed meanwhile
        return None
    if len(info) < _BYTES_SENT + 16:
        return None
    sent, retransmitted = struct.unpack_from("=QQ", info, _BYTES_SENT)
    return int(sent - retransmitted)
