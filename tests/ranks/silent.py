"""Run under mpirun on several hosts: time operations that Open MPI's hierarchical component
carries.
"""

import sys

from commbench.backends import connect_control, open_backend
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.layouts import Shape
from commbench.collectives.operations import find_operation
from commbench.collectives.primitives import Buffers


def main() -> None:
    """Gather often; print on rank 0 which algorithm carried it."""
    control = connect_control("mpirun", int(sys.argv[1]))
    communicator = open_backend("mpi", control)
    dtype, size = DTYPES["float64"], communicator.size
    buffers = Buffers(
        send=communicator.allocate(dtype, 1), receive=communicator.allocate(dtype, size)
    )
    shape = Shape(rank=communicator.rank, size=size, elements=size)
    for call in 20 * list(find_operation("gather").call(communicator, buffers, shape, "")):
        call.run()
    if control.rank == 0:
        sys.stdout.write(communicator.algorithm("gather"))
        sys.stdout.flush()
    communicator.close()
    control.close()


if __name__ == "__main__":
    main()
