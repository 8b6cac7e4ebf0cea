"""Chosen fields of many values, for comparing them at once."""

from collections.abc import Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any


def fields_of(values: Iterable[Any], *names: str) -> list[Any]:
    """Return the named attribute of each value, or the item of a mapping; a tuple for several
    names.
    """
    fields = []
    for value in values:
        getter = itemgetter if isinstance(value, Mapping) else attrgetter
        fields.append(getter(*names)(value))
    return fields
