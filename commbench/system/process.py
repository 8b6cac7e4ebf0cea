"""This process: its garbage collector, its peak resident memory, and the bytes that its TCP sockets have sent."""

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


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Let it wait: it would disturb what is timed, or search very many new objects again and again that all stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs


def reset_peak_memory() -> None:
    """Let the peak begin anew at what is resident now; where that is not allowed it stays the process's."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")


def peak_memory_bytes() -> int | None:
    """The peak since the last reset, in bytes; None where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


_TCP_INFO_BYTES = 256
#: Offsets in Linux' struct tcp_info (include/uapi/linux/tcp.h): 64-bit counters of all bytes and of repeated ones.
_BYTES_SENT, _BYTES_RETRANSMITTED = 200, 208
#: The counters count as settled when they stand still for so long.
_QUIET_S = 0.002
_PATIENCE_S = 0.1


def sent_bytes() -> int | None:
    """Payload bytes sent so far by the TCP sockets that this process has open; None where the system does not tell."""
    counts = [count for count in map(_socket_bytes, _descriptors()) if count is not None]
    return sum(counts) if counts else None


def settled_sent_bytes() -> int | None:
    """As `sent_bytes`, once nothing is on its way out any more (or after a tenth of a second)."""
    end = time.monotonic() + _PATIENCE_S
    before = sent_bytes()
    while before is not None and time.monotonic() < end:
        time.sleep(_QUIET_S)
        now = sent_bytes()
        if now == before:
            break
        before = now
    return before


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - numbers, not paths
    except OSError:
        return []


def _socket_bytes(descriptor: int) -> int | None:
    """Payload bytes that one socket has sent; None for what is no TCP socket."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as own:
            if own.family not in {socket.AF_INET, socket.AF_INET6} or own.type != socket.SOCK_STREAM:
                return None
            info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except (OSError, AttributeError):  # closed meanwhile, or not Linux
        return None
    if len(info) < _BYTES_RETRANSMITTED + 8:
        return None
    sent, repeated = (struct.unpack_from("=Q", info, offset)[0] for offset in (_BYTES_SENT, _BYTES_RETRANSMITTED))
    return int(sent - repeated)
