"""Finds and loads suites: short Python files that set ``SUITE`` to a `Sweep` or a list of
sweeps.
"""

from __future__ import annotations

import dataclasses
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.collectives.cases import Axes, Sweep
from commbench.collectives.operations import OPERATIONS
from commbench.errors import InputError, unknown_choice
from commbench.system.user_files import failure

#: Directories of commbench's own suites: beside the package in a checkout, below the prefix when
#: installed.
HOMES = (
    Path(__file__).parents[2] / "benchmarks",
    Path(sys.prefix) / "share" / "commbench" / "benchmarks",
)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Named sweeps, measured together."""

    name: str
    sweeps: Sequence[Sweep]

    def override(self, axes: Axes) -> Suite:
        """Return the suite with axes replaced in every sweep.

        Sweeps that become equal are measured once.

        Raises:
            InputError: an axis does not have the value.
        """
        return dataclasses.replace(
            self, sweeps=[dataclasses.replace(sweep, **axes) for sweep in self.sweeps]
        )

    @property
    def backends(self) -> tuple[str, ...]:
        """All backends of the sweeps, each once."""
        return tuple(dict.fromkeys(backend for sweep in self.sweeps for backend in sweep.backends))


def load_suite(name: str) -> Suite:
    """Load a suite by path, or one of commbench's own by name, such as ``quick``.

    The working directory stays, on which the paths of other options depend.

    Raises:
        InputError: there is no such file, it cannot be run, or it names no sweeps.
    """
    path = find_suite(name)
    directory = Path.cwd()
    try:
        suite = runpy.run_path(str(path)).get("SUITE")
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a script that is no suite may end itself
        raise InputError(f"Suite {path} cannot be run ({failure(error)}).") from error
    finally:
        os.chdir(directory)
    sweeps = [suite] if isinstance(suite, Sweep) else suite
    if (
        not isinstance(sweeps, Sequence)
        or not sweeps
        or not all(isinstance(sweep, Sweep) for sweep in sweeps)
    ):
        raise InputError(
            f"Suite {path} names no sweeps; it must set SUITE to a commbench.Sweep or a list of"
            " them."
        )
    return Suite(name=path.stem, sweeps=list(sweeps))


def find_suite(name: str) -> Path:
    """Return the file of a suite.

    Raises:
        InputError: there is none; the message lists the suites.
    """
    path_as_given = Path(name)
    candidates = [path_as_given, *(home / f"{name}.py" for home in HOMES)]
    for path in candidates:
        if path.is_file():
            return path
    if name in OPERATIONS:
        raise InputError(f"{name} is an operation, no suite; write -c {name}.")
    raise unknown_choice("suite", name, known_suites(), ", or give a Python file")


def known_suites() -> list[str]:
    """Return the names of commbench's own suites: the files that set SUITE."""
    home = next((home for home in HOMES if home.is_dir()), None)
    if home is None:
        return []
    return sorted(
        path.stem for path in home.glob("*.py") if "\nSUITE =" in path.read_text(encoding="utf-8")
    )
