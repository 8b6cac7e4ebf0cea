"""Run on two ranks, one in a time namespace: print the true offset of rank 1's clock and the error
of its estimate.
"""

import os
import time
from pathlib import Path

import numpy as np
from reporting import report_and_exit

from commbench.backends import connect_control
from commbench.engine.control import gather_everywhere
from commbench.engine.timing.clocks import open_clock
from commbench.launch.identity import identify
from commbench.system.clock import clock_domain

MOMENTS = 4


def own_shift_ns() -> int:
    """Return the offset of this process's monotonic clock from the machine's, in nanoseconds."""
    lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    _, seconds, nanoseconds = next(line.split() for line in lines if line.startswith("monotonic"))
    return int(seconds) * 10**9 + int(nanoseconds)


def main() -> None:
    """Print the true offset, and for each moment the error of rank 1's clock and its bound, as
    JSON.
    """
    identity = identify(os.environ, "rank")
    control = connect_control(
        identity.launcher, identity.world_size, carries_mpi=identity.carries_mpi
    )
    shifts = gather_everywhere(control, own_shift_ns())
    ahead_ns = shifts[control.rank] - shifts[0]
    clock = open_clock(control, gather_everywhere(control, clock_domain()))
    errors, bounds = [], []
    for _ in range(MOMENTS):
        now = time.perf_counter_ns()
        errors.append(abs(int(clock.to_global(np.array([now]))[0]) - (now - ahead_ns)))
        bounds.append(clock.error_ns)
        time.sleep(0.1)
        clock.refresh()
    results = gather_everywhere(
        control, {"true_s": ahead_ns / 1e9, "errors_ns": errors, "bounds_ns": bounds}
    )[1]
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
