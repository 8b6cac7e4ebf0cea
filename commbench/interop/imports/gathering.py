"""Detects the tool that wrote an output, and combines several outputs into one run."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.interop.imports import imb, nccl_json, nccl_tests, osu, param
from commbench.interop.imports.reading import Asked, Place, Reading


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool, in one format of its output."""

    name: str
    """As ``--tool`` takes it."""
    title: str
    """As people call it."""
    recognises: Callable[[str], bool]
    """Whether a text is its output."""
    read: Callable[[str, str, Asked], Reading]
    """Reads a text, given what the person calls it and says of it."""


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(name="nccl-tests-json", title="nccl-tests", recognises=nccl_json.recognises, read=nccl_json.read),
        Tool(name="nccl-tests", title="nccl-tests", recognises=nccl_tests.recognises, read=nccl_tests.read),
        Tool(name="osu", title="OSU Micro-Benchmarks", recognises=osu.recognises, read=osu.read),
        Tool(name="imb", title="Intel MPI Benchmarks", recognises=imb.recognises, read=imb.read),
        Tool(name="param", title="PARAM", recognises=param.recognises, read=param.read),
    )
}


def find_tool(text: str, name: str, asked: str | None = None) -> Tool:
    """The tool that wrote a text, or the one that the person names.

    Raises:
        InputError: there is no such tool, or it is output of none.
    """
    if asked is not None and asked not in TOOLS:
        raise InputError(f"Unknown tool {asked!r}; choose from {', '.join(TOOLS)}.")
    if asked is not None:
        return TOOLS[asked]
    found = next((tool for tool in TOOLS.values() if tool.recognises(text)), None)
    if found is None:
        titles = list(dict.fromkeys(tool.title for tool in TOOLS.values()))
        raise InputError(f"{name} is no output of {', '.join(titles[:-1])} or {titles[-1]}; see docs/importing.md.")
    return found


#: Outputs are a few kilobytes; what is larger is something else.
LARGEST_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Source:
    """An output of a tool."""

    name: str
    """What the person calls it: a path, or ``-``."""
    data: bytes

    @property
    def sha256(self) -> str:
        """The SHA-256 of its bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def text(self) -> str:
        """It as text; bytes that are none are marked."""
        return self.data.decode("utf-8-sig", errors="replace")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What was read of all outputs."""

    records: Sequence[Record]
    info: dict[str, Any]
    """Entries of ``run.json``."""
    readings: Sequence[tuple[Tool, Reading]]
    """Each output's, in the order given."""


def import_outputs(sources: Sequence[Source], *, tool: str | None = None, asked: Asked) -> Imported:
    """Read outputs of other tools; the same case in several of them, or again in one, is a further launch.

    Raises:
        InputError: one is output of none of the tools, or states less than is needed; two are the same; nothing was
            found; or a case's times in different outputs mean different things.
    """
    _check_distinct(sources)
    readings: list[tuple[Tool, Reading]] = []
    for source in sources:
        if len(source.data) > LARGEST_BYTES:
            raise InputError(f"{source.name} has {len(source.data)} bytes and is no output of a tool; give its output.")
        text = source.text
        found = find_tool(text, source.name, tool)
        readings.append((found, found.read(text, source.name, asked)))
    records = _numbered([record for _, reading in readings for record in reading.records])
    if not records:
        reasons = [reason for _, reading in readings for reason in reading.left_out]
        why = f": {'; '.join(reasons[:3])}" if reasons else ""
        raise InputError(f"Nothing was found in {', '.join(source.name for source in sources)}{why}.")
    most = max(record.group_size for record in records)
    info = {
        "imported": [
            {"file": source.name, "sha256": source.sha256, "tool": found.title, "version": reading.version}
            for source, (found, reading) in zip(sources, readings, strict=True)
        ],
        "world_size": most,
        **_layout([reading.places[most] for _, reading in readings if most in reading.places]),
    }
    return Imported(records=[_among(record, most) for record in records], info=info, readings=readings)


def _check_distinct(sources: Sequence[Source]) -> None:
    known: dict[str, str] = {}
    for source in sources:
        if source.sha256 in known:
            raise InputError(
                f"{known[source.sha256]} and {source.name} are the same output, which is one launch; name it once."
            )
        known[source.sha256] = source.name


def _numbered(records: Iterable[Record]) -> list[Record]:
    """The records with a launch each: a case's first, second and so on."""
    seen: dict[tuple[str, int], list[Record]] = {}
    numbered = []
    for record in records:
        launches = seen.setdefault((record.case.key, record.group_size), [])
        _check_alike(record, launches[:1])
        launches.append(record)
        numbered.append(dataclasses.replace(record, launch=len(launches) - 1))
    return numbered


def _check_alike(record: Record, before: Sequence[Record]) -> None:
    """Refuse a further launch that another time or device makes another measurement."""
    for one in before:
        times = [each.stated.time if each.stated else "" for each in (one, record)]
        if times[0] != times[1]:
            raise InputError(
                f"Of {record.case} one output states the {times[0]} and another the {times[1]}; import them apart."
            )
        if one.device and record.device and one.device != record.device:
            raise InputError(
                f"Of {record.case} buffers are on {one.device} in one output and on {record.device} in another; "
                "import them apart."
            )


def _among(record: Record, most: int) -> Record:
    """The record of a run on ``most`` ranks: a case on fewer says so, as in a scaling study."""
    if record.group_size == most:
        return record
    return dataclasses.replace(record, case=dataclasses.replace(record.case, world_size=record.group_size))


def _layout(stated: Sequence[Sequence[Place]]) -> dict[str, Any]:
    """Where ranks ran, if it is stated and the same in all outputs."""
    hosts = {tuple(place.host for place in sorted(places, key=lambda place: place.rank)) for places in stated}
    if len(hosts) != 1:
        return {}
    (by_rank,) = hosts
    return {
        "nodes": len(set(by_rank)),
        "ranks_per_node": max(by_rank.count(host) for host in by_rank),
        "ranks": [{"rank": rank, "host": host} for rank, host in enumerate(by_rank)],
    }
