"""Tests of the registry of reasons: every code is registered and used, and causes are told apart by
code.
"""

import re
from pathlib import Path

import pytest

import commbench
from commbench.findings import Finding, UnsupportedError, shared_cause
from commbench.units import counted
from commbench.words import NOUNS, SENTENCES, phrase

SOURCES = [
    path.read_text()
    for path in Path(commbench.__file__).parent.rglob("*.py")
    if path.name != "words.py"
]


def test_every_code_is_used():
    """Name every registered code somewhere in the package, or the part of it that is fixed."""
    text = "".join(SOURCES)
    unused = []
    for code in SENTENCES:
        used = code.removesuffix("_remedy")  # of advice
        parts = code.split("_")
        stems = ["_".join(parts[:end]) for end in range(1, len(parts))]
        if f'"{used}"' not in text and not any(f'"{stem}_{{' in text for stem in stems):
            unused.append(code)
    assert [] == unused


def test_nouns_agree_with_their_numbers():
    """Count by a noun wherever a sentence has a number before a plural."""
    plurals = "|".join(counted(2, noun).removeprefix("2 ") for noun in NOUNS)
    bare = [code for code, text in SENTENCES.items() if re.search(rf"{{\w+}} ({plurals})\b", text)]
    assert [] == bare
    assert "on 1 rank" == phrase("on {:rank}", "1")


def test_an_unregistered_code_raises():
    """Refuse a code without a sentence, and a sentence without its parameters, when the reason is
    made.
    """
    with pytest.raises(KeyError, match="no_such_code"):
        UnsupportedError("no_such_code")
    with pytest.raises(KeyError, match="timeout_s"):
        Finding(code="no_progress", numbers={"cause": "rank 1 is stopped"})


def test_reasons_with_a_code_share_a_cause():
    """Compare by code, but by sentence if the reason has no code or quotes an error."""
    large, larger = (
        str(Finding(code="message_too_large", numbers={"backend": "mpi", "most": 7, "elements": n}))
        for n in (8, 9)
    )
    assert shared_cause("message_too_large", large) == shared_cause("message_too_large", larger)
    assert shared_cause("", large) != shared_cause("", larger)
    assert shared_cause("library_refused", "ValueError: x") != shared_cause(
        "library_refused", "OSError: y"
    )
