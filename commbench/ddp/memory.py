"""The largest resident memory of this process, which Linux can be asked to count anew."""

from __future__ import annotations

import contextlib
from pathlib import Path

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
