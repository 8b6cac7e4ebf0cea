"""The runs that are kept in results/ as evidence, as opposed to runs that a user made there."""

import gzip
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent.parent / "results"


class TableEntry(NamedTuple):
    """A line of the table of kept runs."""

    about: str
    command: list[str]


def table_of_kept_runs(results: Path = RESULTS) -> dict[str, TableEntry]:
    """Return the lines of the table in results/README.md by the name of the run's directory."""
    text = (results / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| \[([\w-]+)\]\(\1\) \| (.+) \| `(.+)` \|$", text, re.MULTILINE)
    return {name: TableEntry(about, shlex.split(command)) for name, about, command in lines}


def kept_names(results: Path = RESULTS) -> list[str]:
    """Return the names of the directories that git tracks; without git, those of the table."""
    command = ["git", "-C", str(results), "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return sorted(table_of_kept_runs(results))
    tracked = {name.split("/")[0] for name in done.stdout.split("\0") if "/" in name}
    return sorted(tracked or table_of_kept_runs(results))


KEPT = kept_names()
#: The kept directories that hold a run, not only the results of a check of commbench.
KEPT_RUNS = [RESULTS / name for name in KEPT if (RESULTS / name / "samples.jsonl.gz").exists()]


def sample_lines(run: Path) -> list[str]:
    """Return the lines of a kept run's samples."""
    with gzip.open(run / "samples.jsonl.gz", "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()
