"""Values from JSON, checked once against the annotations of the class that they become.

``msgspec.convert`` would check the same types, NaN and paths, but bounds only where an annotation
has them, not of each number, and it drops the unknown entries of nested objects, which ``run.json``
keeps where a run is resumed.
"""

from __future__ import annotations

import collections.abc
import dataclasses
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
            return all(
                self.low <= n <= self.high or n in {math.inf, -math.inf} or n != n  # noqa: PLR0124 - NaN
                for n in numbers
            )
        if not numbers or not (min(numbers) >= self.low and max(numbers) <= self.high):
            return not numbers
        total = sum(numbers)
        return bool(total == total)  # noqa: PLR0124 - NaN alone differs

    def __str__(self) -> str:
        """Return the range in words."""
        return (
            f"{'' if self.finite else ', also infinity and NaN,'} from {self.low:g} to"
            f" {self.high:g}"
        )


#: A difference, which may have either sign.
Signed = Annotated[float, Limits(low=-LARGEST)]
#: A loss or a number computed from one: training may diverge.
Diverging = Annotated[float, Limits(low=-LARGEST, finite=False)]
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


def check_as(annotation: Any, data: object, name: str = "") -> Any:  # noqa: ANN401 - any annotation
    """Return ``data`` as ``annotation`` says: lists as tuples and objects as dataclasses where it
    names such.

    Raises:
        InputError: it is not what the annotation says; the sentence begins with ``name`` and the
            path to the value.
    """
    try:
        return _reader(annotation)(data)
    except _UnfitError as error:
        raise InputError(
            f"{name}{'.' if name and str(error)[0] not in ' [' else ''}{error}".strip()
        ) from error


@cache
def _reader(annotation: Any) -> Reader:  # noqa: ANN401 - any annotation
    """Return the function that checks and converts values of an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is not None:
        return _generic_reader(origin, arguments)
    if annotation is Any:
        return lambda value: value
    if annotation in {int, float}:
        return _number_reader(annotation, Limits())
    if annotation in {str, bool}:
        return _plain_reader(annotation)
    return (
        _typed_dict_reader(annotation)
        if is_typeddict(annotation)
        else _dataclass_reader(annotation)
    )


def _generic_reader(origin: Any, arguments: tuple[Any, ...]) -> Reader:  # noqa: ANN401 - any annotation
    """Return the reader of an annotation with arguments."""
    if origin is Annotated:
        return _number_reader(arguments[0], arguments[1])
    if origin is Literal:
        return _choice_reader(arguments)
    if origin in {Union, types.UnionType}:
        return _union_reader(arguments)
    if origin is tuple and Ellipsis not in arguments:
        return _pair_reader(arguments)
    if origin in {dict, collections.abc.Mapping}:
        return _mapping_reader(arguments[1])
    return _list_reader(arguments[0], tuple if origin is tuple else None)


def _unfit(expected: str, value: object) -> _UnfitError:
    text = repr(value)
    return _UnfitError(
        f" must be {expected}, and is {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}"
    )


def _plain_reader(kind: type) -> Reader:
    name = {str: "a text", bool: "true or false"}[kind]

    def read(value: object) -> object:
        if type(value) is not kind:
            raise _unfit(name, value)
        return value

    return read


def _numbers(kind: type) -> tuple[set[type], str]:
    """Return the types of ``kind``'s numbers in JSON, and their name; bool is not among them."""
    return ({int}, "whole number") if kind is int else ({int, float}, "number")


def _number_reader(kind: type, limits: Limits) -> Reader:
    allowed, name = _numbers(kind)
    low, high = limits.low, limits.high

    def read(value: Any) -> object:  # noqa: ANN401 - JSON
        if type(value) not in allowed or not (low <= value <= high or limits.check((value,))):
            raise _unfit(f"a {name}{limits}", value)
        return value

    return read


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    def read(value: object) -> object:
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise _unfit(f"one of {', '.join(map(str, choices))}", value)
        return value

    return read


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    """Return the reader of an optional value."""
    (reader,) = (_reader(kind) for kind in kinds if kind is not type(None))
    return lambda value: None if value is None else reader(value)


def _list_reader(kind: Any, make: Callable[[Any], Any] | None) -> Reader:  # noqa: ANN401 - any annotation
    inner = [member for member in get_args(kind) if member is not type(None)]
    optional = get_origin(kind) in {Union, types.UnionType} and len(inner) == 1
    number = inner[0] if optional else kind
    base, limits = get_args(number)[:2] if get_origin(number) is Annotated else (number, Limits())
    if base in {int, float}:
        return _numbers_reader(base, limits, make, optional=optional)
    reader = _reader(kind)

    def read(value: Any) -> object:  # noqa: ANN401 - JSON
        if type(value) not in {list, tuple}:
            raise _unfit("a list", value)
        items = (_at(f"[{place}]", reader, item) for place, item in enumerate(value))
        return (make or type(value))(items)

    return read


def _numbers_reader(
    kind: type, limits: Limits, make: Callable[[Any], Any] | None, *, optional: bool
) -> Reader:
    """Return the reader of a list of numbers, which checks all of them at once.

    ``optional`` allows null.
    """
    allowed, name = _numbers(kind)

    def read(value: Any) -> object:  # noqa: ANN401 - JSON
        if type(value) not in {list, tuple}:
            raise _unfit(f"a list of {name}s", value)
        numbers = [item for item in value if item is not None] if optional else value
        if not (allowed.issuperset(map(type, numbers)) and limits.check(numbers)):
            wrong = (
                number
                for number in numbers
                if type(number) not in allowed or not limits.check((number,))
            )
            raise _UnfitError(
                f" must hold {name}s{limits}, and holds {next(wrong, None)!r:.{_SHOWN}}"
            )
        return make(value) if make else value

    return read


def _pair_reader(kinds: tuple[Any, ...]) -> Reader:
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any) -> object:  # noqa: ANN401 - JSON
        if type(value) not in {list, tuple} or len(value) != len(readers):
            raise _unfit(f"a list of {len(readers)}", value)
        return tuple(
            _at(f"[{place}]", *both) for place, both in enumerate(zip(readers, value, strict=True))
        )

    return read


def _mapping_reader(kind: Any) -> Reader:  # noqa: ANN401 - any annotation
    reader = _reader(kind)

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _unfit("an object", value)
        return {name: _at(f".{name:.{_SHOWN}}", reader, one) for name, one in value.items()}

    return read


def _typed_dict_reader(kind: Any) -> Reader:  # noqa: ANN401 - a TypedDict
    hints = get_type_hints(kind, include_extras=True)
    readers = {name: _reader(hint) for name, hint in hints.items()}
    required: frozenset[str] = kind.__required_keys__

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _unfit("an object", value)
        _check_complete(required, value)
        return {
            **value,
            **{
                name: _at(name, readers[name], value[name])
                for name in readers.keys() & value.keys()
            },
        }

    return read


def _dataclass_reader(kind: Any) -> Reader:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind, include_extras=True)
    readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}
    required = frozenset(field.name for field in dataclasses.fields(kind) if _is_required(field))
    plain = {
        name: hint for name, hint in hints.items() if hint in {str, bool}
    }  # most fields, without a call

    def read(value: object) -> object:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise _unfit("an object", value)
        _check_complete(required, value)
        fields = {}
        for name, item in value.items():
            if type(item) is plain.get(name):
                fields[name] = item
            elif (reader := readers.get(name)) is not None:
                try:
                    fields[name] = reader(item)
                except _UnfitError as error:
                    raise _within(name, error) from error
        return kind(**fields)

    return read


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _check_complete(required: frozenset[str], value: JsonMapping) -> None:
    if not required <= value.keys():
        raise _UnfitError(f" lacks {', '.join(sorted(required - value.keys()))}")


def _at(place: str, reader: Reader, value: object) -> Any:  # noqa: ANN401 - what the reader gives
    """Read a value; an error states its path."""
    try:
        return reader(value)
    except _UnfitError as error:
        raise _within(place, error) from error


def _within(place: str, error: _UnfitError) -> _UnfitError:
    """Return the error with the path of the object that holds the value."""
    text = str(error)
    return _UnfitError(f"{place}{'' if text[0] in ' [.' else '.'}{text}")
