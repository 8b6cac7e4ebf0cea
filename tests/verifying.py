"""What the verification of cases on real ranks must find, see ``ranks/verify_all.py``."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from commbench.collectives.cases import Case
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS

Entry = Mapping[str, Any]
MOVING = [name for name, operation in OPERATIONS.items() if operation.moves_data]
REDUCING = [name for name, operation in OPERATIONS.items() if operation.reduces]


def read_cases(results: Any) -> Any:
    """Return the findings of ranks with each entry's case as a case."""
    for entry in results["cases"]:
        entry["case"] = Case(**entry["case"])
    return results


def possible(size: int) -> set[str]:
    """Return the blocking operations that move data, on so many ranks."""
    names = set()
    for name in MOVING:
        operation = OPERATIONS[name]
        if not operation.overlaps and operation.minimum_ranks <= size:
            names.add(name)
    return names


def refusal(case: Case, size: int) -> str:
    """Return the beginning of the sentence that must refuse a case, or an empty text."""
    backend, operation, averages = case.backend, OPERATIONS[case.operation], case.redop == "avg"
    is_torch = backend in {"gloo", "torch-nccl"}
    swaps = case.operation == "all_to_all" and bool(case.in_place)
    sentences = {
        f"{backend} has no persistent operations": case.persistent and backend != "mpi",
        f"{case.operation} needs at least": size < operation.minimum_ranks,
        f"the average of {case.dtype} has no exact answer": (
            averages and not DTYPES[str(case.dtype)].epsilon
        ),
        f"{backend} has no non-blocking": operation.overlaps and "nccl" in backend,
        "mpi has no persistent form of this operation": (
            case.persistent and (operation.kind != "collective" or operation.overlaps)
        ),
        "MPI has no avg": averages and backend == "mpi",
        "torch.distributed reduces in place only": (
            is_torch
            and case.operation in {"all_reduce", "iall_reduce", "reduce"}
            and not case.in_place
        ),
        "torch.distributed has no in-place all_to_all": is_torch and swaps,
        "NCCL has no in-place all_to_all": backend == "nccl" and swaps,
    }
    return next((sentence for sentence, applies in sentences.items() if applies), "")


def surprises(
    entries: Iterable[Entry], size: int, refusal: Callable[[Case, int], str] = refusal
) -> list[tuple[str, Any]]:
    """Return the cases with a finding that is not expected, each with the finding.

    A clean result has no wrong element, also after the native loop; of a corrupted one exactly one
    is wrong; without communication some are, unless none is needed. ``refusal`` returns how the
    sentence begins that must refuse a case on ``size`` ranks, or an empty text.
    """
    found = []
    for entry in entries:
        case, reason = entry["case"], entry.get("refused", "")
        expected = refusal(case, size)
        if reason or expected:
            if not (expected and reason.startswith(expected)):
                found.append((str(case), reason))
            continue
        is_needed = case.message_bytes > 8 * size and (size > 1 or case.in_place is False)
        is_right = (
            (0, 1, 0) == (entry["clean"], entry["corrupted"], entry.get("native", 0))
            and (("native" in entry) or case.backend not in {"mpi", "mpi-cuda"})
            and not (is_needed and entry.get("idle") == 0)
        )
        if not is_right:
            found.append((str(case), entry))
    return found
