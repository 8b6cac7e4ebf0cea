"""The runs that are kept in results/ as evidence, as opposed to runs that a user made there."""

import functools
import gzip
import subprocess
from pathlib import Path

from claims import RESULTS, read_claims

from commbench.results import Run, load_run


def kept_names(results: Path = RESULTS) -> list[str]:
    """Return the names of the directories that git tracks; without git, those of claims.toml."""
    command = ["git", "-C", str(results), "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return sorted(read_claims(results))
    tracked = {name.split("/")[0] for name in done.stdout.split("\0") if "/" in name}
    return sorted(tracked or read_claims(results))


KEPT = kept_names()
#: The kept directories that hold a run, not only the results of a check of commbench.
KEPT_RUNS = [RESULTS / name for name in KEPT if (RESULTS / name / "samples.jsonl.gz").exists()]


def sample_lines(run: Path) -> list[str]:
    """Return the lines of a kept run's samples."""
    with gzip.open(run / "samples.jsonl.gz", "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


@functools.cache
def load_kept(name: str) -> Run:
    """Return a kept run, which is read once in a process: the largest takes seconds."""
    return load_run(RESULTS / name)
