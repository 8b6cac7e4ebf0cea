"""Run under mpirun: verify and measure every operation in every pattern of groups, on invented host
names.
"""

import sys
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from measuring import measure
from reporting import connect, report_and_exit
from verify_all import prepared_everywhere
from verifying import MOVING

from commbench.backends import open_backend
from commbench.collectives.cases import Case, Sweep, all_cases
from commbench.engine.communicator import Communicator, HostBuffer
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.session import Session
from commbench.engine.setup import Prepared
from commbench.engine.timing.loops import Call, Progress
from commbench.engine.timing.sync import Synchroniser
from commbench.findings import UnsupportedError
from commbench.stats.budgets import BUDGETS

PATTERNS = (
    "node",
    "cross",
    "split:2",
    "stride:2",
    "pairs:intra",
    "pairs:inter",
    "bisection",
    "ranks:0+2",
)
#: Two hosts of two ranks, placed by turns; and an uneven placement that leaves ranks in no group,
#: rank 0 among them.
PLACEMENTS = {"even": "ABAB", "uneven": "ABBC"}
ELEMENTS = 301
MEASURED = ("node", "cross", "bisection", "ranks:0+2")


def cases(backend: str, size: int) -> list[Case]:
    """Return every operation that moves data, by sum, with the second rank of each group as
    root.
    """
    common = {
        "backends": [backend],
        "sizes": [size * ELEMENTS * 4],
        "patterns": PATTERNS,
    }
    return all_cases([Sweep(operations=MOVING, roots=(1,), in_place="default", **common)], size)


def flip(buffer: HostBuffer) -> None:
    """Flip one bit of the last element."""
    buffer.memory.view("uint8")[-4] ^= 1


def corrupted(prepared: Prepared, number: int, control: Control) -> dict[str, Any]:
    """Return the groups found wrong after one rank's result was changed, and the expected ones."""
    holds = gather_everywhere(
        control, bool(prepared.shape and prepared.operation.answer(prepared.shape))
    )
    holders = [rank for rank, is_holder in enumerate(holds) if is_holder]
    chosen = holders[number % len(holders)]
    if control.rank == chosen:
        flipping = Call(run=partial(flip, prepared.buffers.receive))
        prepared = replace(prepared, calls=[*prepared.calls, flipping])
    return {
        "expected": [int(chosen in group) for group in prepared.groups],
        "found": by_group(prepared, control),
    }


def by_group(prepared: Prepared, control: Control) -> list[int]:
    """Return the wrong elements within each group."""
    wrong = prepared.verify(control)
    return [sum(wrong[rank] for rank in group) for group in prepared.groups]


def findings(
    case: Case, number: int, communicator: Communicator, hosts: str, control: Control
) -> dict[str, Any]:
    """Return the findings of verification for one case."""
    prepared = prepared_everywhere(case, communicator, control, hosts)
    if isinstance(prepared, str):
        return {"refused": prepared}
    try:
        clean = prepared.verify(control)
    except UnsupportedError as error:
        return {"refused": str(error)}
    timer = communicator.timer("auto", Synchroniser(control, "barrier"), Progress())
    return {
        "groups": prepared.groups,
        "clean": sum(clean),
        "native": sum(prepared.verify(control, timer)),
        "idle": by_group(replace(prepared, calls=[Call(run=lambda: None)]), control),
        "corrupted": corrupted(prepared, number, control),
    }


def barriers(communicator: Communicator, hosts: str, control: Control) -> dict[str, dict[str, Any]]:
    """Return by pattern the ranks per group that leave a barrier too early: with the real barrier
    and with none.
    """
    results = {}
    for pattern in PATTERNS:
        case = Case(
            backend=communicator.backend,
            operation="barrier",
            message_bytes=0,
            dtype=None,
            pattern=pattern,
        )
        prepared = prepared_everywhere(case, communicator, control, hosts)
        results[pattern] = {
            "real": by_group(prepared, control),
            "idle": by_group(replace(prepared, calls=[]), control),
            "late": [len(group) - 1 for group in prepared.groups],
        }
    return results


def measured(communicator: Communicator, hosts: str, control: Control) -> list[dict[str, Any]]:
    """Return records of a few operations in patterns with different idle ranks."""
    session = Session(
        control=control,
        budget=replace(BUDGETS["quick"], slice_s=0.02),
        progress=Progress(),
        oversubscribed=True,
        hosts=hosts,
    )
    common = {
        "sizes": [4096],
        "backends": [communicator.backend],
        "patterns": MEASURED,
    }
    planned = all_cases(
        [Sweep(operations=["all_reduce", "iall_gather", "latency", "barrier"], **common)],
        control.size,
    )
    records = [measure(case, communicator, session, launch=0) for case in planned]
    return [record.to_json() for record in records if record]


def main() -> None:
    """Print the findings of a backend on ranks of one placement as one line of JSON on rank 0."""
    control = connect()
    backend, placement = sys.argv[1:]
    communicator, hosts = open_backend(backend, control), PLACEMENTS[placement]
    results = {
        "cases": [
            {"case": asdict(case), **findings(case, number, communicator, hosts, control)}
            for number, case in enumerate(cases(backend, control.size))
        ],
        "barriers": barriers(communicator, hosts, control),
        "records": measured(communicator, hosts, control),
    }
    communicator.close()
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
