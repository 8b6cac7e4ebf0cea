"""The state of a run, its time shares and its main files, each in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from commbench.results import DDP, PAIRS, PREDICTIONS, SAMPLES, SUMMARY, Run
from commbench.results.files import DRIFT, EVENTS, TIMELINE
from commbench.results.info import is_live, is_watched
from commbench.tuner.predictions import predictions
from commbench.units import counted, format_duration

_KINDS = {"cpu": "processors", "gpu": "GPUs"}
_TIME = "median over launches of the slowest rank's median"


def unfinished(run: Run) -> str:
    """Return why a run is incomplete and how to resume it; empty for a complete run."""
    status = run.info.get("status", "complete")
    if status == "complete":
        return ""
    why = run.info.get("reason") or (
        "it is running, or was killed" if status == "running" else status
    )
    state = "Cut short" if status == "cut" else "Not finished"
    if is_live(run.info):
        return f"{state}: {why.rstrip('.')}. The same command with --out {run.path} adds a launch."
    return (
        f"{state}: {why.rstrip('.')}. Everything measured is kept; the same command with --out"
        f" {run.path} goes on from there."
    )


def undecided(run: Run) -> str:
    """State that a tuning's first decision is still missing; empty otherwise."""
    if run.recommendation is None or not run.awaits_first_look:
        return ""
    planned = counted(run.info["first_look"] or 0, "fresh launch")
    return f"No verdict yet: {run.recommendation.launches} of {planned} made."


def time_spent(run: Run) -> str:
    """Return a sentence on the shares of the run's time.

    Empty before the first launch has ended.
    """
    launches = run.info.get("launches") or []
    total = sum(launch.get("seconds", 0.0) for launch in launches)
    if not total:
        return ""
    if is_live(run.info):
        doing = "Watching" if is_watched(run.info) else "Tuning"
        return (
            f"{doing} took {format_duration(total)} of the training, in"
            f" {counted(len(launches), 'launch')}."
        )
    hung = any(launch.get("status") == "hung" for launch in launches)
    kinds = {"buffers, verification": run.records, "building models": run.training_records}
    other = [name for name, records in kinds.items() if records] + (
        ["waiting for the hung rank"] if hung else []
    )
    parts = {
        "starting ranks": sum(launch.get("startup_s", 0.0) for launch in launches),
        "measuring": sum(launch.get("measuring_s", 0.0) for launch in launches),
        " and ".join([*([", ".join(other)] if other else []), "collecting samples"]): sum(
            launch.get("other_s", 0.0) for launch in launches
        ),
    }
    shares = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in parts.items())
    return f"Where {format_duration(total)} went: {shares}."


def tools_of(run: Run) -> dict[str, list[str]]:
    """Return the tools that measured an imported run, with their output files.

    Empty for commbench's own runs.
    """
    files: dict[str, list[str]] = {}
    for output in run.info.get("imported") or ():
        tool = f"{output['tool']} {output['version'].removeprefix('OSU ')}".strip()
        files.setdefault(tool, []).append(output["file"])
    return files


def origins(run: Run) -> list[str]:
    """Return a sentence on each tool that measured an imported run."""
    return [
        f"Measured by {tool}, imported from {', '.join(names)}."
        for tool, names in tools_of(run).items()
    ]


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
    return whole.get(energy_of) or f"the {_KINDS.get(energy_of, energy_of)} alone"


def unmetered(run: Run) -> list[str]:
    """Return a sentence on each kind of energy that was not counted, with the reason."""
    energy = run.info.get("energy")
    reasons_by_kind = energy["missing"] if energy else {}
    return [f"Energy of {_KINDS.get(kind, kind)}: {why}." for kind, why in reasons_by_kind.items()]


def result_files(run: Run) -> list[Path]:
    """Return the paths of the main table, of the table of pairs and of those of a soak, as far as
    they exist.
    """
    tables = [SUMMARY, DDP] if run.records and not predictions(run) else [DDP, SUMMARY]
    first = next((name for name in tables if (run.path / name).exists()), SAMPLES)
    others = [
        name for name in (PAIRS, PREDICTIONS, TIMELINE, EVENTS, DRIFT) if (run.path / name).exists()
    ]
    return [run.path / name for name in (first, *others)]
