"""Names of the tools, times, counters and files of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from commbench.results import DDP, PAIRS, SUMMARY, Run
from commbench.results.files import DRIFT, EVENTS, TIMELINE, samples_file

KINDS_OF_ENERGY = {"cpu": "processors", "gpu": "GPUs"}
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
    definitions_used = {
        record.stated.time if record.stated else "" for run in runs for record in run.records
    }
    definitions = " or the ".join(sorted(definitions_used - {""}))
    if not definitions:
        return _TIME
    return (
        f"{_TIME}; of imported runs the {definitions}"
        if "" in definitions_used
        else f"median over launches of the {definitions}"
    )


def counted_energy(energy_of: str) -> str:
    """Return the counters of an energy as text, e.g.

    ``the GPUs alone``; see `commbench.engine.records.Record`.
    """
    whole = {"": "all that was metered", "cpu+gpu": "processors and GPUs"}
    return whole.get(energy_of) or f"the {KINDS_OF_ENERGY.get(energy_of, energy_of)} alone"


def result_files(run: Run) -> list[Path]:
    """Return the paths of the main table, of the table of pairs and of those of a soak, as far as
    they exist.
    """
    tables = [DDP, SUMMARY]
    if run.records:
        tables = [SUMMARY, DDP]
    samples = samples_file(run.path).name
    first = next((name for name in tables if (run.path / name).exists()), samples)
    others = [name for name in (PAIRS, TIMELINE, EVENTS, DRIFT) if (run.path / name).exists()]
    return [run.path / name for name in (first, *others)]
