"""Run under mpirun: verify every operation of MPI on GPU memory that is simulated: staged, and as if MPI took it."""

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import verify_all
from reporting import leave

from commbench.backends import connect_control
from commbench.collectives.cases import Sweep
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.engine.measure import measure
from commbench.engine.session import Session
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError
from commbench.stats.budgets import BUDGETS

sys.path.insert(0, str(Path(__file__).parent.parent))


def records_of(communicator: Communicator, control: Control) -> list[dict[str, Any]]:
    """What rank 0 records, through the whole engine, of groups and of buffers that take turns."""
    session = Session(control=control, budget=replace(BUDGETS["quick"], slice_s=0.1), progress=Progress())
    sweep = Sweep(sizes=[4096], backends=[communicator.backend], in_place="both", buffers=["hot", "rotated"])
    patterns = ["flat", f"split:{control.size}"] if control.size > 1 else ["flat"]
    sweep = replace(sweep, operations=["all_reduce", "all_gather"], patterns=patterns)
    cases = replace(sweep, sync="barrier").cases(control.size)  # others may have the cores
    records = [measure(case, communicator, session, launch=0) for case in cases]
    return [
        {name: getattr(record, name) for name in ("status", "reason", "wrong", "loop", "device", "library")}
        for record in records
        if record
    ]


def main() -> None:
    """Print the findings of all cases by backend as one line of JSON on rank 0."""
    from simulated_cupy import simulated

    sys.modules.update(simulated())
    from commbench.backends.mpi import MpiCommunicator
    from commbench.backends.mpi_device import CudaMpiCommunicator, StagedMpiCommunicator

    class Willing(MpiCommunicator):
        """An MPI that takes addresses in the memory of the simulated GPU, which is the host's."""

        takes_gpu_memory = True

    control = connect_control("mpirun", int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    plain = MpiCommunicator(control)
    found: dict[str, Any] = {"cases": {}, "barrier": {}, "records": {}, "takes": plain.takes_gpu_memory, "refusal": ""}
    try:
        CudaMpiCommunicator(control, plain)
    except InputError as error:
        found["refusal"] = str(error)
    for communicator in (StagedMpiCommunicator(control, plain), CudaMpiCommunicator(control, Willing(control))):
        name = communicator.backend
        found["cases"][name] = [
            {"case": asdict(case)} | dict(verify_all.findings(case, number, communicator, control))
            for number, case in enumerate(verify_all.cases(name, control.size))
        ]
        found["barrier"][name] = verify_all.barrier_findings(communicator, control)
        found["records"][name] = records_of(communicator, control)
        communicator.close()
    leave(found, control)


if __name__ == "__main__":
    main()
