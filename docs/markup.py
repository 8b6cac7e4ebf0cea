"""What the generated pages share: tables, sentences from docstrings, and texts under fields."""

from __future__ import annotations

import ast
import inspect
import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown, which ends in a newline."""
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for line in lines:
        cells = " | ".join(" ".join(cell.split()).replace("|", "&#124;") for cell in line)
        rows.append(f"| {cells} |")
    return "\n".join(rows) + "\n"


def listing(lines: Iterable[tuple[str, str]]) -> str:
    """Return names with their meanings as a list of Markdown, which ends in a newline."""
    return "".join(f"- {name}: {' '.join(meaning.split())}\n" for name, meaning in lines)


def clause(sentence: str) -> str:
    """Return a sentence as part of another: without its capital and its full stop."""
    text = sentence.replace("``", "`").replace("None ", "null ").replace("None:", "null:")
    first, _, _ = text.partition(" ")
    if first[1:].islower() or first == "A":
        text = text[:1].lower() + text[1:]
    if text.endswith(".."):
        return text
    return text.removesuffix(".")


def first_paragraph(entry: object) -> str:
    """Return the first paragraph of a docstring, in one line of Markdown."""
    text = (inspect.getdoc(entry) or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("``", "`")


def docstrings_of_fields(cls: type[Any]) -> dict[str, str]:
    """Return what the text under each field of a class and of its bases says, in one line."""
    module = inspect.getmodule(cls)
    statements = ast.parse(inspect.getsource(module)).body if module else []
    (node,) = (
        each for each in statements if isinstance(each, ast.ClassDef) and each.name == cls.__name__
    )
    texts: dict[str, str] = {}
    for base in node.bases:
        if isinstance(base, (ast.Name, ast.Attribute)):
            parent = operator.attrgetter(ast.unparse(base))(module)
            if parent.__module__.startswith("commbench"):
                texts |= docstrings_of_fields(parent)
    for field, text in itertools.pairwise(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if not isinstance(text, ast.Expr) or not isinstance(text.value, ast.Constant):
            continue
        if isinstance(text.value.value, str):
            texts[field.target.id] = " ".join(text.value.value.split())
    return texts
