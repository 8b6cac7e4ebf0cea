"""Whether all hosts run the same software: if not, nothing is measured, and a table says how they differ."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import commbench
from commbench.control import Control, gather_everywhere
from commbench.environment import collect_versions

#: Nothing of theirs runs while the clock runs, so that hosts may differ in them.
_DO_NOT_COUNT = frozenset({"numpy", "nvidia-ml-py"})
#: More hosts than this are counted rather than listed above a column.
_LISTED = 3


@dataclass(frozen=True, kw_only=True)
class Software:
    """What a rank runs."""

    rank: int
    host: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """By name. Of all packages on the lowest rank of each host; elsewhere what the rank knows without looking."""


def refuse_unlike_software(control: Control) -> str:
    """The refusal, the same on every rank; empty where all run the same. All ranks call it together."""
    hosts = gather_everywhere(control, socket.gethostname())
    versions = _running(control)
    if hosts.index(hosts[control.rank]) == control.rank:
        versions = {**collect_versions(), **versions}
    own = Software(rank=control.rank, host=hosts[control.rank], versions=versions)
    return describe_differences(gather_everywhere(control, own))


def _running(control: Control) -> dict[str, str]:
    """What this process runs as it stands: cheap, so that every rank can tell, also one among others on its host."""
    library = getattr(control, "library", None)
    mpi = {"MPI library": library()} if library else {}
    return {"commbench": commbench.__version__, "python": platform.python_version(), **mpi}


def describe_differences(ranks: Sequence[Software]) -> str:
    """One sentence and a table with a column for each group of ranks that run the same; empty for a single group."""
    names = sorted({name for software in ranks for name in software.versions} - _DO_NOT_COUNT)
    by_host = {software.host: software.versions for software in reversed(ranks)}  # the lowest rank's come last

    def versions_of(software: Software) -> tuple[str, ...]:
        known = {**by_host[software.host], **software.versions}
        return tuple(known.get(name, "none") for name in names)

    groups: dict[tuple[str, ...], list[Software]] = {}
    for software in ranks:
        groups.setdefault(versions_of(software), []).append(software)
    if len(groups) < 2:  # noqa: PLR2004 - a single group is what is wanted
        return ""
    header = ["", *(_label(group, ranks) for group in groups.values())]
    rows = [[name, *versions] for name, *versions in zip(names, *groups, strict=True)]
    return (
        "The ranks do not run the same software, so that what they measure together means nothing; install the same on "
        f"every host.\n{_table([header, *(row for row in rows if len(set(row[1:])) > 1)])}"
    )


def _label(group: Sequence[Software], ranks: Sequence[Software]) -> str:
    """The group's hosts; its ranks where a host's ranks differ among themselves."""
    hosts = list(dict.fromkeys(software.host for software in group))
    if any(software.host in hosts and software not in group for software in ranks):
        return _list([f"{software.host} rank {software.rank}" for software in group])
    return _list(hosts)


def _list(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)
