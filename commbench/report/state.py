"""Names of the tools and times of a run."""

from __future__ import annotations

from collections.abc import Iterable

from commbench.results import Run

_TIME = "median over launches of the slowest rank's median"


def tools_of(run: Run) -> dict[str, list[str]]:
    """Return the tools that measured an imported run, with their output files.

    Empty for commbench's own runs.
    """
    files: dict[str, list[str]] = {}
    for output in run.info.get("imported") or ():
        tool = f"{output['tool']} {output['version'].removeprefix('OSU ')}".strip()
        files.setdefault(tool, []).append(output["file"])
    return files


def explain_time(runs: Iterable[Run]) -> str:
    """Return the definition of the times; imported runs have their tool's definition."""
    definitions = set()
    for run in runs:
        for record in run.records:
            stated = record.stated.time if record.stated else ""
            definitions.add(f"the {stated}" if stated else _TIME)
    others = " or ".join(sorted(definitions - {_TIME}))
    if not others:
        return _TIME
    if _TIME in definitions:
        return f"{_TIME}; of imported runs {others}"
    return f"median over launches of {others}"
