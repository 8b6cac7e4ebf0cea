"""Detects the tool that wrote an output, and combines several outputs into one run."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from commbench.engine.records import Record
from commbench.errors import InputError, check_choice
from commbench.interop.imports import imb, nccl_json, nccl_tests, osu, param
from commbench.interop.imports.reading import ImportOptions, Place, Reading
from commbench.schema import JsonObject


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One output format of a tool."""

    name: str
    """The value of ``--tool``."""
    title: str
    """The tool's usual name."""
    recognises: Callable[[str], bool]
    """Whether a text has this format."""
    read: Callable[[str, str, ImportOptions], Reading]
    """Reads a text, given its name and the options of the import."""


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            name="nccl-tests-json",
            title="nccl-tests",
            recognises=nccl_json.recognises,
            read=nccl_json.read,
        ),
        Tool(
            name="nccl-tests",
            title="nccl-tests",
            recognises=nccl_tests.recognises,
            read=nccl_tests.read,
        ),
        Tool(name="osu", title="OSU Micro-Benchmarks", recognises=osu.recognises, read=osu.read),
        Tool(name="imb", title="Intel MPI Benchmarks", recognises=imb.recognises, read=imb.read),
        Tool(name="param", title="PARAM", recognises=param.recognises, read=param.read),
    )
}


def find_tool(text: str, name: str, tool_name: str | None = None) -> Tool:
    """Return the tool that wrote a text, or the tool named by ``tool_name``.

    Raises:
        InputError: there is no such tool, or no tool recognises the text.
    """
    if tool_name is not None:
        check_choice("tool", tool_name, TOOLS)
        return TOOLS[tool_name]
    recognising = next((tool for tool in TOOLS.values() if tool.recognises(text)), None)
    if recognising is None:
        titles = list(dict.fromkeys(tool.title for tool in TOOLS.values()))
        raise InputError(
            f"{name} is no output of {', '.join(titles[:-1])} or {titles[-1]}; see"
            " docs/importing.md."
        )
    return recognising


#: Largest accepted file: outputs have a few kilobytes.
LARGEST_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Source:
    """An output of a tool."""

    name: str
    """The path as typed, or ``-``."""
    data: bytes

    @property
    def sha256(self) -> str:
        """The SHA-256 of its bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def text(self) -> str:
        """The data as text; invalid bytes are marked."""
        return self.data.decode("utf-8-sig", errors="replace")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The records of all outputs, and the entries of ``run.json``."""

    records: Sequence[Record]
    info: JsonObject
    """Entries of ``run.json``."""
    readings: Sequence[tuple[Tool, Reading]]
    """Tool and reading of each output, in the given order."""


def import_outputs(
    sources: Sequence[Source], *, tool: str | None = None, options: ImportOptions
) -> Imported:
    """Read outputs of other tools.

    Each further occurrence of a case, in any output, is a further launch.

    Raises:
        InputError: no tool recognises an output, or an output lacks a needed fact; two outputs are
            equal; no output has a measurement; or the times of a case have different meanings.
    """
    _check_distinct(sources)
    readings: list[tuple[Tool, Reading]] = []
    for source in sources:
        if len(source.data) > LARGEST_BYTES:
            raise InputError(
                f"{source.name} has {len(source.data)} bytes and is no output of a tool; give its"
                " output."
            )
        text = source.text
        source_tool = find_tool(text, source.name, tool)
        readings.append((source_tool, source_tool.read(text, source.name, options)))
    records = _with_launch_numbers(
        [record for _, reading in readings for record in reading.records]
    )
    if not records:
        reasons = [reason for _, reading in readings for reason in reading.left_out]
        why = f": {'; '.join(reasons[:3])}" if reasons else ""
        raise InputError(
            f"Nothing was found in {', '.join(source.name for source in sources)}{why}."
        )
    most = max(record.group_size for record in records)
    info = {
        "imported": [
            {
                "file": source.name,
                "sha256": source.sha256,
                "tool": source_tool.title,
                "version": reading.version,
            }
            for source, (source_tool, reading) in zip(sources, readings, strict=True)
        ],
        "world_size": most,
        **_layout([reading.places[most] for _, reading in readings if most in reading.places]),
    }
    return Imported(
        records=[_with_world_size(record, most) for record in records], info=info, readings=readings
    )


def _check_distinct(sources: Sequence[Source]) -> None:
    names: dict[str, str] = {}
    for source in sources:
        if source.sha256 in names:
            raise InputError(
                f"{names[source.sha256]} and {source.name} are the same output, which is one"
                " launch; name it once."
            )
        names[source.sha256] = source.name


def _with_launch_numbers(records: Iterable[Record]) -> list[Record]:
    """Return the records with the launches of each case numbered from 0."""
    launches_by_case: dict[tuple[str, int], list[Record]] = {}
    numbered = []
    for record in records:
        launches = launches_by_case.setdefault((record.case.key, record.group_size), [])
        _check_alike(record, launches[:1])
        launches.append(record)
        numbered.append(dataclasses.replace(record, launch=len(launches) - 1))
    return numbered


def _check_alike(record: Record, earlier_records: Sequence[Record]) -> None:
    """Raise `InputError` if a further launch of a case has another meaning of time or another
    device.
    """
    for earlier in earlier_records:
        times = [each.stated.time if each.stated else "" for each in (earlier, record)]
        if times[0] != times[1]:
            raise InputError(
                f"Of {record.case} one output states the {times[0]} and another the {times[1]};"
                " import them apart."
            )
        if earlier.device and record.device and earlier.device != record.device:
            raise InputError(
                f"Of {record.case} buffers are on {earlier.device} in one output and on"
                f" {record.device} in another; import them apart."
            )


def _with_world_size(record: Record, most: int) -> Record:
    """Return the record for a run on ``most`` ranks: a case on fewer ranks states their number."""
    if record.group_size == most:
        return record
    return dataclasses.replace(
        record, case=dataclasses.replace(record.case, world_size=record.group_size)
    )


def _layout(places_by_output: Sequence[Sequence[Place]]) -> JsonObject:
    """Return the hosts of the ranks as entries of ``run.json``, if stated and equal in all
    outputs.
    """
    hosts = {
        tuple(place.host for place in sorted(places, key=lambda place: place.rank))
        for places in places_by_output
    }
    if len(hosts) != 1:
        return {}
    (by_rank,) = hosts
    return {
        "nodes": len(set(by_rank)),
        "ranks_per_node": max(by_rank.count(host) for host in by_rank),
        "ranks": [{"rank": rank, "host": host} for rank, host in enumerate(by_rank)],
    }
