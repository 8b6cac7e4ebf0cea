"""Tests of checking JSON values against annotations."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_good_values_are_taken_over():
    """Convert lists to tuples and objects to dataclasses; ignore unknown fields."""
    checked = read_as(Outer, GOOD)
    assert (1.0, 2.0) == checked.ends
    assert (1, 2) == checked.sizes
    assert (Inner(size=1),) == checked.parts
    assert Inner(size=2) == checked.inner
    assert [1, 2.5] == checked.times
    assert {"text": "t", "later": [1]} == checked.note


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 3),
        ("kind", "c"),
        ("count", 1.0),
        ("count", True),
        ("count", -1),
        ("share", "1"),
        ("share", float("nan")),
        ("share", 10 * LARGEST),
        ("share", 10**400),
        ("change", float("inf")),
        ("loss", 10**400),
        ("losses", [1e300]),
        ("rank", MOST_RANKS + 1),
        ("times", 1.0),
        ("times", [1.0, "2"]),
        ("times", [1.0, float("nan")]),
        ("times", [-1.0]),
        ("times", [True]),
        ("gaps", [1, 0.5]),
        ("ends", [1.0]),
        ("parts", [{"size": 1}, {}]),
        ("parts", {}),
        ("inner", [1]),
        ("by_name", {"a": "b"}),
        ("note", {"text": None}),
        ("flag", 1),
    ],
)
def test_bad_values_are_named(field, value):
    """Name the field of a value of another type or beyond its bounds."""
    with pytest.raises(InputError, match=f"^{field}"):
        read_as(Outer, {**GOOD, field: value})


def test_missing_fields_are_named():
    """Name missing fields, the place within a list, and refuse values that are not objects."""
    with pytest.raises(InputError, match="name"):
        read_as(Outer, {})
    with pytest.raises(InputError):
        read_as(Outer, [1])
    with pytest.raises(InputError, match=r"^entry\[0\]"):
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
def test_any_json_is_taken_or_refused(field, value):
    """Raise only our error for any JSON, and return values that can be written again."""
    try:
        checked = read_as(Outer, {**GOOD, field: value})
    except InputError as error:
        text = str(error)
    else:
        text = json.dumps(dataclasses.asdict(checked))
    assert text
