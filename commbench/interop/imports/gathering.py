"""Detects the tool that wrote an output, and combines several outputs into one run."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from commbench.engine.records import Record
from commbench.errors import InputError, find_entry
from commbench.fields import join_names
from commbench.interop.imports import imb, nccl_json, nccl_tests, osu, param
from commbench.interop.imports.blocks import read_blocks
from commbench.interop.imports.reading import ImportOptions, Reading
from commbench.results.tables import PRINTED_BY_COMMBENCH, rows_by
from commbench.schema import JsonObject
from commbench.system.files import decode


@dataclass(frozen=True)
class Tool:
    """One output format of a tool."""

    name: str
    """The value of ``--tool``."""
    title: str
    """The tool's usual name."""
    recognises: Callable[[str], bool]
    """Whether a text has this format."""
    read: Callable[[str, Reading], None]
    """Reads a text."""


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("nccl-tests-json", "nccl-tests", nccl_json.recognises, nccl_json.read),
        Tool("nccl-tests", "nccl-tests", nccl_tests.LAYOUT.occurs_in, nccl_tests.read),
        Tool(
            "osu",
            "OSU Micro-Benchmarks",
            osu.LAYOUT.occurs_in,
            partial(read_blocks, layout=osu.LAYOUT, read_block=osu.read_block),
        ),
        Tool("imb", "Intel MPI Benchmarks", imb.LAYOUT.occurs_in, imb.read),
        Tool(
            "param",
            "PARAM",
            param.LAYOUT.occurs_in,
            partial(read_blocks, layout=param.LAYOUT, read_block=param.read_block),
        ),
    )
}


def find_tool(text: str, name: str, tool_name: str | None = None) -> Tool:
    """Return the tool that wrote a text, or the tool named by ``tool_name``.

    Raises:
        InputError: there is no such tool, or no tool recognises the text.
    """
    if tool_name is not None:
        return find_entry("tool", tool_name, TOOLS)
    for tool in TOOLS.values():
        if tool.recognises(text):
            return tool
    titles = join_names(dict.fromkeys(tool.title for tool in TOOLS.values()))
    raise InputError(
        f"{name} has no table of {titles}; give the output of one of them from its first line, see"
        " docs/exchange.md."
    )


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


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The records of all outputs, and the entries of ``run.json``."""

    records: Sequence[Record]
    info: JsonObject
    """Entries of ``run.json``."""
    readings: Sequence[Reading]
    """Of each output, in the given order."""


def import_outputs(
    sources: Sequence[Source], *, tool: str | None = None, options: ImportOptions
) -> Imported:
    """Read outputs of other tools.

    Each further occurrence of a case, in any output, is a further launch.

    Raises:
        InputError: no tool recognises an output, commbench printed it, or it lacks a needed fact;
            two outputs are equal; no output has a measurement; or the times of a case have
            different meanings.
    """
    _check_distinct(sources)
    readings = []
    for source in sources:
        text = decode(source.data)
        if PRINTED_BY_COMMBENCH in text:
            raise InputError(
                f"commbench printed {source.name}; the run's directory has the numbers, with all"
                " conditions."
            )
        source_tool = find_tool(text, source.name, tool)
        reading = Reading(name=source.name, options=options, tool=source_tool.title)
        source_tool.read(text, reading)
        _note_others(text, source_tool, reading)
        readings.append(reading)
    found = [record for reading in readings for record in reading.records]
    if not found:
        reasons: list[str] = []
        for reading in readings:
            reasons += reading.left_out
        names = ", ".join(source.name for source in sources)
        why = "; ".join(reasons[:3]) or "no line begins as the heading of a table does"
        raise InputError(f"Nothing was found in {names}: {why}.")
    most = max(record.group_size for record in found)
    records = []
    for launches in rows_by(found, attrgetter("case.key", "group_size")).values():
        for launch, record in enumerate(launches):
            _check_alike(record, launches[0])
            case = record.case
            if record.group_size < most:
                case = dataclasses.replace(case, world_size=record.group_size)
            records.append(dataclasses.replace(record, case=case, launch=launch))
    return Imported(records=records, info=_info(sources, readings, most), readings=readings)


def _note_others(text: str, source_tool: Tool, reading: Reading) -> None:
    """Note the tables of other tools in a text."""
    for tool in TOOLS.values():
        if tool.title != source_tool.title and tool.recognises(text):
            reading.leave_out(
                f"tables of {tool.title} in the same file; import it again with --tool {tool.name}"
            )


def _info(sources: Sequence[Source], readings: Sequence[Reading], most: int) -> JsonObject:
    """Return entries of ``run.json``: outputs, and the hosts of the ranks, if stated and equal in
    all tables.
    """
    outputs = []
    hosts = set()
    for source, reading in zip(sources, readings, strict=True):
        output = {"file": source.name, "sha256": source.sha256}
        outputs.append({**output, "tool": reading.tool, "version": reading.version})
        for places in reading.places.get(most, ()):
            hosts.add(tuple(place.host for place in sorted(places)))
    info: JsonObject = {"imported": outputs, "world_size": most}
    if len(hosts) == 1:
        (by_rank,) = hosts
        info["nodes"] = len(set(by_rank))
        info["ranks_per_node"] = max(by_rank.count(host) for host in by_rank)
        info["ranks"] = [{"rank": rank, "host": host} for rank, host in enumerate(by_rank)]
    return info


def _check_distinct(sources: Sequence[Source]) -> None:
    for first, *others in rows_by(sources, attrgetter("sha256")).values():
        if others:
            raise InputError(
                f"{first.name} and {others[0].name} are the same output, which is one launch; name"
                " it once."
            )


def _check_alike(record: Record, earlier: Record) -> None:
    """Raise `InputError` if a further launch of a case has another meaning of time or another
    device.
    """
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
