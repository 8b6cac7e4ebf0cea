"""Run under mpirun: verify patterns of one group on every backend, or measure matrices."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from measuring import measure
from reporting import connect, report_and_exit
from verify_all import entries_of

from commbench.backends import open_backend
from commbench.collectives.cases import Case, Sweep, all_cases
from commbench.collectives.composed import COMPOSED, MATRIX
from commbench.collectives.operations import REDOPS
from commbench.collectives.primitives import Buffer, Request
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.engine.records import Record
from commbench.engine.sampling import settings_after
from commbench.engine.session import Session
from commbench.engine.timing.loops import Call, Progress
from commbench.stats.budgets import Budget

#: The least, and numbers that no library likes.
ELEMENTS = (1, 301, 5001)
#: Four ranks on hosts: by turns, one host after the other, and placements that are no hierarchy.
PLACEMENTS = ("ABAB", "AABB", "AAAB", "AAAA", "ABCD")
BUDGET = Budget(name="quick", launches=1, relative_half_width=0.5, slice_s=0.01)
#: Who sends what was not asked for to whom, where a matrix is distorted.
LIAR, VICTIM = 2, 1


def cases(backend: str, size: int) -> list[Case]:
    """Return every operation of each such pattern, with the first and the last rank as root."""
    common = {"backends": [backend], "roots": sorted({0, size - 1})}
    return all_cases(
        [
            Sweep(
                operations=operations,
                patterns=[pattern],
                sizes=[4 * elements for elements in ELEMENTS],
                **common,
            )
            for pattern, operations in COMPOSED.items()
            if pattern not in {"hierarchical", MATRIX}
        ],
        size,
    )


def hierarchies(backend: str, size: int) -> list[Case]:
    """Return hierarchical reductions of all kinds, in place and out of place."""
    common = {
        "backends": [backend],
        "patterns": ["hierarchical"],
        "in_place": "both",
    }
    return all_cases(
        [
            Sweep(
                dtypes=["float32"],
                sizes=[4 * elements for elements in ELEMENTS],
                redops=REDOPS,
                **common,
            ),
            Sweep(dtypes=["int8", "float64"], sizes=[64], **common),
        ],
        size,
    )


def matrix_case(backend: str, operation: str, **changes: Any) -> Case:
    """Return a matrix case with messages of 8000 bytes."""
    return Case(
        backend=backend,
        operation=operation,
        message_bytes=8000,
        dtype="float32",
        pattern="matrix",
        **changes,
    )


@contextmanager
def lying(communicator: Communicator) -> Iterator[None]:
    """Make one rank send zeros to another."""
    if communicator.rank != LIAR:
        yield
        return
    honest = communicator.call

    def lie(buffer: Buffer, peer: int) -> Buffer:
        return communicator.allocate(buffer.dtype, buffer.count) if peer == VICTIM else buffer

    def call(request: Request) -> Call:
        sends = [(lie(buffer, peer), peer) for buffer, peer in request.sends]
        return honest(replace(request, sends=sends))

    communicator.call = call
    try:
        yield
    finally:
        del communicator.call


def matrices(communicator: Communicator, control: Control) -> dict[str, Any]:
    """Return the records of matrices by variant."""
    session = Session(
        control=control,
        budget=BUDGET,
        progress=Progress(),
        oversubscribed=control.size > (os.cpu_count() or 1),
    )
    records_by_variant = {}

    def add(name: str, record: Record | None) -> None:
        records_by_variant[name] = record and record.to_json()

    for operation in COMPOSED[MATRIX]:
        case = matrix_case(communicator.backend, operation)
        record = measure(case, communicator, session, launch=0)
        add(operation, record)
        if operation == "bandwidth":
            frozen = control.broadcast(settings_after(record, BUDGET) if record else None)
            add(f"{operation} again", measure(case, communicator, session, launch=1, fixed=frozen))
        with lying(communicator):
            add(f"{operation} distorted", measure(case, communicator, session, launch=2))
    for loop in communicator.loops:
        case = matrix_case(communicator.backend, "bandwidth", sync="dissemination", loop=loop)
        add(f"{loop} loop", measure(case, communicator, session, launch=0))
    add(
        "all_reduce",
        measure(matrix_case(communicator.backend, "all_reduce"), communicator, session, launch=0),
    )
    return records_by_variant


def main() -> None:
    """Print the findings as one line of JSON on rank 0."""
    control = connect()
    results = {"cases": [], "matrices": {}}
    backends, topic = sys.argv[1:]
    for backend in backends.split(","):
        communicator = open_backend(backend, control)
        if topic == "matrices":
            results["matrices"][backend] = matrices(communicator, control)
        else:
            planned = [(case, "") for case in cases(backend, control.size)]
            planned += [
                (case, hosts[: control.size])
                for case in hierarchies(backend, control.size)
                for hosts in PLACEMENTS
            ]
            results["cases"] += entries_of(planned, communicator, control)
        communicator.close()
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
