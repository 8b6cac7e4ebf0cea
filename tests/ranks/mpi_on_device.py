"""Run under mpirun: verify every MPI operation on simulated GPU memory, staged and passed
directly.
"""

import sys
from dataclasses import replace
from typing import Any

import verify_all
from measuring import measure
from reporting import connect, report_and_exit

from commbench.collectives.cases import Sweep
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.engine.session import Session
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError
from commbench.stats.budgets import BUDGETS


def records_of(communicator: Communicator, control: Control) -> list[dict[str, Any]]:
    """Return fields of rank 0's records of groups and rotated buffers, measured by the whole
    engine.
    """
    session = Session(
        control=control, budget=replace(BUDGETS["quick"], slice_s=0.1), progress=Progress()
    )
    sweep = Sweep(
        sizes=[4096], backends=[communicator.backend], in_place="both", buffers=["hot", "rotated"]
    )
    patterns = ["flat", f"split:{control.size}"] if control.size > 1 else ["flat"]
    sweep = replace(sweep, operations=["all_reduce", "all_gather"], patterns=patterns)
    cases = replace(sweep, sync="barrier").cases(control.size)  # others may have the cores
    records = [measure(case, communicator, session, launch=0) for case in cases]
    return [
        {
            name: getattr(record, name)
            for name in ("status", "reason", "wrong", "loop", "device", "library")
        }
        for record in records
        if record
    ]


def main() -> None:
    """Print the findings of all cases by backend as one line of JSON on rank 0."""
    from simulated_cupy import simulated

    sys.modules.update(simulated())
    from commbench.backends.mpi import MpiCommunicator
    from commbench.backends.mpi_device import CudaMpiCommunicator, StagedMpiCommunicator

    class Willing(CudaMpiCommunicator):
        """An MPI that accepts addresses in simulated GPU memory, which is host memory."""

        takes_gpu_memory = True

    control = connect()
    results = {
        "cases": {},
        "barrier": {},
        "records": {},
        "takes": MpiCommunicator(control).takes_gpu_memory,
        "refusal": "",
    }
    try:
        CudaMpiCommunicator(control)
    except InputError as error:
        results["refusal"] = str(error)
    for communicator in (StagedMpiCommunicator(control), Willing(control)):
        name = communicator.backend
        planned = [(case, "") for case in verify_all.cases(name, control.size)]
        results["cases"][name] = verify_all.entries_of(planned, communicator, control)
        results["barrier"][name] = verify_all.barrier_findings(communicator, control)
        results["records"][name] = records_of(communicator, control)
        communicator.close()
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
