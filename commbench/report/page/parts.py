"""The parts of a page before they are HTML: findings, facts, tables and sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from commbench.engine.flags import FLAGS, split_flags
from commbench.report.figures.drawing import Drawing
from commbench.report.table import UNBOUNDED, Flagged
from commbench.units import decimals

Tone = Literal["", "good", "warning", "bad", "quiet"]
#: A table of a page holds no more lines: a browser must stay quick, and the rest is in the run's files.
MOST_LINES = 1000
#: One with more lines scrolls in a box of its own.
LONG = 40


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    value: float | None = None
    """What a column of numbers is sorted by; None comes last."""
    tone: Tone = ""
    flags: tuple[str, ...] = ()
    """Shown in place of the text, each with its meaning."""
    link: str = ""
    """A file beside the page."""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The heading of a column."""

    text: str
    unit: str = ""
    about: str = ""
    """What the column holds, shown on hover and below the section's tables."""
    is_number: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that can be sorted by each of its columns."""

    title: str
    headings: Sequence[Heading]
    lines: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    """Sentences below it."""
    legend: Mapping[str, str] = field(default_factory=dict)
    """The flags in use, each with its meaning."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something of the conclusion."""

    label: str
    """What it is about, in a word."""
    texts: Sequence[str]
    details: Sequence[str] = ()
    """What follows in small print."""
    tone: Tone = ""
    is_lead: bool = False
    """Whether it is what most readers came for."""
    more: tuple[str, str] | None = None
    """The id of the section that has the rest, and the words that lead there."""


class Fact(NamedTuple):
    """A condition of the run."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Code:
    """Something to copy."""

    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page with a heading of its own, left out where it is empty."""

    name: str
    """Its id."""
    title: str
    sentences: Sequence[str] = ()
    """What was found."""
    warnings: Sequence[str] = ()
    """Warnings about it."""
    codes: Sequence[Code] = ()
    figures: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()

    @property
    def legend(self) -> dict[str, str]:
        """The flags in use in its tables, each with its meaning."""
        return {flag: meaning for table in self.tables for flag, meaning in table.legend.items()}

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The headings of its tables that need a word, each with what it means."""
        headings = (heading for table in self.tables for heading in table.headings if heading.about)
        return list(dict.fromkeys((heading.text, heading.about) for heading in headings))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.sentences or self.warnings or self.codes or self.figures or self.tables)


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that the template needs."""

    title: str
    subtitle: str
    """What was measured, and when."""
    findings: Sequence[Finding]
    facts: Sequence[Fact]
    sections: Sequence[Section]
    time: str
    """What the times of collectives are."""


R = TypeVar("R")
Named = tuple[str, R]
"""A row with the name of its run."""

_NARROW_SPACE = "\u202f"


@dataclass(frozen=True, kw_only=True)
class Column(Generic[R]):
    """A column: its heading, and what it shows of a row. It is left out where no row has anything in it."""

    heading: str
    unit: str = ""
    about: str = ""
    text: Callable[[R], str]
    value: Callable[[R], float | None] | None = None
    """What a column of numbers is sorted by; None: it holds words."""
    tone: Callable[[R], Tone] | None = None
    flags: Callable[[R], Sequence[str]] | None = None
    """In a column of flags: those of a row, in place of the text."""
    if_varied: bool = False
    """Whether it is left out also where all rows have the same in it: the table's title then says it."""

    def cell(self, row: R) -> Cell:
        """What it shows of a row."""
        return Cell(
            text=self.text(row),
            value=None if self.value is None else self.value(row),
            tone="" if self.tone is None else self.tone(row),
            flags=() if self.flags is None else tuple(self.flags(row)),
        )

    def is_needed(self, cells: Iterable[Cell]) -> bool:
        """Whether its cells tell anything."""
        texts = {(cell.text, cell.flags) for cell in cells}
        return len(texts) > 1 if self.if_varied else texts != {("", ())}


def make_table(
    title: str,
    rows: Sequence[Named[R]],
    columns: Sequence[Column[R]],
    *,
    notes: Sequence[str] = (),
    rest_in: str = "the run's files",
) -> Table:
    """Put rows into a table, at most `MOST_LINES` of them.

    Args:
        title: of the table.
        rows: each with the name of its run, which is a column where they differ.
        columns: in their order.
        notes: sentences below the table.
        rest_in: the file that has all rows.
    """
    shown = rows[:MOST_LINES]
    several = len({name for name, _ in rows}) > 1
    made = [(column, [column.cell(row) for _, row in shown]) for column in columns]
    needed = [(column, cells) for column, cells in made if column.is_needed(cells)]
    used = {flag for _, cells in needed for cell in cells for flag in cell.flags}
    headings = [
        Heading(text=column.heading, unit=column.unit, about=column.about, is_number=column.value is not None)
        for column, _ in needed
    ]
    lines: list[Sequence[Cell]] = list(zip(*(cells for _, cells in needed), strict=True))
    if several:
        headings.insert(0, Heading(text="run"))
        lines = [(Cell(name), *line) for (name, _), line in zip(shown, lines, strict=True)]
    left = [] if len(shown) == len(rows) else [_left_out(len(shown), len(rows), rest_in)]
    legend = {flag.name: flag.description for flag in FLAGS.values() if flag.name in used}
    return Table(title=title, headings=headings, lines=lines, notes=[*left, *notes], legend=legend)


def _left_out(shown: int, total: int, rest_in: str) -> str:
    return f"{grouped(shown)} of {grouped(total)} rows; all of them are in {rest_in}."


def about(kind: type[Any], name: str) -> str:
    """What the documentation says of a column of a CSV file."""
    return str(kind.__dataclass_fields__[name].metadata.get("about", ""))


def words(heading: str, name: str, kind: type[Any], **options: Any) -> Column[Any]:  # noqa: ANN401 - as in `Column`
    """A column with the text of a field."""
    return Column(heading=heading, about=about(kind, name), text=lambda row: _text(getattr(row, name)), **options)


def number(heading: str, name: str, kind: type[Any], *, unit: str = "", scale: float = 1.0) -> Column[Any]:
    """A column with a number of a field, times ``scale``."""

    def value(row: Any) -> float | None:  # noqa: ANN401 - a row of any table
        found: float | None = getattr(row, name)
        return found if found is None or scale == 1 else scale * float(found)

    return Column(heading=heading, unit=unit, about=about(kind, name), text=lambda row: digits(value(row)), value=value)


def interval(name: str, kind: type[Any], *, unit: str = "", is_bounded: bool = False) -> Column[Any]:
    """A column with the 95 % interval of a field; one that ``is_bounded``, as a percentage is, is never too wide."""

    def ends(row: Any) -> tuple[float | None, float | None]:  # noqa: ANN401 - a row of any table
        return getattr(row, f"{name}_ci_low"), getattr(row, f"{name}_ci_high")

    def text(row: Any) -> str:  # noqa: ANN401 - a row of any table
        low, high = ends(row)
        value = getattr(row, name)
        return "" if value is None else between(low, high, None if is_bounded else value)

    said = about(kind, f"{name}_ci_low").replace(", low end", "")
    return Column(heading="95 % CI", unit=unit, about=said, text=text, value=lambda row: ends(row)[0])


def flag_column(heading: str = "flags") -> Column[Any]:
    """The column of flags."""

    def flags(row: Flagged) -> list[str]:
        return [flag.name for flag in split_flags(row.flags)]

    return Column(heading=heading, about="warnings about the row; see below the table", text=_nothing, flags=flags)


def _nothing(_: object) -> str:
    return ""


def _text(value: object) -> str:
    return "" if value is None else "yes" if value is True else "no" if value is False else str(value)


def grouped(number: float) -> str:
    """A whole number in groups of three digits."""
    return f"{number:,.0f}".replace(",", _NARROW_SPACE)


def digits(value: float | None, least: int = 3) -> str:
    """A number with so many digits, all of it where it is larger, never an exponent; empty for None."""
    if value is None or not math.isfinite(value):
        return ""
    if value == 0 or isinstance(value, int):
        return grouped(value)
    return f"{value:,.{decimals(value, least)}f}".replace(",", _NARROW_SPACE)


def between(low: float | None, high: float | None, value: float | None = None) -> str:
    """``1.20-1.31``; ``wide`` where the high end is many times the value, a time or a ratio, if that is given."""
    if low is None or high is None:
        return ""
    if value is not None and high > UNBOUNDED * value:
        return "wide"
    return f"{digits(low)}\N{EN DASH}{digits(high)}"
