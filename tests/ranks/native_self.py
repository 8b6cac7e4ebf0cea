"""Run under mpirun on one rank: run the native loop around valid MPI calls and an invalid one."""

from reporting import report_and_exit

from commbench.backends import connect_control, open_backend
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.primitives import Request
from commbench.engine.timing.loops import Call, Progress
from commbench.engine.timing.sync import Synchroniser
from commbench.errors import CommbenchError

COUNT = 2
"""Which argument of MPI_Allreduce says how many elements."""


def with_count(call: Call, count: int) -> Call:
    """Return the same call with another number of elements."""
    rows = [
        (address, *arguments[:COUNT], count, *arguments[COUNT + 1 :])
        for address, *arguments in call.rows
    ]
    return Call(run=call.run, rows=rows, keep=[call])


def main() -> None:
    """Print the loop's counters and its error as JSON."""
    control = connect_control("mpirun", 1)
    communicator = open_backend("mpi", control)
    buffer = communicator.allocate(DTYPES["float64"], 1)
    call = communicator.call(Request("all_reduce", buffer, buffer, "sum"))
    progress = Progress()
    results = {}
    for method in ("none", "barrier", "dissemination", "round-time"):
        timer = communicator.timer("native", Synchroniser(control, method), progress)
        before = progress.counters.copy()
        timed = timer.run([call], 5, 3)
        results[method] = {
            "counted": (progress.counters - before).tolist(),
            "ordered": bool(
                (timed.end_ns >= timed.start_ns).all()
                and (timed.start_ns[1:] >= timed.end_ns[:-1]).all()
            ),
        }
    timer = communicator.timer("native", Synchroniser(control, "none"), progress)
    try:
        timer.run([with_count(call, -1)], 2, 3)
        results["error"] = ""
    except CommbenchError as error:
        results["error"] = str(error)
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
