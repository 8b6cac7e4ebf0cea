"""What the checks here share: where they keep what they find, what they say of its conditions, and
how they end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.table import Table

from commbench.cli.request import default_out
from commbench.errors import CommbenchError, InputError, LaunchError
from commbench.launch.launchers.base import Launcher
from commbench.system.host import collect_host
from commbench.system.software import collect_versions, git_commit
from commbench.system.variables import relevant_variables


def add_out(parser: argparse.ArgumentParser, name: str) -> None:
    """Let a person choose the directory of a check's results."""
    parser.add_argument(
        "--out", type=Path, help=f"results directory (default results/<UTC time>-{name}-<host>)"
    )


def empty_out(chosen: Path | None, name: str) -> Path:
    """The directory that was chosen, else one by time and host.

    Nothing is in it, and it may have yet to be made.

    Raises:
        InputError: something is.
    """
    out = chosen or default_out(name)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out} is not an empty directory; choose another --out.")
    return out


def own_environment() -> dict[str, Any]:
    """The conditions of what was measured in this process."""
    return {
        "hosts": [collect_host()],
        "versions": collect_versions(),
        "variables": relevant_variables(os.environ),
    }


def run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float = 600.0
) -> str:
    """Run a command, with further variables, and return what it printed.

    Raises:
        LaunchError: it failed or took too long.
    """
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{command[0]} cannot be run ({error}).") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise LaunchError(f"{' '.join(command)} ended with {done.returncode}: {' '.join(last)}")
    return done.stdout


def run_ranks(launcher: Launcher, ranks: int, program: Sequence[str]) -> Any:
    """Run a program on ranks; return the JSON that rank 0 printed last.

    Raises:
        LaunchError: they failed or took too long.
    """
    printed = run(launcher.command(ranks, program), launcher.environment())
    return json.loads(printed.splitlines()[-1])


def build_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows for people: times, ratios with their intervals, and the answer."""
    bounds = [name for name in rows[0] if "_ci_" in name]
    shown = [name for name in rows[0] if name not in bounds]
    table = Table(*shown, box=None, pad_edge=False)
    for row in rows:
        cells = []
        for name in shown:
            text = str(row[name])
            if isinstance(row[name], float):
                text = f"{row[name]:.3g}"
            if f"{name}_ci_low" in bounds:
                text += f" [{row[f'{name}_ci_low']:.3g}, {row[f'{name}_ci_high']:.3g}]"
            cells.append(text)
        table.add_row(*cells)
    return table


def write_facts(file: Path, program: str, facts: Mapping[str, Any]) -> None:
    """Write what a program found as JSON, after the command and the commit that make it again."""
    stated = {
        "schema": 1,
        "argv": ["python", f"benchmarks/evidence/{program}.py", *sys.argv[1:]],
        "git_commit": git_commit(Path(__file__).parent),
    }
    file.write_text(json.dumps({**stated, **facts}, indent=1) + "\n")


def end(program: str, work: Callable[[], int]) -> NoReturn:
    """Leave with the exit code of the work, or with an error's and its sentence."""
    try:
        sys.exit(work())
    except CommbenchError as error:
        sys.stderr.write(f"{program}: {error}\n")
        sys.exit(error.exit_code)
