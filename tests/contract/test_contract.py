"""Tests that commbench's rows, printed numbers, options and exit codes equal the record, texts by
the list.
"""

import facts
import pytest

NEEDS_MPI = (
    "bad_input/",
    "printed/run",
)  # without a launcher every measuring command ends with that sentence


@pytest.mark.kept
@pytest.mark.parametrize("name", facts.recorded_names())
def test_nothing_has_changed_but_listed_words(name: str) -> None:
    """Equal the record of a run, a command or a command line, except listed texts."""
    if name.startswith(NEEDS_MPI):
        pytest.importorskip("mpi4py")
    if name.startswith("api/"):
        pytest.importorskip("torch")
    before = facts.facts_of(name, facts.recorded(name))
    changed = {path: text for path, text in facts.listed().items() if path in before}
    sentences = facts.differences(before, facts.facts_of(name, facts.observed(name)), changed)
    assert not sentences, "\n".join(sentences[:20])


def test_nothing_is_new_and_nothing_is_gone() -> None:
    """Record exactly the kept runs, commands and command lines."""
    assert sorted(facts.names()) == sorted(facts.recorded_names())


def test_changed_words_are_those_of_facts() -> None:
    """List only recorded texts, never a number, a name or an exit code."""
    recorded = {
        path: value
        for name in facts.recorded_names()
        for path, value in facts.facts_of(name, facts.recorded(name)).items()
    }
    assert [] == [
        path
        for path in facts.listed()
        if path not in recorded or not facts.is_words(path, recorded[path])
    ]


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        (1.0, 1.0 + 1e-12, True),
        ("1.5", "1.50", True),
        ("81.176", "81.177", False),
        ("", "0", False),
        (True, 1, False),
        (None, "None", False),
        ("ok", "wrong", False),
    ],
)
def test_numbers_are_equal_up_to_rounding(
    old: facts.Value, new: facts.Value, *, is_same: bool
) -> None:
    """Treat numbers as equal up to the last bits, also in table cells."""
    assert is_same == facts.same(old, new)


def test_a_number_is_never_excused() -> None:
    """Report a changed number, an unlisted changed text, and a listed text that did not change."""
    before: facts.Facts = {
        "rows/r/collectives.csv/0/time_us": "10.5",
        "rows/r/collectives.csv/0/reason": "It hung.",
    }
    now: facts.Facts = {
        "rows/r/collectives.csv/0/time_us": "10.6",
        "rows/r/collectives.csv/0/reason": "It stopped.",
    }
    assert 2 == len(facts.differences(before, now, {}))
    assert {"rows/r/collectives.csv/0/reason": "It stopped."} == facts.changed_words(before, now)
    assert 1 == len(facts.differences(before, now, facts.changed_words(before, now)))
    assert 1 == len(
        facts.differences(before, before, {"rows/r/collectives.csv/0/reason": "It hung."})
    )
