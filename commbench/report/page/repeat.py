"""How to measure a run again: its command with its seed, into a new directory, in the cluster that it ran in."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from commbench.report.page.parts import Code
from commbench.store import Run

#: What ``launcher`` in run.json says where somebody's own launcher started the ranks: it is not in the command.
_OWN_LAUNCHERS = frozenset({"openmpi", "mpich", "slurm"})
#: Options of `commbench lab run`, by the entries of ``emulated`` that they become.
_LAB = {"hosts": "--hosts", "rate": "--rate", "racks": "--racks", "uplink": "--uplink"}


def commands(runs: Sequence[Run]) -> list[Code]:
    """The command of each run that states its own, to be pasted."""
    found = []
    for run in runs:
        if run.info.get("argv"):
            verb = "import" if run.info.get("imported") else "measure"
            whose = f" {run.name}" if len(runs) > 1 else " it"
            each = ", by each rank under your launcher" if run.info.get("launcher") in _OWN_LAUNCHERS else ""
            found.append(Code(title=f"To {verb}{whose} again{each}", text=shlex.join(words_of(run.info))))
    return found


def words_of(info: Mapping[str, Any]) -> list[str]:
    """The words that repeat a run: with ``--out`` of the finished one they would resume it.

    Args:
        info: what ``run.json`` holds.
    """
    command = _into_another([str(word) for word in info["argv"]])
    seed = info.get("seed")
    if seed is not None and not any(word.partition("=")[0] == "--seed" for word in command):
        command[2:2] = ["--seed", str(seed)]
    return [*_lab(info), *command]


def _into_another(words: Sequence[str]) -> list[str]:
    """The words with another directory than the run's in place of it, where they name one."""
    found: list[str] = []
    for word in words:
        name, is_joined, value = word.partition("=")
        if found and found[-1] == "--out":
            found.append(_another(word))
        else:
            found.append(f"{name}={_another(value)}" if name == "--out" and is_joined else word)
    return found


def _another(directory: str) -> str:
    return f"{directory.rstrip('/')}_again"


def _lab(info: Mapping[str, Any]) -> list[str]:
    """The emulated cluster around the command; nothing on a real one."""
    emulated: Mapping[str, Any] = (info.get("environment") or {}).get("emulated") or {}
    if not emulated:
        return []
    options = [word for name, option in _LAB.items() if emulated.get(name) for word in (option, str(emulated[name]))]
    each = info.get("ranks_per_node") or 1
    options += ["--ranks-per-host", str(each)] if each > 1 else []
    slow = (emulated.get("slow") or {}).items()
    options += [word for host, rate in slow for word in ("--slow", f"{host}={rate}")]
    return ["commbench", "lab", "run", *options, "--"]
