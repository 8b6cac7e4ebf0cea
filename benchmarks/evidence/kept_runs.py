"""Makes the kept runs again that are older than the code, one after the other.

``python benchmarks/evidence/kept_runs.py --list`` states of each run in results/claims.toml how
many commits have changed ``commbench/`` since. Without ``--list`` those with any are made again
into ``results/THEME_HARDWARE_DATE``, at the current commit, without changes in the clone. Hours on
a quiet machine; root for those on emulated hosts. The same command resumes, and runs that are
complete are left as they are. It ends with the names that take the places of others in claims.toml.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from claims import RESULTS, Claim, read_claims
from keeping import end

from commbench.errors import InputError, LaunchError
from commbench.results.info import RunInfo, is_complete
from commbench.system.host import collect_host
from commbench.system.software import git_commit

ROOT = RESULTS.parent
LAB = ("commbench", "lab")
CPUS = re.compile(r"xeon|epyc|ryzen|core|neoverse|graviton|grace|power", re.IGNORECASE)


def facts_of(name: str) -> RunInfo:
    """Return run.json of a run, or a check's own file, which is written last; empty without one."""
    folder = RESULTS / name
    for file in (folder / "run.json", *sorted(folder.glob("*.json"))):
        if file.exists():
            facts: RunInfo = json.loads(file.read_text("utf-8"))
            return facts
    return {}


def is_made(name: str) -> bool:
    """Return whether a directory holds a finished run or the facts of a check."""
    facts = facts_of(name)
    return bool(facts) and is_complete(facts)


def commits_since(name: str) -> int | None:
    """Return how many commits have changed ``commbench/`` since a run was made.

    None if its commit is not in the history.
    """
    commit = facts_of(name).get("git_commit")
    command = ["git", "-C", str(ROOT), "rev-list", "--count", f"{commit}..HEAD", "--", "commbench"]
    counted = subprocess.run(command, capture_output=True, text=True, check=False)
    if counted.returncode:
        return None
    return int(counted.stdout)


def start(command: str, name: str) -> int:
    """Run the command of a kept run, a training of several nodes on each host.

    Return the exit code.
    """
    words = shlex.split(command)
    lab_options: list[str] = []
    if words[:2] == list(LAB):
        place = words.index("--")
        lab_options, words = words[3:place], words[place + 1 :]
    stop = words.index("--") if "--" in words else len(words)
    words = [*words[:stop], "--out", f"results/{name}", *words[stop:]]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    if lab_options and "--nnodes" in words:
        environment["OMP_NUM_THREADS"] = "1"
        return start_on_each_host(words, lab_options, environment)
    if lab_options:
        words = [*LAB, "run", *lab_options, "--", *words]
    return subprocess.run(words, cwd=ROOT, check=False, env=environment).returncode


def start_on_each_host(
    words: Sequence[str], lab_options: Sequence[str], environment: dict[str, str]
) -> int:
    """Run a command on each host of an emulated cluster; return the largest exit code."""
    subprocess.run([*LAB, "up", *lab_options], cwd=ROOT, check=True, env=environment)
    try:
        ranks = []
        for host in range(int(lab_options[lab_options.index("--hosts") + 1])):
            command = [*LAB, "exec", "--host", f"host{host}", "--", *words]
            ranks.append(subprocess.Popen(command, cwd=ROOT, env=environment))
        return max(rank.wait() for rank in ranks)
    finally:
        subprocess.run([*LAB, "down"], cwd=ROOT, check=True, env=environment)


def compress(folder: Path) -> None:
    """Compress the samples of a finished run, the same bytes each time, and remove its lock and
    what ``commbench report`` draws again.
    """
    shutil.rmtree(folder / "figures", ignore_errors=True)
    for name in (".lock", "report.html"):
        (folder / name).unlink(missing_ok=True)
    plain = folder / "samples.jsonl"
    if plain.exists():
        compressed = gzip.compress(plain.read_bytes(), 9, mtime=0)
        (folder / "samples.jsonl.gz").write_bytes(compressed)
        plain.unlink()


def hardware() -> str:
    """Return a word for this machine: its processor and number of cores."""
    host = collect_host()
    model = CPUS.search(str(host["cpu_model"]))
    processor = model[0].lower() if model else "cpu"
    return f"{processor}{host['logical_cpus']}core"


def chosen_claims(themes: str | None) -> list[Claim]:
    """Return the claims of the themes that were named, or all.

    Raises:
        InputError: no kept run has such a theme.
    """
    claims = list(read_claims().values())
    if themes is None:
        return claims
    names = themes.split(",")
    known = {claim.theme for claim in claims}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"No kept run has the theme {unknown[0]}; choose from {sorted(known)}.")
    return [claim for claim in claims if claim.theme in names]


def show(claims: Sequence[Claim]) -> int:
    """Print how old each run is."""
    for claim in claims:
        commits = commits_since(claim.name)
        age = f"{commits} commits behind"
        if commits is None:
            age = "of a commit outside this history"
        elif commits == 0:
            age = "of this code"
        print(f"{claim.name}: {age}")
    return 0


def make(claims: Sequence[Claim], hardware_name: str) -> int:
    """Make each stale run again; return the exit code.

    Raises:
        InputError: the clone has changes, which a kept run must not have.
        LaunchError: a command failed.
    """
    commit = git_commit(ROOT)
    date = f"{dt.datetime.now(tz=dt.timezone.utc):%Y%m%d}"
    stale = [claim for claim in claims if commits_since(claim.name) != 0]
    made = []
    for number, claim in enumerate(stale, start=1):
        name = f"{claim.theme}_{hardware_name}_{date}"
        made.append(f"[{name}] takes the place of [{claim.name}]")
        if is_made(name):
            continue
        if git_commit(ROOT) != commit or str(commit).endswith("-dirty"):
            raise InputError(
                "The clone has changes that are not committed, or another commit than at the"
                " start; a kept run states a commit. Commit them and start again."
            )
        sys.stderr.write(f"{number} of {len(stale)}: {name}: {claim.command}\n")
        begun = time.monotonic()
        code = start(claim.command, name)
        # a check that misses its aim ends with 1; its figures are evidence, too
        if code not in {0, 1} or not is_made(name):
            raise LaunchError(f"{name} ended with code {code}; the same command resumes.")
        compress(RESULTS / name)
        minutes = (time.monotonic() - begun) / 60
        sys.stderr.write(f"{number} of {len(stale)}: done in {minutes:.1f} min\n")
    print("\n".join(made) or "Every kept run is of this code.")
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
        claims = chosen_claims(options.only)
        if options.list:
            return show(claims)
        return make(claims, options.hardware or hardware())

    end("kept_runs", work)


if __name__ == "__main__":
    main()
