"""Run under mpirun on one rank: the native loop around MPI calls, good ones and a bad one."""

from typing import Any

from reporting import leave

from commbench.backends import connect_control, open_backend
from commbench.engine.timing.loops import Call, Progress
from commbench.engine.timing.sync import SyncPlan
from commbench.errors import CommbenchError

COUNT = 2
"""Which argument of MPI_Allreduce says how many elements."""


def with_count(call: Call, count: int) -> Call:
    """The same calls with another number of elements."""
    rows = [(address, *arguments[:COUNT], count, *arguments[COUNT + 1 :]) for address, *arguments in call.rows]
    return Call(run=call.run, rows=rows, keep=[call])


def main() -> None:
    """Print what the loop counted and what it said, as JSON."""
    control = connect_control("mpirun", 1)
    communicator = open_backend("mpi", control)
    progress = Progress()
    found: dict[str, Any] = {}
    for method in ("none", "barrier", "dissemination", "round-time"):
        timer = communicator.timer("native", SyncPlan(method=method), progress)
        before = progress.counters.copy()
        seen = timer.run(communicator.null_calls(), 5, 3)
        found[method] = {
            "counted": (progress.counters - before).tolist(),
            "ordered": bool((seen.end_ns >= seen.start_ns).all() and (seen.start_ns[1:] >= seen.end_ns[:-1]).all()),
        }
    timer = communicator.timer("native", SyncPlan(method="none"), progress)
    try:
        timer.run([with_count(call, -1) for call in communicator.null_calls()], 2, 3)
        found["error"] = ""
    except CommbenchError as error:
        found["error"] = str(error)
    leave(found, control)


if __name__ == "__main__":
    main()
