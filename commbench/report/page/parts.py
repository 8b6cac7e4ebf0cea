"""What a page is made of before it is HTML: findings, facts, tables and sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from commbench.report.figures.drawing import Drawing

Tone = Literal["", "good", "doubt", "bad", "quiet"]
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
    """What is doubtful about it."""
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
