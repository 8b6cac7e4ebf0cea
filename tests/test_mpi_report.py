"""Tests of what is read from Open MPI's own words, and that nobody else's are lost."""

import os

import pytest

from commbench.communicators.mpi_report import LEVEL, VERBOSE, algorithm_of, captured, parse_component, with_component

REPORT = """\
[n0:12] coll:base:comm_select: new communicator: MPI COMM 3 DUP FROM 0 (cid 3)
[n0:12] (3/MPI COMM 3 DUP FROM 0): no underlying reduce; disqualifying myself
[n0:12] coll:base:comm_select: selecting       adapt, priority  40, Disabled
[n0:12] coll:base:comm_select: selecting       basic, priority  10, Enabled
[n0:12] coll:base:comm_select: selecting         han, priority  35, Enabled
[n0:12] coll:base:comm_select: selecting       tuned, priority  30, Enabled
"""


def test_the_preferred_component_is_the_enabled_one_of_highest_priority() -> None:
    """Read the report of Open MPI 5; know nothing where there is none."""
    assert "han" == parse_component(REPORT)
    assert "" == parse_component("something else")


@pytest.mark.parametrize(
    ("component", "operation", "expected"),
    [
        ("han", "all_reduce", "coll/han"),
        ("han", "all_to_all", ""),
        ("tuned", "all_to_all", "coll/tuned"),
        ("tuned", "bandwidth", ""),
        ("ucc", "all_reduce", ""),
        ("", "all_reduce", ""),
    ],
)
def test_only_what_the_component_has_is_claimed(component: str, operation: str, expected: str) -> None:
    """Say nothing of operations that another component may carry."""
    assert expected == algorithm_of(component, operation)


def make_noise() -> str:
    """Write what Open MPI writes, and a word of somebody else's between."""
    os.write(2, b"@commbench heartbeat\n" + REPORT.encode() + b"a warning\n")
    return "made"


def test_other_words_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the answer to our question off the terminal, and nothing else."""
    monkeypatch.setenv(VERBOSE, LEVEL)
    with captured(2) as seen:
        assert ("made", "han") == with_component(make_noise)
    assert "@commbench heartbeat\na warning\n" == seen.text


def test_a_person_s_own_question_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catch nothing where she has chosen how much Open MPI says."""
    monkeypatch.setenv(VERBOSE, "100")
    with captured(2) as seen:
        assert ("made", "") == with_component(make_noise)
    assert REPORT in seen.text
