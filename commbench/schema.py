"""Values from JSON, checked once against the annotations of the class that they become.

``msgspec.convert`` would check the same types, NaN and paths, but bounds only where an annotation
has them, not of each number, and it drops the unknown entries of nested objects, which ``run.json``
keeps where a run is resumed.
"""

from __future__ import annotations

import collections.abc
import inspect
import itertools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from commbench.errors import InputError

T = TypeVar("T")
#: An object of JSON: one to write, and one that was read and is not checked yet.
JsonObject: TypeAlias = dict[str, Any]
JsonMapping: TypeAlias = Mapping[str, Any]
Reader = Callable[[Any], Any]

#: The largest number accepted: far above any measurement, and small enough that sums and squares
#: stay finite.
LARGEST = 1e18
#: The most ranks accepted, since arrays get the length of the highest rank.
MOST_RANKS = 10**6
_SHOWN = 40
#: Texts and truths, and the types of a number in JSON.
_PLAIN: Mapping[type, str] = {str: "a text", bool: "true or false"}
_NAMES: Mapping[type, str] = {int: "whole number", float: "number"}
_NUMBERS: Mapping[type, frozenset[type]] = {
    int: frozenset({int}),
    float: frozenset({int, float}),
}


@dataclass(frozen=True)
class Limits:
    """The range of a number; by default finite and not negative."""

    low: float = 0.0
    high: float = LARGEST
    finite: bool = True
    """Whether infinity and NaN are refused."""

    def check(self, numbers: Sequence[float]) -> bool:
        """Return whether all numbers are allowed.

        NaN, which min and max may miss, makes the sum NaN.
        """
        if not self.finite:
            numbers = [number for number in numbers if number - number == 0]  # finite ones
        if not numbers:
            return True
        is_within = min(numbers) >= self.low and max(numbers) <= self.high
        return is_within and not math.isnan(sum(numbers))


#: A difference, which may have either sign.
Signed = Annotated[float, Limits(low=-LARGEST)]
#: A loss or a number computed from one: training may diverge.
Diverging = Annotated[float, Limits(low=-LARGEST, finite=False)]
#: A bound; infinity where there is none.
Unlimited = Annotated[float, Limits(finite=False)]
#: A rank, or a number of ranks.
Ranks = Annotated[int, Limits(high=MOST_RANKS)]


class _UnfitError(ValueError):
    """A value does not fit its annotation; the sentence begins with the path to the value."""


def read_as(kind: type[T], data: object) -> T:
    """Return an instance of the dataclass ``kind`` from a JSON object; unknown fields are ignored.

    Raises:
        InputError: a field is missing or is not what its annotation says.
    """
    value: T = check_as(kind, data)
    return value


def check_as(annotation: Any, data: object, name: str = "") -> Any:
    """Return ``data`` as ``annotation`` says: lists as tuples and objects as dataclasses where it
    names such.

    Raises:
        InputError: it is not what the annotation says; the sentence begins with ``name`` and the
            path to the value.
    """
    try:
        return _at(name, _reader(annotation), data)
    except _UnfitError as error:
        raise InputError(str(error).strip(" .")) from error


@cache
def _reader(annotation: Any) -> Reader:  # noqa: PLR0911 - any annotation; a case each
    """Return the function that checks and converts values of an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return lambda value: value
    if annotation in {int, float}:
        return _Number(annotation, Limits())
    if annotation in _PLAIN:
        return _plain_reader(annotation)
    if origin is None:
        return _object_reader(annotation)
    if origin is Annotated:
        return _Number(*arguments)
    if origin is Literal:
        return _choice_reader(arguments)
    if origin in {Union, types.UnionType}:
        return _optional_reader(arguments)
    if origin in {dict, collections.abc.Mapping}:
        return _mapping_reader(arguments[1])
    return _list_reader(origin, arguments)


def _unfit(expected: str, value: object) -> _UnfitError:
    text = repr(value)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    return _UnfitError(f" must be {expected}, and is {text}")


def _at(place: str, reader: Reader, value: object) -> Any:
    """Read a value; an error states its path."""
    try:
        return reader(value)
    except _UnfitError as error:
        raise _UnfitError(f"{place}{error}") from error


def _plain_reader(kind: type) -> Reader:
    def read(value: object) -> object:
        if type(value) is not kind:
            raise _unfit(_PLAIN[kind], value)
        return value

    return read


@dataclass(frozen=True)
class _Number:
    """Reads a number."""

    kind: type
    limits: Limits

    def __call__(self, value: Any) -> object:
        limits = self.limits
        if type(value) in _NUMBERS[self.kind] and limits.low <= value <= limits.high:
            return value  # most, at once
        if not self.fit((value,)):
            expected = f"a {_NAMES[self.kind]} from {limits.low:g} to {limits.high:g}"
            raise _unfit(expected, value)
        return value

    def fit(self, values: Sequence[Any]) -> bool:
        """Return whether all values are allowed; bool is no number."""
        return _NUMBERS[self.kind].issuperset(map(type, values)) and self.limits.check(values)


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    def read(value: object) -> object:
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return value
        raise _unfit(f"one of {', '.join(map(str, choices))}", value)

    return read


def _optional_reader(kinds: tuple[Any, ...]) -> Reader:
    """Return the reader of a value or null."""
    (reader,) = (_reader(kind) for kind in kinds if kind is not type(None))
    return lambda value: None if value is None else reader(value)


def _list_reader(origin: Any, kinds: tuple[Any, ...]) -> Reader:
    """Return the reader of a list or tuple of one kind, or of a tuple with a kind for each item."""
    readers = [_reader(kind) for kind in kinds if kind is not Ellipsis]
    length, expected = None, "a list"
    if origin is tuple and Ellipsis not in kinds:
        length, expected = len(kinds), f"a list of {len(kinds)}"

    def read(value: Any) -> object:
        if type(value) not in {list, tuple} or length not in {None, len(value)}:
            raise _unfit(expected, value)
        items = value
        first, *others = readers
        if others or not (isinstance(first, _Number) and first.fit(value)):  # all numbers at once
            pairs = enumerate(zip(itertools.cycle(readers), value, strict=False))
            items = [_at(f"[{place}]", *pair) for place, pair in pairs]
        if origin is tuple:
            return tuple(items)
        return items

    return read


def _mapping_reader(kind: Any) -> Reader:
    reader = _reader(kind)

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _unfit("an object", value)
        return {name: _at(f".{name:.{_SHOWN}}", reader, one) for name, one in value.items()}

    return read


def _object_reader(kind: Any) -> Reader:
    """Return the reader of an object; a TypedDict keeps unknown entries."""
    hints = get_type_hints(kind, include_extras=True)
    is_dict = is_typeddict(kind)
    if is_dict:
        names, required = list(hints), kind.__required_keys__
    else:
        parameters = inspect.signature(kind).parameters.values()
        names = [each.name for each in parameters]
        required = {each.name for each in parameters if each.default is each.empty}
    readers = {name: _reader(hints[name]) for name in names}

    def read(value: object) -> object:
        if not is_dict and isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise _unfit("an object", value)
        if not required <= value.keys():
            raise _UnfitError(f" lacks {', '.join(sorted(required - value.keys()))}")
        entries = {}
        if is_dict:
            entries.update(value)
        for name, item in value.items():
            if name in readers:
                entries[name] = _at(f".{name}", readers[name], item)
        if is_dict:
            return entries
        return kind(**entries)

    return read
