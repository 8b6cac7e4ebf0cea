"""The parts of a page before they are HTML: findings, facts and sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from commbench.report.columns import Table, Tone
from commbench.report.figures.drawing import Drawing

#: A table with more lines scrolls in a box of its own.
LONG = 40


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
        described = (column for table in self.tables for column in table.columns if column.description)
        return list(dict.fromkeys((column.heading, column.description) for column in described))

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
