"""The monotonic clock of this host: its resolution, its cost, and which processes share it."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable
from itertools import pairwise, repeat, starmap

from commbench.system.files import read_text, system_path


def boot_id() -> str | None:
    """Return the random identifier that the kernel draws at boot."""
    return read_text("proc/sys/kernel/random/boot_id")


def time_namespace() -> str | None:
    """Return the label of this process's time namespace; None before Linux 5.6."""
    try:
        # The target 'time:[402...]' is a label, not a path.
        return os.readlink(system_path("proc/self/ns/time"))  # noqa: PTH115
    except OSError:
        return None


def clock_domain() -> str:
    """Return 'boot_id/time-namespace': two ranks share CLOCK_MONOTONIC only if their values are
    equal.

    The boot id alone is not enough: a time namespace shifts the clock and leaves the boot id
    unchanged. Without a boot
    id the result is unique to this process: an unknown clock counts as not shared. Equality is
    necessary, not
    sufficient: virtual machines resumed from one snapshot can have the same boot id.
    """
    boot = boot_id()
    if boot is None:
        return f"{socket.gethostname()}:{os.getpid()}/unknown"
    return f"{boot}/{time_namespace() or 'none'}"


def machine_id() -> str:
    """Return an identifier that all containers and emulated hosts of one machine share: the boot
    id, else the name.
    """
    return boot_id() or socket.gethostname()


def timer_tick_s(clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Return the resolution of the clock, in seconds: the smallest difference between two of 1000
    observed steps.

    The steps themselves are longer than the resolution: reading the clock takes longer than one
    tick.

    Args:
        clock: returns nanoseconds; the default reads CLOCK_MONOTONIC on Linux.
    """
    stamps = list(starmap(clock, repeat((), 1000)))
    steps = sorted({later - sooner for sooner, later in pairwise(stamps)} | {0})
    return 1e-9 * min((longer - shorter for shorter, longer in pairwise(steps)), default=1)


def timer_cost_s(clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Return the cost of one reading of the clock, in seconds: the median of 9 batches of 1000
    readings.
    """
    readings_ns = []
    for _ in range(9):
        stamps = list(starmap(clock, repeat((), 1001)))  # no Python bytecode between two readings
        readings_ns.append((stamps[-1] - stamps[0]) / 1000)
    return 1e-9 * statistics.median(readings_ns)
