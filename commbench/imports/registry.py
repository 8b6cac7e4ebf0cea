"""The tools whose output can be read: which one wrote a text, and what reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commbench.errors import InputError
from commbench.imports import imb, nccl_json, nccl_tests, osu, param
from commbench.imports.reading import Asked, Reading


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
