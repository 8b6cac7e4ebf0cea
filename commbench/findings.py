"""Facts without words: what an analysis found, or why a case has no result.

A finding has a code and numbers; `commbench.words` has the sentence of each code. Terminal, page,
JSON and rows show the same finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Literal, TypeAlias

from commbench.errors import CommbenchError, InputError
from commbench.words import SENTENCES, Estimate, sentence_of

#: How much a finding matters: a conclusion, a limit of it, or a further fact.
Level = Literal["verdict", "warning", "note"]
#: What a field of a sentence may hold; a tuple has names, or further findings.
Value: TypeAlias = "str | int | float | Estimate | tuple[str, ...] | tuple[Finding, ...]"
#: Fields with text from outside: reasons that differ in these have different causes.
_QUOTED = frozenset({"cause", "error", "last_line", "remedy", "sentence"})


@dataclass(frozen=True)
class Finding:
    """A fact, with the numbers that its sentence names.

    Raises:
        KeyError: its code has no sentence, or the sentence names a number that is missing.
    """

    code: str
    subject: str = ""
    """An operation of a backend (``gloo all_reduce``), a hook, a workload or a rank."""
    numbers: Mapping[str, Value] = field(default_factory=dict)
    """The other fields of the sentence."""
    level: Level = "note"
    section: str = ""
    """The section of a page with more about it; empty: none of its own."""
    details: tuple[Finding, ...] = ()
    """What belongs to it: a cause, or what to try."""

    def __post_init__(self) -> None:
        str(self)

    @classmethod
    def of(cls, error: CommbenchError) -> Finding:
        """Return the reason of an error; code ``stated`` if it carries none."""
        if isinstance(error, ReasonedError):
            return error.reason
        return cls.stated(str(error))

    @classmethod
    def stated(cls, sentence: str) -> Finding:
        """Return a reason without a code of its own."""
        return cls(code="stated", numbers={"sentence": sentence})

    def __str__(self) -> str:
        return sentence_of(self.code, self.subject, self.numbers)

    @property
    def in_full(self) -> str:
        """The sentence, and those of its details."""
        return as_text([self, *self.details])


def as_text(findings: Iterable[Finding]) -> str:
    """Return the sentences of findings as one text."""
    return " ".join(map(str, findings))


def shared_cause(code: str, sentence: str) -> str:
    """Return what reasons with the same cause have in common, from what a row states.

    It is the code, unless the sentence quotes text from outside or has no code, as in older files.
    """
    fields = {name for _, name, _, _ in Formatter().parse(SENTENCES.get(code, "{sentence}"))}
    return sentence if fields & _QUOTED else code


class ReasonedError(CommbenchError):
    """An error with a reason."""

    def __init__(self, code: str, subject: str = "", **numbers: Value) -> None:
        self.reason = Finding(code=code, subject=subject, numbers=numbers)
        super().__init__(str(self.reason))


class UnsupportedError(ReasonedError):
    """A backend cannot run a case, which becomes a row with this reason."""


class UnpredictedError(ReasonedError, InputError):
    """Something cannot be predicted from what was measured."""
