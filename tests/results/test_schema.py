"""Tests of checking JSON values against annotations."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest
from builders import make_launches
from hypothesis import given
from hypothesis import strategies as st

from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.schema import LARGEST, MOST_RANKS, Diverging, Ranks, Signed, check_as, read_as


class Note(TypedDict, total=False):
    """An object with some known entries."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A nested object."""

    size: int


@dataclass(frozen=True, kw_only=True)
class Outer:
    """An object with a field of every type."""

    name: str
    kind: Literal["a", "b"] = "a"
    count: int | None = None
    share: float = 0.0
    change: Signed = 0.0
    loss: Diverging = 0.0
    rank: Ranks = 0
    times: Sequence[float] = ()
    gaps: Sequence[int | None] = ()
    losses: Sequence[Diverging] = ()
    ends: tuple[float, float] | None = None
    sizes: tuple[int, ...] = ()
    parts: tuple[Inner, ...] = ()
    inner: Inner | None = None
    by_name: Mapping[str, int] = dataclasses.field(default_factory=dict)
    note: Note = dataclasses.field(default_factory=Note)
    flag: bool = False
    anything: Any = None


GOOD = {
    "name": "x",
    "kind": "b",
    "count": 3,
    "share": 1,
    "change": -2.5,
    "loss": float("nan"),
    "times": [1, 2.5],
    "gaps": [1, None],
    "losses": [float("inf")],
    "ends": [1.0, 2.0],
    "sizes": [1, 2],
    "parts": [{"size": 1}],
    "inner": {"size": 2, "later": 1},
    "by_name": {"a": 1},
    "note": {"text": "t", "later": [1]},
    "flag": True,
    "anything": {"x": []},
    "later": "ignored",
}


def test_good_values_are_taken_over() -> None:
    """Convert lists to tuples and objects to dataclasses; ignore unknown fields."""
    checked = read_as(Outer, GOOD)
    assert ((1.0, 2.0), (1, 2), (Inner(size=1),), Inner(size=2)) == (
        checked.ends,
        checked.sizes,
        checked.parts,
        checked.inner,
    )
    assert ([1, 2.5], {"text": "t", "later": [1]}, "b") == (
        checked.times,
        checked.note,
        checked.kind,
    )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("name", 3, "name must be a text, and is 3"),
        ("kind", "c", "kind must be one of a, b, and is 'c'"),
        ("count", 1.0, "count must be a whole number from 0"),
        ("count", True, "count must be a whole number"),
        ("count", -1, "count must be a whole number from 0 to 1e\\+18, and is -1"),
        ("share", "1", "share must be a number from 0"),
        ("share", float("nan"), "share must be a number"),
        ("share", 10 * LARGEST, "share must be a number"),
        ("share", 10**400, "share must be a number"),
        ("change", float("inf"), "change must be a number from -1e\\+18"),
        ("loss", 10**400, "loss must be a number, also infinity and NaN, from"),
        ("losses", [1e300], "losses must hold numbers, also infinity and NaN, from"),
        ("rank", MOST_RANKS + 1, "rank must be a whole number"),
        ("times", 1.0, "times must be a list of numbers, and is 1.0"),
        ("times", [1.0, "2"], "times must hold numbers from 0 to 1e\\+18, and holds '2'"),
        ("times", [1.0, float("nan")], "times must hold numbers .* holds nan"),
        ("times", [-1.0], "holds -1.0"),
        ("times", [True], "holds True"),
        ("gaps", [1, 0.5], "holds 0.5"),
        ("ends", [1.0], "ends must be a list of 2"),
        ("parts", [{"size": 1}, {}], r"parts\[1\] lacks size"),
        ("parts", {}, "parts must be a list"),
        ("inner", [1], "inner must be an object"),
        ("by_name", {"a": "b"}, r"by_name.a must be a whole number"),
        ("note", {"text": None}, r"note.text must be a text, and is None"),
        ("flag", 1, "flag must be true or false"),
    ],
)
def test_bad_values_are_named(field: str, value: object, words: str) -> None:
    """Name the field, its value and the expected type."""
    with pytest.raises(InputError, match=words):
        read_as(Outer, {**GOOD, field: value})


def test_missing_fields_are_named() -> None:
    """Name missing fields, and values that are not objects."""
    with pytest.raises(InputError, match="lacks name"):
        read_as(Outer, {})
    with pytest.raises(InputError, match=r"must be an object, and is \[1\]"):
        read_as(Outer, [1])
    with pytest.raises(InputError, match=r"^entry\[0\] must be a text"):
        check_as(Sequence[str], [1], "entry")


@given(
    field=st.sampled_from(sorted(GOOD)),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=5,
    ),
)
def test_any_json_is_taken_or_refused(field: str, value: object) -> None:
    """Raise only our error for any JSON, and return values that can be written again."""
    try:
        checked = read_as(Outer, {**GOOD, field: value})
    except InputError as error:
        text = str(error)
    else:
        text = json.dumps(dataclasses.asdict(checked))
    assert text


def test_unknown_fields_of_later_versions_are_ignored() -> None:
    """Ignore unknown fields of a record and of its case."""
    (record,) = make_launches([10.0])
    data = json.loads(json.dumps(record.to_json()))
    data["case"]["later"] = data["later"] = 1
    assert json.loads(json.dumps(Record.from_json(data).to_json())) == json.loads(
        json.dumps(record.to_json())
    )
