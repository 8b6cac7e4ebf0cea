"""The parts of a page before they are HTML: entries of the conclusion, facts and sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from commbench.report.columns import Table, Tone
from commbench.report.figures.drawing import Drawing

#: A table with more lines scrolls in its own box.
LONG = 40


def named(texts: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """Return the texts of several runs or hosts, each once; it names those whose it is, unless all
    have it.
    """
    names_by_text: dict[str, dict[str, None]] = {}
    names = set()
    for name, of_name in texts:
        names.add(name)
        for text in of_name:
            names_by_text.setdefault(text, {})[name] = None
    sentences = []
    for text, having in names_by_text.items():
        whose = "" if len(having) == len(names) else f"{', '.join(having)}: "
        sentences.append(f"{whose}{text}")
    return sentences


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text to copy."""

    title: str
    text: str


@dataclass(frozen=True)
class Entry:
    """Findings about one subject in the conclusion."""

    label: str
    """Its subject, in a word."""
    texts: Sequence[str]
    details: Sequence[str] = ()
    """Details in small print."""
    folded: Sequence[str] = ()
    """Further details, which a click shows."""
    codes: Sequence[Code] = ()
    """Text to copy, below the details."""
    tone: Tone = ""
    is_lead: bool = False
    """Whether it is a main result."""
    more: tuple[str, str] | None = None
    """The id of the section with more about it, and the text of the link."""


@dataclass
class Section:
    """A part of the page with a heading; left out if it is empty."""

    name: str
    """Its id."""
    title: str
    sentences: Sequence[str] = ()
    """The results in sentences."""
    tables: Sequence[Table] = ()
    warnings: Sequence[str] = ()
    """Warnings about the section's results."""
    codes: Sequence[Code] = ()
    figures: list[Drawing] = field(default_factory=list)

    @property
    def legend(self) -> dict[str, str]:
        """The flags in use in its tables, each with its meaning."""
        return {flag: meaning for table in self.tables for flag, meaning in table.legend.items()}

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The headings of its tables that need an explanation, each with its meaning."""
        columns = [column for table in self.tables for column in table.columns]
        described = [(each.heading, each.about) for each in columns if each.about]
        return list(dict.fromkeys(described))

    @property
    def has_content(self) -> bool:
        """Whether there is anything to show."""
        parts = [self.sentences, self.warnings, self.codes, self.figures, self.tables]
        return any(parts)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of the page for the template."""

    title: str
    subtitle: str
    """The subtitle: what was measured, and when."""
    findings: Sequence[Entry]
    facts: Mapping[str, str]
    """The main conditions of a single run, by name."""
    sections: Sequence[Section]
    time: str
    """The definition of the times of collectives."""
    intervals: str = "brackets and bands are 95 % intervals over launches"
    """The meaning of the intervals."""
