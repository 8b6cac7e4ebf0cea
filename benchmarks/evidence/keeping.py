"""What the checks here share: where they keep what they find, what they say of its conditions, and
how they end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from commbench.cli.request import default_out
from commbench.errors import CommbenchError, InputError
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
