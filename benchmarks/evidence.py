"""Makes the kept runs again that are older than the code: the evidence of the version at hand, one
run after the other.

``python benchmarks/evidence.py --list`` states of each kept run how many commits have changed
``commbench/`` since. Without ``--list`` those with any are made again by the command in
results/README.md, into ``results/THEME_HARDWARE_DATE``. Hours on a quiet machine; root for those on
emulated hosts. The same command resumes, and runs that are complete are left as they are. It ends
with the lines for the table in results/README.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keeping import end

from commbench.errors import InputError, LaunchError
from commbench.system.host import collect_host
from commbench.system.software import git_commit

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
#: A line of the table: the run, what it shows, the command.
LINE = re.compile(r"^\| \[(\w+)\]\(\w+\) \| (.*) \| `(.*)` \|$", re.MULTILINE)
#: Parts of a kept run's name: theme, hardware, date.
NAME = re.compile(r"(\w+)_([a-z0-9]+)_(\d{8})")
LAB = ("commbench", "lab")
CPUS = re.compile(r"xeon|epyc|ryzen|core|neoverse|graviton|grace|power", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    """A line of the table in results/README.md."""

    name: str
    claim: str
    command: str

    @property
    def theme(self) -> str:
        """The first part of the name, which runs of several dates have in common."""
        return parts_of(self.name)[0]

    @property
    def folder(self) -> Path:
        """The directory."""
        return RESULTS / self.name

    @property
    def lab_options(self) -> list[str]:
        """The options of the emulated cluster; empty without one."""
        words = shlex.split(self.command)
        return words[3 : words.index("--")] if words[:2] == ["commbench", "lab"] else []

    @property
    def words(self) -> list[str]:
        """The command, on the emulated cluster if there is one.

        ``--out`` precedes the command of a training.
        """
        words = shlex.split(self.command)
        words = words[words.index("--") + 1 :] if self.lab_options else words
        stop = words.index("--") if "--" in words else len(words)
        return [*words[:stop], "--out", f"results/{self.name}", *words[stop:]]

    def commit(self) -> str:
        """Return the commit that measured it; empty if nothing was measured."""
        for file in (self.folder / "run.json", *sorted(self.folder.glob("*.json"))):
            if file.exists():
                return str(json.loads(file.read_text("utf-8")).get("git_commit") or "")
        return ""

    def is_complete(self) -> bool:
        """Return whether the directory holds a finished run, or the facts of a check, which are
        written last.
        """
        info = self.folder / "run.json"
        if info.exists():
            return bool(json.loads(info.read_text("utf-8")).get("status", "complete") == "complete")
        return any(self.folder.glob("*.json"))


def parts_of(name: str) -> tuple[str, str, str]:
    """Return theme, hardware and date of a kept run's name."""
    match = NAME.fullmatch(name)
    if not match:
        raise InputError(
            f"results/README.md lists {name}; the name of a kept run is THEME_HARDWARE_DATE."
        )
    return match[1], match[2], match[3]


def start(run: KeptRun) -> int:
    """Run the command of a kept run, a training of several nodes on each host.

    Return the exit code.
    """
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    if not run.lab_options:
        return subprocess.run(run.words, cwd=ROOT, check=False, env=environment).returncode
    if "--nnodes" not in run.words:
        command = [*LAB, "run", *run.lab_options, "--", *run.words]
        return subprocess.run(command, cwd=ROOT, check=False, env=environment).returncode
    environment["OMP_NUM_THREADS"] = "1"
    subprocess.run([*LAB, "up", *run.lab_options], cwd=ROOT, check=True, env=environment)
    try:
        hosts = range(int(run.lab_options[run.lab_options.index("--hosts") + 1]))
        commands = [[*LAB, "exec", "--host", f"host{host}", "--", *run.words] for host in hosts]
        ranks = [subprocess.Popen(command, cwd=ROOT, env=environment) for command in commands]
        return max(rank.wait() for rank in ranks)
    finally:
        subprocess.run([*LAB, "down"], cwd=ROOT, check=True, env=environment)


def newest_runs() -> list[KeptRun]:
    """Return the newest run of each command, in the order of the table.

    The first of several of one day.
    """
    newest: dict[str, KeptRun] = {}
    for name, claim, command in LINE.findall((RESULTS / "README.md").read_text("utf-8")):
        run = KeptRun(name=name, claim=claim, command=command)
        if command not in newest or parts_of(newest[command].name)[2] < parts_of(name)[2]:
            newest[command] = run
    return list(newest.values())


def commits_since(commit: str) -> int | None:
    """Return how many commits have changed ``commbench/`` since.

    None if the commit is not in the history.
    """
    command = ["git", "-C", str(ROOT), "rev-list", "--count", f"{commit}..HEAD", "--", "commbench"]
    counted = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(counted.stdout) if commit and counted.returncode == 0 else None


def hardware() -> str:
    """Return a word for this machine: its processor and number of cores."""
    host = collect_host()
    model = CPUS.search(str(host["cpu_model"]))
    return f"{model[0].lower() if model else 'cpu'}{host['logical_cpus']}core"


def chosen_runs(themes: str | None) -> Iterator[KeptRun]:
    """Yield the newest run of each theme that was named, or of all.

    Raises:
        InputError: no kept run has such a theme.
    """
    runs = {run.theme: run for run in newest_runs()}
    names = themes.split(",") if themes else list(runs)
    if unknown := [name for name in names if name not in runs]:
        raise InputError(
            f"--only {','.join(unknown)}: no kept run has this theme; choose from"
            f" {', '.join(runs)}."
        )
    yield from (runs[name] for name in names)


def show(runs: Sequence[KeptRun]) -> int:
    """Print how old each run is."""
    for run in runs:
        commits = commits_since(run.commit())
        age = "of a commit outside this history" if commits is None else f"{commits} commits behind"
        sys.stdout.write(f"{run.name}: {age if commits != 0 else 'of this code'}\n")
    return 0


def make(runs: Sequence[KeptRun], hardware_name: str) -> int:
    """Make each stale run again; return the exit code.

    Raises:
        InputError: the clone has changes, which a kept run must not have.
        LaunchError: a command failed.
    """
    if str(git_commit(ROOT)).endswith("-dirty"):
        raise InputError(
            "The clone has changes that are not committed; a kept run states a commit. Commit them"
            " first."
        )
    date = f"{dt.datetime.now(tz=dt.timezone.utc):%Y%m%d}"
    lines = []
    for run in runs:
        if commits_since(run.commit()) == 0:
            continue
        new_run = replace(run, name=f"{run.theme}_{hardware_name}_{date}")
        if not new_run.is_complete():
            sys.stderr.write(f"{new_run.name}: {run.command}\n")
            code = start(new_run)
            # a check that misses its aim ends with 1; its figures are evidence, too
            if code not in {0, 1} or not new_run.is_complete():
                raise LaunchError(
                    f"{new_run.name} ended with code {code}; the same command resumes."
                )
        lines.append(
            f"| [{new_run.name}]({new_run.name}) | {new_run.claim} | `{new_run.command}` |\n"
        )
    sys.stdout.write("".join(lines) or "Every kept run is of this code.\n")
    return 0


def main() -> None:
    """Read the command line and leave with the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="only state how old each kept run is")
    parser.add_argument(
        "--only", metavar="THEMES", help="themes, comma-separated: the first part of a run's name"
    )
    parser.add_argument(
        "--hardware", metavar="WORD", help="the second part of names (default: processor and cores)"
    )
    options = parser.parse_args()

    def work() -> int:
        runs = list(chosen_runs(options.only))
        return show(runs) if options.list else make(runs, options.hardware or hardware())

    end("evidence", work)


if __name__ == "__main__":
    main()
