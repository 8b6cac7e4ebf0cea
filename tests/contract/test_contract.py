"""Commands, exit codes, options, tables and printed figures stay as recorded; texts change only if listed."""

import json
import math
from typing import Any

import pytest

pytest.importorskip("mpi4py")  # without a launcher every measuring command ends with that sentence
pytest.importorskip("pyarrow")

import observe
import record

TABLES: dict[str, Any] = json.loads(record.TABLES.read_text(encoding="utf-8"))
BEFORE: dict[str, Any] = json.loads(record.BEHAVIOUR.read_text(encoding="utf-8"))
CHANGED: dict[str, str] = json.loads(record.CHANGED.read_text(encoding="utf-8"))
TEXTS = record.texts(BEFORE)
#: A library may sum in another order.
TOLERANCE = 1e-9


def is_same(one: object, other: object) -> bool:
    """Whether two cells are equal, numbers within the tolerance."""
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    return one == other


def expected(where: str) -> str:
    """Return the recorded text, or the listed one that has replaced it."""
    return CHANGED.get(where, TEXTS[where])


@pytest.mark.parametrize("line", BEFORE["answers"])
def test_bad_input_is_refused_as_before(line: str) -> None:
    """End with the same exit code, write nothing, and say the recorded or the listed sentence."""
    before, now = BEFORE["answers"][line], observe.answer(line)
    assert (before["code"], before["stdout"], []) == (now["code"], now["stdout"], now["wrote"])
    assert expected(f"stderr of {line}") == now["stderr"]


@pytest.mark.parametrize("command", BEFORE["help"])
def test_help_is_recorded_or_listed(command: str) -> None:
    """Print the recorded help, or the listed one."""
    assert expected(f"help of {command}") == observe.help_of(command)


def test_no_listed_text_is_stale() -> None:
    """List a text only if it differs from the recorded one."""
    assert [] == [where for where, text in CHANGED.items() if TEXTS.get(where) == text]


@pytest.mark.parametrize("command", BEFORE["options"])
def test_options_are_as_before(command: str) -> None:
    """Keep names, defaults and kinds of every option."""
    assert BEFORE["options"][command] == observe.options_of(command)


def test_commands_are_as_before() -> None:
    """Lose no command."""
    assert set(BEFORE["options"]) <= set(observe.commands())


@pytest.mark.parametrize("run", TABLES)
def test_tables_of_kept_runs_are_as_before(run: str) -> None:
    """Make the same tables from the samples of a kept run: the same columns in the same order, the same cells."""
    now = observe.tables_of(run)
    assert list(TABLES[run]) == list(now)
    for name, columns in TABLES[run].items():
        assert list(columns) == list(now[name])
        different = [
            (name, column, row, before, after)
            for column, cells in columns.items()
            for row, (before, after) in enumerate(zip(cells, now[name][column], strict=True))
            if not is_same(before, after)
        ]
        assert [] == different


@pytest.mark.parametrize("key", BEFORE["figures"])
def test_printed_figures_are_as_before(key: str) -> None:
    """Print every number that was printed before."""
    assert [] == sorted(set(BEFORE["figures"][key]) - set(observe.figures_of(observe.PRINTED[key])))
