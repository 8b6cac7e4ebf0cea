"""What the verification of cases on real ranks must find, see ``ranks/verify_all.py``."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from commbench.collectives.cases import Case

Entry = Mapping[str, Any]


def surprises(
    entries: Iterable[Entry], size: int, refusal: Callable[[Case], str]
) -> list[tuple[str, Any]]:
    """Return the cases with a finding that is not expected, each with the finding.

    A clean result has no wrong element, also after the native loop; of a corrupted one exactly one
    is wrong; without communication some are, unless none is needed. ``refusal`` returns how the
    sentence begins that must refuse a case on ``size`` ranks, or an empty text.
    """
    found: list[tuple[str, Any]] = []
    for entry in entries:
        case, reason = entry["case"], entry.get("refused", "")
        expected = refusal(case)
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
