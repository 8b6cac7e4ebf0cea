"""Whether a run can be started or resumed in a directory, before anything is written there."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commbench.errors import InputError
from commbench.store.files import LOCK, RUN, SCAFFOLD, as_json, refusing, take_lock
from commbench.store.reading import read_info


def check_out(path: str | Path, plan: Mapping[str, Any] | None = None) -> None:
    """Check that a run can be started or resumed in ``path``, and write nothing; its records are not read yet.

    Args:
        path: the directory that ``--out`` names; it need not exist.
        plan: the identity of the run that is asked for; None leaves it unchecked.

    Raises:
        InputError: ``path`` is a file, cannot be written, belongs to something else, to a newer version, to a run with
            another plan or to a running commbench.
    """
    path = Path(path)
    with refusing(path, InputError):
        if not path.is_dir():
            _check_absent(path)
        elif not os.access(path, os.W_OK | os.X_OK):
            raise InputError(f"--out {path} cannot be written; choose another --out or change its permissions.")
        elif (path / RUN).exists():
            check_plan(path, read_info(path), plan)
            _check_unlocked(path)
        elif foreign := sorted({entry.name for entry in path.iterdir()} - SCAFFOLD):
            raise InputError(
                f"--out {path} is no run of commbench and not empty (it holds {foreign[0]}); choose another --out."
            )
        else:
            _check_unlocked(path)


def _check_absent(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise InputError(f"--out {path} is not a directory; choose another --out.")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"--out {path} lies below {above}, which is not a directory; choose another --out.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"--out {path} cannot be made because {above} cannot be written; choose another --out.")


def check_plan(path: Path, info: Mapping[str, Any], plan: Mapping[str, Any] | None) -> None:
    """Refuse a run whose plan is not the one asked for, and name what differs; None asks for nothing."""
    if plan is None:
        return
    kept, asked = info.get("plan") or {}, as_json(plan)
    unlike = [name for name in sorted(kept.keys() | asked.keys()) if kept.get(name) != asked.get(name)]
    if unlike:
        if "cases" in unlike and "cases_sha256" in unlike:  # their number says it already
            unlike.remove("cases_sha256")
        listed = ", ".join(_difference(name, kept.get(name), asked.get(name)) for name in unlike)
        raise InputError(f"--out {path} holds a run with another plan ({listed}); choose another --out.")


def _difference(name: str, kept: object, asked: object) -> str:
    """Name an entry, and its values where they are short enough to read."""
    if name == "cases_sha256":
        return "other cases, as many as here"
    longest = 24
    texts = [json.dumps(value) for value in (kept, asked)]
    return name if max(map(len, texts)) > longest else f"{name} is {texts[0]} there and {texts[1]} here"


def _check_unlocked(path: Path) -> None:
    if (path / LOCK).exists():
        os.close(take_lock(path))
