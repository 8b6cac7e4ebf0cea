"""Run under mpirun: verify every operation of MPI on GPU memory that is simulated: staged, and as if MPI took it."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import verify_all
from reporting import leave

from commbench.communicators import connect_control
from commbench.errors import InputError

sys.path.insert(0, str(Path(__file__).parent.parent))


def main() -> None:
    """Print the findings of all cases by backend as one line of JSON on rank 0."""
    from simulated_cupy import simulated

    sys.modules.update(simulated())
    from commbench.communicators.mpi import MpiCommunicator
    from commbench.communicators.mpi_device import CudaMpiCommunicator, StagedMpiCommunicator

    class Willing(MpiCommunicator):
        """An MPI that takes addresses in the memory of the simulated GPU, which is the host's."""

        takes_gpu_memory = True

    control = connect_control("mpirun", int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    plain = MpiCommunicator(control)
    found: dict[str, Any] = {"cases": {}, "barrier": {}, "takes": plain.takes_gpu_memory, "refusal": ""}
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
        communicator.close()
    leave(found, control)


if __name__ == "__main__":
    main()
