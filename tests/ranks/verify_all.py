"""Run under mpirun: verify every operation on every backend: unchanged, with one element corrupted,
without calls.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NoReturn

from reporting import connect, report_and_exit
from verifying import MOVING, REDUCING

from commbench.backends import open_backend
from commbench.collectives.cases import Case, Sweep, all_cases
from commbench.collectives.datatypes import DTYPES
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, agree_on, gather_everywhere
from commbench.engine.setup import Prepared, prepare
from commbench.engine.timing.loops import Call, Progress
from commbench.engine.timing.sync import Synchroniser
from commbench.findings import UnsupportedError

#: A number that no library likes; the least is tried in these types too.
ELEMENTS_PER_RANK, OFTEN = 301, ("float32", "int8")


def cases(backend: str, size: int) -> list[Case]:
    """Return every operation in every type by sum.

    In float32 and int8 also minimal sizes and other reductions.
    """
    common = {
        "backends": [backend],
        "in_place": "both",
        "roots": sorted({0, size - 1}),
    }
    sweeps = []
    for name, dtype in DTYPES.items():
        numbers = (1, ELEMENTS_PER_RANK) if name in OFTEN else (ELEMENTS_PER_RANK,)
        common |= {
            "dtypes": [name],
            "sizes": [size * elements * dtype.itemsize for elements in numbers],
        }
        sweeps.append(Sweep(operations=MOVING, **common))
        if name in OFTEN:
            sweeps.append(
                Sweep(operations=REDUCING, redops=["min", "max", "prod", "avg"], **common)
            )
            sweeps.append(Sweep(operations=MOVING, cadences=["persistent"], **common))
    return all_cases(sweeps, size)


def holders(prepared: Prepared) -> list[int]:
    """Return the ranks that hold a result."""
    shapes = (replace(prepared.shape, rank=rank) for rank in range(prepared.shape.size))
    return [shape.rank for shape in shapes if prepared.operation.answer(shape)]


def _bytes_of(buffer: Any, element: int) -> Any:
    """Return the bytes of one element in host or device memory."""
    element_memory = buffer.memory[element : element + 1]
    if hasattr(element_memory, "numel"):
        import torch

        return element_memory.view(torch.uint8)
    return element_memory.view("uint8")


def corrupt_result(case: Case, count: int, buffer: Any) -> None:
    """Flip one bit of one element: the lowest bit, or a high one of rounded averages."""
    _wait_for_device(buffer)
    element = (0, buffer.count - 1, buffer.count // 2)[count % 3]
    raw = _bytes_of(buffer, element)
    if case.redop == "avg":
        raw[-1] ^= 0x40
    else:
        raw[0] ^= 1
    _wait_for_device(buffer)


def _wait_for_device(buffer: Any) -> None:
    """Wait until a GPU has finished: operation, change and check run in different streams."""
    if getattr(buffer.memory, "is_cuda", False):
        import torch

        torch.cuda.synchronize()
    if type(buffer.memory).__module__.startswith("cupy"):
        import cupy

        cupy.cuda.Device().synchronize()


def prepared_everywhere(
    case: Case, communicator: Communicator, control: Control, hosts: Sequence[str]
) -> Prepared | str:
    """Return the prepared case, or the reason why some rank cannot prepare it."""
    try:
        return agree_on(control, lambda: prepare(case, communicator, hosts))
    except UnsupportedError as error:
        return str(error)


def natively_wrong(prepared: Prepared, control: Control) -> int:
    """Return the number of wrong elements after the native loop made the calls."""
    timer = prepared.communicator.timer("native", Synchroniser(control, "barrier"), Progress())
    prepared._fill()
    timer.run(prepared.calls, 1, 1)
    return sum(gather_everywhere(control, prepared._count_wrong()))


def findings(
    case: Case, number: int, communicator: Communicator, control: Control, hosts: Sequence[str]
) -> Iterator[tuple[str, object]]:
    """Yield the findings of verification for one case, as (kind, finding)."""
    prepared = prepared_everywhere(case, communicator, control, hosts)
    if isinstance(prepared, str):
        yield "refused", prepared
        return
    try:
        yield "clean", sum(prepared.verify(control))
    except UnsupportedError as error:
        yield "refused", str(error)
        return
    chosen = holders(prepared)[number % len(holders(prepared))]
    corrupted = prepared
    if control.rank == chosen:
        corrupt = partial(corrupt_result, case, number, prepared.buffers.receive)
        corrupted = replace(prepared, calls=[*prepared.calls, Call(run=corrupt)])
    yield "corrupted", sum(corrupted.verify(control))
    idle = replace(prepared, calls=[Call(run=lambda: None)])
    yield "idle", sum(idle.verify(control))
    if "native" in communicator.loops:
        yield "native", natively_wrong(prepared, control)


def entries_of(
    planned: Iterable[tuple[Case, Sequence[str]]], communicator: Communicator, control: Control
) -> list[dict[str, Any]]:
    """Return the findings of cases, each with the host names of its ranks, as JSON."""
    entries = []
    for number, (case, hosts) in enumerate(planned):
        found = findings(case, number, communicator, control, hosts)
        entries.append({"case": asdict(case), "hosts": hosts, **dict(found)})
    return entries


def barrier_findings(communicator: Communicator, control: Control) -> dict[str, object]:
    """Return the findings of verification for the real barriers and for one that does not wait."""
    case = Case(backend=communicator.backend, operation="barrier", message_bytes=0, dtype=None)
    barriers = {"real": prepare(case, communicator)}
    if communicator.backend == "mpi":
        barriers["persistent"] = prepare(replace(case, persistent=True), communicator)
    barriers["idle"] = replace(barriers["real"], calls=[Call(run=lambda: None)])
    return {name: sum(each.verify(control)) for name, each in barriers.items()}


def old_library_finding(control: Control) -> str:
    """Return the refusal of persistent requests by a library before MPI 4.0, where mpi4py raises
    this error.
    """
    # above, these would start MPI before its report of connections is read
    from mpi4py import MPI

    from commbench.backends.mpi import MpiCommunicator

    class OldComm(MPI.Intracomm):
        def Allreduce_init(self, *_: Any) -> NoReturn:  # noqa: N802 - mpi4py's name
            raise NotImplementedError("MPI_Allreduce_init")

    communicator = MpiCommunicator(control, lambda: OldComm(MPI.COMM_WORLD.Dup()))
    case = Case(
        backend="mpi",
        operation="all_reduce",
        message_bytes=8,
        dtype="float32",
        redop="sum",
        persistent=True,
    )
    refusal = prepared_everywhere(replace(case, in_place=True), communicator, control, [])
    communicator.close()
    return str(refusal)


def main() -> None:
    """Print the findings of all cases as one line of JSON on rank 0."""
    control = connect()
    results = {"cases": [], "barrier": {}}
    for backend in sys.argv[1].split(","):
        communicator = open_backend(backend, control)
        planned = [(case, "") for case in cases(backend, control.size)]
        results["cases"] += entries_of(planned, communicator, control)
        results["barrier"][backend] = barrier_findings(communicator, control)
        communicator.close()
    results["old"] = old_library_finding(control)
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
