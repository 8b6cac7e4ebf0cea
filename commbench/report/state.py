"""What the times of a run are."""

from __future__ import annotations

from collections.abc import Iterable

from commbench.results import Run

_TIME = "median over launches of the slowest rank's median"


def explain_time(runs: Iterable[Run]) -> str:
    """Return the definition of the times; imported runs have their tool's definition."""
    definitions = set()
    for run in runs:
        for record in run.records:
            definition = _TIME
            if record.stated:
                definition = f"median over launches of the {record.stated.time}"
            definitions.add(definition)
    return " or ".join(sorted(definitions)) or _TIME
