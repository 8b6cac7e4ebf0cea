"""Splits the output of a benchmark into blocks: the facts above a table, and its rows.

Launchers, schedulers, container tools and web pages put something before each line, and some put
something behind it. Whatever stands before a line that is known (a title, a heading) is such a
prefix; the same with other numbers is removed from every line. Lines whose prefixes are equal but
for the time are of one writer, so that ranks which write at the same time are told apart.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from commbench.interop.imports.reading import Reading
from commbench.units import counted

HEADING = "heading"
END = "end"
Line = tuple[int, str]
"""Number of a line, and its text."""

#: A control sequence of a terminal, its title or link, or a character set, as tput writes it.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
#: What stands behind a line in JSON, Python, XML, HTML and a table of Markdown.
_BEHIND = re.compile(
    r"""(?:\\r)?(?:\\n)?["'](?:[],})].*)?$|(?:&#010;)?(?:</\w+>)?(?:<br ?/?>|</\w+>)$|\s\|$"""
)
#: A date and time, or seconds since 1970.
_CLOCK = re.compile(
    r"(?:\d+[-/]\d+[-/]\d+[T ]|(?:[A-Z][a-z]{2} +)+\d+ )?\d+:\d\d:\d\d(?:[.,]\d+)?"
    r"(?:Z|[+-]\d\d:?\d\d)?(?: \d{4})?|\d{9,}\.\d+"
)
#: A day or a month.
_NAME = "[A-Z][a-z]{2}"
#: What NCCL_DEBUG writes, behind the host: process, thread, device (-1: none yet).
_MESSAGE = r":\d+:\d+ \[-?\d+\] .*"
#: Numbers alone.
_NUMBER = r"(?:-?\d[\d.]*(?:e[-+]\d+)?|N/A)"
_PART = re.compile(rf"{_NUMBER}(?:\s+{_NUMBER})*")
#: What is behind this in a line is of no table.
_LONGEST_LINE = 2000
#: Longer texts before a known line are no prefix.
_LONGEST_PREFIX = 200
#: A rank writes more lines than this; otherwise the numbers in prefixes count lines, not ranks.
_FEWEST_LINES = 3


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a tool writes its tables."""

    facts: Mapping[str, str]
    """The pattern of each line that states a fact, by name. ``heading`` is the heading of a
    table, ``end`` a line below it; group 1 is the fact."""
    begins: Mapping[str, Sequence[str]]
    """The facts that begin a block, each with the names of those that hold in it as well."""
    column: str = r"\S+"
    """Pattern of the name of a column."""
    row: str = r"[\d.]+(?:\s|$)"
    """Pattern of the begin of a row."""

    def occurs_in(self, text: str) -> bool:
        """Return whether a text has a table of the tool."""
        heading = re.compile(self.facts[HEADING])
        return any(heading.search(line[:_LONGEST_LINE]) for line in text.split("\n"))


@dataclass(kw_only=True)
class Block:
    """The facts above a table, and the table."""

    layout: Layout
    facts: dict[str, list[re.Match[str]]] = field(default_factory=dict)
    """The lines that state a fact, by its name."""
    rows: list[Line] = field(default_factory=list)

    def fact(self, name: str, group: int = 1) -> str:
        """Return a fact as last stated; empty if it is not."""
        if name not in self.facts:
            return ""
        return self.facts[name][-1][group] or ""

    @property
    def columns(self) -> list[str]:
        """The words of the heading; a second column of a name has an apostrophe."""
        columns = []
        for name in re.findall(self.layout.column, self.fact(HEADING)):
            while name in columns:
                name += "'"  # noqa: PLW2901 - until it is unique
            columns.append(name)
        return columns

    def add(self, place: int, line: str) -> None:
        """Take a row, or the further part of a row that is written in parts."""
        if re.match(self.layout.row, line):
            self.rows.append((place, line))
        elif self.rows and _PART.fullmatch(line):
            first_place, first_part = self.rows[-1]
            if len(first_part.split()) < len(self.columns):
                self.rows[-1] = (first_place, f"{first_part} {line}")

    def lines(
        self,
        reading: Reading,
        complete: Callable[[str, Sequence[str]], list[str]] | None = None,
    ) -> Iterator[dict[str, str]]:
        """Yield each row by column, and note how many rows do not fit the heading.

        Args:
            reading: notes the rows that do not fit.
            complete: returns the words of a row with those that the tool leaves blank, given the
                row and the columns.
        """
        columns = self.columns
        misfits = []
        for place, line in self.rows:
            words = line.split()
            if complete is not None:
                words = complete(line, columns)
            if len(words) == len(columns):
                yield dict(zip(columns, words, strict=True))
            else:
                misfits.append(f"line {place}: {' '.join(words)[:70]!r}")
        if misfits:
            reading.leave_out(
                f"{counted(len(misfits), 'row')} without a word for each of the"
                f" {len(columns)} columns of the heading, at first {misfits[0]}"
            )


def read_blocks(
    text: str, reading: Reading, *, layout: Layout, read_block: Callable[[Block, Reading], None]
) -> None:
    """Read each block of a text that has a table, and note those that cannot be imported.

    Raises:
        InputError: a block lacks a fact that no option gives.
    """
    for block in split_blocks(text, layout, reading):
        with reading.noting():
            read_block(block, reading)


def split_blocks(text: str, layout: Layout, reading: Reading) -> list[Block]:
    """Return the blocks of a text that have a table, in order."""
    blocks = []
    for lines in _by_writer(text, layout, reading):
        block = Block(layout=layout)
        blocks.append(block)
        for place, line in lines:
            facts = _facts(line, layout)
            for name, kept in layout.begins.items():
                is_again = name in block.facts and name != HEADING
                if name in facts and (block.rows or is_again):
                    inherited = {each: block.facts[each] for each in kept if each in block.facts}
                    block = Block(layout=layout, facts=inherited)
                    blocks.append(block)
            for name, match in facts.items():
                block.facts.setdefault(name, []).append(match)
            if HEADING in block.facts and END not in block.facts:
                block.add(place, line)
    tables = [block for block in blocks if HEADING in block.facts]
    for block in tables:
        if not block.rows:
            reading.leave_out("a table has a heading and no row")
    return tables


def _facts(line: str, layout: Layout) -> dict[str, re.Match[str]]:
    facts = {}
    for name, pattern in layout.facts.items():
        match = re.match(pattern, line)
        if match:
            facts[name] = match
    return facts


def _by_writer(text: str, layout: Layout, reading: Reading) -> list[list[Line]]:
    """Return the lines of each writer, without prefixes and messages of NCCL_DEBUG."""
    message = _message(text)
    lines = []
    messages = 0
    for place, line in whole_lines(text, reading):
        rest, found = message.subn("", line)
        messages += found
        lines.append((place, rest))
    if messages:
        reading.leave_out(f"{counted(messages, 'line')} of NCCL_DEBUG")
    prefix = _prefix([line for _, line in lines], layout)
    writers = []
    by_writer: dict[str, list[Line]] = {"": []}
    for place, line in lines:
        match = prefix.match(line)
        if match:
            writers.append(_CLOCK.sub("", match[0]).strip())
            line = line[match.end() :]  # noqa: PLW2901 - the same line
        writer = writers[-1] if writers else ""
        if writer.startswith("["):  # hydra repeats it within a row that is written in parts
            line = line.replace(writer, " ")  # noqa: PLW2901 - the same line
        rest = _BEHIND.sub("", line).strip()
        if rest:
            by_writer.setdefault(writer, []).append((place, rest))
    if _FEWEST_LINES * len(set(writers)) <= len(writers):
        return list(by_writer.values())
    return [sorted(itertools.chain.from_iterable(by_writer.values()))]


def _message(text: str) -> re.Pattern[str]:
    """Return the pattern of a message of NCCL_DEBUG, also where it follows a digit of a row."""
    hosts = set(re.findall(rf"(?<![\w.-])([\w.-]+){_MESSAGE}", text))
    for host in list(hosts):
        for known in list(hosts):
            if host.endswith(known) and re.fullmatch(r"[-.\d]+", host.removesuffix(known)):
                hosts.discard(host)
    longest_first = sorted(map(re.escape, hosts), key=len, reverse=True)
    return re.compile(rf"(?:\[[^\]]*\] ?)?(?:{'|'.join(longest_first) or '(?!)'}){_MESSAGE}")


def _prefix(lines: Sequence[str], layout: Layout) -> re.Pattern[str]:
    """Return the pattern of what stands before the lines that begin a block."""
    patterns = [layout.facts[name] for name in layout.begins]
    known = re.compile("|".join(p for p in patterns if not p.startswith(".*")))
    prefixes = set()
    for line in lines:
        match = known.search(line)
        if match and match.start() <= _LONGEST_PREFIX:
            prefixes.add(_generalised(line[: match.start()].strip()))
    if len(prefixes) > 1:
        prefixes.discard("")  # a line without prefix goes on for the writer before it
    longest_first = sorted(prefixes, key=len, reverse=True)
    return re.compile(rf"\s*(?:{'|'.join(longest_first)})")


def _generalised(prefix: str) -> str:
    """Return a pattern of a prefix that holds for other numbers, spaces and dates as well."""
    numbers = re.sub(r"\d+", r"\\d+", re.escape(prefix))
    spaces = re.sub(r"(\\?\s)+", r"\\s*", numbers)
    return re.sub(_NAME, _NAME, spaces)


def whole_lines(text: str, reading: Reading) -> Iterator[Line]:
    """Yield the complete lines with their numbers, without colours; note an unterminated last
    line.
    """
    *lines, rest = text.split("\n")
    for number, line in enumerate(lines, start=1):
        yield number, _ESCAPE.sub("", line[:_LONGEST_LINE]).rstrip()
    if rest.strip():
        reading.leave_out(
            f"line {len(lines) + 1} has no end, so that it may be cut off ({rest.strip()[:60]!r})"
        )
